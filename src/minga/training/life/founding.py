"""How a run begins: its organiser signs which state is the first one, and which peers found the run with it.

Theory of operation. A run is founded once. The organiser's peer signs the *genesis*: the founders, and the digest of
the state with which they begin. It keeps the genesis before any other peer learns of it, so that it never signs a
second one. From then on every peer that has the genesis passes it on, and the organiser is not needed any more. All
other states of the run descend from this one (`minga.training.lineage`): a peer that has none waits for a peer
that has one, and never begins with a state of its own.

In an ordinary run the organiser's peer is the one founder. It begins with what its program has. Where it trains nothing
itself, and the run spec says `state.founder = "first"`, the first trainer that asks for the genesis founds the run with
its state. Where it trains nothing, and a recipe gives all peers one first state, it signs that when the first peer that
has it asks, and names no founder: who has that state begins with it as long as the organiser's peer has seen nobody
past the first step, except for banned peers, and was not started again. It remembers who was, since they may all be
gone. In a Byzantine-tolerant run as many founders begin together as the run spec says, all with the same state, which
is the organiser's if it is one of them: members vote on everything, and a first list of members has to exist before any
member could vote on one. A peer that would begin with another state is told how it differs.

The genesis does not say whether the run has gone on since, so no single peer is believed about that. Of several
founders, one that waited for the genesis begins, unless more than half of them, each asked by itself, answer that they
are past the first step. A founder that had the genesis before its restart does not begin: it may have made statements
that it does not remember.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from blake3 import blake3

from minga.access.admission import Admission
from minga.core.aio import racing
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import RemoteError, StorageError, reason_of
from minga.core.events.security import SecureFounded, SecureWaiting
from minga.core.files import keep, read_struct
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import any_thread, loop_bound
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify
from minga.network.bounded_dict import BoundedDict
from minga.network.gossip.board import Board, Change
from minga.network.gossip.record_store import MAX_OWNERS
from minga.network.interface import PeerId
from minga.network.rpc.handshake import Role
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.security.protocol.statements import MAX_MEMBERS, Peer
from minga.training.lineage import DIGEST_BYTES
from minga.training.record_kinds import PROGRESS, Progress
from minga.training.state.manifest import Digest

METHOD = "run.genesis"
CONTEXT = b"run genesis"
ASK_PERIOD_S = 0.5
DISK_PERIOD_S = 5.0
CALL_S, MOST_LOST = 5.0, 3
MOST_ASKED = 8
"""Peers that are asked at a time: any that is in the run has the genesis, or will have it soon."""
READY_S = 12.0
"""A peer that has not asked for this many seconds has left. It is more than `CALL_S` and `ASK_PERIOD_S` together,
because a peer that waits for the answer of another one is still there.
"""
MAX_READY = 4 * MAX_MEMBERS
MAX_GENESIS_BYTES = 1 << 20

logger = logging.getLogger("minga.training")


class Genesis(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True, dict=True):
    """The founders of a run, in the order of their ids (none where its recipe makes the first state), and the digest of
    that, signed by the organiser.
    """

    founders: Annotated[tuple[Peer, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    state: Digest
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    @classmethod
    def sign(cls, run_id: str, founders: Iterable[PeerId], state: str, organiser: Identity) -> Genesis:
        """The organiser's word."""
        names = tuple(sorted(founders))
        return cls(names, state, organiser.sign(_signed(run_id, names, state), context=CONTEXT))

    @classmethod
    def from_file(cls, path: Path, run_id: str, organiser: str) -> Genesis | None:
        """The genesis kept there; None if it is missing, damaged, or of another run. Raises `StorageError`."""
        try:
            genesis = read_struct(path, cls, MAX_GENESIS_BYTES)
        except (FileNotFoundError, ValueError):
            return None
        except OSError as error:
            raise StorageError(f"{path} cannot be read: {reason_of(error)}") from error
        return genesis if genesis.holds(run_id, organiser) else None

    @classmethod
    def from_bytes(cls, kept: bytes, run_id: str, organiser: str) -> Genesis | None:
        """The same of the content of such a file."""
        try:
            genesis = decode_msgpack(kept, cls)
        except DECODING_ERRORS:
            return None
        return genesis if genesis.holds(run_id, organiser) else None

    def holds(self, run_id: str, organiser: str) -> bool:
        """Whether the organiser of that run signed it."""
        in_order = list(self.founders) == sorted(set(self.founders))
        signed = _signed(run_id, self.founders, self.state)
        return in_order and verify(organiser, self.signature, signed, context=CONTEXT)

    @cached_property
    def id(self) -> str:
        """What states name that descend from this founding: 32 hexadecimal digits."""
        return blake3(self.signature).hexdigest(length=DIGEST_BYTES)


def _signed(run_id: str, founders: tuple[str, ...], state: str) -> bytes:
    return msgspec.msgpack.encode((run_id, founders, state))


class AskFounders(msgspec.Struct, frozen=True):
    """A request for the genesis. With a `state` the asking peer could found the run, with that of this digest."""

    state: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


class GenesisAnswer(msgspec.Struct, frozen=True):
    """The genesis, if it is known, and the newest step of the run that the sender has seen. The organiser's peer that
    does not train says with which `first` state (its digest) a peer may begin the run now.
    """

    genesis: Genesis | None
    step: Annotated[int, msgspec.Meta(ge=0, le=1 << 48)]
    first: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""


@dataclass(frozen=True)
class Bootstrap:
    """The genesis as this peer knows it, and whether the run had begun before this peer knew it."""

    genesis: Genesis
    has_begun: bool


@dataclass(frozen=True)
class Participation:
    """Which run a peer takes part in, and how: the run spec as the `organiser` signed it, and this peer's `role`.

    What organisers amend while the run goes on is in `access/standing_orders.py`.
    """

    spec: RunSpec
    organiser: PeerId
    role: Role

    @property
    def aggregates(self) -> bool:
        """Whether this peer can be dialled by all, and so reduces and leads for them."""
        return self.role != "client"

    @property
    def computes(self) -> bool:
        """Whether this peer gives gradients."""
        return self.role != "auxiliary"


@dataclass(frozen=True)
class FoundingRules:
    """Who founds a run: as many peers as `founders` says, `by_organiser` if its peer is the only one that may, in which
    case it is the one founder. In a run that begins `alike` all peers can make its first state, as with a recipe.
    """

    founders: int = 1
    by_organiser: bool = True
    alike: bool = False

    @classmethod
    def of(cls, spec: RunSpec) -> FoundingRules:
        """Those of a run."""
        if spec.security.verification == "byzantine":
            return cls(spec.security.founders, by_organiser=False)
        return cls(1, by_organiser=spec.founder == "organiser", alike=spec.model.recipe != "custom")


@loop_bound
class Founding:
    """Finds out how the run was founded, founds it if that is this peer's part, and tells others.

    `path` is where the genesis is kept, and `known` what lay there.
    """

    def __init__(
        self,
        node: Node,
        identity: Identity,
        board: Board,
        admission: Admission,
        run: Participation,
        path: Path | None = None,
        known: Genesis | None = None,
    ) -> None:
        self.step = 0
        """The newest step of the run that this peer was at, which is to be kept up to date."""
        self.is_first = asyncio.Event()
        """Set when none of the peers that this peer could ask knew a genesis."""
        self.first = ""
        """Of the organiser's peer that does not train: the digest of the state that the recipe gives all peers."""
        self.told_first = ""
        """Such a digest, as the organiser's peer told it last."""
        self.waiting: tuple[int, int] | None = None
        """How many are ready to be founders and how many the run wants, while it waits for them."""
        self.run, self.rules = run, FoundingRules.of(run.spec)
        self._node, self._identity, self._board, self._admission = node, identity, board, admission
        self._path, self._own_state = path, ""
        self._ready: dict[PeerId, _Ready] = {}
        """The peers that could found the run, in the order in which they came."""
        self._forgers: BoundedDict[PeerId, None] = BoundedDict(MAX_READY)
        """Peers that sent a genesis which the organiser did not sign; they are not asked again."""
        self._told_step = 0
        self._steps: BoundedDict[PeerId, int] = BoundedDict(MAX_OWNERS)
        """The newest step of the run that this peer has seen each other one at, which may be gone by now."""
        self._random = random.Random(f"minga founding {node.peer_id}")
        self._genesis, self._was_known = known, known is not None
        self._settling: asyncio.Future[None] | None = None
        """The keeping of the genesis that was found first: several calls may find one, each with another state."""
        self._note_all()
        board.observe(self._note)
        node.serve(METHOD, self._serve)

    @property
    @any_thread
    def genesis(self) -> Genesis | None:
        """The genesis, once it is known here."""
        return self._genesis

    async def find(self, state: str = "") -> Bootstrap:
        """Wait for the genesis; or make it, if this is the organiser's peer and the founders are here.

        `state` is the digest of the state with which this peer could found the run, "" if it only looks on.
        """
        self._own_state = state or self._own_state  # a call that only looks on counts this peer, too
        while self._genesis is None:
            found = await self._ask_all(state)  # the organiser, too: its disk may have lost what it signed
            if self._settling is None:  # else another call is at it, or was
                genesis = self._sign(state) if found is None else found
                self._settling = None if genesis is None else asyncio.ensure_future(self._settle(genesis))
            if self._settling is not None:
                await asyncio.shield(self._settling)
                continue
            asked = self._node.connected() or self._identity.peer_id == self.run.organiser
            waiting = len(self._founders(self._own_state)), self.rules.founders
            if asked and waiting != self.waiting:
                self.waiting = waiting
                if self.rules.founders > 1:
                    self._node.events.emit(SecureWaiting(ready=waiting[0], wanted=self.rules.founders))
            self.is_first.set()
            await asyncio.sleep(ASK_PERIOD_S)
        self.waiting = None
        if self.rules.founders > 1:
            self._node.events.emit(SecureFounded(founders=len(self._genesis.founders)))
            return Bootstrap(self._genesis, self._was_known or await self._have_most_begun(self._genesis.founders))
        if self._genesis.founders:
            return Bootstrap(self._genesis, self._was_known)
        return Bootstrap(self._genesis, not await self._may_begin(state))

    async def look_on(self) -> None:
        """`find` for a peer that does not found the run itself, and has no program that a full disk could be told: it
        tries until there is room.
        """
        while True:
            try:
                await self.find()
                return
            except StorageError as error:
                logger.warning("how the run was founded cannot be kept, so it does not begin here: %s", error)
                await asyncio.sleep(DISK_PERIOD_S)

    @property
    def told_step(self) -> int:
        """The newest step of the run that this peer has seen, or that another told of, who may be anybody."""
        return max(self.step, self._told_step)

    async def look_again(self) -> None:
        """Ask once more how far the run has got, of those that are connected now."""
        await self._ask_all("")

    # ---- inner workings

    def _note(self, peer: PeerId, change: Change) -> None:
        """See how far a peer is. With several founders each goes by its own steps alone, since one stranger could tell
        all of them the same; who has a state of another founding is at no step of the run.
        """
        if isinstance(change, str) and change != PROGRESS.name:
            return
        progress = self._board.get(peer, Progress)
        if progress is None or not progress.is_settled:
            return
        self._told_step = max(self._told_step, progress.step)
        if not self._is_of_run(progress) or not progress.step:
            return
        if peer == self._node.peer_id:
            self.step = max(self.step, progress.step)
        elif self.rules.founders == 1:
            self._steps[peer] = max(self._steps.get(peer, 0), progress.step)

    def _note_all(self) -> None:
        for peer in self._board.payloads(Progress):
            self._note(peer, PROGRESS.name)

    def _is_of_run(self, progress: Progress) -> bool:
        return self._genesis is not None and progress.lineage.founding == self._genesis.id

    def _sign(self, state: str) -> Genesis | None:
        """A genesis, if this is the organiser's peer and the founders are here."""
        founders = self._founders(state)
        if self._identity.peer_id != self.run.organiser or len(founders) < self.rules.founders:
            return None
        chosen = [] if self.first else founders[: self.rules.founders]
        first = self.first or (state if self._node.peer_id in chosen else self._ready[chosen[0]].state)
        return Genesis.sign(self._node.run_id, chosen, first, self._identity)

    async def _settle(self, genesis: Genesis) -> None:
        """Go by it for good. It is stored before any peer learns of it: the organiser must never sign another one."""
        try:
            await asyncio.to_thread(_keep, self._path, genesis)
            self._genesis = genesis
            self._note_all()
        finally:
            if self._genesis is None:
                self._settling = None

    def _founders(self, state: str) -> list[PeerId]:
        """The peers that could found the run together now, with the same state, in the order in which they came."""
        own = {self._node.peer_id: state} if state else {}
        if self.first:
            return [peer for peer in self._present() if self._ready[peer].state == self.first]
        if self.rules.by_organiser:
            return [peer for peer in own if peer == self.run.organiser]
        states = {**own, **{peer: ready.state for peer, ready in self._ready.items() if peer in self._present()}}
        counts = Counter(states.values())
        first = state or max(counts, key=counts.__getitem__, default="")
        return [peer for peer, each in states.items() if each == first]

    def other_first(self, state: str) -> tuple[PeerId, str] | None:
        """A peer that would found the run with another state than `state`, which this one has, and that state's digest:
        the organiser's, where that has one, else a peer with what most others have; None if there is none.
        """
        if self._node.peer_id == self.run.organiser:
            return None
        states = {peer: self._ready[peer].state for peer in self._present()}
        if self.run.organiser in states:
            states = {self.run.organiser: states[self.run.organiser]}
        counts = Counter(each for each in states.values() if each != state)
        first = max(counts, key=counts.__getitem__, default=None)
        having = [peer for peer, each in states.items() if each == first]
        return None if first is None else (self._random.choice(having), first)

    def _present(self) -> list[PeerId]:
        now = asyncio.get_running_loop().time()
        return [peer for peer, ready in self._ready.items() if now - ready.asked_s <= READY_S]

    async def _ask_all(self, state: str) -> Genesis | None:
        """Ask some peers, the organiser's before others, until one knows the genesis or all have answered."""
        known = [peer for peer in self._node.connected() if peer not in self._forgers]
        others = self._random.sample(known, min(len(known), MOST_ASKED))
        asked = list(dict.fromkeys([*(peer for peer in known if peer == self.run.organiser), *others]))
        async with racing(self._ask(peer, state) for peer in asked) as answers:
            for answer in answers:
                if (found := await answer) is not None:
                    return found
        return None

    async def _ask(self, peer: PeerId, state: str) -> Genesis | None:
        try:
            answer = await self._node.call(peer, METHOD, AskFounders(state), GenesisAnswer, timeout_s=CALL_S)
        except RemoteError:
            return None
        if answer.genesis is not None and not answer.genesis.holds(self._node.run_id, self.run.organiser):
            self._forgers[peer] = None
            self._node.offend(peer, "it sent a genesis that the organiser did not sign")
            return None
        self._told_step = max(self._told_step, answer.step)
        if peer == self.run.organiser:
            self.told_first = answer.first
        return answer.genesis

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

    async def _may_begin(self, state: str) -> bool:
        """Whether the organiser's peer says that a peer which has this state may begin the run with it now. As long as
        it does not answer, this peer asks again, unless a peer that began is connected and the organiser's is away or
        has lost some calls: if nobody begins, nobody has a state.
        """
        if not state or self._node.peer_id == self.run.organiser:
            return False
        lost = 0
        while True:
            try:
                answer = await self._node.call(
                    self.run.organiser, METHOD, AskFounders(), GenesisAnswer, timeout_s=CALL_S
                )
                return answer.first == state
            except RemoteError:
                lost += 1
                is_away = lost >= MOST_LOST or not self._node.is_connected(self.run.organiser)
                if is_away and self._sees_one_that_began():
                    return False
            await asyncio.sleep(ASK_PERIOD_S)

    def _sees_one_that_began(self) -> bool:
        """Whether one is connected: a peer that was just killed stays on the board for some seconds."""
        progress = self._board.payloads(Progress).items()
        return any(self._is_of_run(each) and self._node.is_connected(peer) for peer, each in progress)

    async def _is_past(self, founder: PeerId) -> bool:
        try:
            return (await self._node.call(founder, METHOD, AskFounders(), GenesisAnswer, timeout_s=CALL_S)).step > 0
        except RemoteError:
            return False

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        request = await stream.receive(AskFounders)
        if request.state and self._genesis is None:
            self._note_ready(peer, request.state)
        step = self._seen_step()
        may_begin = not self._was_known and not step
        await stream.send(GenesisAnswer(self._genesis, step, self.first if may_begin else ""))

    def _seen_step(self) -> int:
        """The newest step that this peer was at, or has seen one at that is not banned now."""
        banned = self._admission.banned()
        return max([self.step, *(step for peer, step in self._steps.items() if peer not in banned)])

    def _note_ready(self, peer: PeerId, state: str) -> None:
        present = self._present()
        self._ready = {each: self._ready[each] for each in present}
        if peer in self._ready or len(present) < MAX_READY:
            self._ready[peer] = _Ready(asyncio.get_running_loop().time(), state)


class _Ready(NamedTuple):
    """When a peer asked last, in seconds of the loop, and the digest of the state that it has."""

    asked_s: float
    state: str


def _keep(path: Path | None, genesis: Genesis) -> None:
    if path is None:
        return
    keep(path, genesis)
