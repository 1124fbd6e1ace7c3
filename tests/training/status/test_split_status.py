"""The status of a run whose model is cut: who serves, how many train, how fast."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from minga.cli.taking_part.status import headline, peers_by_kind
from minga.network.gossip.record_kinds import Payload
from minga.training.record_kinds import Metrics, SplitServing
from minga.training.status.run_status import WINDOW_S, PeerStatus, RunStatus, SplitMeter, with_split


class StillBoard:
    """Records that lie there."""

    def __init__(self) -> None:
        self.records: dict[type[Payload], dict[str, tuple[Payload, float]]] = {}

    def put(self, owner: str, payload: Payload, age_s: float = 0.0) -> None:
        self.records.setdefault(type(payload), {})[owner] = (payload, age_s)

    def items(self, kind: type[Payload]) -> list[Any]:
        found = self.records.get(kind, {}).items()
        return [SimpleNamespace(owner=owner, payload=payload, age_s=age_s) for owner, (payload, age_s) in found]


def peer(name: str) -> PeerStatus:
    return PeerStatus(name, "trainer", None, 0, 0, 0.0, 0, 100, 200, None, None, 1.0, name == "a")


def test_speeds_are_those_between_records() -> None:
    board, meter = StillBoard(), SplitMeter()
    assert meter.look(board, 0.0).servers == ()  # type: ignore[arg-type]
    board.put("s", SplitServing(10, 160, 2, 1), 0.5)
    board.put("a", Metrics(1, 1.0, 16, 1))
    board.put("s", SplitServing(10, 160, 2, 1), 0.5)
    first = meter.look(board, 1.0)  # type: ignore[arg-type]
    assert first is not None
    assert (first.batches_per_second, first.steps, first.clients, first.servers) == (None, 10, ("a",), ("s",))
    board.put("s", SplitServing(30, 480, 2, 0), 0.1)
    second = meter.look(board, 4.6)  # type: ignore[arg-type]
    assert second is not None
    assert second.batches_per_second == pytest.approx(20 / 4.0)
    assert second.samples_per_second == pytest.approx(320 / 4.0)
    quiet = meter.look(board, 4.6 + WINDOW_S + 1.0)  # type: ignore[arg-type]
    assert quiet is not None
    board.put("s", SplitServing(30, 480, 2, 0), WINDOW_S + 1.0)
    quiet = meter.look(board, 4.6 + WINDOW_S + 1.0)  # type: ignore[arg-type]
    assert quiet is not None
    assert quiet.batches_per_second == 0.0


def test_a_server_that_takes_over_is_measured_anew() -> None:
    board, meter = StillBoard(), SplitMeter()
    board.put("s", SplitServing(100, 1600))
    meter.look(board, 0.0)  # type: ignore[arg-type]
    del board.records[SplitServing]
    board.put("t", SplitServing(90, 1440))
    found = meter.look(board, 1.0)  # type: ignore[arg-type]
    assert found is not None
    assert (found.servers, found.steps, found.batches_per_second) == (("t",), 90, None)


def test_displays_show_clients_batches_and_who_serves() -> None:
    board, meter = StillBoard(), SplitMeter()
    for steps, now_s in ((10, 0.0), (30, 4.0)):
        board.put("s", SplitServing(steps, 16 * steps, 2, 3))
        board.put("a", Metrics(1, 1.0, 16, 1))
        board.put("b", Metrics(1, 1.0, 16, 1))
        board.put("s", SplitServing(steps, 16 * steps, 2, 3))
        found = meter.look(board, now_s)  # type: ignore[arg-type]
    peers = tuple(map(peer, "absm"))
    usual = RunStatus("run", "0" * 64, 0, None, 0.5, 0.0, 0, 4096, 32, 0, False, None, peers)
    status = with_split(usual, found)
    assert (
        headline(status)
        == "step 30 · loss 0.500 · 5.0 batches/s, 80.0 samples/s · 3 batches wait · 2 clients, 1 server"
    )
    assert peers_by_kind(status) == "2 clients, 1 server, 1 trainer watching"
    told = status.to_json()
    assert told["split"]["batches_per_second"] == 5.0
    assert [each["part"] for each in told["peers"]] == ["client", "client", "server", None]
    assert with_split(usual, None) == usual
    del board.records[SplitServing]
    gone = with_split(usual, meter.look(board, 9.0))  # type: ignore[arg-type]
    assert headline(gone) == (
        "step 30 · loss 0.500 · 0.0 samples/s · 2 clients, no server is here: clients wait for it"
    ), "a client whose server was killed read of step 0 and of 4096 samples towards the next one"
    assert not gone.averages
