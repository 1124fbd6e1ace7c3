"""Whom a peer believes what time it is in the run."""

from __future__ import annotations

import pytest

from minga.core.errors import RejectedError
from minga.network.interface import PeerId
from minga.network.rpc.run_clock import MAX_CORRECTION_S, RunClock

NOON = 1_767_225_600.0
ENTRY, *OTHERS = (PeerId(f"{number:064x}") for number in range(9))
QUARTER_S = 840.0


class Machine:
    """A machine with a clock that may be wrong, and a peer on it. All its clocks stood still for `paused_s` until
    somebody set the one that shows the date.
    """

    def __init__(self, skew_s: float = 0.0, *trusted: PeerId, own_id: str = "") -> None:
        self.true_s, self.skew_s, self.paused_s = NOON, skew_s, 0.0
        self.clock = RunClock(
            lambda: self.true_s + self.skew_s, lambda: self.true_s - self.paused_s - NOON + 77.0, trusted, own_id
        )

    def ahead_s(self) -> float:
        """By how much the run's time, as this peer knows it, is ahead of the true time."""
        return self.clock.now() - self.true_s

    def meet(self, peer: PeerId, ahead_s: float) -> None:
        """Connect to a peer that says so."""
        self.clock.meet(peer, self.true_s + ahead_s)


@pytest.mark.parametrize("lie_s", [QUARTER_S, -QUARTER_S, 7200.0])
def test_one_liar_moves_nobody(lie_s: float) -> None:
    founder, member = Machine(), Machine(0.0, ENTRY)
    member.clock.enter_by(ENTRY, NOON)
    member.meet(ENTRY, 0.0)
    for machine in (founder, member):
        machine.meet(OTHERS[0], lie_s)
        assert machine.ahead_s() == 0.0
        machine.meet(OTHERS[1], 0.0)
        machine.meet(OTHERS[2], lie_s)
        assert machine.ahead_s() == 0.0


def test_most_of_those_who_are_there_decide() -> None:
    machine = Machine()
    for number, peer in enumerate(OTHERS[:3]):
        machine.meet(peer, QUARTER_S)
        assert machine.ahead_s() == (QUARTER_S if number else 0.0)
    for peer in OTHERS[:2]:  # who has left has no say any more
        machine.clock.part(peer)
    machine.meet(OTHERS[3], 0.0)
    machine.meet(OTHERS[4], 0.0)
    assert machine.ahead_s() == 0.0


def test_a_newcomer_goes_by_its_entry_until_most_others_say_otherwise() -> None:
    newcomer = Machine(-QUARTER_S, ENTRY)
    newcomer.meet(OTHERS[0], 0.0)  # dials it before it has come in, and is no entry
    assert not newcomer.clock.is_settled
    assert newcomer.ahead_s() == -QUARTER_S
    newcomer.clock.enter_by(ENTRY, newcomer.true_s)
    assert newcomer.clock.is_settled
    assert newcomer.ahead_s() == 0.0

    misled = Machine(0.0, ENTRY)
    misled.clock.enter_by(ENTRY, misled.true_s + QUARTER_S)
    misled.meet(ENTRY, QUARTER_S)
    assert misled.ahead_s() == QUARTER_S
    misled.meet(OTHERS[0], 0.0)
    misled.meet(OTHERS[1], 0.0)
    assert misled.ahead_s() == 0.0


def test_nobody_moves_a_peer_by_more_than_half_an_hour() -> None:
    machine = Machine()
    for peer in OTHERS:
        machine.meet(peer, MAX_CORRECTION_S + 60.0)
    assert machine.ahead_s() == 0.0
    newcomer = Machine(0.0, ENTRY)
    with pytest.raises(RejectedError, match="31 min behind the run's"):
        newcomer.clock.enter_by(ENTRY, newcomer.true_s + MAX_CORRECTION_S + 60.0)
    assert newcomer.ahead_s() == 0.0


def test_a_founder_says_whose_clock_is_too_far_off_and_a_newcomer_does_not() -> None:
    founder, newcomer = Machine(), Machine(0.0, ENTRY)
    for skew_s in (3600.0, -3600.0):
        with pytest.raises(RejectedError, match="this machine's clock is 1 h"):
            founder.clock.check_guest(OTHERS[0], founder.true_s + skew_s, None)
        newcomer.clock.check_guest(OTHERS[0], newcomer.true_s + skew_s, None)
    founder.clock.check_guest(OTHERS[0], founder.true_s + MAX_CORRECTION_S - 1.0, None)
    with pytest.raises(RejectedError, match="behind the run's"):
        founder.clock.check_guest(OTHERS[0], 80.0, None)  # a machine that has no date yet
    assert founder.ahead_s() == 0.0


def test_two_that_come_back_at_once_go_by_one_of_them() -> None:
    """Each is an entry of the other, and nobody else is left."""
    first, second = Machine(-QUARTER_S, OTHERS[0], own_id=ENTRY), Machine(QUARTER_S, ENTRY, own_id=OTHERS[0])
    for machine in (first, second):
        machine.clock.settle()
    first_s, second_s = first.ahead_s(), second.ahead_s()
    first.meet(OTHERS[0], second_s)
    second.meet(ENTRY, first_s)
    assert first.ahead_s() == second.ahead_s() == first_s


def test_a_clock_that_is_set_right_in_the_middle_changes_nothing() -> None:
    corrected, founder = Machine(QUARTER_S, ENTRY), Machine(-QUARTER_S)
    corrected.clock.enter_by(ENTRY, corrected.true_s - QUARTER_S)
    corrected.meet(ENTRY, -QUARTER_S)
    founder.clock.meet(OTHERS[0], None)
    for machine in (corrected, founder):
        machine.skew_s = 0.0
        machine.true_s += 600.0
        assert machine.ahead_s() == -QUARTER_S
        machine.meet(OTHERS[1], -QUARTER_S)
        assert machine.ahead_s() == -QUARTER_S


def test_a_machine_that_was_paused_goes_by_its_clock_again() -> None:
    alone, member = Machine(), Machine()
    member.clock.meet(OTHERS[0], None)
    for machine in (alone, member):
        machine.true_s += 8 * 3600.0
        machine.paused_s = 8 * 3600.0
    assert alone.ahead_s() == 0.0
    member.meet(OTHERS[1], 0.0)  # one other and its own clock are two of three
    assert member.ahead_s() == 0.0
    for peer in OTHERS[:2]:
        member.clock.part(peer)
    assert member.ahead_s() == 0.0


def test_what_a_machine_was_paused_is_no_correction() -> None:
    """Neither where all others are gone when it goes on, nor where one was paused as long beside it."""
    left, beside = Machine(-QUARTER_S), Machine(-QUARTER_S)
    for machine in (left, beside):
        machine.clock.meet(OTHERS[0], machine.clock.now())
        machine.true_s += 8 * 3600.0
        machine.paused_s = 8 * 3600.0
        assert machine.clock.voice() is None
    left.clock.part(OTHERS[0])
    beside.meet(OTHERS[0], -QUARTER_S)
    for machine in (left, beside):
        machine.clock.check_guest(OTHERS[1], machine.true_s, None)
        assert machine.ahead_s() == -QUARTER_S
    left.meet(OTHERS[1], 0.0)
    left.meet(OTHERS[2], 0.0)
    assert left.ahead_s() == 0.0


def test_a_clock_that_is_set_wrong_in_company_gives_no_weight_to_others_that_are_ahead() -> None:
    founder, second = Machine(), Machine(600.0, ENTRY)
    second.clock.enter_by(ENTRY, founder.true_s)
    second.meet(ENTRY, 0.0)
    founder.meet(OTHERS[0], 0.0)
    founder.skew_s = 86400.0
    second.clock.meet(ENTRY, founder.clock.voice())
    founder.clock.meet(OTHERS[0], second.clock.voice())
    assert second.ahead_s() == founder.ahead_s() == 0.0


def test_a_clock_that_is_set_wrong_in_company_is_not_taken_for_right_once_the_others_are_lost() -> None:
    founder, member = Machine(), Machine(700.0, ENTRY)
    member.clock.enter_by(ENTRY, founder.true_s)
    for machine, skew_s in ((founder, 86400.0), (member, 700.0 + 1740.0)):
        machine.meet(OTHERS[0], 0.0)
        machine.skew_s = skew_s
        machine.clock.part(OTHERS[0])
        assert machine.ahead_s() == 0.0
        machine.clock.check_guest(OTHERS[1], machine.true_s, None)
        machine.clock.meet(OTHERS[1], None)  # a newcomer, which does not know the time yet, was not paused
        assert machine.ahead_s() == 0.0


def test_a_peer_on_its_own_goes_by_that_of_its_times_which_fits_the_next_one() -> None:
    """Its machine's clock was set wrong, or the machine was paused: it cannot know which."""
    wrong, paused, corrected = Machine(), Machine(), Machine(QUARTER_S, ENTRY)
    corrected.clock.enter_by(ENTRY, corrected.true_s)
    for machine in (wrong, paused, corrected):
        machine.meet(ENTRY, 0.0)
        machine.clock.part(ENTRY)
        machine.true_s += 8 * 3600.0
    wrong.skew_s, paused.paused_s, corrected.paused_s = 86400.0, 8 * 3600.0, 1200.0
    assert wrong.ahead_s() == corrected.ahead_s() == 0.0
    for machine in (wrong, paused):
        machine.clock.check_guest(OTHERS[1], machine.true_s + 86400.0 * (machine is wrong), None)  # a stranger
        machine.clock.check_guest(OTHERS[0], machine.true_s, machine.true_s)
        assert machine.ahead_s() == 0.0
        with pytest.raises(RejectedError, match="this machine's clock is 1 h behind the run's"):
            machine.clock.check_guest(OTHERS[1], machine.true_s - 3600.0, None)
        assert machine.ahead_s() == 0.0
        machine.meet(OTHERS[0], 0.0)
        assert machine.ahead_s() == 0.0


def test_a_clock_that_is_set_wrong_for_a_while_is_no_correction() -> None:
    machine = Machine()
    machine.meet(OTHERS[0], 0.0)
    for skew_s in (-7200.0, 7200.0):
        machine.skew_s = skew_s
        machine.meet(OTHERS[0], 0.0)
        assert machine.ahead_s() == 0.0
    machine.clock.part(OTHERS[0])
    machine.skew_s = 0.0
    assert machine.ahead_s() == 0.0
