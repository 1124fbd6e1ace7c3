"""The loop of a peer does not depend on what the program around it does with asyncio."""

from __future__ import annotations

import asyncio
import warnings

import pytest

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
