"""How a run looks from its door."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minga.network.gossip.board import Item
from minga.network.interface import PeerId
from minga.training.prospect import look
from minga.training.record_kinds import Progress
from tests.worlds.swarm_tools import make_spec

LAST = 1000


@pytest.mark.parametrize(
    ("steps", "completed"),
    [
        ([LAST, LAST], LAST),
        ([LAST, LAST, 0], LAST),  # a newcomer, which has no state yet
        ([500] * 5 + [10**9], None),  # a liar beside a run that is paused
        ([500, 10**9], None),
        ([10**9, LAST, LAST], LAST),
        ([], None),
    ],
)
def test_a_run_is_complete_if_most_peers_say_so(
    steps: list[int], completed: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minga.training.prospect.LOOK_S", 0.0)  # nobody here ever trains
    told = [
        Item(
            PeerId(f"peer-{number}"),
            Progress(step=step, samples=0, samples_per_second=0.0, status="paused"),
            1.0,
        )
        for number, step in enumerate(steps)
    ]
    board: Any = SimpleNamespace(items=lambda kind: told if kind is Progress else [], get=lambda *_: None)
    session: Any = SimpleNamespace(board=board, ledger=None, node=SimpleNamespace(run_id="run"))
    thread: Any = SimpleNamespace(ask=lambda read: read())
    spec = make_spec(64, training={"stop_after_steps": LAST})
    assert look(thread, session, spec, "organiser").completed == completed
