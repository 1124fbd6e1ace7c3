"""The history of a run as one peer saw it, a file of bounded size, and how other peers' histories fill its gaps.

The file has JSON lines:

    {"t": 1700000000.1, "event": "step", "step": 7, "loss": 8.9, "samples": 512, "total_samples": 3584, …}
    {"t": 1700000003.4, "event": "joined" | "left" | "lost", "peer": "…"}
    {"t": 1700000009.0, "event": "evaluation", "step": 9, "headline": "heldout_loss", "heldout_loss": 8.7, …}

`t` is Unix time. When the file has reached half of its limit it becomes `NAME.1`, replacing the one before, and a new
one is begun with a part of that, which still tells of all its time, and with the last step of all. Readers skip lines
that they do not understand, such as one that was cut off.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import json
import logging
import math
import os
import re
import threading
import time
import zlib
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, BinaryIO, Final, NamedTuple

import msgspec

from minga.core.errors import ConfigurationError, ProtocolError, RejectedError, RemoteError, StorageError, reason_of
from minga.core.files import write_atomically
from minga.core.refusal_code import RefusalCode
from minga.network.interface import PeerId
from minga.network.rpc.handshake import UnixTime
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream

if TYPE_CHECKING:
    from minga.training.peer import Peer


FILE_NAME = "history.jsonl"
RECORD_FILE = "dashboard.jsonl"
"""What a dashboard records beside it."""
MAX_BYTES = 64 << 20
MOST_REMEMBERED = 100_000
LAST_BYTES = 1 << 20
"""So much of the end of a file is read to find its last step."""
MOST_CARRIED = 20_000
"""Entries of the older half with which a new one begins, at most."""
LARGEST_NUMBER = 1 << 53
"""Numbers beyond it are none of a run's, and JavaScript cannot tell one from the next."""

_BEGIN: Final = re.compile(rb'\{"t": (\d{1,12}\.\d{1,6}), "event": "([a-z]+)"[,}]')
"""Of most lines. To read no more than this takes a tenth of the time."""

_NESTED: Final = (dict, list)

Entry = dict[str, Any]


class Line(NamedTuple):
    """A line of a history as it was written, and what decides whether it is kept."""

    time_s: float
    event: str
    text: bytes

    @classmethod
    def of(cls, text: bytes) -> Line | None:
        """None if it is no line of a history; what most begin with is believed, and the rest not looked at."""
        begin = _BEGIN.match(text)
        if begin is not None:
            return cls(float(begin[1]), begin[2].decode(), text)
        entry = parse_entry(text)
        return None if entry is None else cls(_time_of(entry), entry["event"], text)


logger = logging.getLogger("minga")


class History:
    """Appends to the history at `path`, from any thread; None keeps it in memory only.

    `entries` are those of this process, at most the newest `most_remembered`: 100,000 steps take 48 MB, and a
    process that draws nothing needs none. A disk that refuses ends nothing: a warning says once that the file lacks
    entries, which are written again as soon as there is room. Raises `StorageError` if the folder cannot be made.
    """

    def __init__(
        self, path: Path | None, *, max_bytes: int = MAX_BYTES, most_remembered: int = MOST_REMEMBERED
    ) -> None:
        self.path, self._max_bytes, self._most_remembered = path, max_bytes, most_remembered
        self.entries: list[Entry] = []
        self.listeners: list[Callable[[Entry], None]] = []
        """Told each entry on the thread that adds it."""
        self._is_refused = False
        self._most_in_half = max_bytes // 2
        self._writing = threading.Lock()
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(f"the folder {path.parent} cannot be made: {reason_of(error)}") from error

    def add(self, time_s: float, event: str, **fields: Any) -> None:
        """Append one entry; `time_s` is Unix time."""
        self.put({"t": round(time_s, 3), "event": event, **fields})

    def put(self, entry: Entry) -> None:
        """Append an entry that is there already, such as one that another peer told."""
        self.entries.append(entry)
        if len(self.entries) > self._most_remembered:
            del self.entries[: len(self.entries) - self._most_remembered // 2]
        for listener in self.listeners:
            listener(entry)
        if self.path is not None:
            with self._writing:
                self._write(self.path, entry)

    def _write(self, path: Path, entry: Entry) -> None:
        try:
            if not path.exists() and _begun(path).exists():  # a process was killed in between
                _begun(path).replace(path)
            with path.open("a+b") as file:
                file.seek(max(0, file.tell() - 1))
                # The disk may have refused the rest of a line, or its process was killed.
                is_cut = file.read() not in (b"", b"\n")
                file.write(b"\n" * is_cut + json.dumps(entry).encode() + b"\n")
                size = file.tell()
            if size > self._most_in_half:
                self._most_in_half = size + self._max_bytes // 64  # where it is tried again if the disk refuses
                self._begin_anew(path)
                self._most_in_half = self._max_bytes // 2
            self._is_refused = False
        except OSError as error:
            if not self._is_refused:
                logger.warning("no history is kept while %s cannot be written: %s", path, reason_of(error))
            self._is_refused = True

    def _begin_anew(self, path: Path) -> None:
        older = _older(path)
        there = _last_step_of(older)  # `path` begins with it
        carried = thinned((line for line in _readable(_lines_of(older)) if line.text != there), MOST_CARRIED)
        while len(kept := _text_of(carried)) > self._max_bytes // 4:
            carried = thinned(carried, len(carried) // 2)
        last = _last_step_of(path)
        # Before what it is taken from is gone.
        write_atomically(_begun(path), kept if last is None else kept + last + b"\n")
        path.replace(older)
        _begun(path).replace(path)


def read_history(path: Path) -> list[Entry]:
    """All entries in `path` and its older half, in order of time. Raises `ConfigurationError` if there are none."""
    found = (parse_entry(line.text) for line in _lines_of(*_halves(path)))
    entries = [entry for entry in found if entry is not None]
    if not entries:
        raise ConfigurationError(f"{path}: no history of a run; `minga host` keeps one named {FILE_NAME} in its folder")
    return sorted(entries, key=_time_of)


def _lines_of(*files: Path, since: float = -math.inf) -> Iterator[Line]:
    """The lines after `since` in these files that are there; what begins a file because it ends the one before is told
    once. Raises `ConfigurationError`.
    """
    try:
        with contextlib.ExitStack() as stack:
            are_halves_of_one = False
            while not are_halves_of_one:  # else one began anew meanwhile
                stack.close()
                opened = dict[Path, BinaryIO]()  # all before one is read, which may become another meanwhile
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        opened[file] = stack.enter_context(file.open("rb"))
                are_halves_of_one = all(_is_at(file, opened.get(file)) for file in files)
            ends = None
            for lines in opened.values():
                about = os.fstat(lines.fileno())
                if about.st_size > MAX_BYTES:
                    raise ConfigurationError(f"{files[-1]}: larger than any history ({MAX_BYTES >> 20} MiB)")
                for text in lines if about.st_mtime + 1.0 >= since else ():
                    line = Line.of(text.rstrip(b"\n"))
                    if line is not None and line.time_s > since and line.text != ends:
                        yield line
                ends = _last_step(lines)
    except OSError as error:
        raise ConfigurationError(f"{files[-1]}: cannot be read: {reason_of(error)}") from error


def _is_at(path: Path, opened: BinaryIO | None) -> bool:
    """Whether this file lies at `path` now; None if none does."""
    try:
        now = path.stat()
    except FileNotFoundError:
        return opened is None
    return opened is not None and os.path.samestat(now, os.fstat(opened.fileno()))


def _readable(lines: Iterator[Line]) -> Iterator[Line]:
    """Up to where the file cannot be read."""
    with contextlib.suppress(ConfigurationError):
        yield from lines


def _text_of(lines: Iterable[Line]) -> bytes:
    return b"".join(line.text + b"\n" for line in lines)


def _time_of(entry: Entry) -> float:
    return float(entry["t"])


def samples_in(path: Path) -> tuple[int, int] | None:
    """The step and the count of samples with which the history in `path` ends; None if it tells of none."""
    last = _last_step_of(path) or _last_step_of(_older(path))
    entry = None if last is None else parse_entry(last)
    return None if entry is None else samples_of(entry)


def _last_step_of(file: Path) -> bytes | None:
    with contextlib.suppress(OSError), file.open("rb") as lines:
        return _last_step(lines)
    return None


def _last_step(lines: BinaryIO) -> bytes | None:
    lines.seek(max(0, lines.seek(0, os.SEEK_END) - LAST_BYTES))
    for line in reversed(lines.read().split(b"\n")):
        if (entry := parse_entry(line)) is not None and samples_of(entry) is not None:
            return line
    return None


def samples_of(entry: Entry) -> tuple[int, int] | None:
    """The step of an entry, and the samples of all steps up to it; None if it tells of none."""
    step, total = number_in(entry, "total_at" if "total_at" in entry else "step"), number_in(entry, "total_samples")
    if entry["event"] != "step" or step is None or total is None or step < 0 or total < 0:
        return None
    return int(step), int(total)


def parse_entry(line: bytes) -> Entry | None:
    """One line of a history; None if it is none, or has text that no page could show. Fields that are lists, or
    mappings of anything but single values, are left out: what a stranger told is written and sent on.
    """
    try:
        entry = json.loads(line.decode())  # of bytes it would take UTF-16, and halves of surrogate pairs
        if b"\\u" in line:
            json.dumps(entry, ensure_ascii=False).encode()  # refuses a half that is written as an escape
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict) or not isinstance(entry.get("event"), str) or number_in(entry, "t") is None:
        return None
    return {name: value for name, value in entry.items() if type(value) not in _NESTED or _is_flat(value)}


def _is_flat(value: object) -> bool:
    return isinstance(value, dict) and not any(type(each) in _NESTED for each in value.values())


def number_in(fields: Mapping[str, Any], name: str) -> float | None:
    """The field `name`, if it is a number; entries may come from a file that was changed, or from another peer.

    None also for what is not finite, or beyond `LARGEST_NUMBER` either way.
    """
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if -LARGEST_NUMBER <= value <= LARGEST_NUMBER else None


def _older(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


def _halves(path: Path) -> tuple[Path, Path]:
    return _older(path), path


def _begun(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


# ---- The exchange: asking another peer for the history of a time in which this one did not watch.
#
#     run.history   HistoryRequest -> HistoryReply       the entries between two moments, thinned to a bounded number
#
# A peer that keeps a history serves it (`HistoryServer`). The reply is what that peer says: nothing in it can be
# checked, and nothing in a run acts on it. It is bounded, and what is no entry of a known kind is dropped.


HISTORY: Final = "run.history"
MOST_ENTRIES: Final = 3000
MOST_REPLY_BYTES, MOST_TEXT_BYTES = 900_000, 6 << 20
MOST_LINE_BYTES: Final = 4096
LEAST_PERIOD_S: Final = 5.0
"""Seconds between two readings of the files, at least, for all that ask."""
REST: Final = 50
"""So many times as long as a reading took the next one waits: peers that ask all the time cost 2 % of a core."""
TIMEOUT_S: Final = 10.0
MOST_ASKED: Final = 3
"""Peers that are asked for their history, one after the other until one has some; the organiser's host is asked so many
times while it is busy.
"""

FREQUENT: Final = ("step", "swarm", "round", "joined", "left", "lost")
"""Kinds of which a part is enough to draw a curve, or to see how many come and go; of all others each entry counts."""


class HistoryRequest(msgspec.Struct, frozen=True):
    """The entries after `since` and up to `until`, Unix times."""

    since: UnixTime
    until: UnixTime


class HistoryReply(msgspec.Struct, frozen=True):
    """JSON lines, compressed by zlib."""

    lines: Annotated[bytes, msgspec.Meta(max_length=MOST_REPLY_BYTES)]


class HistoryServer:
    """Serves the histories in the files `paths` at `node`; make it on the event loop's thread."""

    def __init__(self, node: Node, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._free_s = 0.0
        node.serve(HISTORY, self._answer)

    async def _answer(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(HistoryRequest)
        loop = asyncio.get_running_loop()
        if loop.time() < self._free_s:
            raise RejectedError("the history was sent a moment ago; ask again", code=RefusalCode.BUSY, peer=peer)
        self._free_s, begun_s = math.inf, loop.time()
        try:
            lines = await loop.run_in_executor(None, lambda: packed(self._paths, request.since, request.until))
        finally:
            self._free_s = begun_s + max(LEAST_PERIOD_S, REST * (loop.time() - begun_s))
        await stream.send(HistoryReply(lines))


async def ask_history(node: Node, peer: PeerId, since: float, until: float) -> list[Entry]:
    """The entries that `peer` keeps of that time. Raises `RemoteError`s, such as a refusal if it keeps none."""
    reply = await node.call(peer, HISTORY, HistoryRequest(since, until), HistoryReply, timeout_s=TIMEOUT_S)
    unpacker = zlib.decompressobj()
    with node.blaming(peer):
        try:
            text = unpacker.decompress(reply.lines, MOST_TEXT_BYTES)
        except zlib.error as error:
            raise ProtocolError("a history that cannot be unpacked", peer=peer) from error
    lines = text.split(b"\n")[:MOST_ENTRIES]
    found = (parse_entry(line) for line in lines if len(line) <= MOST_LINE_BYTES)
    return [entry for entry in found if entry is not None and since < entry["t"] <= until]


def told_since(peer: Peer, since_s: float) -> list[Entry]:
    """What a peer that keeps a history tells about the time since. While the organiser's host is busy, nobody else is
    asked: whoever keeps it busy would be believed in its place. Not for the loop's own thread. Raises `ClosedError`
    after the peer was closed.
    """
    node, organiser = peer.session.node, PeerId(peer.link.organiser)

    async def ask() -> list[Entry]:
        connected = sorted(node.connected())
        for tries_left in reversed(range(MOST_ASKED if organiser in connected else 0)):
            try:
                return await ask_history(node, organiser, since_s, time.time())
            except RemoteError as error:
                if not isinstance(error, RejectedError) or error.code != RefusalCode.BUSY:
                    break
                if not tries_left:
                    return []
                await asyncio.sleep(LEAST_PERIOD_S)
        for other in [each for each in connected if each != organiser][:MOST_ASKED]:
            with contextlib.suppress(RemoteError):
                if found := await ask_history(node, other, since_s, time.time()):
                    return found
        return []

    return peer.call(ask())


def packed(paths: Sequence[Path], since: float, until: float) -> bytes:
    """What is sent of these files."""
    found = heapq.merge(
        *(_readable(_lines_of(*_halves(path), since=since)) for path in paths), key=lambda line: line.time_s
    )
    lines = thinned((line for line in found if line.time_s <= until), MOST_ENTRIES)
    while len(sent := zlib.compress(_text_of(lines))) > MOST_REPLY_BYTES:
        lines = thinned(lines, len(lines) // 2)
    return sent


def thinned(lines: Iterable[Line], most: int) -> list[Line]:
    """At most `most` lines in their order: the newest rare ones, a third of them, each with the step before it, which
    tells where in the run it was, and of each frequent kind the last one in each of equal spans of time.
    """
    rare = deque[list[tuple[int, Line]]](maxlen=most // 3)
    spreads, steps = defaultdict[str, _Spread](_Spread), list[tuple[int, Line]]()
    for numbered in enumerate(lines):
        event = numbered[1].event
        if event in FREQUENT:
            spreads[event].add(*numbered, most)
            steps = [numbered] if event == "step" else steps
        else:
            rare.append([*steps, numbered])
            steps = []  # of several after one step the first one brings it
    kept = dict(chain.from_iterable(rare))
    for others, spread in zip(range(len(spreads), 0, -1), sorted(spreads.values(), key=len), strict=True):
        spread.widen((most - len(kept)) // others)
        kept |= spread.kept.values()
    return [kept[number] for number in sorted(kept)[max(0, len(kept) - most) :]]


class _Spread:
    """The last line in each span of time. Spans have `span_s` seconds, doubled while there are too many of them; first
    each line has one of its own.
    """

    def __init__(self) -> None:
        self.kept: dict[float, tuple[int, Line]] = {}
        self._span_s = 0.0

    def __len__(self) -> int:
        return len(self.kept)

    def add(self, number: int, line: Line, most: int) -> None:
        """A line and its number; `most` are kept, but two if it is less: one before the year 1970, and one since."""
        self.kept[line.time_s // self._span_s if self._span_s else number] = number, line
        self.widen(most)

    def widen(self, most: int) -> None:
        """Let at most so many remain."""
        while len(self.kept) > max(2, most):
            self._span_s = 2.0 * self._span_s or 2.0**-10
            self.kept = {each[1].time_s // self._span_s: each for each in self.kept.values()}


# ---- Gaps: another history adds to one's own the times in which this one has nothing.


LONGEST_SILENCE_S: Final = 120.0
"""Entries of one process lie no further apart while it watches a run whose swarm it records."""


def fill_gaps(own: Sequence[Entry], other: Sequence[Entry]) -> list[Entry]:
    """`own` and those entries of `other` that lie in no time of which `own` tells, in order of time."""
    spans = _spans(sorted(float(entry["t"]) for entry in own))
    added, place = [], 0
    for entry in sorted(other, key=_time_of):
        while place < len(spans) and spans[place][1] < entry["t"]:
            place += 1
        if place == len(spans) or entry["t"] < spans[place][0]:
            added.append(entry)
    return sorted([*own, *added], key=_time_of)


def _spans(times: Sequence[float]) -> list[tuple[float, float]]:
    """First and last moment of each stretch without a long silence."""
    spans: list[tuple[float, float]] = []
    for time_s in times:
        if spans and time_s - spans[-1][1] <= LONGEST_SILENCE_S:
            spans[-1] = spans[-1][0], time_s
        else:
            spans.append((time_s, time_s))
    return spans
