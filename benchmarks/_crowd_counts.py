"""What a process does for its peers, counted at the places through which all of it has to go."""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from iroh import iroh_ffi

from minga.identity.keys import keys
from minga.network.gossip.board import Board
from minga.network.gossip.records import Verdict
from minga.network.iroh.connection import IrohConnection
from minga.network.rpc import stream as framing
from minga.network.rpc.node import Node
from minga.network.virtual.connection import VirtualConnection
from minga.simulation.virtual_time import VirtualTimeLoop

FRAMES = {framing.MESSAGE: "messages", framing.BULK: "bulk", framing.PULSE: "pulses", framing.RECEIPT: "receipts"}
NAMES = (
    "streams", "messages", "bulk", "pulses", "receipts", "foreign_calls", "wakeups", "callbacks", "signed", "checked",
    "records", "new_records",
)  # fmt: skip
"""Streams opened; frames sent, by kind; calls of functions of the iroh library, and how often one of its threads woke
the loop; callbacks that the loop ran; signatures made and checked; records received, and those of them that were new.
"""

Place = tuple[Any, str]


class Counts:
    """Counts from `install` on, for as long as the process lives. What it counts becomes slower by that."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self.methods: Counter[str] = Counter()
        """How often each method was called on another peer."""

    def install(self) -> None:
        """Begin to count."""
        for place, name in _PLACES:
            self._count(*place, name)
        keys._verified = functools.lru_cache(keys._verified.cache_info().maxsize)(keys._verify_digest)
        self._count_frames()
        self._count_methods()
        self._count_records()
        library = vars(iroh_ffi._UniffiLib)
        for name in [name for name in library if name.startswith(("ffi_iroh", "uniffi_iroh"))]:
            self._count(iroh_ffi._UniffiLib, name, "foreign_calls")

    def _count(self, owner: Any, attribute: str, name: str) -> None:
        plain, totals = getattr(owner, attribute), self.totals

        def counted(*arguments: Any, **named: Any) -> Any:
            totals[name] += 1
            return plain(*arguments, **named)

        setattr(owner, attribute, counted)

    def _count_frames(self) -> None:
        plain, totals = framing._HEADER, self.totals

        class Header:
            size, unpack, unpack_from = plain.size, plain.unpack, plain.unpack_from

            def pack(self, kind: int, length: int) -> bytes:
                totals[FRAMES.get(kind, "messages")] += 1
                return plain.pack(kind, length)

        framing._HEADER = Header()  # type: ignore[assignment]

    def _count_methods(self) -> None:
        plain, methods = Node.open, self.methods

        @functools.wraps(plain)
        def opened(node: Node, peer: Any, method: str, **named: Any) -> Any:
            methods[method] += 1
            return plain(node, peer, method, **named)

        Node.open = opened  # type: ignore[assignment,method-assign]

    def _count_records(self) -> None:
        plain, totals = Board.receive, self.totals

        @functools.wraps(plain)
        def received(board: Board, *arguments: Any, **named: Any) -> Verdict:
            verdict = plain(board, *arguments, **named)
            totals["records"] += 1
            totals["new_records"] += verdict is Verdict.NEW
            return verdict

        Board.receive = received  # type: ignore[assignment,method-assign]


_PLACES: list[tuple[Place, str]] = [
    ((IrohConnection, "open_stream"), "streams"),
    ((VirtualConnection, "open_stream"), "streams"),
    ((asyncio.BaseEventLoop, "call_soon_threadsafe"), "wakeups"),
    ((asyncio.Handle, "_run"), "callbacks"),
    ((VirtualTimeLoop, "call_soon"), "callbacks"),
    ((keys.Identity, "sign"), "signed"),
    ((keys, "_verify_digest"), "checked"),
]


def per_pair(totals: Mapping[str, float], peers: int, steps: float) -> dict[str, float]:
    """Totals of a swarm as figures for an ordered pair and a step."""
    share: Callable[[float], float] = lambda total: round(total / (steps * peers * (peers - 1)), 3)  # noqa: E731
    return {name: share(total) for name, total in totals.items()}
