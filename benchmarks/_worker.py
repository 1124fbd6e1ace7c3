"""The inside of a process that a benchmark started: `python -m benchmarks._worker MODULE:FUNCTION SETTINGS`.

Calls FUNCTION(channel, settings). Standard output belongs to the channel, one line of JSON for each message; whatever
libraries print goes to standard error. The process ends with its parent, however that ends.
"""

from __future__ import annotations

import asyncio
import ctypes
import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

PR_SET_PDEATHSIG = 1


class Channel:
    """The worker's end of the line to its coordinator; `send` may be called by any thread."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def send(self, **fields: Any) -> None:
        """Tell the coordinator something."""
        with self._lock:
            self._out.write(json.dumps(fields) + "\n")

    def receive(self) -> dict[str, Any]:
        """Wait for the next command."""
        return self._commands.get()

    async def receive_on_loop(self) -> dict[str, Any]:
        """The same, beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(None, self.receive)

    def poll(self) -> dict[str, Any] | None:
        """The next command if there is one already."""
        try:
            return self._commands.get_nowait()
        except queue.Empty:
            return None

    def commands(self) -> Iterator[dict[str, Any]]:
        """All commands until the one to exit."""
        while (command := self.receive()).get("do") != "exit":
            yield command

    def _read(self) -> None:
        for line in sys.stdin:
            self._commands.put(json.loads(line))
        os._exit(1)  # the coordinator is gone


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # works on a stopped process, too
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the coordinator, which ends us
    module, _, function = sys.argv[1].partition(":")
    channel = Channel()
    getattr(importlib.import_module(module), function)(channel, json.loads(sys.argv[2]))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
