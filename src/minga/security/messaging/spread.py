"""How statements get around: their authors tell everybody, and everybody hands on what others lack.

Nothing that arrives is believed before its signature was checked and its author found on the list of members. What a
peer may make this one keep is bounded: one statement for each slot of the few attempts that are under way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated

import msgspec

from minga.averaging.allreduce.messages import Done
from minga.core.errors import ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.framing import MessageStream
from minga.network.rpc.node import Node
from minga.security.protocol.statement_store import EquivocationProof, StatementStore
from minga.security.protocol.statements import MAX_MEMBERS, Peers, Slot, Statement, Told, is_genuine, state

TELL = "secure.tell"
ASK = "secure.ask"
PROVE = "secure.prove"
CALL_S = 5.0
MAX_ANSWER_BYTES = 1 << 19
STATEMENT_BYTES = 256
"""More than what goes with a body."""


class AskStatements(msgspec.Struct, frozen=True):
    """What did these peers say in that slot, as far as you know?"""

    slot: Slot
    authors: Peers


class FoundStatements(msgspec.Struct, frozen=True):
    """Statements that were asked for; with `more`, some of the authors that are not among them are to be asked for
    again, for which there was no room.
    """

    statements: Annotated[tuple[Statement, ...], msgspec.Meta(max_length=MAX_MEMBERS)]
    more: bool = False


def _as_many_as_fit(statements: Sequence[Statement]) -> FoundStatements:
    chosen, size = [], 0
    for statement in statements:
        size += len(statement.body) + STATEMENT_BYTES
        if size > MAX_ANSWER_BYTES:
            break
        chosen.append(statement)
    return FoundStatements(tuple(chosen), more=len(chosen) < len(statements))


@loop_bound
class StatementGossip:
    """Tells, asks and answers. `is_expected` says whether a slot is one that this peer keeps statements of, `accepts`
    whether a peer may speak in a slot, `is_known` whether a peer is a member or a candidate.
    """

    def __init__(
        self,
        node: Node,
        identity: Identity,
        is_expected: Callable[[Slot], bool],
        accepts: Callable[[PeerId, Slot], bool],
        is_known: Callable[[PeerId], bool],
    ) -> None:
        self.slots = StatementStore()
        self.proofs: dict[PeerId, EquivocationProof] = {}
        """Members and candidates who were seen to say two different things, at whatever step."""
        self.on_statement: Callable[[Statement], None] = lambda _: None
        """Called with each statement that is new here."""
        self._node, self._identity = node, identity
        self._is_expected, self._accepts, self._is_known = is_expected, accepts, is_known
        node.serve(TELL, self._serve_tell)
        node.serve(ASK, self._serve_ask)
        node.serve(PROVE, self._serve_prove)

    def say(self, slot: Slot, body: msgspec.Struct, everybody: Iterable[PeerId]) -> Statement:
        """Sign a statement of this peer and tell it everybody, without waiting for them."""
        statement = state(self._identity, self._node.run_id, slot, body)
        self.slots.put(statement)
        self._spread(TELL, Told.of(statement), everybody)
        return statement

    async def pull(
        self, slot: Slot, authors: Iterable[PeerId], everybody: Iterable[PeerId], limit_s: float = CALL_S
    ) -> None:
        """Ask everybody for the statements of some authors, and keep what they have; nobody has longer than `limit_s`
        seconds to answer.
        """
        wanted = AskStatements(slot, tuple(authors))
        await asyncio.gather(*(self._pull(peer, wanted, limit_s) for peer in everybody if peer != self._node.peer_id))

    def prove(self, proof: EquivocationProof, everybody: Iterable[PeerId]) -> None:
        """Note that a member or candidate equivocated, and tell everybody.

        At whatever step that was: where some took a proof and others did not, since they were in another step, the
        former would wait in vain for the author to go.
        """
        if proof.author not in self.proofs and self._is_known(proof.author):
            self.proofs[proof.author] = proof
            self.slots.changed.fire()
            self._spread(PROVE, proof, everybody)

    def forget_before(self, step: int) -> None:
        """Drop the statements of earlier steps, and proofs of peers that are neither members nor candidates any
        more.
        """
        self.slots.forget_before(step)
        for author in [author for author in self.proofs if not self._is_known(author)]:
            del self.proofs[author]

    def remind(self, everybody: Iterable[PeerId]) -> None:
        """Tell proofs without consequences again: for those a step behind, the authors may have been strangers."""
        for proof in self.proofs.values():
            self._spread(PROVE, proof, everybody)

    def receive(self, statement: Statement, sender: PeerId) -> None:
        """Keep a statement that came from `sender`. Raises `ProtocolError` if it is not genuine."""
        if not self._is_expected(statement.slot) or not self._accepts(statement.author, statement.slot):
            return
        known = self.slots.of(statement.slot).get(statement.author)
        if known is not None and known.body == statement.body:
            return
        if not is_genuine(statement, self._node.run_id):
            raise ProtocolError("a statement with a wrong signature", peer=sender, round=statement.slot.step)
        proof = self.slots.put(statement)
        if proof is None:
            self.on_statement(statement)
        else:
            self.prove(proof, self._node.connected())

    # ---- inner workings

    def _spread(self, method: str, message: msgspec.Struct, everybody: Iterable[PeerId]) -> None:
        for peer in everybody:
            if peer != self._node.peer_id:
                self._node.spawn(self._send(peer, method, message))

    async def _send(self, peer: PeerId, method: str, message: msgspec.Struct) -> None:
        with contextlib.suppress(RemoteError):  # who misses it asks for it
            await self._node.call(peer, method, message, Done, timeout_s=CALL_S)

    async def _pull(self, peer: PeerId, wanted: AskStatements, limit_s: float) -> None:
        with contextlib.suppress(RemoteError, TimeoutError):
            async with self._node.clockwork.timeout(limit_s):
                has_more = True
                while has_more:
                    answer = await self._node.call(peer, ASK, wanted, FoundStatements, timeout_s=limit_s)
                    with self._node.blaming(peer):
                        for statement in answer.statements:
                            if statement.slot != wanted.slot or statement.author not in wanted.authors:
                                raise ProtocolError("it answered with statements that nobody asked for", peer=peer)
                            self.receive(statement, peer)
                    found = {statement.author for statement in answer.statements}
                    wanted = AskStatements(wanted.slot, tuple(each for each in wanted.authors if each not in found))
                    has_more = answer.more and bool(found)

    async def _serve_tell(self, peer: PeerId, stream: MessageStream) -> None:
        told = await stream.receive(Told)
        self._check_voice(peer, told.slot)
        self.receive(told.by(peer), peer)
        await stream.send(Done())

    async def _serve_ask(self, peer: PeerId, stream: MessageStream) -> None:
        wanted = await stream.receive(AskStatements)
        self._check_voice(peer, wanted.slot)
        known = self.slots.of(wanted.slot)
        authors = set(wanted.authors)
        await stream.send(_as_many_as_fit([known[author] for author in sorted(known) if author in authors]))

    async def _serve_prove(self, peer: PeerId, stream: MessageStream) -> None:
        proof = await stream.receive(EquivocationProof)
        self._check_voice(peer, proof.one.slot)
        if self._is_known(proof.author) and proof.author not in self.proofs:
            if not proof.holds(self._node.run_id):
                raise ProtocolError("a proof that proves nothing", peer=peer)
            self.prove(proof, self._node.connected())
        await stream.send(Done())

    def _check_voice(self, peer: PeerId, slot: Slot) -> None:
        if not self._accepts(peer, slot):
            raise RejectedError("only members take part in secure steps", code=RefusalCode.MEMBER)
