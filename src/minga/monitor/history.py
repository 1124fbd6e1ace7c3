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
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

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

_BEGIN: Final = re.compile(rb'\{"t": (\d+\.\d+),')
"""Of most lines."""

_NESTED: Final = (dict, list)

Entry = dict[str, Any]

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
                file.write(b"\n" * is_cut + _as_lines([entry]))
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
        there = _last_step(older)  # `path` begins with it
        carried = thinned((each for each in _readable(_in_file(older)) if each != there), MOST_CARRIED)
        while len(lines := _as_lines(carried)) > self._max_bytes // 4:
            carried = thinned(carried, len(carried) // 2)
        last = _last_step(path)
        kept = lines + (b"" if last is None else _as_lines([last]))
        write_atomically(_begun(path), kept)  # before what it is taken from is gone
        path.replace(older)
        _begun(path).replace(path)


def read_history(path: Path) -> list[Entry]:
    """All entries in `path` and its older half, in order of time. Raises `ConfigurationError` if there are none."""
    entries = list(_entries_of(path))
    if not entries:
        raise ConfigurationError(f"{path}: no history of a run; `minga host` keeps one named {FILE_NAME} in its folder")
    return sorted(entries, key=_time_of)


def _entries_of(path: Path, since: float = -math.inf) -> Iterator[Entry]:
    """The entries after `since` in both halves, as they were written; none if there are no files. Raises
    `ConfigurationError`.
    """
    ends = _last_step(_older(path))
    yield from _in_file(_older(path), since)
    yield from (entry for entry in _in_file(path, since) if entry != ends)  # it stands in both


def _in_file(file: Path, since: float = -math.inf) -> Iterator[Entry]:
    try:
        with file.open("rb") as lines:
            about = os.stat(lines.fileno())
            if about.st_size > MAX_BYTES:
                raise ConfigurationError(f"{file}: larger than any history ({MAX_BYTES >> 20} MiB)")
            if about.st_mtime + 1.0 < since:
                return
            for line in lines:
                begin = _BEGIN.match(line)
                if begin is not None and float(begin[1]) <= since:
                    continue  # saves most of the work
                if (entry := parse_entry(line)) is not None and entry["t"] > since:
                    yield entry
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigurationError(f"{file}: cannot be read: {reason_of(error)}") from error


def _readable(entries: Iterator[Entry]) -> Iterator[Entry]:
    """Up to where the file cannot be read."""
    with contextlib.suppress(ConfigurationError):
        yield from entries


def _as_lines(entries: Iterable[Entry]) -> bytes:
    return b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def _time_of(entry: Entry) -> float:
    return float(entry["t"])


def samples_in(path: Path) -> tuple[int, int] | None:
    """The step and the count of samples with which the history in `path` ends; None if it tells of none."""
    last = _last_step(path) or _last_step(_older(path))
    return None if last is None else samples_of(last)


def _last_step(file: Path) -> Entry | None:
    with contextlib.suppress(OSError), file.open("rb") as lines:
        lines.seek(max(0, lines.seek(0, os.SEEK_END) - LAST_BYTES))
        for line in reversed(lines.read().split(b"\n")):
            if (entry := parse_entry(line)) is not None and samples_of(entry) is not None:
                return entry
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
        entry = json.loads(line)
        if b"\\u" in line:
            json.dumps(entry, ensure_ascii=False).encode()  # refuses half of a surrogate pair
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
"""Peers that are asked for their history, one after the other until one has some."""

FREQUENT: Final = ("step", "swarm", "round")
"""Kinds of which a part is enough to draw a curve; of all others each entry counts."""


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
    """What a peer that keeps a history tells about the time since. The organiser's host is asked first, and nobody
    else if it answers. Not for the loop's own thread. Raises `ClosedError` after the peer was closed.
    """
    node, organiser = peer.session.node, peer.link.organiser

    async def ask() -> list[Entry]:
        for other in sorted(node.connected(), key=lambda each: (each != organiser, each))[:MOST_ASKED]:
            with contextlib.suppress(RemoteError):
                found = await ask_history(node, other, since_s, time.time())
                if found or other == organiser:
                    return found
        return []

    return peer.call(ask())


def packed(paths: Sequence[Path], since: float, until: float) -> bytes:
    """What is sent of these files."""
    found = heapq.merge(*(_readable(_entries_of(path, since)) for path in paths), key=_time_of)
    entries = thinned((entry for entry in found if entry["t"] <= until), MOST_ENTRIES)
    while len(lines := zlib.compress(_as_lines(entries))) > MOST_REPLY_BYTES:
        entries = thinned(entries, len(entries) // 2)
    return lines


def thinned(entries: Iterable[Entry], most: int) -> list[Entry]:
    """At most `most` entries in their order: the newest rare ones, each with the step before it, which tells where in
    the run it was, and of each frequent kind the last one in each of equal spans of time.
    """
    rare = deque[tuple[int, Entry]](maxlen=most // 2)
    spreads, step = defaultdict[str, _Spread](_Spread), None
    for numbered in enumerate(entries):
        event = numbered[1]["event"]
        if event in FREQUENT:
            spreads[event].add(*numbered, most)
            step = numbered if event == "step" else step
        else:
            rare.extend((numbered,) if step is None else (step, numbered))
            step = None  # of several after one step the first one brings it
    kept = dict(rare)
    room = (most - len(kept)) // max(1, len(spreads))
    for spread in spreads.values():
        spread.widen(room)
        kept |= spread.kept.values()
    return [kept[number] for number in sorted(kept)]


class _Spread:
    """The last entry in each span of time, of `span_s` seconds, which doubles while there are too many of them."""

    def __init__(self) -> None:
        self.kept: dict[float, tuple[int, Entry]] = {}
        self._span_s = 2.0**-10

    def add(self, number: int, entry: Entry, most: int) -> None:
        """An entry and its number; `most` are kept, but two if it is less: one before the year 1970, and one since."""
        self.kept[entry["t"] // self._span_s] = number, entry
        self.widen(most)

    def widen(self, most: int) -> None:
        """Let at most so many remain."""
        while len(self.kept) > max(2, most):
            self._span_s *= 2.0
            self.kept = {each[1]["t"] // self._span_s: each for each in self.kept.values()}


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
