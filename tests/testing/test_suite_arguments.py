"""The suites say in one line what to pass; a class in the place of an instance failed deep inside, or in a check."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from minga.averaging.quantizers.sign import SignCodec
from minga.security import CenteredClip
from minga.testing import check_aggregator, check_codec, check_pair, check_strategy
from minga.training import Synchronous


@pytest.mark.parametrize(
    ("check", "given", "message"),
    [
        (check_codec, SignCodec, "pass an instance: check_codec(SignCodec())"),
        (check_codec, "int8", "pass an instance of Codec, not 'int8': check_codec(MyCodec())"),
        (check_aggregator, CenteredClip, "pass an instance: check_aggregator(CenteredClip())"),
        (check_strategy, object.__new__(Synchronous), "pass the class, not an instance: check_strategy(Synchronous)"),
        (check_strategy, "local", "pass a class of Strategy, not 'local': check_strategy(MyStrategy)"),
        (check_strategy, SignCodec, "pass a class of Strategy, not SignCodec: check_strategy(MyStrategy)"),
        (
            check_pair,
            "topk",
            "pass an instance of CodecPair, not 'topk': check_pair(CodecPair(MyUpload(), MyDownload()))",
        ),
    ],
)
def test_a_suite_says_what_to_pass(check: Callable[[Any], None], given: Any, message: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(message)}$"):
        check(given)
