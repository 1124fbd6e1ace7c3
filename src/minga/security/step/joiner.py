"""How a peer that was not there, or is no member any more, gets into a secure run.

    ask where the members stand (`discovery.py`) ─▶ adopt that state ─▶ follow ─▶ candidate ─▶ member

Everything after the adoption is `SecureMember.take_step`. A peer that is excluded without blame, or finds itself where
most are not, enters again.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable

from minga.core.errors import StateMismatchError
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.log import EvidenceLog
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.security.protocol.settings import SecureSettings
from minga.security.step.discovery import Discovery
from minga.security.step.member import BannedError, SecureMember


@loop_bound
class Joiner:
    """A peer that was told of some members of a run (`genesis`: the founders, or better those of late)."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        genesis: Iterable[PeerId],
        work: TrainingBackend,
        settings: SecureSettings | None = None,
        behaviour: Behaviour | None = None,
        evidence: EvidenceLog | None = None,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> None:
        self._node, self._identity, self._work = node, identity, work
        self._settings, self._behaviour, self._evidence = settings or SecureSettings(), behaviour, evidence
        self._entropy, self._genesis = entropy, frozenset(genesis)
        self.is_vouched_for = False
        """Whether more than half of those whom it was told of signed where it entered."""

    async def enter(self) -> SecureMember:
        """Come to where the members are; by taking steps from there on it becomes one.

        Raises `BannedError` if they banned this peer, and another `RemoteError` if most of them cannot be found, or
        their state cannot be had any more.
        """
        entrance = Discovery(self._node, self._genesis)
        standing, place, signers = await entrance.find(self._settings.patience.longest_s)
        self.is_vouched_for = 2 * len(self._genesis.intersection(signers)) > len(self._genesis)
        if ban := standing.membership.bans.get(self._node.peer_id):
            raise BannedError.of(ban)
        await self._work.adopt(standing.step, place.state, signers)
        if await self._work.digest() != place.state:
            raise StateMismatchError("the state that came is not that of most members", round=standing.step)
        return SecureMember(
            self._node,
            self._identity,
            standing,
            self._work,
            self._settings,
            self._behaviour,
            self._evidence,
            entropy=self._entropy,
        )
