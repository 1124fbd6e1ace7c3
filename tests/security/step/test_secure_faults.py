"""Secure steps when machines and lines fail: whoever fails may go, nobody else does, and the others stay alike."""

from __future__ import annotations

import asyncio
import functools
import itertools
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
import pytest
import torch

from minga.core.buffer_pool import Bytes
from minga.core.events.averaging import GroupMinority
from minga.core.events.training import StateAwaited
from minga.network.interface import PeerId
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import VirtualNetwork
from minga.security.accountability.rulings import open_complaint, who_withheld, who_withheld_aggregates
from minga.security.messaging.spread import ASK, BRING, FETCH
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.rules import SecureSettings
from minga.security.protocol.statements import (
    Accusation,
    Body,
    Charge,
    Claims,
    Commit,
    Heard,
    Phase,
    Result,
    Revealed,
    Slot,
    Statement,
)
from minga.security.randomness.coin import Reveal
from minga.simulation.attacks.gradient_attacks import Attack, SignFlip, WithheldPart
from tests.worlds.secure_swarm import LATENCY_S, RUN_ID, SecurePeer, SecureSwarm, verify_log
from tests.worlds.secure_world import OtherDevice, Quadratic, stall_fetches
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import later, virtually

pytestmark = pytest.mark.promise("when-members-are-hostile")

STEPS = 8


async def survive(swarm: SecureSwarm, failing: Collection[str] = ()) -> None:
    """Take steps; all but the failing peers have to get through them alike and ban nobody but these."""
    ends = await swarm.run(STEPS)
    others = [peer for peer in swarm.honest if peer.name not in failing]
    assert {ends[peer.name] for peer in others} == {None}
    for peer in others:
        assert isinstance(peer.work, Quadratic)
        assert isinstance(others[0].work, Quadratic)
        assert torch.equal(peer.work.parameters[STEPS], others[0].work.parameters[STEPS])
        assert swarm.bans(peer).keys() <= set(failing)
        assert swarm.bans(peer) == swarm.bans(others[0])
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries).members == peer.member.membership.members


def stand_still(swarm: SecureSwarm, name: str, begins_s: float, for_s: float) -> None:
    later(begins_s, lambda: swarm.internet.stall(name))
    later(begins_s + for_s, lambda: swarm.internet.resume(name))


async def get_over_it(swarm: SecureSwarm, steps: int) -> None:
    """Who was removed comes back, and all end alike, long before anybody gives up waiting for most others."""
    ends = await swarm.run(steps)
    assert set(ends.values()) == {None}
    assert len({await peer.work.digest() for peer in swarm.peers.values()}) == 1
    assert asyncio.get_running_loop().time() < 200


@pytest.mark.parametrize("seed", [19, 37, *map(soaked, (6, 10, 11, 21, 22, 42, 49, 56))])
@virtually
async def test_two_of_four_that_stand_still_at_once_ask_for_what_did_not_come_to_them(seed: int) -> None:
    """Each may lack half of the parts, or of the aggregates, since the streams on which they came are broken."""
    generator = random.Random(f"standstill {seed}")
    swarm = SecureSwarm(4, lambda: Quadratic(70, compute_s=generator.uniform(0.05, 0.6)), seed=seed, returns=True)
    for name in generator.sample(list(swarm.peers), 2):
        stand_still(swarm, name, generator.uniform(0.3, 1.3), generator.uniform(3.0, 12.0))
    await get_over_it(swarm, 4)


@virtually
async def test_who_missed_words_and_votes_by_standing_still_asks_for_both() -> None:
    """With the words alone it would take the step with a member that the others have voted out."""
    seconds = iter((0.17, 0.172, 0.515))
    swarm = SecureSwarm(3, lambda: Quadratic(70, compute_s=next(seconds)), seed=180, returns=True)
    stand_still(swarm, "p1", 0.76, 6.43)
    stand_still(swarm, "p0", 1.04, 9.66)
    await get_over_it(swarm, 3)


@virtually
async def test_to_commit_oneself_too_late_is_no_offence() -> None:
    """It brings its parts to those who have voted, and wait for its vote."""
    seconds = iter((7.0, 0.2, 0.2, 0.2))
    swarm = SecureSwarm(4, lambda: Quadratic(70, compute_s=next(seconds)))
    await swarm.run(2)
    assert swarm.peers["p1"].member.membership.former.keys() == {swarm.peers["p0"].peer_id}
    assert not [event for peer in swarm.peers.values() for event in peer.log if event.kind == "peer.offence"]


@pytest.mark.parametrize("one_way", [soaked(False), True])
@pytest.mark.parametrize("seed", seeds(1, of=4))
@virtually
async def test_a_broken_line_between_two_members_costs_nobody_its_place(seed: int, one_way: bool) -> None:
    generator = random.Random(f"cut {seed}")
    swarm = SecureSwarm(5, lambda: Quadratic(50), seed=seed)
    one, other = generator.sample(list(swarm.peers), 2)
    later(generator.uniform(0.3, 2.0), lambda: swarm.internet.cut(one, other, one_way=one_way))
    await survive(swarm)


@pytest.mark.parametrize("seed", seeds(1, of=12))
@virtually
async def test_two_deaths_at_any_moment_ban_no_third_peer(seed: int) -> None:
    generator = random.Random(f"two deaths {seed}")
    swarm = SecureSwarm(6, lambda: Quadratic(50), seed=seed)
    failing = generator.sample(list(swarm.peers), 2)
    for name in failing:
        later(generator.uniform(0.3, 2.0), lambda name=name: swarm.internet.kill(name))
    await survive(swarm, failing)


def told_of_minority(peer: SecurePeer) -> tuple[float, str]:
    """When, in seconds, and what."""
    (event,) = (event for event in peer.log if isinstance(event.data, GroupMinority))
    return event.time, event.data.why


@virtually
async def test_where_half_of_the_members_leave_at_once_everybody_is_told_what_happened() -> None:
    """Those who were left heard nothing for as long as they waited, and who came later nothing that helps."""
    swarm = SecureSwarm(4, lambda: Quadratic(50, compute_s=0.5))
    for name in ("p2", "p3"):
        later(0.7, lambda name=name: swarm.internet.kill(name))
    later(1.0, lambda: swarm.join("late"))
    for name in ("p0", "p1"):
        later(900.0, lambda name=name: swarm.internet.kill(name))
    ends = await swarm.run(STEPS)
    for name in ("p0", "p1"):
        time_s, why = told_of_minority(swarm.peers[name])
        assert time_s < 60.0
        assert why.startswith("only 2 of the 4 members can be heard")
        assert why.endswith("the run cannot go on: begin another one from a checkpoint")
        assert isinstance(ends[name], asyncio.CancelledError), "it waits until it is ended"
    assert str(ends["late"]).endswith("the run cannot go on: begin another one from a checkpoint")
    (told,) = (event for event in swarm.peers["late"].log if isinstance(event.data, StateAwaited))
    assert told.time < 60.0
    assert told.data.why in str(ends["late"])


@pytest.mark.parametrize(("groups", "begins_s"), [("01|23", 0.6), ("01|23|4", 1.3), ("0|1|2", 1.55)])
@virtually
async def test_members_of_which_a_cut_leaves_no_majority_wait_and_go_on_together(groups: str, begins_s: float) -> None:
    """It begins while they wait for commitments, parts or results, and takes longer than they wait for bytes."""
    sides = groups.split("|")
    swarm = SecureSwarm(sum(map(len, sides)), lambda: Quadratic(50, compute_s=0.5))
    lines = [(f"p{a}", f"p{b}") for one, other in itertools.combinations(sides, 2) for a in one for b in other]
    for line in lines:
        later(begins_s, lambda line=line: swarm.internet.cut(*line))
        later(begins_s + 700.0, lambda line=line: swarm.internet.restore(*line))
    await survive(swarm)
    assert asyncio.get_running_loop().time() < 750.0, "what others said is asked for soon after the cut healed"
    for peer in swarm.honest:
        assert peer.member.membership.members == swarm.founders
        assert told_of_minority(peer)[0] < 60.0


@virtually
async def test_who_was_cut_off_gets_in_again_where_fewer_than_half_of_the_members_that_it_knew_went_on() -> None:
    swarm = SecureSwarm(5, lambda: Quadratic(50, compute_s=60.0), returns=True)
    for name in ("p1", "p2", "p3", "p4"):
        later(90.0, lambda name=name: swarm.internet.cut("p0", name))
        later(650.0, lambda name=name: swarm.internet.restore("p0", name))
    for name, dies_s in (("p3", 300.0), ("p4", 500.0)):
        later(dies_s, lambda name=name: swarm.internet.kill(name))
    ends = await swarm.run(20)
    assert [ends[name] for name in ("p0", "p1", "p2")] == [None] * 3


@virtually
async def test_whoever_lets_those_wait_who_look_into_it_does_not_make_them_late() -> None:
    names = ("p0", "p1", "p2")
    swarm = SecureSwarm(7, lambda: Quadratic(60), dict.fromkeys(names, lambda allies: SignFlip(2, allies)), seed=1)
    for name in names:
        stall_fetches(swarm.peers[name])
    ends = await swarm.run(9)
    assert {ends[peer.name] for peer in swarm.honest} == {None}
    assert swarm.bans(swarm.honest[0]) == dict.fromkeys(names, "WRONG_GRADIENT")
    assert "secure.member_away" not in {event.kind for peer in swarm.honest for event in peer.log}


def hand_out_late(peer: SecurePeer, late_s: float, late_for: Callable[[int], bool]) -> None:
    """At step 2 a peer brings its parts to some aggregators, and hands out any, so many seconds later."""
    deliveries = peer.member._deliveries
    bring, serve = deliveries.bring, deliveries._serve_fetch

    async def bring_late(step: int, attempt: int, part: int) -> None:
        await asyncio.sleep(late_s * (step == 2 and late_for(part)))
        await bring(step, attempt, part)

    async def serve_late(asker: PeerId, stream: MessageStream) -> None:
        await asyncio.sleep(late_s * (peer.member.step == 2))
        await serve(asker, stream)

    deliveries.bring = bring_late  # type: ignore[method-assign]
    peer.node.serve(FETCH, serve_late)


async def bans_of(swarm: SecureSwarm) -> dict[str, str]:
    """Take some steps; the bans that all who are left know, and can show."""
    ends = await swarm.run(5)
    survivors = [peer for peer in swarm.honest if ends[peer.name] is None]
    bans = swarm.bans(survivors[0])
    assert {peer.name for peer in survivors} == {peer.name for peer in swarm.honest} - bans.keys()
    for peer in survivors:
        assert swarm.bans(peer) == bans
        assert verify_log(RUN_ID, swarm.names, peer.member.evidence.entries).members == peer.member.membership.members
    return bans


@pytest.mark.parametrize("late_s", [2.6, soaked(3.5), soaked(6.0)])
@virtually
async def test_a_member_whose_parts_come_too_late_goes_and_nobody_with_it(late_s: float) -> None:
    swarm = SecureSwarm(6, lambda: Quadratic(60), {"p0": lambda _: Attack(2)})
    hand_out_late(swarm.peers["p0"], late_s, lambda _: True)
    assert await bans_of(swarm) == {"p0": "UNDELIVERED"}


@pytest.mark.parametrize("late_for", [soaked(1), soaked(2), 3])
@virtually
async def test_a_member_whose_parts_come_too_late_to_some_goes_with_one_of_them_at_most(late_for: int) -> None:
    """Nobody can tell whether such an owner was late or its aggregators lie."""
    swarm = SecureSwarm(6, lambda: Quadratic(60), {"p0": lambda _: Attack(2)})
    hand_out_late(swarm.peers["p0"], 3.5, lambda part: part < late_for)
    bans = await bans_of(swarm)
    assert "p0" in bans
    assert list(bans.values()) == ["UNDELIVERED"] * 2


def keep_aggregate_from(peer: SecurePeer, let_wait: Mapping[PeerId, float]) -> None:
    """At step 2 a peer hands these members its aggregate so many seconds late."""

    class Late:
        """A stream on which bytes are sent late."""

        def __init__(self, stream: MessageStream) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> Any:
            return getattr(self._stream, name)

        async def send_bulk(self, data: Bytes) -> None:
            await asyncio.sleep(let_wait.get(self._stream.peer, 0.0) * (peer.member.step == 2))
            await self._stream.send_bulk(data)

    serve = peer.member._deliveries._serve_bring
    peer.node.serve(BRING, lambda owner, stream: serve(owner, Late(stream)))  # type: ignore[arg-type]


@virtually
async def test_an_aggregator_that_keeps_its_aggregate_from_some_goes_with_one_of_them_at_most() -> None:
    """Those that have it are most: the aggregator, its allies, and a member that gets it in the last moment."""
    hostile = ("p0", "p1", "p2")
    swarm = SecureSwarm(7, lambda: Quadratic(60), dict.fromkeys(hostile, Attack.begin(2)))
    for name in hostile:
        stall_fetches(swarm.peers[name])
    keep_aggregate_from(swarm.peers["p0"], {peer.peer_id: 2.0 if peer.name == "p3" else 60.0 for peer in swarm.honest})
    bans = await bans_of(swarm)
    assert list(bans.values()) == ["UNDELIVERED"] * 2
    assert "p0" in bans
    assert len(swarm.honest[0].member.membership.members) == 5


def complaints_of(count: int, complaints: Collection[tuple[int, int]], could: Collection[tuple[int, int]]) -> set[int]:
    members = [PeerId(f"{rank:064x}") for rank in range(count)]
    coin = Reveal(bytes(32), bytes(32))
    results = {
        peer: Result(bytes(32), 1.0, bytes(32), bytes(32), tuple(owner for part, owner in complaints if part == rank))
        for rank, peer in enumerate(members)
    }
    wanted = open_complaint(members, results)
    delivered = wanted if wanted in could else None
    return who_withheld(members, results, {peer: Revealed(coin, bytes(32), delivered) for peer in members})


def test_what_nobody_could_get_costs_its_owner_alone() -> None:
    assert complaints_of(8, [(1, 0), (2, 0), (3, 5)], []) == {0}


def test_in_a_dispute_nobody_goes_with_more_than_one_other() -> None:
    many = [(part, 0) for part in (1, 2, 3)]
    assert complaints_of(8, many, many) == {0, 1}  # a late owner
    many = [(7, owner) for owner in range(4)]
    assert complaints_of(8, many, many) == {7, 0}  # an aggregator that lies


def test_when_lines_fail_for_some_seconds_two_members_go_at_most() -> None:
    """What is still true of the other disputes comes again in the next attempt."""
    crossed = [(0, 4), (1, 4), (1, 5), (2, 5), (3, 6)]
    assert complaints_of(8, crossed, crossed) == {0, 4}
    members = [PeerId(f"{rank:064x}") for rank in range(8)]
    lacked = {peer: [owner for part, owner in crossed if part == rank] for rank, peer in enumerate(members)}
    claims = {peer: Claims((), bytes(32), tuple(owners)) for peer, owners in lacked.items()}
    assert who_withheld_aggregates(members, claims) == {0, 4}


def test_an_owner_that_goes_anyway_takes_nobody_with_it() -> None:
    complaints = [(1, 0), (2, 0), (3, 1)]
    assert complaints_of(8, complaints, [(2, 0), (3, 1)]) == {0}  # of the last one the next attempt tells
    most = [(part, 0) for part in range(1, 6)]
    assert complaints_of(8, most, most) == {0}


def test_who_complains_of_most_members_goes_alone_unless_most_lack_these() -> None:
    many = [(7, owner) for owner in range(5)]
    assert complaints_of(8, many, many) == complaints_of(8, many, []) == {7}
    crashed = [(part, owner) for part in (0, 1, 2, 3, 4) for owner in (5, 6, 7)]
    assert complaints_of(8, [*crashed, (4, 0), (4, 1)], []) == {5, 6, 7}


class WithheldFromSome(WithheldPart):
    """Brings its parts to most aggregators, and not to all."""

    def brings(self, part: int) -> bool:
        return not self.is_on or part % 3 != 0


@pytest.mark.parametrize("count", [soaked(1), 3])
@virtually
async def test_whoever_withholds_from_some_and_lets_all_wait_parts_nobody(count: int) -> None:
    names = [f"p{index}" for index in range(count)]
    swarm = SecureSwarm(8, lambda: Quadratic(60), dict.fromkeys(names, lambda allies: WithheldFromSome(2, allies)))
    for name in names:
        stall_fetches(swarm.peers[name])
    ends = await swarm.run(6)
    assert {ends[peer.name] for peer in swarm.honest} == {None}
    assert [swarm.bans(peer) for peer in swarm.honest] == [dict.fromkeys(names, "UNDELIVERED")] * (8 - count)


class Contrary(Attack):
    """Says that it heard something else than the others in the phase before `phase`."""

    phase: Phase

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        if self.is_on and slot.phase is self.phase and not isinstance(body, Commit):
            body = msgspec.structs.replace(body, seen=bytes(32))
        return [(body, everybody)]


class OneFar(SecureSwarm):
    """The lines of p5 are longer than those of the others."""

    def _host(self, name: str) -> VirtualNetwork:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tests.worlds.secure_swarm.LATENCY_S", 0.2 if name == "p5" else LATENCY_S)
            return super()._host(name)


@pytest.mark.parametrize("phase", [soaked(Phase.RESULT), Phase.CLAIMS])
@virtually
async def test_whoever_answers_some_only_what_it_heard_makes_nobody_late(phase: Phase) -> None:
    class Now(Contrary):
        pass

    Now.phase = phase
    swarm = OneFar(6, lambda: Quadratic(60), {"p0": lambda allies: Now(2, allies)})
    hostile, victim = swarm.peers["p0"].member, swarm.peers["p5"].peer_id

    async def stall(peer: PeerId, stream: MessageStream) -> None:
        if peer != victim:
            await hostile._gossip._serve_ask(peer, stream)
        else:
            await asyncio.Event().wait()

    hostile._node.serve(ASK, stall)
    ends = await swarm.run(4)
    assert {ends[peer.name] for peer in swarm.honest} == {None}
    assert not swarm.bans(swarm.honest[0])


@virtually
async def test_members_on_other_devices_need_nothing_to_find_each_other_right() -> None:
    """So no line is too slow for that, and what others have to send does not wait for it."""
    devices, asked = itertools.count(), list[PeerId]()
    settings = SecureSettings(peers_per_validator=2)
    swarm = SecureSwarm(5, lambda: OtherDevice(100, devices), settings=settings)

    async def note(peer: PeerId, stream: MessageStream) -> None:
        asked.append(peer)
        await asyncio.Event().wait()

    for peer in swarm.honest:
        peer.member._node.serve(FETCH, note)
    ends = await swarm.run(4)
    assert set(ends.values()) == {None}
    assert not swarm.bans(swarm.honest[0])
    assert not asked


@virtually
async def test_who_cannot_get_what_claims_are_about_says_nothing() -> None:
    """Whether a gradient is right everybody can say."""
    swarm = SecureSwarm(4, lambda: Quadratic(40))
    await swarm.run(2)
    judge, accuser, target, _ = swarm.honest
    for peer in swarm.honest:
        stall_fetches(peer)
    recheck, record = judge.member._recheck, judge.member._attempts.passed[1]
    owner, part = record.terms.members.index(target.peer_id), record.terms.members.index(accuser.peer_id)
    about_claims = Accusation(1, target.peer_id, Charge.CLAIMS, part)
    about_gradient = Accusation(1, target.peer_id, Charge.GRADIENT)
    assert (owner, part) not in record.store.parts
    assert await recheck.is_guilty(about_claims, [accuser.peer_id], record, ()) is None
    assert not judge.member._deliveries._fetching  # nothing travels on beside the parts of the next step
    record.store.roots[owner] = bytes(32)  # it sent other bytes than this member would, as on another device
    assert await recheck.is_guilty(about_gradient, [accuser.peer_id], record, ()) is False
    said = record.claims[target.peer_id]
    false = tuple(claim and msgspec.structs.replace(claim, norm=2 * claim.norm) for claim in said.claims)
    record.bodies[Phase.CLAIMS][target.peer_id] = msgspec.structs.replace(said, claims=false)
    assert await recheck.is_guilty(about_gradient, [accuser.peer_id], record, ()) is True
    assert (owner, part) not in record.store.parts


def leave(swarm: SecureSwarm, name: str) -> None:
    async def see_off() -> None:
        await swarm.peers[name].member.see_off()
        swarm.internet.kill(name)

    swarm.peers[name].network.process.run(see_off())


@pytest.mark.parametrize(
    "at_s",
    [
        (0.3, 0.3),
        (0.65, 0.65),
        soaked((0.3, 0.65)),
        soaked((0.6, 0.9)),
        (0.65, 3.0, 5.0),
        (0.7, 0.7, 0.7),
        soaked((1.5,) * 3),
    ],
)
@virtually
async def test_whoever_stays_goes_on_however_many_say_goodbye(at_s: tuple[float, ...]) -> None:
    """At once, or one after the other until nobody else is there."""
    swarm = SecureSwarm(4, lambda: Quadratic(50, compute_s=0.5))
    for number, after_s in enumerate(at_s):
        later(after_s, lambda name=f"p{number}": leave(swarm, name))
    await survive(swarm, [f"p{number}" for number in range(len(at_s))])
    last = swarm.peers["p3"].member.membership
    assert len(last.members) == 4 - len(at_s)
    assert not last.bans


class Withholding(Behaviour):
    """Brings nobody a part once `begins_s` have passed."""

    def __init__(self, begins_s: float) -> None:
        self._begins_s = begins_s

    def brings(self, part: int) -> bool:
        return asyncio.get_running_loop().time() < self._begins_s


@pytest.mark.parametrize("begins_s", [0.3, 0.9])
@pytest.mark.parametrize("seed", range(4))
def test_whoever_stays_waits_for_no_parts_for_ever_where_others_said_goodbye(seed: int, begins_s: float) -> None:
    """Those answer nobody any more, and are none of the most that have to be in reach before one complains."""

    @virtually
    async def main() -> None:
        hostile = {"p2": lambda _: Withholding(begins_s)}
        settings = SecureSettings(probation_steps=3, peers_per_validator=2)
        swarm = SecureSwarm(6, lambda: Quadratic(50, compute_s=0.5), hostile, seed=seed, settings=settings)
        for name in ("p3", "p4", "p5"):
            later(begins_s, lambda name=name: leave(swarm, name))
        await survive(swarm, ["p2", "p3", "p4", "p5"])

    main()


class Mute(Behaviour):
    """Says nothing of its aggregate."""

    def result(self, result: Result) -> None:
        return None


class FalseGoodbye(Mute):
    """Leaves at once."""

    def tells(self, slot: Slot, body: Body, everybody: Sequence[PeerId]) -> Sequence[tuple[Body, Sequence[PeerId]]]:
        if isinstance(body, Commit):
            body = msgspec.structs.replace(body, root=None, leaves=True)
        return [(body, everybody)]


@virtually
async def test_votes_of_members_that_said_goodbye_do_not_count() -> None:
    """With an ally they would be most of those whose votes are needed, and make all look for what nobody said."""
    names = ("p4", "p5", "p6")
    hostile = {"p4": lambda _: FalseGoodbye(), "p5": lambda _: FalseGoodbye(), "p6": lambda _: Mute()}
    swarm = SecureSwarm(7, lambda: Quadratic(50), hostile)
    false = Heard(tuple((rank, bytes(32)) for rank in range(7)))
    voted = set[str]()

    def vote(peer: SecurePeer, said: Statement) -> None:
        if said.slot == Slot(0, 0, Phase.COMMIT) and peer.name not in voted:
            voted.add(peer.name)
            peer.member._gossip.say(Slot(0, 0, Phase.RESULT).vote, false, swarm.founders)

    for name in names:
        swarm.peers[name].member._gossip.on_statement = functools.partial(vote, swarm.peers[name])
    for name in names:
        later(20.0, lambda name=name: swarm.internet.kill(name))
    await survive(swarm, names)
    assert voted == set(names)
    assert swarm.bans(swarm.honest[0]) == {"p6": "SILENT"}


@pytest.mark.parametrize("after_s", [soaked(0.45), soaked(0.6), 0.65, soaked(0.7)])
@virtually
async def test_a_planned_goodbye_is_no_offence(after_s: float) -> None:
    """In any phase of a step."""
    swarm = SecureSwarm(5, lambda: Quadratic(50))
    later(after_s, lambda: leave(swarm, "p3"))
    ends = await swarm.run(STEPS)
    assert {name for name, end in ends.items() if end is not None} == {"p3"}
    for peer in swarm.honest:
        if peer.name != "p3":
            assert not swarm.bans(peer)
            assert len(peer.member.membership.members) == 4
