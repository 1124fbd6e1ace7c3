"""Writes to the disk beside the event loop, which must not wait for one: others take a silent peer for dead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any


class DiskWrites:
    """Writes on one thread of its own, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "minga-disk")

    def do(self, write: Callable[..., object], *arguments: Any) -> None:
        """Call `write` soon; it deals with a disk that refuses itself. Where no loop runs it is called at once."""
        try:
            asyncio.get_running_loop().run_in_executor(self._thread, write, *arguments)
        except (
            RuntimeError
        ):  # no loop, or the process is at its end: thread pools take no work then, and have none left
            write(*arguments)

    def close(self) -> None:
        """Wait until all is written; not on the loop."""
        self._thread.shutdown()
