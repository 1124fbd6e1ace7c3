"""What the monitor reads off a board, and how it is shown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console, RenderableType

from minga.cli.taking_part import status as status_module
from minga.cli.taking_part.join import OwnPart
from minga.cli.taking_part.status import (
    MAX_ROWS,
    RESTED,
    RESTING,
    CompletionNotice,
    amendment_lines,
    besides,
    headline,
    peer_table,
    peers_by_kind,
    run_view,
    shown_phase,
    volunteer_view,
)
from minga.cli.terminal.output import Display, Output
from minga.core.events.averaging import GroupMinority, PlanResting
from minga.core.events.bus import EventBus, EventData
from minga.core.events.catalogue import CATALOGUE, fields_of
from minga.core.events.training import RunFinished, StepApplied
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.monitor.history import History
from minga.monitor.watcher import Watcher
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo, Beat, Left, Payload
from minga.network.interface import LinkFacts
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import RunClock
from minga.training.organiser import step_after
from minga.training.peer import Peer
from minga.training.record_kinds import RUN_KINDS, Metrics, Progress, StateInfo
from minga.training.status.last_problem import MAX_REASON_LETTERS, MEANINGS
from minga.training.status.run_status import (
    AmendmentStatus,
    LossMeter,
    RunStatus,
    newest_step,
    read_status,
    step_of_half,
)
from minga.training.status.status_reader import StatusReader

RUN_ID = "ab" * 32


class Swarm:
    """A board with other peers on it, and as much of a node as the monitor looks at."""

    def __init__(self) -> None:
        self.own = Identity.generate()
        self.board = self.make(self.own)
        facts = LinkFacts(0.02, "direct", 10, 20)
        self.node = cast(
            Node,
            SimpleNamespace(
                peer_id=self.own.peer_id,
                run_id=RUN_ID,
                role="monitor",
                traffic=lambda: (10, 20),
                facts=lambda peer: None if peer == self.own.peer_id else facts,
            ),
        )

    def make(self, identity: Identity) -> Board:
        events = EventBus(lambda: 0.0)
        clock = RunClock(lambda: 1.7e9, lambda: 100.0)
        return Board(identity, RUN_ID, run_clock=clock, clock=lambda: 100.0, events=events, kinds=RUN_KINDS)

    def peer(self, *payloads: Payload) -> str:
        identity = Identity.generate()
        theirs = self.make(identity)
        theirs.on_signed.add(lambda record: self.board.receive(record, record.owner))
        for payload in payloads:
            theirs.put(payload)
        return identity.peer_id

    def status(self, losses: LossMeter | None = None, **changes: Any) -> RunStatus:
        training = {"target_batch_size": 64, "stop_after_steps": 9, **changes}
        spec = RunSpec.from_mapping({"name": "x", "training": training})
        return read_status(self.board, self.node, spec, losses or LossMeter())


def in_loop(check: Any) -> None:
    async def main() -> None:
        check(Swarm())

    asyncio.run(main())


def progress(step: int, samples: int = 8, status: Any = "training", *, vector_bytes: int = 0) -> Progress:
    return Progress(step, samples, 5.0, status, vector_bytes=vector_bytes)


def test_a_swarm_is_summed_up() -> None:
    def check(swarm: Swarm) -> None:
        swarm.board.put(AddressInfo("monitor"))
        first = swarm.peer(AddressInfo("trainer", ("1.2.3.4:5",)), progress(7), Metrics(7, 1.0, 100, 1, 5, 6))
        swarm.peer(AddressInfo("auxiliary"), progress(7, 0, "averaging"))
        swarm.peer(AddressInfo("trainer"), progress(6, 30))
        swarm.peer(AddressInfo("client"), progress(0, 0, "syncing"))
        status = swarm.status()
        assert (status.step, status.last_step, status.samples, status.members) == (7, 9, 8, 3)
        assert status.samples_per_second == 15.0
        assert status.averages
        assert status.loss is None
        assert len(status.peers) == 5
        mine = next(peer for peer in status.peers if peer.is_self)
        assert (mine.role, mine.status, mine.bytes_sent, mine.path) == ("monitor", None, 10, None)
        theirs = next(peer for peer in status.peers if peer.peer_id == first)
        assert (theirs.path, theirs.round_trip_s, theirs.total_samples) == ("direct", 0.02, 100)
        assert (theirs.bytes_sent, theirs.bytes_received) == (5, 6)
        silent = {(peer.total_samples, peer.bytes_sent) for peer in status.peers if peer.peer_id != first}
        assert silent == {(None, 10), (None, None)}, "unknown is not 0: totals that come back would count again"
        assert json.loads(json.dumps(status.to_json()))["peers"][0]["peer_id"] == status.peers[0].peer_id
        assert peers_by_kind(status) == (
            "1 auxiliary averaging, 1 client syncing, 1 monitor watching, 2 trainers training"
        )
        assert headline(status).startswith("step 7 of 9 · the loss comes with the next step · 8/64 samples")
        assert headline(status).endswith("2 peers training together, 1 auxiliary helping")
        assert besides(status) == "1 client syncing, 1 monitor watching", "each peer is told of once"

    in_loop(check)


def test_a_step_that_one_of_three_claims_is_not_believed() -> None:
    """An organiser's orders are for steps that are counted from the one that is shown."""

    def check(swarm: Swarm) -> None:
        swarm.peer(AddressInfo("trainer"), progress(5, status="syncing"))
        assert swarm.status().step == 5, "nobody else is in sight"
        for step in (4, 4, 10**9):
            swarm.peer(AddressInfo("trainer"), progress(step))
        assert (swarm.status().step, swarm.status().is_complete) == (4, False)
        assert step_after(swarm.status(), 10.0) < 20
        swarm.peer(AddressInfo("trainer"), progress(5))
        assert swarm.status().step == 5

    in_loop(check)


@pytest.mark.parametrize(
    ("steps", "half", "newest"),
    [([], 0, 0), ([7], 7, 7), ([6, 7], 7, 7), ([6, 6, 6, 7], 6, 7), ([6, 6, 10**9], 6, 6), ([6, 7, 7, 10**9], 7, 7)],
)
def test_the_step_of_half_and_the_newest_one_next_to_it(steps: list[int], half: int, newest: int) -> None:
    assert (step_of_half(steps), newest_step(steps)) == (half, newest)


def test_an_organiser_without_trainers_sees_that_none_computes() -> None:
    def check(swarm: Swarm) -> None:
        swarm.board.put(Beat())  # no address, as of one who watches a run for members
        swarm.peer(Beat())  # a volunteer who is being asked whether to take part
        swarm.peer(AddressInfo("auxiliary"), progress(0, 0))
        assert peers_by_kind(swarm.status()) == "1 auxiliary helping, 1 monitor watching, 1 unknown watching"
        assert headline(swarm.status()).endswith("1 peer here, none computes gradients")
        swarm.peer(AddressInfo("client"), progress(0))
        assert headline(swarm.status()).endswith("1 peer training, 1 auxiliary helping")

    in_loop(check)


def test_without_a_trainer_the_loss_of_steps_that_were_taken_is_unknown() -> None:
    def check(swarm: Swarm) -> None:
        swarm.peer(AddressInfo("auxiliary"), progress(7, 0))
        swarm.peer(AddressInfo("auxiliary"), progress(7, 0))
        assert headline(swarm.status()).startswith("step 7 of 9 · no trainer is here to tell the loss · ")
        assert headline(swarm.status()).endswith("2 peers here, none computes gradients")
        assert peers_by_kind(swarm.status()).startswith("2 auxiliaries helping")
        swarm.peer(AddressInfo("trainer"), progress(7))
        assert headline(swarm.status()).startswith("step 7 of 9 · the loss comes with the next step · ")
        assert headline(swarm.status()).endswith("1 peer training, 2 auxiliaries helping")

    in_loop(check)


def test_a_run_with_several_strategies_says_which_is_at_work() -> None:
    def check(swarm: Swarm) -> None:
        for step, said in ((4, "synchronous up to step 5, then local"), (5, "local since step 5")):
            swarm.peer(AddressInfo("trainer"), progress(step))
            swarm.peer(AddressInfo("trainer"), progress(step))
            status = swarm.status(strategy_changes=[{"from_step": 5, "strategy": "local"}])
            assert headline(status).startswith(f"step {step} of 9 · {said} · ")

    in_loop(check)


ENDED = "step 9 of 9 · no trainer is here to tell the loss · the run is complete · 0 peers here"


def test_a_run_that_has_ended_is_complete_also_when_all_members_have_left() -> None:
    async def main() -> None:
        swarm = Swarm()
        spec = RunSpec.from_mapping({"name": "x", "training": {"stop_after_steps": 9}})
        session = SimpleNamespace(board=swarm.board, node=swarm.node, founding=None, ledger=None, error=None)
        swarm.node.network = SimpleNamespace(wall_time=lambda: 1.7e9)  # type: ignore[assignment]
        reader = StatusReader(
            cast(
                Any, SimpleNamespace(spec=spec, session=session, subscribe=lambda _: None, on_loop=lambda read: read())
            )
        )
        assert headline(reader.look().status).startswith("step 0 of 9")
        swarm.peer(AddressInfo("trainer"), progress(9))
        assert reader.look().status.is_complete
        session.board = Swarm().board
        assert headline(reader.look().status) == ENDED

    asyncio.run(main())


def test_the_last_step_is_known_also_if_its_members_leave_before_the_next_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = list[Callable[[], dict[str, int]]]()
    monkeypatch.setattr(status_module, "done_so_far", done)

    async def main() -> None:
        swarm = Swarm()
        _, watcher = watched(swarm, training={"stop_after_steps": 9})
        output = Said()
        notice = CompletionNotice(cast(Output, output))
        watcher.listeners.append(lambda look: notice.look(look.status))
        trainer = Identity.generate()
        theirs = swarm.make(trainer)
        theirs.on_signed.add(lambda record: swarm.board.receive(record, record.owner))
        theirs.put(AddressInfo("trainer"))
        theirs.put(progress(8))
        assert headline(watcher.look()).startswith("step 8 of 9")
        assert not output.lines
        theirs.put(progress(9, status="finished"))
        theirs.put(Left())
        assert headline(watcher.look()) == ENDED
        watcher.look()
        assert [line.split(". ")[0] for line in output.lines] == ["The run is complete after 9 steps"]
        assert [tell() for tell in done] == [{"step": 9}], "which the last words of this host go by"

    asyncio.run(main())


class Said:
    """Remembers what is said on a terminal."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def event(self, kind: str, **fields: object) -> None:
        """What programs hear."""


def test_agreement_needs_two_digests_of_one_step() -> None:
    def check(swarm: Swarm) -> None:
        assert swarm.status().digests_agree is None
        swarm.peer(progress(3), StateInfo(3, "aa" * 32))
        swarm.peer(progress(3), StateInfo(2, "bb" * 32))
        assert swarm.status().digests_agree is None
        swarm.peer(progress(3), StateInfo(3, "aa" * 32))
        assert swarm.status().digests_agree is True
        assert "disagree" not in run_view(swarm.status()).lines[0]
        swarm.peer(progress(3), StateInfo(2, "cc" * 32))
        assert swarm.status().digests_agree is False
        assert "peers disagree about the state" in run_view(swarm.status()).lines[0]

    in_loop(check)


def test_views_fit_into_a_narrow_terminal_and_stay_short() -> None:
    def check(swarm: Swarm) -> None:
        for step in range(MAX_ROWS + 5):
            swarm.peer(AddressInfo("trainer"), progress(step, 10_000), Metrics(step, 1.0, 10**9, 1, 10**9, 10**12))
        for width in (60, 80):
            console = Console(width=width)
            with console.capture() as capture:
                console.print(run_view(swarm.status(), {"step": 7, "heldout_mlm_loss": 6.25}).framed())
            lines = capture.get().splitlines()
            assert max(map(len, lines)) <= width
            assert len(lines) < MAX_ROWS + 12
            assert "…" not in capture.get().replace("… and", ""), "columns are left out, words are not cut"
            assert "training" in lines[-5]
        assert "and 5 more" in capture.get()
        assert "held out at step 7: mlm_loss 6.250" in capture.get()
        assert len(run_view(swarm.status()).lines) == 1

    in_loop(check)


def test_in_a_paused_run_nobody_trains_and_nobody_has_a_speed() -> None:
    def check(swarm: Swarm) -> None:
        for role, doing in (("trainer", "training"), ("trainer", "paused"), ("auxiliary", "averaging")):
            swarm.peer(AddressInfo(role), progress(7, 8, doing))
        swarm.peer(AddressInfo("trainer"), progress(7, 8, "syncing"))
        going, paused = swarm.status(), replace(swarm.status(), paused=True)
        assert peers_by_kind(paused) == "1 auxiliary paused, 2 trainers paused, 1 trainer syncing"
        assert peers_by_kind(going) == (
            "1 auxiliary averaging, 1 trainer paused, 1 trainer syncing, 1 trainer training"
        )
        assert (drawn(peer_table(paused)).count(" 5.0 "), drawn(peer_table(going)).count(" 5.0 ")) == (1, 3)
        assert shown_phase("training", going) == "training"
        assert shown_phase("downloading the state", paused) == "downloading the state"
        own = replace(own_part(paused, {}), phase=shown_phase("training", paused))
        (line,) = volunteer_view(own).lines
        assert "you: paused on cpu" in line
        assert "samples/s" not in line
        (line,) = volunteer_view(own_part(going, {})).lines
        assert line.count(" samples/s while computing") == 2, "the run's speed and its own, without the time of rounds"

    in_loop(check)


def own_part(status: RunStatus, figures: dict[str, float]) -> OwnPart:
    return OwnPart(status, 8, 5.0, None, 0, 0, (), 0, 0, "training", figures, "cpu, 2 threads, micro-batch 16")


def drawn(view: Display | RenderableType) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(view.framed() if isinstance(view, Display) else view)
    return capture.get()


def watched(
    swarm: Swarm, *, age_s: float = 0.0, waiting: tuple[int, int] | None = None, **sections: Any
) -> tuple[EventBus, Watcher]:
    """The events of a peer, which happen `age_s` ago, and who watches it.

    The run has these sections in its spec, and so many founders as `waiting` says.
    """
    now = asyncio.get_running_loop().time()
    events = EventBus(lambda: now - age_s)
    swarm.node.network = cast(Any, SimpleNamespace(wall_time=lambda: 1.7e9))
    founding = None if waiting is None else SimpleNamespace(waiting=waiting)
    session = SimpleNamespace(board=swarm.board, node=swarm.node, founding=founding, ledger=None, error=None)
    spec = RunSpec.from_mapping({"name": "x", **sections})
    peer = SimpleNamespace(session=session, spec=spec, subscribe=events.subscribe, on_loop=lambda read: read())
    return events, Watcher(cast(Peer, peer), History(None))


def trouble(kind: str, reason: str) -> EventData:
    """An event of trouble with all its fields."""
    values = {"step": 7, "peer": "p1", "file": "corpus"}
    return CATALOGUE[kind](**{field.name: values.get(field.name, reason) for field in fields_of(CATALOGUE[kind])})


@pytest.mark.parametrize("kind", MEANINGS)
def test_trouble_is_seen_in_every_display(kind: str) -> None:
    def check(swarm: Swarm) -> None:
        events, watcher = watched(swarm, age_s=90.0)
        events.emit(RunFinished(step=6))
        assert watcher.look().trouble is None
        events.emit(trouble(kind, "the disk [b] is\x1b[2J full"))
        status = watcher.look()
        who = "p1: " if kind in ("member.unfit", "secure.banned") else ""
        seen = f"{MEANINGS[kind]}: {who}the disk [b] is [2J full"
        for view in (run_view(status), volunteer_view(own_part(status, {}))):
            assert f"trouble 1 min 30 s ago: {seen}" in drawn(view)
            assert view.notices["trouble"] == (1, f"trouble: {seen}")
        assert run_view(watcher.look()).notices["trouble"][0] == 1, "it is the same one"
        events.emit(trouble(kind, "x" * 9000))
        number, text = run_view(watcher.look()).notices["trouble"]
        assert (number, text.count("x" * (MAX_REASON_LETTERS - len(who)))) == (2, 1), "reasons are cut"
        assert json.loads(json.dumps(status.to_json()))["trouble"]["kind"] == kind

    in_loop(check)


def test_who_waits_for_most_members_reads_so_until_a_step_is_taken() -> None:
    def check(swarm: Swarm) -> None:
        events, watcher = watched(swarm)
        events.emit(trouble("checkpoint.failed", "the disk is full"))
        events.emit(GroupMinority(step=7, view=3, why="only 1 of them is here"))
        status = watcher.look()
        told = run_view(status).notices["trouble"][1]
        assert told == "trouble: no step can be taken: only 1 of them is here"
        events.emit(StepApplied(step=8, samples=1, members=3, batch=1))
        left = watcher.look().trouble
        assert left is not None
        assert (left.number, left.kind) == (1, "checkpoint.failed"), "other trouble stays to be read"

    in_loop(check)


@pytest.mark.parametrize("mode", ["none", "byzantine"])
def test_where_all_do_the_same_there_are_no_words_about_plans(mode: str) -> None:
    def check(swarm: Swarm) -> None:
        for _ in range(2):
            swarm.peer(AddressInfo("trainer", ("127.0.0.1:1",)), progress(3, vector_bytes=1000))
        status = watched(swarm, security={"verification": mode})[1].look()
        assert (status.plan is None) == (mode == "byzantine")
        for view in (run_view(status), volunteer_view(own_part(status, {}))):
            assert ("towards the next step" in drawn(view)) == (mode != "byzantine")

    in_loop(check)


def test_what_a_later_order_overruled_is_not_listed() -> None:
    orders = (
        AmendmentStatus(1, 0, "optimizer.learning_rate = 0.01", due=True),
        AmendmentStatus(2, 5, "paused = true", due=False, overruled=True),
        AmendmentStatus(3, 0, "paused = false", due=True),
        AmendmentStatus(4, 90, "training.stop_after_steps = 100", due=False),
    )

    def check(swarm: Swarm) -> None:
        status = replace(watched(swarm)[1].look(), amendments=orders)
        assert amendment_lines(status) == [
            "amendment 1, in force: optimizer.learning_rate = 0.01",
            "amendment 3, in force: paused = false",
            "amendment 4, not yet in force (from step 90): training.stop_after_steps = 100",
        ]
        assert "paused = true" not in drawn(run_view(status))
        assert len(status.to_json()["amendments"]) == 4, "programs get them all"

    in_loop(check)


def test_a_run_that_waits_for_its_founders_says_so() -> None:
    def check(swarm: Swarm) -> None:
        status = watched(swarm, waiting=(2, 4), security={"verification": "byzantine"})[1].look()
        assert run_view(status).lines[0] == "step 0 · waiting for founders, 2 of 4 are here"
        swarm.peer(AddressInfo("trainer"), progress(3))
        status = watched(swarm, waiting=(0, 1))[1].look()
        assert run_view(status).lines[0].startswith("step 3 · the loss comes"), "however it was founded"

    in_loop(check)


def test_who_rests_sees_why_in_every_display() -> None:
    def check(swarm: Swarm) -> None:
        events, watcher = watched(swarm)
        assert "resting" not in drawn(volunteer_view(own_part(watcher.look(), {})))
        assert run_view(watcher.look()).notices["resting"][0] is False
        events.emit(PlanResting(step=3, resting=True))
        status = watcher.look()
        for view in (run_view(status), volunteer_view(own_part(status, {}))):
            assert RESTING in drawn(view)
            assert view.notices["resting"] == (True, RESTING)
        assert json.loads(json.dumps(status.to_json()))["resting"] is True
        events.emit(PlanResting(step=9, resting=False))
        assert run_view(watcher.look()).notices["resting"] == (False, RESTED)
        assert "resting" not in drawn(run_view(watcher.look()))

    in_loop(check)


def test_a_volunteer_that_evaluates_sees_the_figures() -> None:
    def check(swarm: Swarm) -> None:
        part = own_part(swarm.status(), {"step": 7, "heldout_mlm_loss": 6.25})
        assert "held out at step 7: mlm_loss 6.250" in drawn(volunteer_view(part))
        assert "held out at step 7: mlm_loss 6.250" in volunteer_view(part).lines[0]
        assert "held out" not in drawn(volunteer_view(replace(part, figures={})))
        assert " · you computed 38% of the last steps · " in volunteer_view(replace(part, share=0.38)).lines[0]

    in_loop(check)
