"""What a dashboard writes down of looks and events."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from minga.core.events.averaging import (
    GroupLeaderLost,
    PlanResting,
    RoundAborted,
    RoundBegun,
    RoundMemberLost,
    RoundReduced,
)
from minga.core.events.bus import Event, EventData
from minga.core.events.network import LinksProbed, PeerOffence
from minga.core.events.security import SecureBanned
from minga.core.events.training import RunAmended, RunRegrouped, StateDonorDropped, StepApplied
from minga.dashboard.recorder import PERIOD_S, RoundClock, RunRecorder
from minga.monitor.history import History
from minga.training.status.run_status import AmendmentStatus, SplitRunStatus, with_split
from tests.worlds.made_up_run import BEGIN_S, MadeUpRun, peer_id


@pytest.fixture
def run() -> Iterator[MadeUpRun]:
    made = MadeUpRun(4)
    yield made
    made.close()


def event(time_s: float, data: EventData) -> Event:
    return Event(time_s, data.kind, dict(vars(data)), data)


def begun(step: int) -> RoundBegun:
    return RoundBegun(
        step=step, round="r", leader="", members=4, samples=9, waited_s=4.0, parts=4, sites=0, predicted_s=None
    )


def reduced(step: int) -> RoundReduced:
    return RoundReduced(step=step, round="r", seconds=1.5, lost=1, bytes_sent=0, bytes_received=0)


def test_a_round_is_divided_into_computing_waiting_communicating_applying() -> None:
    clock = RoundClock()
    assert clock.on_event(event(10.0, begun(7))) is None
    assert clock.on_event(event(11.5, reduced(7))) is None
    times = clock.on_event(event(11.75, StepApplied(step=8, samples=9, members=4, batch=300)))
    assert times is not None
    assert (times.forming_s, times.communicate_s, times.apply_s, times.lost) == (4.0, 1.5, 0.25, 1)
    assert times.computing_s(100.0) == 3.0
    assert times.computing_s(10.0) == 4.0, "peers cannot have computed for longer than the group took to form"
    assert times.computing_s(0.0) == 4.0


def test_an_aborted_round_has_no_anatomy() -> None:
    clock = RoundClock()
    clock.on_event(event(10.0, begun(7)))
    clock.on_event(event(11.5, reduced(7)))
    clock.on_event(event(11.6, RoundAborted(step=7, why="x")))
    assert clock.on_event(event(11.75, StepApplied(step=8, samples=9, members=4, batch=300))) is None


@pytest.mark.parametrize(
    ("data", "name", "peer"),
    [
        (RoundMemberLost(step=1, peer="p", why="silent", round="r"), "missed", "p"),
        (PlanResting(step=1, resting=True), "missed", "me"),
        (PlanResting(step=1, resting=False), None, None),
        (RoundAborted(step=1, why="no quorum"), "missed", None),
        (GroupLeaderLost(step=1, peer="p", why="silent"), "suspected", "p"),
        (PeerOffence(peer="p", what="garbage"), "accused", "p"),
        (StateDonorDropped(peer="p", reason="slow", lied=False), None, None),
        (StateDonorDropped(peer="p", reason="hash", lied=True), "accused", "p"),
        (SecureBanned(step=1, peer="p", reason="r", why="gradient"), "banned", "p"),
        (RunRegrouped(step=1, members=3, present=True), "regrouped", None),
        (RunAmended(step=1, changes="a = 1"), None, None),
        (LinksProbed(upload=None, download=None), None, None),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, EventData) else str(value),
)
def test_events_become_entries(data: EventData, name: str | None, peer: str | None) -> None:
    history = History(None)
    RunRecorder(history, "me").on_event(BEGIN_S, event(1.0, data))
    assert [entry["event"] for entry in history.entries] == ([] if name is None else [name])
    if name is not None:
        assert history.entries[0].get("peer") == peer


def swarm_entries(history: History) -> list[dict[str, Any]]:
    return [entry for entry in history.entries if entry["event"] == "swarm"]


def test_the_swarm_is_written_every_few_seconds_and_less_often_later(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    for _ in range(61):
        recorder.on_look(run.advance(1.0))
    assert len(swarm_entries(history)) == 1 + 60 // PERIOD_S
    last = swarm_entries(history)[-1]
    assert (last["alive"], last["training"], last["syncing"]) == (4, 4, 0)
    assert sum(last["by_peer"].values()) + last["others"] == pytest.approx(last["samples_per_second"])
    assert last["sent"] == pytest.approx(4e6)
    run.advance(3600.0)
    before = len(swarm_entries(history))
    for _ in range(60):
        recorder.on_look(run.advance(1.0))
    assert len(swarm_entries(history)) - before <= 3


def test_the_traffic_of_peers_whose_totals_come_back_is_none_of_the_time_between(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    recorder.on_look(run.advance(1000.0))
    look = run.advance(PERIOD_S)
    unheard = tuple(replace(peer, bytes_sent=None, bytes_received=None) for peer in look.status.peers)
    recorder.on_look(look._replace(status=replace(look.status, peers=unheard)))
    for _ in range(2):
        recorder.on_look(run.advance(PERIOD_S))
    assert [entry["sent"] for entry in swarm_entries(history)] == [None, 0, 0, pytest.approx(4e6)]


def test_the_traffic_of_a_peer_that_was_started_again_is_all_that_its_new_process_had(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    for since, total in ((1.7e9, 5000), (1.8e9, 6000)):
        look = run.advance(PERIOD_S)
        peer = replace(look.status.peers[0], bytes_sent=total, bytes_received=total, since=since)
        recorder.on_look(look._replace(status=replace(look.status, peers=(peer,))))
    assert [entry["sent"] for entry in swarm_entries(history)] == [None, 6000 / PERIOD_S]


def test_the_time_in_which_a_newcomer_fetched_the_state_is_written(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    run.syncing, run.gone = {3}, set()
    for _ in range(8):
        recorder.on_look(run.advance(1.0))
    run.syncing = set()
    recorder.on_look(run.advance(1.0))
    synced = [entry for entry in history.entries if entry["event"] == "synced"]
    assert [(entry["peer"], entry["seconds"]) for entry in synced] == [(peer_id(3), 8.0)]


def test_a_newcomer_that_leaves_before_it_has_the_state_is_no_sync(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    run.syncing = {3}
    recorder.on_look(run.advance(1.0))
    run.gone = {3}
    recorder.on_look(run.advance(1.0))
    assert not [entry for entry in history.entries if entry["event"] == "synced"]


def test_orders_that_came_into_force_are_written_once(run: MadeUpRun) -> None:
    history = History(None)
    recorder = RunRecorder(history, "me")
    amendments = tuple(
        AmendmentStatus(number, 10 * number, f"training.target_batch_size = {number}", due=False)
        for number in (1, 2, 3)
    )
    pause = AmendmentStatus(4, 30, "paused = true", due=True)

    def look(*known: AmendmentStatus, paused: bool = False) -> None:
        made = run.advance(1.0)
        recorder.on_look(made._replace(status=replace(made.status, amendments=known, paused=paused)))

    first, second, third = amendments
    look(replace(first, due=True))
    look(replace(first, due=True), second)
    look(replace(first, due=False, overruled=True), replace(second, due=True), third)
    look(replace(second, due=True), third, pause, paused=True)
    look(replace(second, due=True), third, pause, paused=True)
    look(replace(second, due=True), third)
    orders = [(e["event"], e.get("changes")) for e in history.entries if e["event"] != "swarm"]
    assert orders == [("amended", "training.target_batch_size = 2"), ("paused", None), ("resumed", None)]


def test_of_a_cut_model_the_peers_with_a_part_are_counted_and_the_speed_of_all_clients(run: MadeUpRun) -> None:
    look = run.advance(1.0)
    first, second, third = (peer.peer_id for peer in look.status.peers[:3])
    split = SplitRunStatus((first,), (second, third), 7, 448, 0, 1.0, 64.0)
    history = History(None)
    RunRecorder(history, "me").on_look(look._replace(status=with_split(look.status, split)))
    (swarm,) = swarm_entries(history)
    assert (swarm["alive"], swarm["training"]) == (3, 2)
    assert (swarm["by_peer"], swarm["others"]) == ({}, 64.0)
