"""A peer that a parent process started ends when that process ends or says so.

The child reads its standard input. The end of input, which also comes when the parent is killed, ends the child at
once; a line `end N` lets it finish in order once the global step is at least N.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable

MAX_LINE_BYTES = 64


class ParentWatch:
    """`end_step` is the step at which to finish, infinite until the parent names it."""

    def __init__(self, on_end_of_input: Callable[[], None]) -> None:
        self.end_step: float = math.inf
        self._on_end_of_input = on_end_of_input
        threading.Thread(target=self._listen, name="minga-parent-watch", daemon=True).start()

    def is_over(self, step: int) -> bool:
        """Whether to finish after global step `step`."""
        return step >= self.end_step

    def _listen(self) -> None:
        buffer = b""
        # Read past Python's buffered stdin: a thread inside it would hold its lock while the interpreter ends.
        while data := os.read(sys.stdin.fileno(), MAX_LINE_BYTES):
            *lines, buffer = (buffer + data).split(b"\n")
            buffer = buffer[-MAX_LINE_BYTES:]
            for line in lines:
                word, _, number = line.decode("ascii", "replace").strip().partition(" ")
                if word == "end" and number.isdecimal():
                    self.end_step = int(number)
        self._on_end_of_input()
