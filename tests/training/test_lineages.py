"""Which histories of one run may lead to which others."""

from __future__ import annotations

from minga.network.interface import PeerId
from minga.training.lineage import Lineage

A, B, C, D = (PeerId(digit * 64) for digit in "abcd")


def test_who_took_rounds_alone_does_not_take_as_many_of_another_peer_for_its_own() -> None:
    """What it had collected beside them was counted in the other history."""
    together = Lineage.founded("0" * 32).after("both", [A, B])
    one = other = together
    for number in range(3):
        one, other = one.after(f"one {number}", [A]), other.after(f"other {number}", [B])
        for later in (other, other.after("with a newcomer", [B, C]), one.after("next", [A])):
            assert not one.may_lead_to(later)
        assert one.may_lead_to(one)
        assert not together.may_lead_to(one)
    joined = one.after("joined", [A, C])
    assert joined.may_lead_to(joined.after("next", [A, C]).after("next but one", [C, A]))
    assert not joined.may_lead_to(joined.after("next", [A]))
    assert not joined.may_lead_to(other.after("joined by another", [B, D]).after("next", [B, D]))


def test_who_took_rounds_alone_may_catch_up_with_those_that_had_its_state_and_took_one_without_it() -> None:
    """It lost the samples that it had for their next round."""
    alone = Lineage.founded("0" * 32).after("first", [A]).after("second", [A])
    assert alone.may_lead_to(alone.after("third", [B, C]))
    assert not alone.may_lead_to(alone.after("third", [B, C]).after("fourth", [B]))
