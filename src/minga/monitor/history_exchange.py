"""Asking another peer for the history of a time in which this one did not watch.

    run.history   HistoryRequest -> HistoryReply       the entries between two moments, thinned to a bounded number

A peer that keeps a history serves it (`HistoryServer`). The reply is what that peer says: nothing in it can be checked,
and nothing in a run acts on it. It is bounded, and what is no entry of a known kind is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from minga.core.errors import ConfigurationError, ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.monitor.history import Entry, parse_entry, read_history
from minga.network.gossip.record_kinds import UnixTime
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node

if TYPE_CHECKING:
    from minga.training.peer import Peer

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
    """What a peer that keeps a history tells about the time since; organisers are asked first. Not for the loop's own
    thread. Raises `ClosedError` after the peer was closed.
    """
    node, organiser = peer.session.node, peer.link.organiser

    async def ask() -> list[Entry]:
        for other in sorted(node.connected(), key=lambda each: (each != organiser, each))[:MOST_ASKED]:
            with contextlib.suppress(RemoteError):
                if found := await ask_history(node, other, since_s, time.time()):
                    return found
        return []

    loop = peer.on_loop(asyncio.get_running_loop)
    return asyncio.run_coroutine_threadsafe(ask(), loop).result()


def packed(paths: Sequence[Path], since: float, until: float) -> bytes:
    """What is sent of these files."""
    entries: list[Entry] = []
    for path in paths:
        try:
            entries += [entry for entry in read_history(path) if since < entry["t"] <= until]
        except ConfigurationError:
            continue  # there is none
    entries.sort(key=lambda entry: entry["t"])
    most = MOST_ENTRIES
    while True:
        lines = zlib.compress(b"\n".join(json.dumps(entry).encode() for entry in thinned(entries, most)))
        if len(lines) <= MOST_REPLY_BYTES:
            return lines
        most //= 2


def thinned(entries: Sequence[Entry], most: int) -> list[Entry]:
    """At most `most` entries in their order: the newest rare ones, and of the frequent ones every so many."""
    rare = [entry for entry in entries if entry["event"] not in FREQUENT][-(most // 2) :]
    frequent = [entry for entry in entries if entry["event"] in FREQUENT]
    room = max(1, most - len(rare))
    every = -(-len(frequent) // room)
    return sorted([*rare, *(frequent[::every] if every else [])], key=lambda entry: float(entry["t"]))
