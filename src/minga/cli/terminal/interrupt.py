"""Ctrl-C that always works within a second.

Theory of operation. Python delivers a signal to the main thread between two byte codes, so a long call into C (a large
backward pass) delays it. Therefore the C-level handler also writes a byte to a socket, on which a watchdog thread
waits. The main thread gets its `KeyboardInterrupt` (or `Terminated`) and tidies up as usual; if it has not ended the
process after `PATIENCE_S`, the watchdog says goodbye to the run in its place, and at the end of the second it says to
the person what the command has done, and ends the process. Where leaving at once costs something, a command may ask
that the first Ctrl-C only says so (`defer`). SIGTERM, and SIGHUP when the terminal is closed, end a command in the same
way. They seldom come alone: a shell and the kernel both send SIGHUP, and some service managers send it after SIGTERM.
So only the first of them counts.

A peer that a parent process started ends when that process ends or says so: see `ParentWatch`.
"""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType

from minga.cli.terminal.exit_codes import INTERRUPTED, TERMINATED, interrupts, report_interrupt

PATIENCE_S = 0.25
DEADLINE_S = 0.75
SAYING_S = 0.2
"""How long whoever reads the last words may take to take them."""

_SHOW_CURSOR = b"\x1b[?25h\n"
"""Below a display that was still being drawn, which hides the cursor."""

ENDS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
DEFERRED_S = 1.0
"""How long an end is deferred at most where the main thread hears nothing of it."""
MAX_LINE_BYTES = 64
_NOW = 0
"""Written to the watchdog in place of a signal's number: the end is not deferred any more."""


class Terminated(BaseException):
    """This process was told to end (SIGTERM), or its terminal was closed (SIGHUP)."""


class Interruption:
    """Watches for Ctrl-C, SIGTERM and SIGHUP to the end of the process. One per process, on the main thread.

    With `json_output` the last words are JSON.
    """

    def __init__(self, *, json_output: bool = False) -> None:
        self._json_output = json_output
        self._goodbyes: list[Callable[[], None]] = []
        self._receiving, self._sending = socket.socketpair()  # open to the end: each further Ctrl-C writes, too
        self._sending.setblocking(False)
        self._code = INTERRUPTED
        self._instead: Callable[[], bool] | None = None
        self._deferrals = 0
        """Signals that the watchdog has to overlook."""
        self._defers_ends = False
        self._number = int(signal.SIGINT)
        """What `trigger` sends: the signal that was deferred."""
        self._told_to_end = self._triggered_end = self._ending = False
        self._terminals = [descriptor for descriptor in (1, 2) if os.isatty(descriptor)]
        """Known from the start: when it is gone, a terminal looks like any other device."""
        signal.set_wakeup_fd(self._sending.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGINT, self._interrupt)
        for number in ENDS:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._terminate)
        threading.Thread(target=self._watch, name="minga-interrupt", daemon=True).start()

    def on_interrupt(self, goodbye: Callable[[], None]) -> None:
        """Call `goodbye` on the watchdog's thread when the end comes."""
        self._goodbyes.append(goodbye)

    def defer(self, instead: Callable[[], bool], *, ends: bool = False) -> None:
        """The next Ctrl-C calls `instead`, on the main thread, and if that returns True does nothing else.

        With `ends` the same is true of SIGTERM and SIGHUP.
        """
        self._deferrals, self._instead, self._defers_ends = 1, instead, ends

    def forget(self) -> None:
        """Call nothing of what was asked for so far."""
        self._deferrals, self._instead, self._defers_ends = 0, None, False
        self._goodbyes.clear()

    def trigger(self) -> None:
        """Interrupt the program from another thread, as Ctrl-C would, or as the signal that was deferred."""
        with contextlib.suppress(OSError):
            self._sending.send(bytes([_NOW]))
        self._triggered_end = self._number in ENDS
        if hasattr(signal, "pthread_kill") and (main := threading.main_thread().ident) is not None:
            signal.pthread_kill(main, self._number)
        else:
            _thread.interrupt_main()

    def let_go_of_terminal(self) -> None:
        """Write nothing more to a terminal that is gone, which is an error; what goes into files and pipes stays."""
        for descriptor in self._terminals:
            with contextlib.suppress(OSError):
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)

    def _watch(self) -> None:
        number = self._wait_for_end()
        if number is None:
            return
        if number in ENDS:
            self._code = TERMINATED
        timer = threading.Timer(DEADLINE_S, self._end)
        timer.daemon = True
        timer.start()
        time.sleep(PATIENCE_S)
        for goodbye in self._goodbyes:
            with contextlib.suppress(Exception):  # the process ends in any case
                goodbye()

    def _wait_for_end(self) -> int | None:
        """The number of the first signal that is not overlooked; None when the socket is closed."""
        deferred, told_to_end = int(signal.SIGINT), False
        while received := self._hear():
            number = received[0]
            is_end = number in ENDS
            if number == _NOW:
                return deferred
            if (is_end and told_to_end) or not (is_end or number == signal.SIGINT):
                continue
            if not self._deferrals or (is_end and not self._defers_ends):
                return number
            self._deferrals -= 1
            deferred, told_to_end = number, self._defers_ends
            if is_end:
                self._receiving.settimeout(DEFERRED_S)
        return None

    def _hear(self) -> bytes:
        try:
            return self._receiving.recv(1)
        except TimeoutError:  # no further signal tells: those to end are overlooked by now
            return bytes([_NOW])

    def _interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        if self._ending or self._is_deferred(signal_number):  # what is said at the end would be broken off
            return
        self._ending = True
        interrupts.append(signal_number)
        signal.default_int_handler(signal_number, frame)

    def _terminate(self, signal_number: int, frame: FrameType | None) -> None:
        if signal_number != signal.SIGTERM:
            self.let_go_of_terminal()
        is_repeated, self._told_to_end = self._told_to_end and not self._triggered_end, True
        if is_repeated or self._ending:  # it would break off the last checkpoint, or what is said at the end
            return
        if self._defers_ends and self._is_deferred(signal_number):
            return
        self._ending = True
        raise Terminated(signal_number, frame is None)

    def _is_deferred(self, signal_number: int) -> bool:
        if self._instead is None:
            return False
        instead, self._instead, self._number = self._instead, None, signal_number
        if instead():
            self._told_to_end = self._told_to_end or self._defers_ends
            return True
        self._sending.send(bytes([_NOW]))  # the watchdog has overlooked the first one
        return False

    def _end(self) -> None:
        saying = threading.Thread(target=self._say_what_was_done, name="minga-farewell", daemon=True)
        saying.start()
        saying.join(SAYING_S)
        os._exit(self._code)  # without flushing: whoever reads the other end of a pipe may have stopped

    def _say_what_was_done(self) -> None:
        """In place of the main thread, unless that has done so."""
        with contextlib.suppress(Exception):  # the process ends in any case
            if self._terminals and not self._json_output:
                os.write(self._terminals[0], _SHOW_CURSOR)
            report_interrupt(json_output=self._json_output, code=self._code)


class ParentWatch:
    """Reads standard input. Its end, which also comes when the parent is killed, ends this process at once; a line
    `end N` lets it finish in order once the global step is at least N.

    `end_step` is the step at which to finish, infinite until the parent names it.
    """

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
