"""How a peer that was not there, or is no member any more, gets into a secure run.

    ask where the members stand (`discovery.py`) ─▶ adopt that state ─▶ follow ─▶ candidate ─▶ member

Everything after the adoption is `SecureMember.take_step`. A peer that is excluded without blame, or finds itself where
most are not, enters again.
"""

from __future__ import annotations

from collections.abc import Iterable

from minga.core.errors import StateMismatchError
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.step.discovery import Discovery
from minga.security.step.member import BannedError, MemberSetup, SecureMember


@loop_bound
class Joiner:
    """A peer that was told of some members of a run (`genesis`: the founders, or better those of late)."""

    def __init__(self, setup: MemberSetup, genesis: Iterable[PeerId]) -> None:
        self._setup, self._genesis = setup, frozenset(genesis)
        self.is_vouched_for = False
        """Whether more than half of those whom it was told of signed where it entered."""

    async def enter(self) -> SecureMember:
        """Come to where the members are; by taking steps from there on it becomes one.

        Raises `BannedError` if they banned this peer, and another `RemoteError` if most of them cannot be found, or
        their state cannot be had any more.
        """
        node, work = self._setup.node, self._setup.work
        discovery = Discovery(node, self._genesis)
        standing, place, signers = await discovery.find(self._setup.settings.patience.longest_s)
        self.is_vouched_for = 2 * len(self._genesis.intersection(signers)) > len(self._genesis)
        ban = standing.membership.bans.get(node.peer_id)
        if ban is not None and ban.until is None:
            raise BannedError.of(ban)
        await work.adopt(standing.step, place.state, signers)
        if await work.digest() != place.state:
            raise StateMismatchError("the state that came is not that of most members", round=standing.step)
        return SecureMember(self._setup, standing)
