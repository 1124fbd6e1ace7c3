"""The loop of a peer does not depend on what the program around it does with asyncio."""

from __future__ import annotations

import asyncio
import threading
import warnings

import pytest

from minga.core.errors import ClosedError, ConfigurationError
from minga.training.bridge.loop_thread import LoopThread


def test_a_program_with_another_kind_of_loop_leaves_the_peers_loop_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with `uvloop.install()`: peers could not open TCP connections to each other, and did not say so."""

    def another() -> asyncio.AbstractEventLoop:
        raise AssertionError("the program's own kind of loop")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # policies go, and with them what is tested here
        monkeypatch.setattr(asyncio.get_event_loop_policy(), "new_event_loop", another)
    with pytest.raises(AssertionError, match="own kind"):
        asyncio.new_event_loop()
    thread = LoopThread("peer")
    try:
        assert thread.ask(asyncio.get_running_loop) is thread.loop
    finally:
        thread.close()


def test_nobody_waits_for_a_loop_that_ends_or_has_ended() -> None:
    """Whoever asks at the moment of its end may be one of the threads for which the interpreter waits at its own."""
    thread, said = LoopThread("peer"), list[str]()

    def ask() -> None:
        try:
            thread.call(asyncio.sleep(60))
        except ClosedError as error:
            said.append(str(error))

    asking = [threading.Thread(target=ask) for _ in range(2)]

    async def hold_up() -> None:
        try:
            await asyncio.sleep(60)
        finally:  # the loop was stopped: what is asked for now is too late
            asking[1].start()

    asking[0].start()
    holding = asyncio.run_coroutine_threadsafe(hold_up(), thread.loop)
    while len(thread.ask(asyncio.all_tasks)) < 3:
        pass
    thread.close()
    assert holding.cancelled()
    ask()
    for each in asking:
        each.join(30)
    assert said == ["this peer was closed"] * 3


def test_work_that_takes_long_and_then_asks_the_loop_ends_with_it() -> None:
    """The interpreter waits at its end for the thread that does it."""
    thread, goes_on, said = LoopThread("peer"), threading.Event(), list[str]()

    def work() -> None:
        goes_on.wait()
        try:
            thread.call(asyncio.sleep(0))
        except ClosedError as error:
            said.append(str(error))

    asyncio.run_coroutine_threadsafe(asyncio.to_thread(work), thread.loop)
    while not any(each.name.startswith("asyncio") for each in threading.enumerate()):
        pass
    (worker,) = (each for each in threading.enumerate() if each.name.startswith("asyncio"))
    thread.close()
    goes_on.set()
    worker.join(30)
    assert said == ["this peer was closed"]


def test_on_the_thread_of_the_loop_nothing_waits_for_the_loop() -> None:
    """As in a listener to events, which is called there."""
    thread = LoopThread("peer")

    async def listen() -> int:
        with pytest.raises(ConfigurationError, match="on another thread"):
            thread.call(asyncio.sleep(0))
        with pytest.raises(ConfigurationError, match="on another thread"):
            thread.close()
        return thread.ask(lambda: 7)

    try:
        assert thread.call(listen(), 30) == 7
    finally:
        thread.close()
