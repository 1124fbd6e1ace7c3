"""Whatever somebody shows to some members only: the honest ones come to the same decision."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

import pytest
import torch
from msgspec import Struct

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.security.messaging.spread import ASK, TELL, Deliveries
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.statements import Body, Heard, Phase, Slot, Statement, Told, state
from minga.simulation.attacks.gradient_attacks import Attack, WrongAggregate
from tests.worlds.secure_swarm import RUN_ID, SecurePeer, SecureSwarm, verify_log
from tests.worlds.secure_world import Quadratic
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import later, virtually

STEPS = 4


async def agree(swarm: SecureSwarm, bans: dict[str, str]) -> None:
    """Take some steps; all honest members have to get through them alike, and every ban has to be shown."""
    ends = await swarm.run(STEPS)
    for peer in swarm.honest:
        assert ends[peer.name] is None
        assert isinstance(peer.work, Quadratic)
        assert isinstance(swarm.honest[0].work, Quadratic)
        assert torch.equal(peer.work.parameters[STEPS], swarm.honest[0].work.parameters[STEPS])
        assert swarm.bans(peer) == bans
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries).members == peer.member.membership.members


def missing_once(fetch: Callable[..., Awaitable[None]], part: int, owner: int) -> Callable[..., Awaitable[None]]:
    """Fetch parts, but not one of them at the first time."""
    missed = []

    async def changed(step: int, attempt: int, wanted: int, of: int, by_s: float | None = None) -> None:
        if (wanted, of) == (part, owner) and not missed:
            missed.append(step)
            return
        await fetch(step, attempt, wanted, of, by_s)

    return changed


@virtually
async def test_a_part_that_one_member_cannot_get_at_first_costs_its_owner_nothing() -> None:
    swarm = SecureSwarm(7, lambda: Quadratic(70), {"p3": lambda allies: WrongAggregate(2, allies)})
    ranks = {name: sorted(swarm.names).index(peer.peer_id) for name, peer in swarm.peers.items()}
    unlucky: Deliveries = swarm.peers["p0"].member._deliveries
    unlucky.fetch_part = missing_once(unlucky.fetch_part, ranks["p3"], ranks["p1"])  # type: ignore[method-assign]
    await agree(swarm, {"p3": "WRONG_AGGREGATE"})


LATE_S = 4.5
"""After all asks for what is missing but the last, and before the vote on who was heard."""


async def refuse(peer: PeerId, stream: MessageStream) -> None:
    raise RejectedError("ask somebody else", code=RefusalCode.ABSENT)


class Late(Attack):
    """Tells its word of one phase to a single member, in the last moment; `swarm` is set when it exists."""

    swarm: SecureSwarm
    phase: Phase

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        if not self.is_on or slot.phase is not self.phase or slot.attempt:
            return [(body, everybody)]
        me = next(peer for peer in self.swarm.peers.values() if peer.peer_id == self.me)
        word = state(Identity.from_seed(me.network.private_key), RUN_ID, slot, body)
        told = self.swarm.honest[0].peer_id
        me.member._gossip.slots.put(word)
        tell = me.member._gossip._spread
        me.member._node.serve(ASK, refuse)
        asyncio.get_running_loop().call_later(LATE_S, lambda: tell(TELL, Told.of(word), [told]))
        for ally in self.swarm.peers.values():
            if ally.peer_id in self.allies:
                lie_about(ally, word, told)
        return []


def lie_about(voter: SecurePeer, word: Statement, told: PeerId) -> None:
    """Let it vote that it heard a word, to the one who was told it, and to the others that it did not."""
    gossip = voter.member._gossip
    say = gossip.say

    def two_faced(slot: Slot, body: Struct, everybody: Iterable[PeerId]) -> Statement:
        if slot != word.slot.vote or not isinstance(body, Heard):
            return say(slot, body, everybody)
        rank = sorted(voter.member.membership.members).index(word.author)
        without = {(r, digest) for r, digest in body.statements if r != rank}
        say(slot, Heard(tuple(sorted({*without, (rank, word.digest)}))), [told])
        return say(slot, Heard(tuple(sorted(without))), [peer for peer in everybody if peer != told])

    gossip.say = two_faced  # type: ignore[method-assign]


@pytest.mark.parametrize("phase", [soaked(Phase.COMMIT), Phase.CLAIMS, soaked(Phase.CONFIRM)])
@virtually
async def test_votes_that_differ_from_member_to_member_part_nobody(phase: Phase) -> None:
    class Now(Late):
        pass

    Now.phase = phase
    hostile = {"p3": lambda allies: Now(2, allies), "p4": lambda _: Behaviour(), "p5": lambda _: Behaviour()}
    swarm = Now.swarm = SecureSwarm(7, lambda: Quadratic(70), hostile)
    ends = await swarm.run(STEPS)
    for peer in swarm.honest:
        assert ends[peer.name] is None, ends
        assert torch.equal(peer.work.parameters[STEPS], swarm.honest[0].work.parameters[STEPS])
        assert swarm.bans(peer) == swarm.bans(swarm.honest[0])
        assert swarm.bans(peer).keys() <= hostile.keys()
        assert "p3" in swarm.bans(peer)
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries).members == peer.member.membership.members


@virtually
async def test_neither_hasty_nor_missing_votes_change_how_long_members_wait() -> None:
    class Hasty(Attack):
        """Votes in each phase, and ahead of the next step, before others have spoken, and says that it heard nobody."""

        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            gossip = swarm.peers["p3"].member._gossip
            for vote in (slot.vote, Slot(slot.step + 1, 0, slot.phase.vote)):
                if self.is_on and self.me not in gossip.slots.of(vote):
                    gossip.say(vote, Heard(()), everybody)
            return [(body, everybody)]

    class NoVoter(Attack):
        """Says what is due in each phase, and votes on none."""

        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            (*_, broadcast) = swarm.peers["p4"].member._attempts._broadcasts
            broadcast._tell_vote = lambda _: None  # type: ignore[method-assign]
            return [(body, everybody)]

    seconds = iter((0.3, 0.7, 1.1, 0.3, 0.7, 1.1, 0.3))
    hostile = {"p3": lambda allies: Hasty(2, allies), "p4": lambda _: NoVoter()}
    swarm = SecureSwarm(7, lambda: Quadratic(70, compute_s=next(seconds)), hostile)
    ends = await swarm.run(STEPS)
    assert set(ends.values()) == {None}
    assert {peer.member.membership.members for peer in swarm.honest} == {swarm.founders}
    assert asyncio.get_running_loop().time() < 3 * STEPS  # virtual: nobody waits for votes that change nothing


@virtually
async def test_a_proof_in_the_last_phase_leaves_nobody_behind() -> None:
    """While one member has heard all in it, and the others lack one word, a second member says two different things."""

    class Selective(Attack):
        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            is_due = slot.phase is Phase.CONFIRM and slot.step == 2
            return [(body, [swarm.peers["p0"].peer_id] if is_due else everybody)]

    class Late(Attack):
        def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
            if slot.phase is Phase.CONFIRM and slot.step == 2:
                gossip, ahead = swarm.peers["p3"].member._gossip, Slot(2, 1, Phase.COMMIT)
                for seconds in (0.2, 0.25):
                    word = Heard(((0, bytes([int(100 * seconds)]) * 32),))
                    later(seconds, lambda word=word: gossip.say(ahead, word, everybody))
            return [(body, everybody)]

    hostile = {"p3": lambda _: Late(), "p4": lambda _: Selective(), "p5": lambda _: Behaviour()}
    swarm = SecureSwarm(7, lambda: Quadratic(70), hostile)
    await agree(swarm, {"p3": "EQUIVOCATED"})
