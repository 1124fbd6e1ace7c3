from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ClosedError, ConfigurationError
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.thread_bridge import WAIT, ThreadTask, Wait
from minga.training.state.snapshot import StateSnapshot
from minga.training.strategy.interface import Recovery
from tests.worlds.ones_replica import OnesReplica
from tests.worlds.swarm_tools import virtually


def port(*, delayed: bool = False) -> GradientPort:
    return GradientPort(
        asyncio.get_running_loop(), OnesReplica(), strategy=StrategyChoice("delayed" if delayed else "synchronous")
    )


def ones_of(p: GradientPort) -> OnesReplica:
    replica = p._strategy.replica
    assert isinstance(replica, OnesReplica)
    return replica


async def sealed(p: GradientPort) -> int:
    """The samples of what a round takes, a mean of gradients that are all ones."""
    vector, samples = await p.seal()
    assert vector is not None
    assert vector.tolist() == [1.0, 1.0]
    return samples


def do_work(p: GradientPort) -> None:
    """Do what the training thread is asked for."""
    task = p.poll()
    assert isinstance(task, ThreadTask)
    p.finish(task)


def end_round(p: GradientPort, limit: int | None = None) -> None:
    p.absorb(1, torch.zeros(2), ContributionFate.COUNTED, 1, 0, 1)
    p.reopen(limit)


@virtually
async def test_synchronous_life_of_a_step() -> None:
    p = port()
    assert p.poll() is None
    await asyncio.sleep(0.5)
    assert p.add(4)
    report = p.report()
    assert (report.samples, report.micro_batch, report.parked) == (4, 4, False)
    assert report.rate == pytest.approx(8.0)
    assert report.micro_batch_s == pytest.approx(0.5)
    assert p.poll() is None
    await asyncio.sleep(0.2)
    assert p.report().busy_s == pytest.approx(0.2)
    p.limit(0)
    assert not p.report().parked  # a micro-batch is under way
    assert p.add(4)
    assert p.report().parked
    assert p.poll() is WAIT
    assert await sealed(p) == 8
    assert p.poll() is WAIT
    end_round(p)
    assert p.report().samples == 0
    assert p.poll() is None


@pytest.mark.parametrize("delayed", [False, True])
def test_how_long_the_thread_stood_for_others_is_told(delayed: bool) -> None:
    @virtually
    async def main() -> None:
        p = port(delayed=delayed)
        assert p.poll() is None
        await asyncio.sleep(0.5)
        assert p.add(4)
        p.limit(0)
        assert p.poll() is (None if delayed else WAIT)
        await asyncio.sleep(2.0)
        await p.seal()
        request = p.request("apply", lambda: end_round(p))
        work = p.poll()
        assert isinstance(work, ThreadTask)
        await asyncio.sleep(0.25)
        p.finish(work)
        await request
        assert p.held_s() == pytest.approx(0.25 if delayed else 2.25)
        assert p.poll() is None
        await asyncio.sleep(1.0)
        assert p.held_s() == 0.0

    main()


@virtually
async def test_an_interrupt_before_or_after_work_leaves_nobody_waiting() -> None:
    p = port()
    first, second = p.request("apply", lambda: 1), p.request("apply", lambda: 2)
    work = p.poll()
    assert isinstance(work, ThreadTask)
    assert p.poll() is work, "an interrupt came before it was begun"
    p.finish(work)
    assert await first == 1
    work, tell, told = p.poll(), p._notifier.call, list[object]()
    assert isinstance(work, ThreadTask)

    def interrupted(function: Callable[..., object], *arguments: Any) -> None:
        told.append(function)
        if len(told) == 1:
            raise KeyboardInterrupt
        tell(function, *arguments)

    with patch.object(p._notifier, "call", interrupted), pytest.raises(KeyboardInterrupt):
        p.finish(work)
    for waiting in (second, p.request("apply", pytest.fail)):
        with pytest.raises(ClosedError, match="could not apply"):
            await waiting


@virtually
async def test_work_is_not_done_once_the_port_is_closed() -> None:
    p = port()
    request = p.request("apply", pytest.fail)
    work = p.poll()
    assert isinstance(work, ThreadTask)
    p.close(ClosedError("it is over"))
    with pytest.raises(ClosedError, match="it is over"):
        p.finish(work)
    with pytest.raises(ClosedError, match="it is over"):
        await request
    assert p.is_at_rest


@virtually
async def test_a_micro_batch_that_ends_after_the_seal_is_dropped() -> None:
    p = port()
    assert p.poll() is None
    assert p.add(1)
    assert p.poll() is None
    _, samples = await p.seal()
    assert samples == 1
    assert not p.add(1)
    end_round(p)
    assert await p.seal() == (None, 0)


def test_nobody_waits_for_a_peer_whose_gradients_are_not_finite_and_its_program_is_warned_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    @virtually
    async def main() -> None:
        p = port()
        for count in range(1, 15):
            ones_of(p).is_finite = False
            assert p.poll() is None
            await asyncio.sleep(0.5)
            assert not p.add(4)
            assert p.poll() is None
            assert bool(p.report().micro_batch) is (count < 2), "one alone is usual where a loss is scaled"
            assert bool(p.report().rate) is (count < 2)
        ones_of(p).is_finite = True
        assert p.add(4)
        assert (p.report().samples, p.report().micro_batch) == (4, 4)

    main()
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@virtually
async def test_a_program_may_leave_where_nothing_is_lost() -> None:
    p = port()
    assert p.may_leave(0.0)
    assert p.add(4)
    assert not p.may_leave(200.0), "in the first step nobody knows how long one takes"
    assert p.may_leave(400.0)
    await asyncio.sleep(3.0)
    p.limit(0)
    end_round(p)
    await asyncio.sleep(3.0)
    end_round(p, limit=4)
    assert p.add(4)
    assert p.poll() is WAIT
    assert not p.may_leave(10.0)
    assert p.may_leave(20.0), "steps took 3 s, and this one does not get on"
    await p.seal()
    assert not p.may_leave(1e9), "a round runs"


@pytest.mark.parametrize("delayed", [False, True])
def test_what_an_aborted_round_sealed_counts_again(delayed: bool) -> None:
    @virtually
    async def main() -> None:
        p = port(delayed=delayed)
        assert p.add(3)
        p.limit(0)
        assert p.poll() is (None if delayed else WAIT)
        vector, samples = await p.seal()
        assert (samples, vector.tolist() if vector is not None else None) == (3, [1.0, 1.0])
        if delayed:
            assert p.add(2)
        await p.unseal()
        assert p.report().samples == (5 if delayed else 3)
        assert p.add(2)
        assert await sealed(p) == (7 if delayed else 5)

    main()


@virtually
async def test_parking_at_once_where_nothing_is_computed_and_resuming() -> None:
    p = port()
    p.limit(0)  # the thread has not begun yet
    assert p.report().parked
    p.limit(None)
    assert not p.report().parked
    assert p.poll() is None
    p.pause()
    p.limit(0)
    assert p.report().parked
    assert p.poll() is WAIT
    p.limit(None)
    assert p.poll() is None


@virtually
async def test_the_loop_is_told_when_the_thread_begins_to_compute() -> None:
    """Else a leader goes on with the report of a thread that waits."""
    p = port()
    told: list[bool] = []

    async def listen() -> None:
        while True:
            await p.changed.wait()
            told.append(p.report().micro_batch > 0)

    listening = asyncio.ensure_future(listen())
    assert p.poll() is None
    assert p.add(4)
    p.limit(0)
    assert p.poll() is WAIT
    p.limit(None)
    await asyncio.sleep(0.1)
    assert told[-1] is False
    assert p.poll() is None
    await asyncio.sleep(0.1)
    assert told[-1] is True
    p.pause()
    await asyncio.sleep(0.1)
    assert told[-1] is False
    listening.cancel()


@virtually
async def test_a_thread_that_began_a_step_in_its_work_is_about_to_compute() -> None:
    """A leader that took it for idle would tell it to stop with what it has, for some tenths of the step."""
    p = port()
    for samples in (4, 4):
        assert p.poll() is None
        await asyncio.sleep(0.5)
        assert p.add(samples)
    done = p.request("apply", lambda: end_round(p, 40))
    work = p.poll()
    assert isinstance(work, ThreadTask)
    assert p.report().micro_batch == 0
    p.finish(work)
    await done
    await asyncio.sleep(0.25)
    report = p.report()
    assert (report.samples, report.micro_batch, report.busy_s, report.micro_batch_s) == (0, 4, 0.25, 0.5)
    p.rest(resting=True)
    assert p.poll() is WAIT
    p.rest(resting=False)
    assert p.report().micro_batch == 0


@virtually
async def test_a_delayed_trainer_that_was_resumed_parks_again_with_all_it_has() -> None:
    p = port(delayed=True)
    assert p.add(4)
    p.limit(0)
    assert p.poll() is None
    p.limit(None)
    assert (p.report().samples, p.report().parked) == (4, False)
    p.pause()
    p.limit(0)
    assert p.poll() is None
    assert (p.report().samples, p.report().parked) == (4, True)
    p.limit(None)
    assert p.add(2)
    assert p.report().samples == 6
    assert await sealed(p) == 6


@virtually
async def test_the_delayed_strategy_goes_on_into_a_second_buffer() -> None:
    p = port(delayed=True)
    assert p.poll() is None
    assert p.add(4)
    assert p.poll() is None
    p.limit(0)
    assert p.add(2)  # the boundary at which it parks
    assert p.report().samples == 6
    assert p.report().parked
    assert p.poll() is None  # it does not wait
    assert p.add(5)
    assert await sealed(p) == 6
    assert p.add(1)  # while the round is under way
    end_round(p)
    assert p.report().samples == 6
    p.limit(0)
    assert p.poll() is None
    assert await sealed(p) == 6
    p.restore(StateSnapshot(1, (), {}, torch.empty(0, dtype=torch.uint8)), Recovery.FETCH)
    assert await p.seal() == (None, 0)


@virtually
async def test_a_delayed_trainer_computes_what_the_next_step_asks_for_while_the_round_lasts() -> None:
    p = port(delayed=True)
    assert p.add(4)
    p.limit(4)
    assert p.poll() is None
    p.limit_next(6)
    await p.seal()
    for _ in range(3):
        assert p.poll() is None
        assert p.add(2)
    assert p.poll() is WAIT
    end_round(p, 6)
    assert (p.report().samples, p.poll()) == (6, None)
    assert p.report().parked, "the next step is full as soon as it begins"
    p.limit_next(0)
    await p.seal()
    assert p.poll() is WAIT


@virtually
async def test_a_check_on_the_training_thread_refuses_on_the_loop_alone() -> None:
    p = port()

    def refuse() -> None:
        raise ConfigurationError("another model")

    for check, message in ((refuse, "another model"), (lambda: None, None)):
        accepted = asyncio.ensure_future(p.accept(check))
        await asyncio.sleep(0)
        assert not accepted.done(), "the training thread has not come by"
        do_work(p)  # does not raise: training goes on
        if message is None:
            await accepted
        else:
            with pytest.raises(ConfigurationError, match=message):
                await accepted


@virtually
async def test_work_is_done_at_the_boundary_and_errors_reach_both_sides() -> None:
    p = port()
    done = p.request("add", lambda: 40 + 2)
    do_work(p)
    assert await done == 42

    def fail() -> None:
        raise ValueError("no")

    failed = p.request("fail", fail)
    work = p.poll()
    assert isinstance(work, ThreadTask)
    with pytest.raises(ValueError, match="no"):
        p.finish(work)
    with pytest.raises(ClosedError, match="could not fail on the thread that trains"):
        await failed


@virtually
async def test_closing_lets_everybody_go() -> None:
    p = port()
    left = p.request("never", lambda: None)
    p.close(ClosedError("first"))
    p.close(ClosedError("second"))
    with pytest.raises(ClosedError, match="first"):
        p.poll()
    with pytest.raises(ClosedError, match="first"):
        await left
    with pytest.raises(ClosedError, match="first"):
        await p.request("late", lambda: None)


@given(
    delayed=st.booleans(),
    moves=st.lists(st.sampled_from(["add", "poll", "park", "resume", "round", "abort"]), max_size=40),
)
def test_no_sample_counts_twice_and_none_is_lost_unseen(delayed: bool, moves: list[str]) -> None:
    """Whatever the order of events: samples in applied rounds + dropped ones + those still there = all."""

    @virtually
    async def main() -> None:
        p = port(delayed=delayed)
        computed = dropped = applied = 0
        for move in [*moves, "round", "round"]:
            if move == "add" and p.poll() is None:
                computed += 2
                dropped += 0 if p.add(2) else 2
            elif move == "poll":
                assert p.poll() is None or isinstance(p.poll(), Wait)
            elif move == "park":
                p.limit(0)
            elif move == "resume":
                p.limit(None)
            elif move in ("round", "abort"):
                vector, samples = await p.seal()
                if vector is not None:
                    assert torch.allclose(vector, torch.ones(2))
                if move == "round":
                    applied += samples
                    end_round(p)
                else:
                    await p.unseal()
        assert computed == applied + dropped

    main()


@pytest.mark.parametrize("delayed", [False, True])
def test_the_loop_does_not_wait_while_a_micro_batch_is_added(delayed: bool) -> None:
    async def main() -> None:
        p = port(delayed=delayed)
        adding, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            adding.set()
            assert go_on.wait(5.0)

        ones_of(p).before_adding = hold
        assert p.poll() is None
        thread = threading.Thread(target=p.add, args=(3,))
        thread.start()
        assert adding.wait(5.0)
        assert p.report().samples == 0
        p.limit(0)
        sealing = asyncio.ensure_future(p.seal())
        await asyncio.sleep(0)
        assert not sealing.done()
        assert thread.is_alive()
        go_on.set()
        vector, samples = await sealing
        assert samples == 3
        assert vector is not None
        assert vector.tolist() == [1.0, 1.0]
        thread.join(5.0)

    asyncio.run(main())


@pytest.mark.parametrize("delayed", [False, True])
def test_who_rests_computes_nothing_until_told(delayed: bool) -> None:
    @virtually
    async def main() -> None:
        p = port(delayed=delayed)
        assert p.poll() is None
        p.rest(resting=True)
        assert p.add(4), "what was under way still counts"
        assert p.poll() is WAIT
        assert p.report().micro_batch == 0, "nobody waits for it"
        end_round(p)
        assert p.poll() is WAIT
        woken = asyncio.ensure_future(p.woken.wait())
        await asyncio.sleep(0)
        p.rest(resting=False)
        await woken
        assert p.poll() is None

    main()


@pytest.mark.parametrize("delayed", [False, True])
def test_what_came_before_a_thread_began_to_wait_is_not_waited_for(
    delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtually
    async def main() -> None:
        p = port(delayed=delayed)
        p.rest(resting=True)
        assert p.poll() is WAIT
        p.rest(resting=False)
        monkeypatch.setattr(p.condition, "wait", lambda _: pytest.fail("it waits for what has come already"))
        p.wait()

    main()
