"""Following a run without having a say, which candidates and newcomers do, and finding out where its members stand.

    watch all members until most of them say where they stand after the step ─▶ get that standing and the aggregates
        ▲                                                                                │
        └──── what the step after that asks of a candidate ◀── apply, compare the state ◀┘

Nothing is believed that more than half of the members of the last known step did not sign, so a peer that once followed
the true members does not lose them to others. A follower may be late: the members keep the outcomes of the last steps,
so it applies one after the other as fast as it gets them. If it is too late for that, it has to enter anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import torch

from minga.core.aio import first_in_turn, racing
from minga.core.buffer_pool import Bytes
from minga.core.errors import RejectedError, RemoteError, SilentError
from minga.core.events.averaging import GroupMinority
from minga.core.events.training import StateAwaited
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.core.units import counted
from minga.network.bounded_dict import BoundedDict
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.messaging.gradient_samples import GradientSamples
from minga.security.messaging.past_steps import CALL_S, KEPT_OUTCOMES, WATCH, WATCH_S, AwaitStep, Seen, look, take
from minga.security.messaging.spread import StatementGossip
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.transfer_limits import WaitPolicy, last_s
from minga.security.protocol.behaviour import Behaviour, Seeds, TrainingBackend
from minga.security.protocol.protocol_state import ProtocolState, StepProgress
from minga.security.protocol.statements import (
    MAX_MEMBERS,
    Candidacy,
    Phase,
    Slot,
    StateClaim,
    Statement,
    is_genuine,
    read,
)
from minga.security.randomness.public_batch import data_seed
from minga.security.verification.norm_bound import StepBound

logger = logging.getLogger("minga.security")

RETRY_S = 1.0
"""Before a member is asked again that answered nothing of use."""
OVERTAKEN_S = 15.0
"""How often a member that waits for others asks them whether they still wait for it; who has taken the same step by two
such moments did so without it.
"""
MAX_TAKES = 8
"""Aggregates that are fetched at once."""


@dataclass(frozen=True)
class Observed:
    """What a follower knows of a step that it took: the digest of the state after it, and the aggregates by part."""

    state: bytes
    values: Mapping[int, Bytes]


@loop_bound
class Observer:
    """Takes the steps that the members took."""

    def __init__(
        self,
        node: Node,
        gossip: StatementGossip,
        work: TrainingBackend,
        behaviour: Behaviour,
        samples: GradientSamples,
        patience: WaitPolicy,
    ) -> None:
        self._node, self._gossip, self._work, self._behaviour = node, gossip, work, behaviour
        self._samples, self._patience = samples, patience
        self._guide: PeerId | None = None
        """Who handed out the last standing, and is asked first for the next one: silent members cost time once."""
        self._said: dict[int, dict[PeerId, Statement]] = {}
        """Where members stood at which step, as they say; they tell of several at once."""
        self._owing: set[PeerId] = set()
        """Members that did not answer when they were last asked for an aggregate: they are asked last."""

    async def take_step(self, progress: StepProgress) -> Observed:
        """Do what is due at a step as a candidate, or apply, and take the step that the members took.

        Raises `OutvotedError` if this peer is too late or has another state than most, and `SilentError` if most
        members say nothing.
        """
        step, members = progress.step, progress.membership.members
        candidacy, slot = Candidacy(await self._commit(progress)), Slot(step, 0, Phase.CANDIDACY)
        for words, receivers in self._behaviour.candidacy(slot, candidacy, members):
            self._gossip.say(slot, words, receivers)
        place, signers = await self._watch_all(step + 1, members, self._patience.longest_s)
        standing = await self._look(place.standing, signers)
        if standing.step != step + 1:
            raise OutvotedError("most members signed the standing of another step", round=step)
        values = await self._take_all(standing, signers)
        await self._work.apply(step, await asyncio.to_thread(_shortened, values, progress.bound))
        if await self._work.digest() != place.state:
            raise DivergedError("most members are in another state than this peer", round=step)
        progress.take(standing)
        return Observed(place.state, values)

    async def place_of_most(
        self, own: Statement, members: Sequence[PeerId], limit_s: float
    ) -> tuple[StateClaim, list[PeerId]]:
        """Where more than half of the members stand at the step of which one of them, this peer, said its `own`; and
        who says so.

        Raises `OutvotedError` if they stand here and there, and `SilentError` if most say nothing in `limit_s` seconds.
        """
        self._said.setdefault(own.slot.step, {})[own.author] = own
        return await self._watch_all(own.slot.step, members, limit_s)

    async def signed_by_most(self, own: Statement, members: Sequence[PeerId]) -> tuple[Statement, ...]:
        """What more than half of the members, one of them this peer, signed alike of where they stand. Most of those
        before a step need not be most of those after it, of whom some may have come in it and others gone.

        Raises as `place_of_most` does.
        """
        _, signers = await self.place_of_most(own, members, self._patience.longest_s)
        said = self._said[own.slot.step]
        return tuple(said[peer] for peer in sorted(signers))

    # ---- inner workings

    async def _commit(self, progress: StepProgress) -> bytes | None:
        """What stands for the gradient that a candidate owes; None from another peer."""
        me, membership, step = self._node.peer_id, progress.membership, progress.step
        if me not in membership.candidates:
            return None
        seeds = {peer: data_seed(progress.coin, peer) for peer in (*membership.members, *membership.candidates)}
        submission = await self._samples.encode(await self._behaviour.gradient(self._work, step, Seeds(me, seeds)))
        if self._behaviour.submits():
            self._samples.keep(step, me, submission)
        return submission.root

    async def _watch_all(self, step: int, members: Sequence[PeerId], limit_s: float) -> tuple[StateClaim, list[PeerId]]:
        """Where most members stand at the beginning of a step, and who says so."""
        for old in [old for old in self._said if old < step]:
            del self._said[old]
        if found := self._majority(step, members):
            return found
        watching = racing(self._watch(peer, step) for peer in members if peer != self._node.peer_id)
        try:
            async with asyncio.timeout(limit_s), watching as ends:
                for end in ends:
                    await end
                    if found := self._majority(step, members):
                        return found
        except TimeoutError as error:
            raise SilentError("most members do not say where they stand", round=step) from error
        raise OutvotedError("no majority of the members tells this peer of this step any more", round=step)

    def _majority(self, step: int, members: Sequence[PeerId]) -> tuple[StateClaim, list[PeerId]] | None:
        said = self._said.get(step, {}).items()
        places = {peer: read(statement, StateClaim) for peer, statement in said if peer in members}
        for place, count in Counter(places.values()).items():
            if 2 * count > len(members):
                return place, [peer for peer, said in places.items() if said == place]
        return None

    async def _watch(self, peer: PeerId, step: int) -> None:
        """Note what a member says, when it has reached a step."""
        while True:
            try:
                said = await watch(self._node, peer, step)
            except RemoteError:
                await asyncio.sleep(RETRY_S)
                continue
            for reached, statement in said.items():
                if step <= reached <= step + KEPT_OUTCOMES:  # an honest member cannot be further ahead and still help
                    self._said.setdefault(reached, {})[peer] = statement
            if max(said, default=-1) >= step:
                return
            await asyncio.sleep(RETRY_S)

    async def _look(self, digest: bytes, signers: Sequence[PeerId]) -> ProtocolState:
        async def ask(peer: PeerId) -> ProtocolState:
            standing = await look(self._node, peer, digest)
            self._guide = peer
            return standing

        guide_first = sorted(signers, key=lambda peer: peer != self._guide)
        standing = await first_in_turn(partial(ask, peer) for peer in guide_first)
        if standing is None:
            raise OutvotedError("nobody hands out the standing that most have")
        return standing

    async def _take_all(self, standing: ProtocolState, signers: Sequence[PeerId]) -> dict[int, Bytes]:
        """The aggregates of the step before that standing, each from its aggregator if that is possible."""
        division = EqualParts.equal(self._work.layout, len(standing.voters))
        slots, step = asyncio.Semaphore(MAX_TAKES), standing.step - 1

        async def take_from(peer: PeerId, part: int, digest: bytes) -> Bytes:
            self._owing.add(peer)
            value = await self._take(peer, step, part, division.value_bytes[part], digest)
            self._owing.discard(peer)
            return value

        async def take_one(part: int, digest: bytes) -> Bytes:
            first = PeerId(standing.voters[part])
            turn = part % len(signers)
            others = [peer for peer in (*signers[turn:], *signers[:turn]) if peer != first]
            whom = sorted((first, *others) if first in signers else others, key=self._owing.__contains__)
            async with slots:
                value = await first_in_turn(partial(take_from, peer, part, digest) for peer in whom)
            if value is None:
                raise OutvotedError("nobody hands out an aggregate of a step that most took", round=step)
            return value

        due = {part: digest for part, digest in enumerate(standing.aggregates) if digest is not None}
        values = await asyncio.gather(*(take_one(part, digest) for part, digest in due.items()))
        return dict(zip(due, values, strict=True))

    async def _take(self, peer: PeerId, step: int, part: int, size: int, digest: bytes) -> Bytes:
        """An aggregate from a peer, who is asked again if it has too many others to serve."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._patience.longest_s
        while True:
            try:
                return await take(self._node, peer, step, part, size, digest)
            except RejectedError as error:
                if error.code is not RefusalCode.BUSY or loop.time() >= until_s:
                    raise
            await asyncio.sleep(RETRY_S)


def _shortened(values: Mapping[int, Bytes], bound: StepBound) -> torch.Tensor:
    """What is applied of the aggregates of all parts."""
    return bound.shortened(torch.cat([value_from_bytes(values[part]) for part in sorted(values)]))


async def be_overtaken(node: Node, progress: StepProgress, alone_s: float) -> NoReturn:
    """Raise `OutvotedError` as soon as half of the members have taken the present step without this peer, for an honest
    one is among these. Where a late word reached half of the members, those whom it did not reach may be no more.

    That is no hurry: only who was away for a while does not hear from the others what became of a step. If most of them
    are not to be heard the program is told; and after `alone_s` seconds of that this peer looks whether there are other
    members by now, since those who took the step may have become few, or may all have left.
    """
    step, before = progress.step, frozenset[PeerId]()
    loop, since_s = asyncio.get_running_loop(), float("inf")
    while True:
        await asyncio.sleep(OVERTAKEN_S)
        members = progress.membership.members
        others = [peer for peer in members if peer != node.peer_id]
        newest = dict(zip(others, await asyncio.gather(*(_newest(node, peer) for peer in others)), strict=True))
        ahead = frozenset(peer for peer in others if newest[peer] > step)
        if 2 * sum(peer in before or newest[peer] > step + 1 for peer in ahead) >= len(members):
            raise OutvotedError("most others went on without this peer", round=step)
        before = ahead
        here = 1 + sum(0 <= newest[peer] <= step for peer in others)
        if 2 * here > len(members) or 2 * len(ahead) >= len(members):
            since_s = float("inf")
        elif since_s == float("inf"):
            since_s = loop.time()
            _tell_minority(node, step, here, len(members))
        elif loop.time() - since_s >= alone_s and await Discovery(node, members).look() is not None:
            raise OutvotedError("others went on, and most of the members that this peer knew are gone", round=step)


def _tell_minority(node: Node, step: int, here: int, members: int) -> None:
    why = (
        f"only {here} of the {counted(members, 'member')} can be heard from here, and nobody goes on without most of "
        "them. It goes on by itself when they are back. If half of them crashed or were started again at once, the run "
        "cannot go on: begin another one from a checkpoint"
    )
    node.events.emit(GroupMinority(step=step, view=members, why=why))
    logger.warning("waiting: %s", why)


async def _newest(node: Node, peer: PeerId) -> int:
    try:
        return max(await watch(node, peer, 0), default=-1)
    except RemoteError:
        return -1


async def watch(node: Node, peer: PeerId, step: int) -> dict[int, Statement]:
    """Where a member says that it stood (`StateClaim`) at the beginning of its kept steps, once it reached `step`.

    Raises `RemoteError`, also where it says that in no way that makes sense.
    """
    seen = await node.call(peer, WATCH, AwaitStep(step), Seen, timeout_s=WATCH_S + CALL_S)
    own = {said.slot.step: said for said in seen.statements if _is_own(said, peer, node.run_id)}
    for said in own.values():
        read(said, StateClaim)  # so that later readers need not expect nonsense
    return own


def _is_own(statement: Statement, peer: PeerId, run_id: str) -> bool:
    slot = Slot(statement.slot.step, 0, Phase.STANDING)
    return statement.author == peer and statement.slot == slot and is_genuine(statement, run_id)


# ---- Discovery: where the members of a secure run stand, as far as a peer can find out that was not there.
#
# Theory of operation. A standing is taken if more than half of its members say, asked by this peer itself, that it is
# theirs, and less than half that they have gone on from it. Old ones cannot be told again like that: members still say
# where they stood a few steps ago, also those who are members no more, but an honest one is among those who went on.
#
# What a newcomer can be told. A peer with less than half of the seats can invent a run in which only its own ids are
# members; that has a majority, too. Of several, the one is taken that most of the `genesis` list sign: the peers whom
# the newcomer was told of by a user whom it trusts. So it is misled only if more of these are hostile or imposed upon
# than honest ones are left and can be reached; in particular when all of them have gone. The list has to be renewed
# therefore: any true standing's members will do. A misled peer wasted its computing; it harms nobody else, because
# what it says means nothing to the true members.


PAUSE_S = 1.0
MAX_PAUSE_S = 30.0
TOLD_S = 20.0
NO_MAJORITY: Final = (
    "no majority of the members of a secure run says where they stand. Check this machine's network. If all of them "
    "left, or half crashed or were started again at once, the run cannot go on: begin another one from a checkpoint"
)
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
        The program is told if no majority is found for `TOLD_S`. Raises `SilentError` if there is none in `limit_s`
        seconds.
        """
        loop = asyncio.get_running_loop()
        begun_s, pause_s, is_told = loop.time(), PAUSE_S, False
        while loop.time() < begun_s + limit_s:
            found = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(begun_s + limit_s):
                    found = await self._look_round()
            if found is not None and not self._has_part(found[0]):
                return found
            if found is None and not is_told and loop.time() >= begun_s + TOLD_S:
                is_told = True
                self._node.events.emit(StateAwaited(why=NO_MAJORITY))
                logger.warning("waiting: %s", NO_MAJORITY)
            await asyncio.sleep(pause_s)
            pause_s = min(MAX_PAUSE_S, 1.5 * pause_s)
        raise SilentError(NO_MAJORITY)

    async def look(self) -> tuple[ProtocolState, StateClaim, tuple[PeerId, ...]] | None:
        """What `find` waits for, None if it is not there at present."""
        found = await self._look_round()
        return None if found is None or self._has_part(found[0]) else found

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
                    await self._fetch_all(said, standings)
            members = {PeerId(peer) for standing in standings.values() for peer in standing.members}
            unasked = members - said.keys() - {self._node.peer_id}
        best, newest = None, _newest_steps(said)
        for (step, place), signers in _signers(said).items():
            standing = standings.get(place.standing)
            if standing is None or standing.step != step:
                continue
            among = tuple(peer for peer in signers if peer in standing.members)
            left = sum(newest.get(PeerId(peer), step) > step for peer in standing.members)
            if 2 * len(among) > len(standing.members) > 2 * left:
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
        self, said: dict[PeerId, dict[int, StateClaim]], standings: dict[bytes, ProtocolState]
    ) -> None:
        """Add the standings that are missing, all at once. Those where fewer of the genesis list stand now are waited
        for only until one with more is there, since what was said soon grows old.
        """
        wanted, newest = defaultdict[bytes, list[PeerId]](list), _newest_steps(said)
        present = defaultdict[bytes, list[PeerId]](list)
        for (step, place), names in _signers(said).items():
            if place.standing not in standings:
                wanted[place.standing] += [peer for peer in names if (peer, place.standing) not in self._failed]
                present[place.standing] += [peer for peer in names if newest[peer] == step]
        weights = {digest: self._weight(names) for digest, names in present.items()}
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


def _newest_steps(said: dict[PeerId, dict[int, StateClaim]]) -> dict[PeerId, int]:
    """At which step each of them stands, as far as it says."""
    return {peer: max(places) for peer, places in said.items() if places}


def _signers(said: dict[PeerId, dict[int, StateClaim]]) -> dict[tuple[int, StateClaim], list[PeerId]]:
    """Who says what of which step, the newest first."""
    signers = defaultdict[tuple[int, StateClaim], list[PeerId]](list)
    for peer, places in sorted(said.items()):
        for step, place in places.items():
            signers[step, place].append(peer)
    return dict(sorted(signers.items(), key=lambda entry: -entry[0][0]))
