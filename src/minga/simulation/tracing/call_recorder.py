"""What simulated peers call, and what they send one another, while one step runs.

Theory of operation. The interpreter tells a profile function of every call. Kept are calls of functions of the
package that come from another file; each function once for each peer, at its first call. The peer follows from the
virtual process that the running code belongs to. A coroutine that goes on after a wait is no new call. A function
that remembers its results is left out with all that it calls, for it runs or not by what ran before in the process.
"""

from __future__ import annotations

import asyncio
import dis
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import msgspec

import minga
from minga.network.rpc.framing import MessageStream
from minga.network.virtual.process import CURRENT_PROCESS

PACKAGE = f"{Path(minga.__file__).parent}{os.sep}"
START = "RESUME"


@dataclass(frozen=True)
class TracedCall:
    """The first call of a function by a peer in a step, or the first such message to a peer (`message`, `to`).

    `file` is below `src/minga`. `caller` is the file that the call comes from; empty if the event loop made it. Of a
    message, `file` and `function` are those that sent it. `kind` is "coroutine", "property", "function" or "message".
    """

    virtual_s: float
    peer: str
    file: str
    function: str
    caller: str
    kind: str
    message: str = ""
    to: str = ""


class CallRecorder:
    """Records calls and messages of the `recorded` peers while it is entered. `name_of` names a peer by its id."""

    def __init__(self, name_of: Callable[[str], str]) -> None:
        self.calls: list[TracedCall] = []
        """In the order in which they happened."""
        self.recorded: set[str] = set()
        """Names of the peers that are recorded now."""
        self._name_of = name_of
        self._seen: set[tuple[str, CodeType] | tuple[str, str, str, str, str]] = set()
        self._sending: dict[CodeType, Callable[[dict[str, Any]], str]] = {
            MessageStream.announce.__code__: _name_of_message,
            MessageStream.send.__code__: _name_of_message,
            MessageStream.send_bulk.__code__: lambda _: "bulk bytes",
            MessageStream.refuse.__code__: lambda local: f"Refusal ({local['code']})",
        }

    def __enter__(self) -> CallRecorder:
        self._loop, self._former = asyncio.get_running_loop(), sys.getprofile()
        sys.setprofile(self._notice)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        sys.setprofile(self._former)

    def _notice(self, frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE) or frame.f_lasti > _start_of(code):
            return
        process = CURRENT_PROCESS.get()
        if process is None or process.name not in self.recorded:
            return
        if code in self._sending:
            self._note_message(process.name, frame)
        elif code.co_name[0] not in "<_" and (process.name, code) not in self._seen:
            caller = _caller(frame)
            file, caller_file = _file(frame), "" if caller is None else _file(caller)
            if file != caller_file and not _depends_on_the_past(frame):
                self._seen.add((process.name, code))
                call = TracedCall(self._loop.time(), process.name, file, code.co_qualname, caller_file, _kind(frame))
                self.calls.append(call)

    def _note_message(self, peer: str, frame: FrameType) -> None:
        sender = _caller(frame)
        while sender is not None and _file(sender).startswith("network/rpc/"):
            sender = _caller(sender)
        if sender is None:
            return
        message = self._sending[frame.f_code](frame.f_locals)
        to = self._name_of(frame.f_locals["self"].peer)
        file, function = _file(sender), sender.f_code.co_qualname
        if (key := (peer, file, function, message, to)) not in self._seen:
            self._seen.add(key)
            self.calls.append(TracedCall(self._loop.time(), peer, file, function, "", "message", message, to))


def _name_of_message(local: dict[str, Any]) -> str:
    """The type of a message, and of a call what it asks for."""
    message: msgspec.Struct = local["message"]
    method = getattr(message, "method", None)
    return f"rpc {method}" if method is not None else type(message).__name__


def _file(frame: FrameType) -> str:
    return frame.f_code.co_filename.removeprefix(PACKAGE).replace(os.sep, "/")


def _caller(frame: FrameType) -> FrameType | None:
    """The nearest function of the package that led to a call; None if the event loop did."""
    above = frame.f_back
    while above is not None and not above.f_code.co_filename.startswith(PACKAGE):
        above = above.f_back
    return above if above is None or not _file(above).startswith("simulation/virtual_time") else None


def _kind(frame: FrameType) -> str:
    code = frame.f_code
    if code.co_flags & (inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return "coroutine"
    found: object = sys.modules.get(frame.f_globals["__name__"])
    for name in code.co_qualname.split("."):
        found = getattr(found, name, None)
    return "property" if isinstance(found, property | cached_property) else "function"


def _depends_on_the_past(frame: FrameType) -> bool:
    above: FrameType | None = frame
    while above is not None:
        if above.f_code.co_filename.startswith(PACKAGE) and _remembers(above.f_code, above.f_globals["__name__"]):
            return True
        above = above.f_back
    return False


@cache
def _remembers(code: CodeType, module: str) -> bool:
    """Whether a function is one of the module's that keep results."""
    return hasattr(getattr(sys.modules.get(module), code.co_name, None), "cache_info")


@cache
def _start_of(code: CodeType) -> int:
    """Where the body of a function begins; a coroutine that goes on is beyond."""
    return next((each.offset for each in dis.get_instructions(code) if each.opname == START), 0)
