"""Which of the recorded calls are shown, in which order, and how they read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from minga.simulation.tracing.call_recorder import TracedCall
from minga.simulation.tracing.traced_swarm import TracedStep

SHOWN = ("averaging/", "security/", "training/")
"""Where a step is taken; what carries its messages is shown only in a trace of everything."""

ASKED = (
    "averaging/apportionment.py",
    "averaging/clocking/",
    "averaging/codecs/layout.py",
    "averaging/codecs/residual.py Encoder.own_share",
    "averaging/codecs/round_vectors.py",
    "averaging/codecs/seeds.py",
    "averaging/codecs/tensor_bytes.py",
    "averaging/contracts.py WithoutOrders",
    "averaging/election.py",
    "averaging/link_record.py",
    "averaging/link_reporter.py",
    "averaging/matchmaking/former.py GroupFormation.others_are_past",
    "averaging/messages.py Plan.rank_of",
    "averaging/planning/best_contributor.py",
    "averaging/planning/signed_plan.py chunk_bytes_of",
    "averaging/sketches/",
    "averaging/strategy_choice.py",
    "training/access/amended.py",
    "training/access/standing_orders.py",
    "training/agreement/",
    "training/bridge/gradient_port.py GradientPort.cap",
    "training/bridge/gradient_port.py GradientPort.report",
    "training/life/board_view.py",
    "training/receipts/",
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
class SequenceLine:
    """A call, or messages that a function sent to some peers at one time. `file` is below `src/minga`."""

    virtual_ms: float
    peer: str
    role: str
    file: str
    function: str
    messages: tuple[str, ...] = ()
    to: tuple[str, ...] = ()


def usual_peers(traced: TracedStep) -> tuple[str, ...]:
    """The leader and one member, who stands for the others."""
    return traced.leader, next(peer for peer in traced.peers if peer != traced.leader)


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
