"""The words by which peers refuse, which peers of all versions read."""

from __future__ import annotations

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCause, RefusalCode

ON_THE_WIRE = """
refused version run access banned cut_off full method busy often address gone not_ready idle stand_by ahead behind
diverged layout unfair round part late aborted given_up term member absent attempt session clock key orders
"""


def test_the_words_of_refusals_stay_as_peers_of_other_versions_know_them() -> None:
    assert {code.value for code in RefusalCode} == set(ON_THE_WIRE.split())
    assert all(RefusalCode.of(word).value == word for word in ON_THE_WIRE.split())
    assert RefusalCode.of("a word of a later version") is RefusalCode.REFUSED


def test_a_refusal_says_what_it_takes_before_the_same_request_can_succeed() -> None:
    assert RejectedError("no").code.cause is RefusalCause.REMOTE
    assert RefusalCode.BANNED.cause is RefusalCause.LOCAL
    assert RefusalCode.BUSY.cause is RefusalCause.TEMPORARY
    assert RefusalCode.GIVEN_UP.cause is RefusalCause.OVER
