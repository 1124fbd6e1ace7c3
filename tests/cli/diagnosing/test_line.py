"""What the doctor says of this machine's line: what a step carries for it, how long that takes, and what to do."""

from __future__ import annotations

import pytest

from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.cli.diagnosing.line import MeasuredRates, against_plan
from minga.network.interface import PeerId
from minga.training.status.run_status import LiveRates

MBIT = 1e6 / 8
WORK = StepWork(vector_bytes=4_000_000, batch=400)


def run_of(count: int, rate: float = 20 * MBIT) -> LiveRates:
    peers = tuple(PeerRates(rate, rate, 10.0) for _ in range(count))
    return LiveRates(tuple(PeerId(f"{n:064x}") for n in range(count)), SwarmRates(peers), int(WORK.vector_bytes))


def said(measured: MeasuredRates, paths: dict[str, int], count: int = 3) -> tuple[str, str]:
    ok, detail, advice = against_plan(run_of(count), WORK, measured, paths)
    assert ok
    return detail, advice


def test_a_line_like_that_of_the_others_is_told_in_one_sentence_with_its_figures() -> None:
    detail, advice = said((20 * MBIT, 20 * MBIT), {"direct": 3})
    assert detail == (
        "a step carries 6 MB up and 6 MB down for this machine; its line, 20 Mbit/s up and 20 Mbit/s down, "
        "takes 2.4 s for that, in a round of 2.4 s and a step of 12.4 s; paths to peers: 3 direct"
    )
    assert advice == ""


@pytest.mark.parametrize(
    ("measured", "paths", "expected"),
    [
        ((0.5 * MBIT, 20 * MBIT), {"direct": 3}, "this machine would rest"),
        ((6 * MBIT, 20 * MBIT), {"direct": 3}, "steps take longer with this line"),
        ((20 * MBIT, 20 * MBIT), {"relayed": 3}, "every path leads through a relay"),
        ((20 * MBIT, 20 * MBIT), {"direct": 1, "relayed": 2}, ""),
        ((None, None), {}, "try again in a moment"),
    ],
)
def test_what_is_wrong_with_a_line_comes_with_what_to_do(
    measured: MeasuredRates, paths: dict[str, int], expected: str
) -> None:
    _, advice = said(measured, paths)
    assert advice.startswith(expected)
    assert bool(advice) is bool(expected)


def test_a_line_that_was_not_measured_and_a_run_of_one_are_no_error() -> None:
    detail, _ = said((None, None), {}, 1)
    assert "could not be measured" in detail
    assert "round" not in detail
    assert "paths to peers: none" in detail
