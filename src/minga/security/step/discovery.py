"""Where the members of a secure run stand, as far as a peer can find out that was not there.

Theory of operation. A standing is taken if more than half of its members say, asked by this peer itself,
that it is theirs. Old ones cannot be told again like that, because members who went on no longer say so.

What a newcomer can be told. A peer with less than half of the seats can invent a run in which only its own ids are
members; that has a majority, too. Of several, the one is taken that most of the `genesis` list sign: the peers whom the
newcomer was told of by a user whom it trusts. So it is misled only if more of these are hostile or imposed upon than
honest ones are left and can be reached; in particular when all of them have gone. The list has to be renewed therefore:
any true standing's members will do. A misled peer wasted its computing; it harms nobody else, because what it says
means nothing to the true members.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from minga.core.aio.hedging import racing
from minga.core.aio.in_turn import first_in_turn
from minga.core.errors import RemoteError, SilentError
from minga.core.thread_guard import loop_bound
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.messaging.past_steps import CALL_S, look
from minga.security.parts.wait_policy import last_s
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.statements import MAX_MEMBERS, StateClaim, read
from minga.security.step.observer import watch

PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
SLACK_S = 0.5
"""Seconds that are waited for the last answers beside the time that most took."""
MAX_ASKED = 4 * MAX_MEMBERS
MAX_STANDINGS = 64
"""Standings that are fetched at once: many more than honest members sign, so claims of others crowd out none."""
MAX_TRIES = 4
"""Signers that are asked for a standing; if that fails, the next round asks others."""
FETCH_S = 20.0
MAX_HOPS = 4
"""From those whom a newcomer knows to members of their standings, and so on."""
MAX_FAILED = 4 * MAX_ASKED


@loop_bound
class Discovery:
    """Finds out where the members of a run stand; `genesis` are peers whom this one was told of."""

    def __init__(self, node: Node, genesis: Iterable[PeerId]) -> None:
        self._node, self._genesis = node, frozenset(genesis)
        self._failed: BoundedDict[tuple[PeerId, bytes], None] = BoundedDict(MAX_FAILED)
        """Who did not hand out which standing, and is not asked for that again."""

    async def find(self, limit_s: float) -> tuple[ProtocolState, StateClaim, tuple[PeerId, ...]]:
        """The present standing, the digests that stand for it, and who signed these; this peer has no part in it.

        As long as others still take this peer for a member or candidate, because it was one before it was started
        anew, it may have said something that it does not remember. So it waits until they no longer do.
        Raises `SilentError` if nothing is found in `limit_s` seconds.
        """
        loop = asyncio.get_running_loop()
        until_s, pause_s = loop.time() + limit_s, PAUSE_S
        while loop.time() < until_s:
            found = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    found = await self._look_round()
            if found is not None and not self._has_part(found[0]):
                return found
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 1.5 * pause_s)
        raise SilentError("no majority of the members of a secure run says where they stand")

    # ---- inner workings

    def _has_part(self, standing: ProtocolState) -> bool:
        me = self._node.peer_id
        return me in standing.members or any(candidate.peer == me for candidate in standing.candidates)

    async def _look_round(self) -> tuple[ProtocolState, StateClaim, tuple[PeerId, ...]] | None:
        """The standing that most of the genesis list sign, of those that most of their own members sign."""
        said: dict[PeerId, dict[int, StateClaim]] = {}
        standings: dict[bytes, ProtocolState] = {}
        unasked = {*self._genesis, *self._node.connected()} - {self._node.peer_id}
        for _ in range(MAX_HOPS):
            if not unasked or len(said) >= MAX_ASKED:
                break
            said.update(await self._ask_all(sorted(unasked)))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FETCH_S):
                    await self._fetch_all(_signers(said), standings)
            members = {PeerId(peer) for standing in standings.values() for peer in standing.members}
            unasked = members - said.keys() - {self._node.peer_id}
        best = None
        for (step, place), signers in _signers(said).items():
            standing = standings.get(place.standing)
            if standing is None or standing.step != step:
                continue
            among = tuple(peer for peer in signers if peer in standing.members)
            if 2 * len(among) > len(standing.members):
                rank = (self._weight(among), step)
                if best is None or rank > best[0]:
                    best = rank, (standing, place, among)
        return best[1] if best else None

    def _weight(self, signers: Iterable[PeerId]) -> int:
        """How many of the genesis list those are; more than half of it is as good as all of it, since the last step is
        one that not all have reached.
        """
        return min(len(self._genesis.intersection(signers)), len(self._genesis) // 2 + 1)

    async def _ask_all(self, peers: Sequence[PeerId]) -> dict[PeerId, dict[int, StateClaim]]:
        """What they say. When most have answered the others have as long again, for what was said soon grows old."""
        loop, said = asyncio.get_running_loop(), {peer: dict[int, StateClaim]() for peer in peers}
        begun_s = loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CALL_S) as limit, racing(self._ask(peer) for peer in peers) as answers:
                for count, answer in enumerate(answers, 1):
                    peer, places = await answer
                    said[peer] = places
                    if count == len(peers) // 2 + 1:
                        limit.reschedule(min(begun_s + CALL_S, last_s(begun_s, loop.time(), SLACK_S)))
        return said

    async def _ask(self, peer: PeerId) -> tuple[PeerId, dict[int, StateClaim]]:
        try:
            said = await watch(self._node, peer, 0)
            return peer, {step: read(statement, StateClaim) for step, statement in said.items()}
        except RemoteError:
            return peer, {}

    async def _fetch_all(
        self, signers: Mapping[tuple[int, StateClaim], list[PeerId]], standings: dict[bytes, ProtocolState]
    ) -> None:
        """Add the standings that are missing, all at once. Those that fewer of the genesis list sign are waited for
        only until one with more is there, since what was said soon grows old.
        """
        wanted = defaultdict[bytes, list[PeerId]](list)
        for (_, place), names in signers.items():
            if place.standing not in standings:
                wanted[place.standing] += [peer for peer in names if (peer, place.standing) not in self._failed]
        weights = {digest: self._weight(names) for digest, names in wanted.items()}
        ranked = sorted(wanted, key=lambda digest: -weights[digest])[:MAX_STANDINGS]
        pending, best = set(ranked), 0
        async with racing(self._fetch(digest, wanted[digest]) for digest in ranked) as fetched:
            for fetching in fetched:
                digest, standing = await fetching
                pending.remove(digest)
                if standing is not None:
                    standings[digest] = standing
                    best = max(best, weights[digest])
                if all(weights[other] < best for other in pending):
                    return

    async def _fetch(self, digest: bytes, signers: Iterable[PeerId]) -> tuple[bytes, ProtocolState | None]:
        async def ask(peer: PeerId) -> ProtocolState:
            try:
                return await look(self._node, peer, digest)
            except RemoteError:
                self._failed[peer, digest] = None
                raise

        known_first = sorted(signers, key=lambda peer: peer not in self._genesis)
        return digest, await first_in_turn(partial(ask, peer) for peer in known_first[:MAX_TRIES])


def _signers(said: dict[PeerId, dict[int, StateClaim]]) -> dict[tuple[int, StateClaim], list[PeerId]]:
    """Who says what of which step, the newest first."""
    signers = defaultdict[tuple[int, StateClaim], list[PeerId]](list)
    for peer, places in sorted(said.items()):
        for step, place in places.items():
            signers[step, place].append(peer)
    return dict(sorted(signers.items(), key=lambda entry: -entry[0][0]))
