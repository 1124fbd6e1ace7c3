"""The phases of one attempt: everybody says one thing, hears what all others say, and compares what was heard.

Theory of operation. In each phase but the first every member also says by what digest it knows the phase before. Where
these differ, a member told some members another thing than others, in that phase or in the votes on it; both of its
statements are then fetched, and prove it. An attempt in which that happened is void, see
`minga.security.messaging.voting`.

So whatever follows from the words of a phase, be it that a member said nothing in it, waits for the end of the next:
then all know the same. Who was silent in the last phase of all does not matter for what is applied; members say in the
commitments of the next step of whom they heard nothing, and most decide.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from minga.core.errors import ProtocolError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.accountability.case_builder import CaseBuilder
from minga.security.accountability.enforcement import AttemptFailed
from minga.security.accountability.proofs import Case
from minga.security.messaging.spread import StatementGossip
from minga.security.messaging.voting import ContradictionError, OutvotedError, ReliableBroadcast
from minga.security.protocol.attempt_record import Terms
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.statement_store import phase_digest
from minga.security.protocol.statements import (
    Body,
    Claims,
    Commit,
    Confirm,
    Phase,
    Result,
    Revealed,
    Slot,
    Statement,
    read,
)

B = TypeVar("B", Commit, Result, Revealed, Claims, Confirm)


@loop_bound
class PhaseExchange:
    """One member's words in one attempt, and what it understands of the others'."""

    def __init__(
        self, terms: Terms, gossip: StatementGossip, broadcast: ReliableBroadcast, behaviour: Behaviour
    ) -> None:
        self._terms, self._gossip, self._broadcast, self._behaviour = terms, gossip, broadcast, behaviour
        self._case_builder = CaseBuilder(terms, gossip.slots)
        self._before = Slot(terms.step, terms.attempt, Phase.COMMIT)
        self.seen = b""
        """The digest of the last phase, as this member knows it."""
        self.excused: set[PeerId] = set()
        """Members that nobody waits for any more."""
        self.leaving: dict[PeerId, Callable[[], Case]] = {}
        """Who has to go by the words of the last phase, and what shows it when the next one is over."""
        self.unheard: tuple[PeerId, ...] = ()
        """Of whom nothing was heard in the last phase of all."""

    async def hold(
        self,
        phase: Phase,
        own: Body | None,
        body_type: type[B],
        is_sound: Callable[[PeerId, B], bool],
        *,
        is_last: bool = False,
    ) -> dict[PeerId, B]:
        """Say one thing (nothing if `own` is None) and understand what the others say; after the last phase of an
        attempt nobody waits for this member any more.

        What makes no sense counts as nothing. Raises `AttemptFailed` if a member has to go by the words of the phase
        before, and `ContradictionError` if a member said different things to different members.
        """
        slot = Slot(self._terms.step, self._terms.attempt, phase)
        for words, receivers in self._behaviour.tells(slot, own, self._terms.members) if own is not None else ():
            self._gossip.say(slot, words, receivers)
        known: dict[bytes, B | None] = {}  # what is missing is asked after each statement that comes

        def understood(statement: Statement) -> B | None:
            if statement.signature not in known:
                known[statement.signature] = None
                with contextlib.suppress(ProtocolError):
                    body = read(statement, body_type)
                    if is_sound(statement.author, body):
                        known[statement.signature] = body
            return known[statement.signature]

        said = await self._broadcast.collect(slot, lambda statement: understood(statement) is not None, self.excused)
        bodies = {peer: body for peer, statement in said.items() if (body := understood(statement)) is not None}
        await self._compare(phase, bodies, is_last=is_last)
        if self.leaving:
            raise AttemptFailed(show() for show in self.leaving.values())
        silent = tuple(peer for peer in self._terms.members if peer not in said and peer not in self.excused)
        if is_last:
            self.unheard = silent
        else:
            self.leaving = {peer: partial(self._case_builder.unheard, peer, phase) for peer in silent}
            self.excused.update(silent)
        self._before, self.seen = slot, phase_digest(said.values())
        return bodies

    async def _compare(self, phase: Phase, bodies: Mapping[PeerId, Body], *, is_last: bool) -> None:
        """Where members know another last phase than this one, a member told them and this one different things."""
        others = [peer for peer, body in bodies.items() if not isinstance(body, Commit) and body.seen != self.seen]
        if others:
            slots, limit_s = (self._before, self._before.vote), self._broadcast.patience.leeway_s
            await asyncio.gather(*(self._gossip.pull(slot, self._terms.members, others, limit_s) for slot in slots))
        proofs = [self._gossip.proofs[peer] for peer in self._broadcast.equivocators]
        if is_last:
            proofs = [proof for proof in proofs if others and proof.one.slot in (self._before, self._before.vote)]
        if proofs and phase is not Phase.COMMIT:
            raise ContradictionError("it said two different things", peer=proofs[0].author, round=self._terms.step)
        if 2 * len(others) > len(self._terms.members):
            raise OutvotedError("most members heard something else than this peer", round=self._terms.step)
