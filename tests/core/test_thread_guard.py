"""What belongs to an event loop is used on the thread of that loop: the check for it, and the parts it caught out."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import minga
from minga.core import thread_guard
from minga.core.events.bus import Event
from minga.core.thread_guard import WrongThreadError, any_thread, loop_bound
from minga.network.gossip.board import Board, Change
from minga.simulation.virtual_time import run_virtual
from minga.testing import guard_threads
from minga.training.bridge.loop_thread import LoopThread
from minga.training.optimizer import Optimizer
from minga.training.record_kinds import StateInfo
from tests.worlds.side_by_side import SideBySide


@loop_bound
class Thing:
    def __init__(self) -> None:
        self.calls = 0

    @property
    def count(self) -> int:
        return self.calls

    def call(self) -> int:
        self.calls += 1
        return self._add(0)

    async def later(self) -> int:
        return self.call()

    @any_thread
    def anywhere(self) -> int:
        return self.calls

    def _add(self, number: int) -> int:
        return self.calls + number


@pytest.fixture
def expected() -> Iterator[list[str]]:
    """The calls that were refused so far; that there are some is no fault of the test's."""
    refused = guard_threads()
    yield refused
    refused.clear()


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    thread = LoopThread("guarded")
    yield thread
    thread.close()


def on_another_thread(function: Callable[[], object]) -> BaseException | None:
    """What it raises there, if anything."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            function()
        except BaseException as error:
            raised.append(error)

    other = threading.Thread(target=run, name="other")
    other.start()
    other.join()
    return raised[0] if raised else None


def test_an_object_made_on_a_loop_is_refused_to_all_other_threads(thread: LoopThread, expected: list[str]) -> None:
    thing = thread.ask(Thing)
    assert thread.ask(thing.call) == 1
    assert thread.call(thing.later()) == 2, "a coroutine counts where it runs"
    assert thing.anywhere() == 2
    for use in (thing.call, lambda: thing.count, lambda: thing._add(1)):
        with pytest.raises(WrongThreadError, match="not on the thread of its loop"):
            use()
    assert len(expected) == 3
    assert thing.calls == 2


def test_without_the_guard_a_class_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Plain:
        def call(self) -> int:
            return 1

    monkeypatch.setattr(thread_guard, "_guard", thread_guard._Guard())
    call = Plain.call
    assert loop_bound(Plain).call is call
    guard_threads()
    assert loop_bound(Plain).call is not call


def test_a_simulation_does_without_the_guard_and_leaves_it_behind(
    thread: LoopThread, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    checked, checked_count, patch = Thing.call, Thing.count, lambda self: 7
    monkeypatch.setattr(Thing, "later", patch)

    async def main() -> None:
        assert Thing.call is checked.__wrapped__  # type: ignore[attr-defined]
        assert Thing.count is not checked_count
        assert Thing.later is patch
        thing = Thing()
        assert on_another_thread(thing.call) is None

    run_virtual(main())
    assert Thing.call is checked
    assert Thing.count is checked_count
    assert Thing.later is patch
    with pytest.raises(WrongThreadError):
        thread.ask(Thing).call()


# ---- real peers: a training thread beside the loop


@pytest.fixture
def peers(tmp_path: Path) -> Iterator[list[minga.Peer]]:
    """Two peers of one run in which states are compared after every step."""
    spec = minga.RunSpec.from_mapping(
        {
            "name": "guarded",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 16, "stop_after_steps": 12},
            "state": {"digest_every": 1},
        }
    )
    here = {"ephemeral": True, "host": "127.0.0.1"}
    together: list[minga.Peer] = []
    try:
        together.append(minga.host(spec, minga.PeerOptions(directory=tmp_path / "0", **here)))
        together.append(minga.join(str(together[0].link), minga.PeerOptions(directory=tmp_path / "1", **here)))
        yield together
    finally:
        for peer in together:
            peer.close()


def train(peer: minga.Peer, model: nn.Module, seed: int, errors: list[BaseException], folder: Path) -> None:
    try:
        opt = Optimizer(torch.optim.SGD(model.parameters(), lr=0.05), peer, model=model)
        beside = SideBySide(folder, str(seed), "01", peer)
        chance = torch.Generator().manual_seed(seed)
        while not opt.finished:
            model(torch.randn(4, 6, generator=chance)).square().mean().backward()
            opt.step(samples=4)
            beside.keep_pace(opt)
    except BaseException as error:
        errors.append(error)


def test_the_board_of_a_real_peer_cannot_be_read_by_its_program(peers: list[minga.Peer], expected: list[str]) -> None:
    board = peers[0].session.board
    assert peers[0].on_loop(board.owners)
    for read in (board.owners, lambda: board.payloads(StateInfo), lambda: board.alive_count):
        with pytest.raises(WrongThreadError, match=r"Board\."):
            read()


def test_real_peers_compare_their_states_with_every_thread_in_its_place(
    peers: list[minga.Peer], tmp_path: Path
) -> None:
    heard: list[Event] = []
    states: list[StateInfo] = []
    for peer in peers:
        peer.subscribe(heard.append)
        own, board = peer.peer_id, peer.session.board

        def look(owner: str, name: Change, own: str = own, board: Board = board) -> None:
            if name == "state" and owner != own:
                state = board.get(owner, StateInfo)
                states.extend([state] if state else [])

        peer.on_loop(lambda look=look, board=board: board.observe(look))
    errors: list[BaseException] = []
    torch.manual_seed(3)
    model = nn.Linear(6, 3)  # both begin with the same parameters
    threads = [
        threading.Thread(target=train, args=(peer, copy.deepcopy(model), seed, errors, tmp_path), daemon=True)
        for seed, peer in enumerate(peers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40)
    assert errors == []
    assert not any(thread.is_alive() for thread in threads)
    assert [event for event in heard if event.kind == "step.applied" and event.fields["members"] == 2]
    assert states, "no peer saw another one's digest"
    assert not [event for event in heard if event.kind in ("member.diverged", "member.failed")]
    assert guard_threads() == []
