"""Which of two states counts as the right one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minga.network.interface import PeerId
from minga.training.agreement.comparison import HISTORY, Drift, StateHistory, StateMeasure, is_same
from minga.training.record_kinds import RUN_KINDS, StateInfo

A, B, C, D = (PeerId(letter * 64) for letter in "abcd")


def digest(step: int, side: str) -> str:
    """Which of two sides has the smaller one changes from step to step."""
    return f"{(step * 7919 + (step % 2 if side == 'left' else 1 - step % 2)) % 2**32:064x}"


def gives_way(me: PeerId, side: str, step: int, others: dict[PeerId, str]) -> bool:
    history = StateHistory()
    history.add(StateInfo(step, digest(step, side)))
    told = [(peer, StateInfo(step, digest(step, other))) for peer, other in others.items()]
    return history.is_minority(told, me)


@pytest.mark.parametrize("step", range(1, 12))
def test_of_two_halves_the_same_one_gives_way_in_each_step(step: int) -> None:
    sides = {A: "left", B: "right", C: "right", D: "left"}
    for me, side in sides.items():
        others = {peer: other for peer, other in sides.items() if peer != me}
        assert gives_way(me, side, step, others) == (side == "right")


def test_more_outvote_fewer_whoever_they_are() -> None:
    assert gives_way(A, "left", 3, {B: "right", C: "right"})
    assert not gives_way(D, "left", 3, {A: "right", C: "left"})


def test_of_as_many_those_that_stand_firm_are_right() -> None:
    history = StateHistory()
    history.add(StateInfo(1, digest(1, "left")))
    one, two = [(B, StateInfo(1, digest(1, "right")))], [(each, StateInfo(1, digest(1, "right"))) for each in (B, C)]
    assert not history.is_minority(one, A)
    assert history.is_minority(one, A, (), [B])
    assert history.is_minority(one, A, [B], [A]), "the first group comes first"
    assert not history.is_minority(one, C, [C])
    assert history.is_minority(two, A, [A]), "more outvote fewer"


def test_only_the_newest_common_step_counts() -> None:
    history = StateHistory()
    for step in (1, 2, 3):
        history.add(StateInfo(step, digest(step, "left")))
    told = [(B, StateInfo(1, digest(1, "right"))), (C, StateInfo(1, digest(1, "right")))]
    assert history.is_minority(told, A)
    assert not history.is_minority([*told, (D, StateInfo(2, digest(2, "left")))], A)
    assert not history.is_minority([(B, StateInfo(9, digest(9, "right")))], A)


def test_little_is_remembered_and_all_is_forgotten() -> None:
    history = StateHistory()
    for step in range(HISTORY + 1):
        history.add(StateInfo(step, digest(step, "left")))
    assert not history.is_minority([(B, StateInfo(0, "0" * 64)), (C, StateInfo(0, "0" * 64))], A)
    history.clear()
    assert not history.is_minority([(B, StateInfo(HISTORY, "0" * 64))], A)


def info(name: str, *numbers: float, tolerance: float = 1.0) -> StateInfo:
    return StateInfo(5, digest(5, "left")[:63] + name, (*numbers, 0.0), tolerance)


def test_states_that_rounding_explains_are_one_side() -> None:
    history = StateHistory()
    history.add(info("a", 10.0))
    near = [(B, info("b", 10.5)), (C, info("c", 9.5))]
    assert not history.is_minority(near, A)
    assert history.drift(near) == Drift(0.5, 1.0)
    assert history.drift([(B, info("a", 10.0))]) is None
    assert history.drift([]) is None
    far = [(B, info("b", 20.0)), (C, info("c", 20.5))]
    assert history.is_minority(far, A)
    assert history.drift(far) is None
    assert history.drift([*near, *far]) == Drift(0.5, 1.0)
    assert not history.is_minority([(B, info("b", 20.0)), (C, info("c", 10.5))], A)


def test_without_a_sketch_digests_have_to_be_equal() -> None:
    history = StateHistory()
    history.add(StateInfo(5, "a" * 64))
    others = [(B, StateInfo(5, "b" * 64)), (C, StateInfo(5, "b" * 64))]
    assert history.is_minority(others, A)
    assert history.drift(others) is None
    assert not is_same(info("a", 1.0), StateInfo(5, "b" * 64))
    assert not is_same(StateInfo(5, "b" * 64), info("a", 1.0))


def test_peers_that_train_something_else_have_another_state_however_close_their_numbers_are() -> None:
    def told(number: int, trains: str) -> StateInfo:
        digest = f"{number:064x}"
        replica: Any = SimpleNamespace(digest=lambda: digest, step=7, trains=trains, sketch=lambda: (1.0, 2.0))
        return StateMeasure(replica, has_sketch=True).at_rest()

    one = told(1, "a" * 32)
    assert is_same(one, told(2, "a" * 32))
    assert not is_same(one, told(2, "b" * 32))


@pytest.mark.parametrize("tolerance", [0.0, 1e18])
def test_a_lying_peer_cannot_widen_what_others_tolerate(tolerance: float) -> None:
    history = StateHistory()
    history.add(info("a", 10.0))
    assert history.is_minority([(B, info("b", 20.0, tolerance=tolerance)), (C, info("b", 20.0))], A)


@pytest.mark.parametrize("largest", [3e18, float("inf"), float("nan")])
def test_the_state_of_a_model_that_diverges_is_told_without_a_sketch(largest: float) -> None:
    replica: Any = SimpleNamespace(digest=lambda: "ab" * 32, step=7, trains="", sketch=lambda: (1.0, largest))
    told = StateMeasure(replica, has_sketch=True).at_rest()
    assert RUN_KINDS.encode(told)
    assert (told.step, told.sketch) == (7, ())
