"""Prints one step of four simulated trainers as a sequence: which file does what, when, at which peer, and what peers
send. For readers of the code.

    python -m tools.trace [--seed N] [--peer peer-N ...] [--all]

The leader and one member are shown, who stands for the others. Of the calls these are those from folder to folder and
those of coroutines; with `--all` every one, the network's, too.

Theory of operation. The interpreter tells a profile function of every call. Kept are calls of functions of the
package that come from another file; each function once for each peer, at its first call. The peer follows from the
virtual process that the running code belongs to. A coroutine that goes on after a wait is no new call. A function
that remembers its results is left out with all that it calls, for it runs or not by what ran before in the process.
"""

from __future__ import annotations

import argparse
import asyncio
import dis
import inspect
import os
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache, cached_property, partial
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

import msgspec

import minga
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.network.virtual.process import CURRENT_PROCESS
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm, SwarmLog
from minga.simulation.virtual_time import run_virtual

PEERS = 4
STEP = 3
"""The first steps also found the run and measure the lines; from the third on they are alike."""

TARGET_BATCH_SIZE = 160
LATENCY_S = 0.02
LIMIT_S = 600.0
PACKAGE = f"{Path(minga.__file__).parent}{os.sep}"
START = "RESUME"

SHOWN = ("averaging/", "security/", "training/")
"""Where a step is taken; what carries its messages is shown only in a trace of everything."""

ASKED = (
    "averaging/allreduce/reducer.py receive_counted",
    "averaging/apportionment.py",
    "averaging/clocking/",
    "averaging/codecs/layout.py",
    "averaging/codecs/residual.py Encoder.own_share",
    "averaging/codecs/residual.py RoundVectors",
    "averaging/codecs/seeds.py",
    "averaging/codecs/tensor_bytes.py",
    "averaging/group.py WithoutOrders",
    "averaging/election.py",
    "averaging/links.py",
    "averaging/matchmaking/former.py GroupFormation.others_are_past",
    "averaging/messages.py Plan.rank_of",
    "averaging/planning/best_contributor.py",
    "averaging/planning/signed_plan.py chunk_bytes_of",
    "averaging/sketches/",
    "averaging/strategy_choice.py",
    "training/agreement/",
    "training/bridge/gradient_port.py GradientPort.cap",
    "training/bridge/gradient_port.py GradientPort.report",
    "training/bridge/thread_bridge.py TrainingThread.held_s",
    "training/life/board_view.py",
    "training/replica/flat_vector.py",
    "training/replica/replica.py Replica.layout_of",
    "training/replica/replica.py Replica.rounds_alike",
    "training/session.py",
    "training/strategy/",
    "training/transfer/",
)
"""Files, or one function of a file, that the others only ask or tell something, and that change no step; shown only in
a trace of everything.
"""

TRAINER = "simulation/swarm/"
"""What stands for the training thread."""

HEADINGS = ("ms", "peer", "file", "function", "message")


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


@dataclass(frozen=True)
class TracedStep:
    """What the peers did from the end of one step to the end of the next; `start_s` is virtual time."""

    step: int
    start_s: float
    end_s: float
    leader: str
    peers: tuple[str, ...]
    calls: tuple[TracedCall, ...]


@dataclass(frozen=True)
class SequenceLine:
    """A call, or messages that a function sent to some peers at one time. `file` is below `src/minga`."""

    virtual_ms: float
    peer: str
    role: str
    file: str
    function: str
    messages: tuple[str, ...] = ()
    to: tuple[str, ...] = ()


# ---- recording a step


def trace_step(seed: int = 0) -> TracedStep:
    """Run the swarm of a seed and record one step; equal seeds give equal traces."""
    return run_virtual(_trace(seed), limit_s=LIMIT_S)


async def _trace(seed: int) -> TracedStep:
    mapping = {"name": "trace", "training": {"target_batch_size": TARGET_BATCH_SIZE, "seed": seed}}
    swarm = Swarm(RunSpec.from_mapping(mapping).published({}), seed=seed)
    try:
        for number in range(1, PEERS + 1):
            swarm.add(HostSettings(latency_s=LATENCY_S), TrainerSettings(jitter=0.1), name=f"peer-{number}")
        await swarm.run_until_step(STEP - 2)
        with CallRecorder(swarm.name_of) as recorder:
            for peer in swarm.peers.values():
                peer.session.events.subscribe(partial(_note_step, recorder, peer.name))
            await swarm.run_until_step(STEP)
        begun = _of_step(swarm.log, "round.begun", STEP - 1)  # the step that its members have taken by then
        leader = swarm.name_of(str(begun[-1].fields["leader"]))
        ends_s = [event.time for event in _of_step(swarm.log, "step.applied", STEP)]
        start_s = min(event.time for event in _of_step(swarm.log, "step.applied", STEP - 1))
        return TracedStep(STEP, start_s, max(ends_s), leader, tuple(swarm.peers), tuple(recorder.calls))
    finally:
        await swarm.close()


def _note_step(recorder: CallRecorder, peer: str, event: Event) -> None:
    """A peer's step is from the end of one to the end of the next."""
    if event.kind == "step.applied" and event.fields["step"] == STEP - 1:
        recorder.recorded.add(peer)
    elif event.kind == "step.applied":
        recorder.recorded.discard(peer)


def _of_step(log: SwarmLog, kind: str, step: int) -> list[Event]:
    return [logged.event for logged in log.of(kind) if logged.event.fields["step"] == step]


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


# ---- what is shown


def sequence(traced: TracedStep, peers: Collection[str], *, whole: bool = False) -> list[SequenceLine]:
    """What these peers did, in order of time.

    Of the calls, those from folder to folder and those of coroutines; with `whole` every one, the network's, too.
    Messages of one time and one file are one line.
    """
    lines: list[SequenceLine] = []
    sent: dict[tuple[float, str, str], int] = {}
    for call in traced.calls:
        if call.peer not in peers or not (whole or _matters(call)):
            continue
        key = (call.virtual_s, call.peer, call.file)
        if call.message and key in sent:
            lines[sent[key]] = _with_message(lines[sent[key]], call)
            continue
        line = _line(traced, call)
        if call.message and lines and lines[-1] == line:
            lines.pop()  # the call of the function that sends
        if call.message:
            sent[key] = len(lines)
            line = _with_message(line, call)
        lines.append(line)
    return lines


def text(traced: TracedStep, lines: list[SequenceLine]) -> Iterator[str]:
    """A sequence as lines of columns."""
    rows = [(f"{line.virtual_ms:.1f}", line.peer, line.file, line.function, _arrow(line)) for line in lines]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    yield (
        f"Step {traced.step} of {len(traced.peers)} simulated trainers, led by {traced.leader}: "
        f"{(traced.end_s - traced.start_s) * 1000:.0f} ms of virtual time. Files are below src/minga."
    )
    for row in (HEADINGS, *rows):
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        yield "  ".join([row[0].rjust(widths[0]), *cells[1:]]).rstrip()


def _matters(call: TracedCall) -> bool:
    """Whether a call is shown where not all are."""
    if not call.file.startswith(SHOWN) or call.kind == "property" or f"{call.file} {call.function}".startswith(ASKED):
        return False
    is_from_afar = call.caller.startswith((*SHOWN, TRAINER)) and _folder(call.file) != _folder(call.caller)
    return call.kind in ("message", "coroutine") or is_from_afar


def _folder(file: str) -> str:
    return file.rpartition("/")[0]


def _line(traced: TracedStep, call: TracedCall) -> SequenceLine:
    role = "leader" if call.peer == traced.leader else "member"
    return SequenceLine(round((call.virtual_s - traced.start_s) * 1000, 3), call.peer, role, call.file, call.function)


def _with_message(line: SequenceLine, call: TracedCall) -> SequenceLine:
    messages, to = dict.fromkeys((*line.messages, call.message)), dict.fromkeys((*line.to, call.to))
    return SequenceLine(line.virtual_ms, line.peer, line.role, line.file, line.function, tuple(messages), tuple(to))


def _arrow(line: SequenceLine) -> str:
    return f"{', '.join(line.messages)} → {', '.join(line.to)}" if line.messages else ""


def main(arguments: list[str] | None = None) -> int:
    """Record a step and print it."""
    known = [f"peer-{number}" for number in range(1, PEERS + 1)]
    options = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    options.add_argument("--seed", type=int, default=0, help="another swarm; equal seeds give equal traces")
    options.add_argument("--peer", action="append", choices=known, help="show this peer; may be repeated")
    options.add_argument("--all", action="store_true", help="show every call of every peer")
    given = options.parse_args(arguments)
    traced = trace_step(given.seed)
    usual = [traced.leader, next(peer for peer in traced.peers if peer != traced.leader)]
    peers = given.peer or (known if given.all else usual)
    print(*text(traced, sequence(traced, peers, whole=given.all)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
