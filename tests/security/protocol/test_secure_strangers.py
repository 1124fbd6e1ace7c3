"""Strangers at the doors of a secure run: whatever they send costs little, and changes nothing for the others."""

from __future__ import annotations

import asyncio
import contextlib
import functools

import msgspec
import pytest

from minga.averaging.allreduce.messages import Done
from minga.core.errors import ProtocolError, RejectedError, UnreachableError
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import VirtualInternet
from minga.security.messaging.past_steps import (
    CALL_S,
    LOOK,
    TAKE,
    WATCH,
    AwaitStep,
    GetAggregate,
    GetState,
    PastStep,
    PastSteps,
    Seen,
    take,
)
from minga.security.messaging.spread import PROVE, TELL
from minga.security.parts.transfer_limits import transfer_limit_s
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.members import MAX_BANS, Ban, Candidate, Reason, lot
from minga.security.protocol.statements import (
    MAX_BODY_BYTES,
    MAX_SHORT_BODY_BYTES,
    Candidacy,
    EquivocationProof,
    Phase,
    Slot,
    StateClaim,
    Statement,
    Told,
    state,
)
from minga.security.rechecking.candidates import MAX_APPLICANTS
from minga.security.step.observer import RETRY_S
from tests.worlds import secure_swarm
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm
from tests.worlds.secure_world import Quadratic
from tests.worlds.swarm_tools import virtually

SLOT = Slot(0, 0, Phase.CANDIDACY)


def make_swarm(count: int = 4) -> SecureSwarm:
    return SecureSwarm(count, lambda: Quadratic(20))


def identity(number: int) -> Identity:
    return Identity.from_seed(number.to_bytes(32, "big"))


def stranger(swarm: SecureSwarm, name: str = "stranger") -> Node:
    """A node that knows the founders, and nothing of the protocol."""
    return swarm._start(swarm._host(name), Behaviour()).node


def proof_of(liar: Identity, slot: Slot = SLOT) -> EquivocationProof:
    one, other = (state(liar, RUN_ID, slot, Candidacy(bytes([byte]) * 32)) for byte in (1, 2))
    return EquivocationProof(one, other)


@virtually
async def test_proofs_against_strangers_are_neither_kept_nor_handed_on() -> None:
    swarm = make_swarm()
    node, first = stranger(swarm), swarm.peers["p0"]
    for number in range(1, 40):
        for slot in (SLOT, Slot(1 << 40, 0, Phase.CANDIDACY)):
            await node.call(first.peer_id, PROVE, proof_of(identity(number), slot), Done)
    await asyncio.sleep(1.0)
    assert not any(peer.member._gossip.proofs for peer in swarm.honest)


@virtually
async def test_a_proof_against_a_candidate_gets_to_members_who_were_behind() -> None:
    swarm, liar = make_swarm(), identity(1)
    first, *others = swarm.honest
    first.member.membership.candidates[liar.peer_id] = Candidate(liar.peer_id, 0)
    await stranger(swarm).call(first.peer_id, PROVE, proof_of(liar), Done)
    await asyncio.sleep(1.0)
    assert [len(peer.member._gossip.proofs) for peer in swarm.honest] == [1, 0, 0, 0]
    for peer in others:
        peer.member.membership.candidates[liar.peer_id] = Candidate(liar.peer_id, 0)
    first.member._gossip.remind(first.member.membership.members)
    await asyncio.sleep(1.0)
    assert [len(peer.member._gossip.proofs) for peer in swarm.honest] == [1] * 4
    for peer in swarm.honest:
        del peer.member.membership.candidates[liar.peer_id]
        peer.member._gossip.forget_before(0)
        assert not peer.member._gossip.proofs


@virtually
async def test_only_genuine_words_of_applicants_displace_others() -> None:
    member = make_swarm().peers["p0"].member
    gossip, coin = member._gossip, member._progress.coin
    applicants = sorted(map(identity, range(1, 81)), key=lambda applicant: lot(coin, applicant.peer_id))
    first, *later_ones = (state(applicant, RUN_ID, SLOT, Candidacy(None)) for applicant in applicants)
    kept = [*later_ones[:MAX_APPLICANTS]]
    for statement in kept:
        gossip.receive(statement, statement.author)
    forged = Statement(first.key, SLOT, first.body, bytes(64))
    with pytest.raises(ProtocolError):
        gossip.receive(forged, kept[0].author)
    assert gossip.slots.of(SLOT).keys() == {statement.author for statement in kept}
    gossip.receive(first, first.author)
    gossip.receive(later_ones[-1], later_ones[-1].author)
    remaining = {statement.author for statement in (first, *kept[:-1])}
    assert gossip.slots.of(SLOT).keys() == remaining
    assert member._register.heard._in_time[0].keys() == remaining


@pytest.mark.parametrize("phase", [Phase.CANDIDACY, Phase.STANDING])
@virtually
async def test_long_words_where_short_ones_are_due_are_refused_before_they_are_kept(phase: Phase) -> None:
    swarm, slot = make_swarm(), Slot(0, 0, phase)
    teller, first = swarm.peers["p1"], swarm.peers["p0"]
    short = bytes(MAX_SHORT_BODY_BYTES)
    fitting = Told(slot, short, bytes(64))
    with pytest.raises(ValueError, match=f"{phase.name}: {MAX_SHORT_BODY_BYTES} are allowed"):
        Told(slot, short + bytes(1), bytes(64))
    longer = (slot, bytes(MAX_BODY_BYTES), bytes(64))
    for decoded, encoded in ((Told, longer), (Statement, (bytes(32), *longer))):
        with pytest.raises(msgspec.ValidationError, match="are allowed"):
            msgspec.msgpack.decode(msgspec.msgpack.encode(encoded), type=decoded)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(fitting), type=Told) == fitting

    class Untyped(msgspec.Struct, array_like=True):
        slot: Slot
        body: bytes
        signature: bytes

    for body in (bytes(MAX_SHORT_BODY_BYTES + 1), bytes(MAX_BODY_BYTES)):
        with pytest.raises(UnreachableError, match="reset"):
            await teller.node.call(first.peer_id, TELL, Untyped(slot, body, bytes(64)), Done)
    assert not first.member._gossip.slots.of(slot)


def test_the_longest_honest_words_are_short() -> None:
    someone = identity(1)
    for phase, body in (
        (Phase.CANDIDACY, Candidacy(b"\xff" * 32)),
        (Phase.STANDING, StateClaim(b"\xff" * 32, b"\xff" * 32)),
    ):
        assert 0 < len(state(someone, RUN_ID, Slot(1 << 48, 0, phase), body).body) <= MAX_SHORT_BODY_BYTES


@virtually
async def test_a_member_that_answers_at_once_and_nothing_of_use_is_asked_at_intervals() -> None:
    swarm, asked = make_swarm(), [0]
    liar, follower = swarm.peers["p1"], swarm.peers["p0"].member._observer
    signer = Identity.from_seed(liar.network.private_key)
    far, near = (
        state(signer, RUN_ID, Slot(step, 0, Phase.STANDING), StateClaim(bytes(32), bytes(32))) for step in (1 << 40, 0)
    )

    async def answer(_: PeerId, stream: MessageStream) -> None:
        await stream.receive(AwaitStep)
        asked[0] += 1
        await stream.send(Seen((near,) if asked[0] <= 10 else (far,)))

    liar.node.serve(WATCH, answer)
    begun_s = asyncio.get_running_loop().time()
    await follower._watch(liar.peer_id, 5)
    assert asked[0] == 11
    assert asyncio.get_running_loop().time() - begun_s >= 10 * RETRY_S
    assert not follower._said


def member_with_an_outcome(swarm: SecureSwarm, size: int = 100) -> tuple[PeerId, PastSteps]:
    """A member that has taken a step, whose aggregate has so many bytes."""
    first = swarm.peers["p0"]
    outcomes, standing = first.member._past_steps, first.member._progress.standing
    outcomes.keep(PastStep(msgspec.structs.replace(standing, step=1), {0: bytes(size)}, None))
    return first.peer_id, outcomes


def test_strangers_cannot_hold_the_places_of_watchers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("minga.security.messaging.past_steps.MAX_WATCHERS", 3)

    @virtually
    async def run() -> None:
        swarm = make_swarm()
        peer, outcomes = member_with_an_outcome(swarm)
        loop, nodes = asyncio.get_running_loop(), [stranger(swarm, f"stranger{index}") for index in range(4)]
        with pytest.raises(RejectedError, match="far ahead"):
            await nodes[0].call(peer, WATCH, AwaitStep(1 << 48), Seen)
        watching = []
        for node in (*nodes[:3], nodes[0], nodes[3]):
            watching.append(loop.create_task(node.call(peer, WATCH, AwaitStep(2), Seen)))
            await asyncio.sleep(0.5)
        assert [task.done() for task in watching] == [True, True, False, False, False]
        await nodes[1].call(peer, WATCH, AwaitStep(1), Seen)  # what is reached is answered at once
        assert len(outcomes._watchers) == 3
        outcome = outcomes._kept[1]
        outcomes.keep(PastStep(msgspec.structs.replace(outcome.standing, step=2), outcome.values, None))
        await asyncio.gather(*watching)
        assert not outcomes._watchers

    run()


@virtually
async def test_nobody_is_handed_more_than_a_few_aggregates_at_once() -> None:
    swarm = make_swarm()
    peer, outcomes = member_with_an_outcome(swarm, 1 << 26)
    node = stranger(swarm)
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(2):
            stream = await stack.enter_async_context(node.open(peer, TAKE, bulk=True))
            await stream.send(GetAggregate(0, 0))
        await asyncio.sleep(0.5)
        assert outcomes._takes.serving.total() == 2
        with pytest.raises(RejectedError, match="at once"):
            await take(node, peer, 0, 0, 1 << 26, bytes(32))
        await asyncio.sleep(transfer_limit_s(1 << 26) + 5.0)
        assert not outcomes._takes.serving


def test_a_standing_that_its_asker_never_reads_is_held_for_it_as_long_as_a_call_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    internet = functools.partial(VirtualInternet, window_bytes=16 << 10)  # less than a standing
    monkeypatch.setattr(secure_swarm, "VirtualInternet", internet)

    @virtually
    async def run() -> None:
        swarm = make_swarm()
        member, outcomes = swarm.peers["p0"], member_with_an_outcome(swarm)[1]
        bans = tuple(Ban(f"{number:064x}", 0, Reason.SILENT, 1) for number in range(MAX_BANS))
        standing = msgspec.structs.replace(outcomes._kept[1].standing, bans=bans)
        outcomes.keep(PastStep(standing, {}, None))
        node = stranger(swarm)
        async with node.open(member.peer_id, LOOK, bulk=True) as stream:
            await stream.send(GetState(standing.digest))
            await asyncio.sleep(CALL_S - 0.5)
            assert member.node._served == {node.peer_id: 1}
            await asyncio.sleep(1.0)
            assert not member.node._served

    run()
