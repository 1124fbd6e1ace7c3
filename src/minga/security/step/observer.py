"""Following a run without having a say: what candidates and newcomers do instead of taking part.

    watch all members until most of them say where they stand after the step ─▶ get that standing and the aggregates
        ▲                                                                                │
        └──── what the step after that asks of a candidate ◀── apply, compare the state ◀┘

Nothing is believed that more than half of the members of the last known step did not sign, so a peer that once followed
the true members does not lose them to others. A follower may be late: the members keep the outcomes of the last steps,
so it applies one after the other as fast as it gets them. If it is too late for that, it has to enter anew.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

import torch

from minga.core.aio.hedging import racing
from minga.core.aio.in_turn import first_in_turn
from minga.core.buffer_pool import Bytes
from minga.core.errors import RejectedError, RemoteError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.messaging.gradient_samples import GradientSamples
from minga.security.messaging.past_steps import CALL_S, KEPT_OUTCOMES, WATCH, WATCH_S, AwaitStep, Seen, look, take
from minga.security.messaging.spread import StatementGossip
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.parts.equal_parts import EqualParts, value_from_bytes
from minga.security.parts.wait_policy import WaitPolicy
from minga.security.protocol.behaviour import Behaviour, Seeds, TrainingBackend
from minga.security.protocol.protocol_state import ProtocolState, StepProgress
from minga.security.protocol.statements import Candidacy, Phase, Slot, StateClaim, Statement, is_genuine, read
from minga.security.randomness.public_batch import data_seed
from minga.security.verification.step_bound import StepBound

RETRY_S = 1.0
"""Before a member is asked again that answered nothing of use."""
OVERTAKEN_S = 15.0
"""How often a member that waits for others asks them whether they still wait for it."""
MAX_TAKES = 8
"""Aggregates that are fetched at once."""


@dataclass(frozen=True)
class Observed:
    """What a follower knows of a step that it took: the digest of the state after it, the aggregates by part, and what
    members signed of where they stood then.
    """

    state: bytes
    values: Mapping[int, Bytes]
    signed: tuple[Statement, ...]


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
        place, signers = await self._watch_all(step + 1, members)
        standing = await self._look(place.standing, signers)
        if standing.step != step + 1:
            raise OutvotedError("most members signed the standing of another step", round=step)
        values = await self._take_all(standing, signers)
        await self._work.apply(step, await asyncio.to_thread(_shortened, values, progress.bound))
        if await self._work.digest() != place.state:
            raise DivergedError("most members are in another state than this peer", round=step)
        progress.take(standing)
        signed = self._said.get(step + 1, {})
        return Observed(place.state, values, tuple(signed[peer] for peer in sorted(signers)))

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

    async def _watch_all(self, step: int, members: Sequence[PeerId]) -> tuple[StateClaim, list[PeerId]]:
        """Where most members stand at the beginning of a step, and who says so."""
        for old in [old for old in self._said if old < step]:
            del self._said[old]
        if found := self._majority(step, members):
            return found
        watching = racing(self._watch(peer, step) for peer in members)
        try:
            async with asyncio.timeout(self._patience.longest_s), watching as ends:
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


async def be_overtaken(node: Node, members: Sequence[PeerId], step: int) -> NoReturn:
    """Raise `OutvotedError` as soon as most members have taken the next step, too, without this peer.

    That is no hurry: only who was away for a while does not hear from the others what became of `step`.
    """
    others = [peer for peer in members if peer != node.peer_id]
    while True:
        await asyncio.sleep(OVERTAKEN_S)
        ahead = await asyncio.gather(*(_is_beyond(node, peer, step + 1) for peer in others))
        if 2 * sum(ahead) > len(members):
            raise OutvotedError("most others went on without this peer", round=step)


async def _is_beyond(node: Node, peer: PeerId, step: int) -> bool:
    try:
        return any(reached > step for reached in await watch(node, peer, 0))
    except RemoteError:
        return False


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
