"""Changes of the list of members: each is noted, told as an event, and written down as evidence."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from minga.core.events.security import SecureAdmitted, SecureBanned, SecureCandidate, SecureDropped, SecureMemberAway
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.log import EvidenceLog
from minga.security.accountability.proofs import Case, Evidence
from minga.security.protocol.members import LAPSES, Members, Reason
from minga.security.protocol.protocol_state import ProtocolState, StepProgress


class MembershipChanges:
    """As one peer sees them, which notes them in `progress`."""

    def __init__(self, node: Node, identity: Identity, progress: StepProgress, evidence: EvidenceLog) -> None:
        self._node, self._identity, self._progress, self._evidence = node, identity, progress, evidence

    async def leave_out(self, cases: Iterable[Case]) -> None:
        """The peers that the cases are about leave, unless they have left already."""
        progress, events, written = self._progress, self._node.events, list[Case]()
        for case in cases:
            peer, reason, membership, step = PeerId(case.peer), case.ban, progress.membership, progress.step
            if peer not in membership and peer not in membership.candidates and not _escapes(peer, reason, membership):
                continue
            if reason is None:
                membership.remove(peer, step)
                events.emit(SecureMemberAway(step=step, peer=peer))
            else:
                membership.ban(peer, step, reason)
                events.emit(SecureBanned(step=step, peer=peer, reason=reason.name, why=membership.bans[peer].why))
            written.append(case)
        await self.write_down(written)

    async def write_down(self, cases: Iterable[Case]) -> None:
        """Keep evidence."""
        await asyncio.to_thread(self._append, tuple(cases))

    def tell_candidates(self, before: ProtocolState) -> None:
        """What became of candidates since then."""
        candidates, progress, events = before.membership.candidates.keys(), self._progress, self._node.events
        membership, step = progress.membership, progress.step
        for peer in sorted(membership.candidates.keys() - candidates):
            events.emit(SecureCandidate(step=step, peer=peer))
        barred = {peer for peer in membership.bans if membership.is_barred(peer, step)}
        for peer in sorted(candidates - membership.candidates.keys() - barred):
            events.emit((SecureAdmitted if peer in membership else SecureDropped)(step=step, peer=peer))

    def _append(self, cases: Iterable[Case]) -> None:
        for case in cases:
            self._evidence.append(Evidence.of(case, self._identity, self._node.run_id))


def _escapes(peer: PeerId, reason: Reason | None, membership: Members) -> bool:
    """Whether a peer is suspended and now found to have lied: silence must not be cheaper than what it hides."""
    ban = membership.bans.get(peer)
    return ban is not None and ban.until is not None and reason is not None and reason not in LAPSES
