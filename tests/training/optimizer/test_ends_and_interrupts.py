"""Pauses, ends and interrupts of a loop, and what each leaves behind."""

from __future__ import annotations

import _thread
import asyncio
import copy
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim import lr_scheduler

import minga
from minga.access.standing_orders import PAUSED, STOP
from minga.core.events.bus import Event
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.member import Member
from minga.training.state.manifest import build_manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, batches, mean_loss, same, small_model, train
from tests.worlds.organiser_desk import desk_in


@pytest.mark.parametrize("strategy", ["synchronous", "elastic"])
def test_following_without_gradients(strategy: str, host: MakePeer) -> None:
    model = small_model()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(strategy=strategy), model=model)
    mean_loss(model, next(batches(4))).backward()
    opt.step(samples=4)
    opt.follow(0.05)  # an evaluation, say
    assert opt.global_step == 0
    train(opt, model, 4)
    assert opt.finished
    opt.follow()  # returns at once when the run is over
    final = copy.deepcopy(model)
    mean_loss(model, next(batches(4))).backward()
    opt.step(samples=4)  # and so does this
    assert same(model, final)
    assert opt.global_step == STEPS


def test_a_listener_may_ask_for_the_status_and_cannot_close_its_peer(host: MakePeer) -> None:
    model, peer, heard = small_model(), host(), list[object]()

    def listen(event: Event) -> None:
        if event.kind == "step.applied":
            heard.append(peer.status().step)
            try:
                peer.close()
            except minga.ConfigurationError as error:
                heard.append("on another thread" in str(error))

    peer.subscribe(listen)
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model)
    assert peer.status().step == STEPS
    peer.close()
    assert [each for each in heard if each is True] == [True] * STEPS
    assert len(heard) == 2 * STEPS


def left_by(peer: minga.Peer) -> StateSnapshot:
    """The newest checkpoint that a peer has left, of which there has to be one."""
    peer.close()
    checkpoint = peer.newest_checkpoint()
    assert checkpoint is not None
    return checkpoint


def test_the_last_checkpoint_is_of_the_state_that_this_peer_took_over_in_the_end(
    host: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, is_over, taken = small_model(), Member._is_over, list[str]()
    peer = host()

    async def over(self: Member) -> bool:
        if self._is_finished() and not taken:

            def take_over() -> None:
                with torch.no_grad():
                    next(model.parameters()).add_(1.0)
                self._port.restore(self._replica.capture(), Recovery.FETCH, 0)
                taken.append(self._replica.digest())

            await self._port.request("restore", take_over)
        return await is_over(self)

    monkeypatch.setattr(Member, "_is_over", over)
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model)
    checkpoint = left_by(peer)
    assert checkpoint.step == STEPS
    assert build_manifest(checkpoint).digest == taken[0] == opt.digest()


def test_an_end_that_the_organisers_order_leaves_a_checkpoint(host: MakePeer) -> None:
    model = small_model()
    peer = host(stop_after_steps=None, checkpoint_every=4)
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model, steps=2)
    desk = desk_in(peer)
    assert desk.put_in_force(desk.amend({STOP: 6, PAUSED: False}, 0))[1]
    train(opt, model)
    assert opt.finished
    checkpoint = left_by(peer)
    assert checkpoint.step == opt.global_step == 6


def test_a_checkpoint_is_where_the_next_peer_goes_on(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping(
        {"name": "t", "model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH}}
    )
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    first, second = small_model(), small_model()
    with minga.host(spec, options) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(first.parameters(), lr=0.1), peer, model=first)
        train(opt, first, steps=3)
        opt.save_checkpoint()
        newest = peer.newest_checkpoint()
        assert newest is not None
        assert newest.step == 3, "it is there before the end"
        peer.checkpointer._judged = 41, True
        assert peer.checkpointer.is_due(41), "what is copied at one moment is written at another: it is asked once"
        assert not peer.checkpointer.is_due(42)
    with minga.host(spec, options, resume=peer.directory) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(second.parameters(), lr=0.1), peer, model=second)
        assert opt.global_step == 3
        assert same(first, second)
        train(opt, second, steps=4)


def test_the_end_of_a_peer_writes_no_state_that_the_program_may_have_changed(host: MakePeer) -> None:
    model, peer = small_model(), host(checkpoint_every=STEPS)
    opt = minga.Optimizer(torch.optim.AdamW(model.parameters(), lr=0.1), peer, model=model)
    train(opt, model, steps=2)
    opt.save_checkpoint()
    train(opt, model, steps=3)
    next(iter(opt.state.values()))["exp_avg"].zero_()
    assert left_by(peer).step == 2


def test_a_state_that_cannot_be_kept_is_told_whatever_the_cause(
    host: MakePeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    causes = [kind(kind.__name__) for kind in (ValueError, RuntimeError, MemoryError, minga.ConfigurationError)]

    def refuse(_: StateSnapshot) -> None:
        raise causes[-1]

    monkeypatch.setattr("minga.training.checkpointer.build_manifest", refuse)
    model, peer, heard = small_model(), host(), list[Event]()
    peer.subscribe(heard.append)
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
    while causes:
        opt.save_checkpoint()
        peer.on_loop(lambda: None)
        told = [event.fields["why"] for event in heard if event.kind == "checkpoint.failed"]
        assert told[-1] == str(causes.pop())


def test_a_run_that_was_prolonged_when_all_were_gone_goes_on_when_it_is_resumed(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping(
        {"name": "t", "model": {"recipe": "custom"}, "training": {"target_batch_size": BATCH, "stop_after_steps": 2}}
    )
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    first, second = small_model(), small_model()
    with minga.host(spec, options) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(first.parameters(), lr=0.1), peer, model=first)
        train(opt, first)
        assert (opt.finished, opt.global_step) == (True, 2)
        desk = desk_in(peer)
        desk.put_in_force(desk.amend({STOP: 4}, 0))
    with minga.host(spec, options, resume=peer.directory) as peer:
        opt = minga.Optimizer(torch.optim.AdamW(second.parameters(), lr=0.1), peer, model=second)
        train(opt, second)
        assert (opt.finished, opt.global_step) == (True, 4)


def test_a_closed_peer_ends_training(host: MakePeer) -> None:
    model = small_model()
    peer = host(stop_after_steps=None)
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)

    def close_at_two(event: Event) -> None:
        if event.kind == "step.applied" and event.fields["step"] == 2:
            threading.Thread(target=peer.close).start()

    peer.subscribe(close_at_two)
    with pytest.raises(minga.ClosedError, match="closed"):
        train(opt, model)
    with pytest.raises(minga.ClosedError, match="closed"):
        opt.step(samples=4)
    with pytest.raises(minga.ClosedError, match="closed"):
        minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)


def minga_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("minga")}


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A process that a shell started in the background ignores interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_while_waiting_loses_nothing(host: MakePeer) -> None:
    model, others = small_model(), minga_threads()
    peer = host()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)

    def follow() -> None:
        threading.Timer(0.05, _thread.interrupt_main).start()  # which may come before the next line on a busy machine
        opt.follow()

    with pytest.raises(KeyboardInterrupt):
        follow()
    train(opt, model)
    assert opt.finished
    peer.close()
    assert minga_threads() <= others


@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_of_the_goodbye_leaves_nothing_behind(host: MakePeer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as a second Ctrl-C in a notebook, where the process, and with it the lock on the key, stays."""
    others, freed = minga_threads(), list[str]()
    peer = host()
    peer.held.callback(freed.append, "key")

    async def goodbye(_: str) -> None:
        _thread.interrupt_main()
        await asyncio.sleep(60.0)

    monkeypatch.setattr(peer.session, "leave", goodbye)
    with pytest.raises(KeyboardInterrupt):
        peer.close()
    assert freed == ["key"]
    assert minga_threads() <= others


class Halved(torch.optim.SGD):
    """Its second step ends half-way, and so does what a handler of signals does there."""

    calls = 0
    handler: Callable[[], None]

    def step(self, closure: Any = None) -> Any:
        self.calls += 1
        super().step(closure)
        if self.calls == 2:
            with pytest.raises(minga.ConfigurationError, match="signal handler"):
                self.handler()
            raise KeyboardInterrupt


def test_an_interrupt_amid_an_update_ends_the_peer_and_no_checkpoint_is_written_of_half_a_step(host: MakePeer) -> None:
    model, others = small_model(), minga_threads()
    peer, inner = host(), Halved(model.parameters(), lr=0.1)
    opt = minga.Optimizer(inner, peer, model=model)
    inner.handler = opt.save_checkpoint
    train(opt, model, steps=1)
    opt.save_checkpoint()
    with pytest.raises(KeyboardInterrupt):
        train(opt, model)
    for _ in range(2):
        for read in (opt.save_checkpoint, opt.digest):
            with pytest.raises(minga.ClosedError, match="could not apply"):
                read()
        with pytest.raises(minga.ClosedError, match="could not apply"):
            train(opt, model)
    assert left_by(peer).step == 1
    assert minga_threads() <= others


def test_an_error_of_the_torch_optimizer_ends_the_peer(host: MakePeer) -> None:
    model = small_model()
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = lr_scheduler.LambdaLR(inner, lambda step: 1.0 / (2 - step))
    opt = minga.Optimizer(inner, host(), scheduler=scheduler, model=model)
    with pytest.raises(ZeroDivisionError):
        train(opt, model)
    with pytest.raises(minga.ClosedError, match=r"could not apply .*division by zero"):
        train(opt, model)


def test_a_program_may_leave_while_it_is_told_to_compute_nothing(host: MakePeer) -> None:
    model, asked = small_model(), list[int]()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    assert isinstance(opt._port, GradientPort)
    opt._port.hold(holding=True)
    opt.is_leaving = lambda: bool(asked.append(opt.global_step) or len(asked) == 3)
    mean_loss(model, next(batches(BATCH))).backward()
    opt.step(samples=BATCH)
    assert asked == [1, 1, 1], "the step to which it gave something was taken before"


def test_a_program_may_leave_before_it_has_the_state(host: MakePeer, tmp_path: Path) -> None:
    model, asked = small_model(), list[int]()
    options = minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")
    with minga.join(str(host().link), options) as guest:  # the organiser's program has not begun the run yet
        opt = minga.Optimizer(
            torch.optim.SGD(model.parameters(), lr=0.1),
            guest,
            model=model,
            is_leaving=lambda: bool(asked.append(1) or len(asked) > 2),
        )
        assert len(asked) > 2
        assert not guest.session.is_ready
        assert opt.global_step == 0
