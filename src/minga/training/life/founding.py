"""How a secure run begins: the organiser signs who its founders are.

A run needs its first list of members before any member exists that could vote on one. Peers that are ready ask the
peers they are connected to for the genesis. The organiser of the run gets a request from each of them, and signs the
genesis once there are as many founders as the run spec wants. From then on every peer that has the genesis passes it
on, and the organiser is not needed any more. A peer that comes later is no founder.

The genesis does not say whether the run has gone on since, so no single peer is believed about that. A founder that
waited for the genesis begins, unless more than half of the founders, each asked by itself, answer that they are past
the first step. A founder that had the genesis before its restart does not begin: it may have made statements that it
does not remember.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import msgspec

from minga.core.aio.hedging import racing
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import RemoteError, StorageError
from minga.core.events.security import SecureFounded, SecureWaiting
from minga.core.files import write_atomically
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.security.protocol.statements import MAX_MEMBERS, Peer

METHOD = "secure.genesis"
CONTEXT = b"secure genesis"
ASK_PERIOD_S = 0.5
CALL_S = 5.0
READY_S = 12.0
"""A peer that has not asked for this many seconds has left. It is more than `CALL_S` and `ASK_PERIOD_S` together,
because a peer that waits for the answer of another one is still there.
"""
MAX_READY = 4 * MAX_MEMBERS


class Genesis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The founders of a run, in the order of their ids, signed by its organiser."""

    founders: Annotated[tuple[Peer, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    @classmethod
    def sign(cls, run_id: str, founders: list[PeerId], organiser: Identity) -> Genesis:
        """The organiser's word."""
        names = tuple(sorted(founders))
        return cls(names, organiser.sign(_signed(run_id, names), context=CONTEXT))

    @classmethod
    def from_file(cls, path: Path, run_id: str, organiser: str) -> Genesis | None:
        """The genesis kept there; None if it is missing, damaged, or of another run. Raises `StorageError`."""
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {error}") from error
        with contextlib.suppress(*DECODING_ERRORS):
            genesis = decode_msgpack(data, cls)
            return genesis if genesis.holds(run_id, organiser) else None
        return None

    def holds(self, run_id: str, organiser: str) -> bool:
        """Whether the organiser of that run signed it."""
        in_order = list(self.founders) == sorted(set(self.founders))
        return in_order and verify(organiser, self.signature, _signed(run_id, self.founders), context=CONTEXT)


def _signed(run_id: str, founders: tuple[str, ...]) -> bytes:
    return msgspec.msgpack.encode((run_id, founders))


class AskFounders(msgspec.Struct, frozen=True):
    """A request for the genesis; the asking peer is `ready` to be a founder."""

    ready: bool


class GenesisAnswer(msgspec.Struct, frozen=True):
    """The genesis, if it is known, and the step at which the sender is."""

    genesis: Genesis | None
    step: Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]


@dataclass(frozen=True)
class Bootstrap:
    """The genesis as this peer knows it, and whether the run had begun before this peer knew it."""

    genesis: Genesis
    has_begun: bool


@loop_bound
class Founding:
    """Finds out who the founders are, and tells others. `founders` is how many the run wants, `organiser` whose key
    signs, `path` where the genesis is kept.
    """

    def __init__(self, node: Node, identity: Identity, organiser: str, founders: int, path: Path | None = None) -> None:
        self.step = 0
        """To be kept up to date: where this peer is."""
        self.is_first = asyncio.Event()
        """Set when none of the peers that this peer could ask knew a genesis."""
        self.waiting: tuple[int, int] | None = None
        """How many are ready to be founders and how many the run wants, while it waits for them."""
        self._node, self._identity, self._organiser = node, identity, organiser
        self._founders, self._path = founders, path
        self._ready: dict[PeerId, float] = {}
        """When each peer that is ready asked last, in seconds of the loop; in the order in which they came."""
        self._forgers: BoundedDict[PeerId, None] = BoundedDict(MAX_READY)
        """Who sent a genesis that the organiser did not sign, and is not asked again."""
        self._genesis = None if path is None else Genesis.from_file(path, node.run_id, organiser)
        node.serve(METHOD, self._serve)

    async def find(self, *, takes_part: bool = True) -> Bootstrap:
        """Wait for the genesis, or make it if this is the organiser, who `takes_part` or only looks on."""
        ready, is_of_the_past = -1, self._genesis is not None
        while self._genesis is None:
            own = [self._node.peer_id] if takes_part else []
            present = [*own, *self._present()]
            if len(present) != ready:
                ready = len(present)
                self.waiting = ready, self._founders
                self._node.events.emit(SecureWaiting(ready=ready, wanted=self._founders))
            if self._identity.peer_id == self._organiser and ready >= self._founders:
                genesis = Genesis.sign(self._node.run_id, present[: self._founders], self._identity)
                # Stored before any peer learns of it: the organiser must never sign another one.
                await asyncio.to_thread(_keep, self._path, genesis)
                self._genesis = genesis
                break
            if (found := await self._ask_all(ready=takes_part)) is not None:
                await asyncio.to_thread(_keep, self._path, found)
                self._genesis = found
                break
            self.is_first.set()
            await asyncio.sleep(ASK_PERIOD_S)
        self.waiting = None
        self._node.events.emit(SecureFounded(founders=len(self._genesis.founders)))
        return Bootstrap(self._genesis, is_of_the_past or await self._have_most_begun(self._genesis.founders))

    # ---- inner workings

    def _present(self) -> list[PeerId]:
        now = asyncio.get_running_loop().time()
        return [peer for peer, asked_s in self._ready.items() if now - asked_s <= READY_S]

    async def _ask_all(self, *, ready: bool) -> Genesis | None:
        """Ask all peers but forgers, until one knows the genesis or all have answered."""
        peers = [peer for peer in self._node.connected() if peer not in self._forgers]
        async with racing(self._ask(peer, ready=ready) for peer in peers) as answers:
            for answer in answers:
                if (found := await answer) is not None:
                    return found
        return None

    async def _ask(self, peer: PeerId, *, ready: bool) -> Genesis | None:
        with contextlib.suppress(RemoteError):
            answer = await self._node.call(peer, METHOD, AskFounders(ready), GenesisAnswer, timeout_s=CALL_S)
            if answer.genesis is not None and not answer.genesis.holds(self._node.run_id, self._organiser):
                self._forgers[peer] = None
                self._node.offend(peer, "it sent a genesis that the organiser did not sign")
                return None
            return answer.genesis
        return None

    async def _have_most_begun(self, founders: Sequence[str]) -> bool:
        """Whether more than half of the founders say that they are past the first step."""
        others = [PeerId(peer) for peer in founders if peer != self._node.peer_id]
        begun = waiting = 0
        async with racing(self._is_past(peer) for peer in others) as answers:
            for answer in answers:
                is_past = await answer
                begun, waiting = begun + is_past, waiting + (not is_past)
                if 2 * begun > len(founders) or 2 * (len(others) - waiting) <= len(founders):
                    break
        return 2 * begun > len(founders)

    async def _is_past(self, founder: PeerId) -> bool:
        try:
            return (
                await self._node.call(founder, METHOD, AskFounders(ready=False), GenesisAnswer, timeout_s=CALL_S)
            ).step > 0
        except RemoteError:
            return False

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        if (await stream.receive(AskFounders)).ready and self._genesis is None:
            self._note_ready(peer)
        await stream.send(GenesisAnswer(self._genesis, self.step))

    def _note_ready(self, peer: PeerId) -> None:
        present = self._present()
        self._ready = {each: self._ready[each] for each in present}
        if peer in self._ready or len(present) < MAX_READY:
            self._ready[peer] = asyncio.get_running_loop().time()


def _keep(path: Path | None, genesis: Genesis) -> None:
    if path is None:
        return
    try:
        write_atomically(path, msgspec.msgpack.encode(genesis))
    except OSError as error:
        raise StorageError(f"{path} cannot be written: {error}") from error
