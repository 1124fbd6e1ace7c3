"""Group formation without board, rounds or models: large groups, and members that break the rules."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.election import ranking
from minga.averaging.group import GroupSettings
from minga.averaging.links import BrokenPaths, LinkRow, Links, link_key
from minga.averaging.matchmaking.attempt import JOIN, PATIENT_TRIES, PROBE, OutOfSyncError
from minga.averaging.matchmaking.former import GroupFormation
from minga.averaging.matchmaking.votes import Position
from minga.averaging.messages import FromLeader, Join, Limit, Part, Plan, Redirect, Report, SignedPlan
from minga.averaging.planning.plan_maker import PlanMaker
from minga.averaging.planning.signed_plan import CONTEXT
from minga.averaging.solver.planner import MIN_PART_BYTES
from minga.core.aio import Observers
from minga.core.errors import MinorityError, ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.network.bandwidth.access_link import AccessRates
from minga.network.gossip.board import Change, Observer, Presence
from minga.network.interface import Address, PeerId
from minga.network.rpc.stream import MessageStream
from minga.network.virtual.internet import HostSettings
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.thread_bridge import WAIT
from tests.worlds.ones_replica import OnesReplica
from tests.worlds.reduce_world import Party, World, one_vector
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import virtually

NUMEL = 1000


class Sight:
    """A swarm_view that sees everybody, and knows everybody's step at once."""

    def __init__(self, world: Camp, me: Member) -> None:
        self.world, self.me = world, me
        self.hidden: set[PeerId] = set()
        self.also: list[PeerId] = []  # said to be alive
        self.observers = Observers[[PeerId, Change]]()

    def _others(self) -> list[Member]:
        hidden = self.hidden | {self.me.party.peer_id}
        return [m for m in self.world.members if m.party.peer_id not in hidden and not m.party.network.state.gone]

    def observe(self, observer: Observer) -> None:
        self.observers.add(observer)

    def alive(self) -> Collection[PeerId]:
        return [*(m.party.peer_id for m in self._others()), self.me.party.peer_id, *self.also]

    def active(self) -> Collection[PeerId]:
        return [m.party.peer_id for m in self._others()]

    def through(self, step: int) -> Collection[PeerId]:
        return ()

    def at(self, step: int) -> Collection[PeerId]:
        return [m.party.peer_id for m in self._others() if m.step == step]

    def eligible(self, step: int) -> Collection[PeerId]:
        return [m.party.peer_id for m in self._others() if m.step == step and m.party.network.address.dialable]

    def current(self, step: int) -> Collection[PeerId]:
        return self.eligible(step)

    def ahead(self, step: int) -> list[PeerId]:
        return [m.party.peer_id for m in self._others() if m.step > step]

    def is_behind(self, step: int) -> bool:
        ahead = sum(1 for m in self._others() if m.step > step)
        return ahead > 0 and 2 * ahead >= len(self._others()) + 1

    def averaging(self, step: int) -> Collection[PeerId]:
        return ()

    def syncing(self, step: int = 0) -> dict[PeerId, float]:
        return {}

    def address(self, peer: PeerId) -> Address | None:
        return self.world.book.get(peer)

    def links(self) -> dict[PeerId, Links]:
        return self.world.links

    def broken_paths(self) -> BrokenPaths:
        return BrokenPaths({}, frozenset())

    def rates(self) -> AccessRates:
        own = self.world.links.get(self.me.party.peer_id, Links())
        return AccessRates(own.upload or None, own.download or None)


class Member:
    """A trainer that only forms groups: a round is a pause."""

    def __init__(self, world: Camp, party: Party, batch: int, micro_batch: int, micro_batch_s: float) -> None:
        self.party, self.step = party, 0
        self.micro_batch, self.micro_batch_s = micro_batch, micro_batch_s
        self.port = GradientPort(asyncio.get_running_loop(), OnesReplica())
        dialable = party.network.address.dialable
        vectors = one_vector(NUMEL, world.vector_bytes)
        settings = GroupSettings(batch, vectors, dialable, wait_in_minority=world.wait_in_minority)
        self.sight = Sight(world, self)
        self.formation = GroupFormation(party.node, party.identity, settings, self.sight, self.port)
        self.plans: list[tuple[Plan, int]] = []
        self.error: BaseException | None = None
        self._random = random.Random(party.peer_id)

    async def train(self) -> None:
        while True:
            if self.port.poll() is WAIT:
                await self.port.woken.wait(0.5)
                continue
            await asyncio.sleep(self.micro_batch_s * self._random.uniform(0.95, 1.05))
            self.port.add(self.micro_batch)

    async def live(self) -> None:
        try:
            while True:
                plan = await self.formation.form(self.step)
                _, samples = await self.port.seal()
                self.plans.append((plan, samples))
                await asyncio.sleep(0.3)
                await self.end_round(plan)
        except (MinorityError, OutOfSyncError) as error:
            self.error = error

    async def end_round(self, plan: Plan) -> None:
        self.formation.commit(plan)
        self.port.absorb(self.step + 1, torch.zeros(2), ContributionFate.COUNTED, 1, 0, 1)
        self.port.reopen()
        self.step += 1


class Camp(World):
    """Members of a `World` that form groups."""

    kind = Member

    def __init__(
        self, count: int, *, batch: int, wait_in_minority: bool = True, vector_bytes: int = 4 * NUMEL, **options: Any
    ) -> None:
        self.wait_in_minority = wait_in_minority
        self.links: dict[PeerId, Links] = {}
        self.vector_bytes = vector_bytes
        speeds = options.pop("speeds", [(4, 0.2)] * count)
        super().__init__(count, **options)
        self.members = [
            self.kind(self, party, batch, *speed) for party, speed in zip(self.parties, speeds, strict=True)
        ]

    def tell_rates(self, upload: Sequence[float], download: Sequence[float]) -> None:
        """What everybody has measured, and confirms of everybody else."""
        ids = [member.party.peer_id for member in self.members]
        for me, peer in enumerate(ids):
            rows = tuple(
                LinkRow(link_key(other), int(download[i]), int(upload[i]), 0, 0, 0)
                for i, other in enumerate(ids)
                if i != me
            )
            self.links[peer] = Links(int(upload[me]), int(download[me]), rows=rows)

    def stranger(self) -> Party:
        """One more party, which forms no groups of its own and was in no round."""
        self.parties.append(Party(self.internet.host(HostSettings()), self.book))
        self.book[self.parties[-1].peer_id] = self.parties[-1].network.address
        return self.parties[-1]

    async def begin(self) -> None:
        await self.start()
        for member in self.members:
            member.party.network.process.run(member.train())
            member.party.network.process.run(member.live())

    async def until_step(self, step: int, who: Collection[int] | None = None, limit_s: float = 600.0) -> None:
        chosen = self.members if who is None else [self.members[i] for i in who]
        async with asyncio.timeout(limit_s):
            while min(member.step for member in chosen) < step:
                await asyncio.sleep(0.1)


@pytest.mark.parametrize(("count", "delay_s", "seed"), [(4, 0.5, 1), soaked(16, 1.0, 2), soaked(64, 0.5, 3)])
def test_realised_batches_of_groups_of_any_size(count: int, delay_s: float, seed: int) -> None:
    @virtually
    async def main() -> None:
        rng = random.Random(seed)
        rates = [math.exp(rng.uniform(0.0, math.log(32.0))) for _ in range(count)]
        speeds = [(m := rng.choice((1, 2, 4)), m / rate) for rate in rates]
        batch = math.ceil(max(10 * delay_s * sum(rates), 12 * sum(m for m, _ in speeds)))
        camp = Camp(count, batch=batch, speeds=speeds, seed=seed, latency_s=delay_s / 2)
        await camp.begin()
        steps = 7 if count < 64 else 12
        await camp.until_step(steps)
        realised = []
        for step in range(1, steps):
            plans = [member.plans[step] for member in camp.members]
            assert len({plan for plan, _ in plans}) == 1  # one group, with everybody in it
            assert len(plans[0][0].members) == count
            realised.append(sum(samples for _, samples in plans) / batch)
        assert sum(1.0 <= share <= 1.1 for share in realised[1:]) >= 0.95 * len(realised[1:]), realised
        assert all(party.offences() == [] for party in camp.parties)
        await camp.close()

    main()


def test_clients_take_part_over_connections_that_they_dialled() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(12, clients=9, batch=12 * 4 * 5, seed=9, vector_bytes=12 * MIN_PART_BYTES)
        await camp.begin()
        await camp.until_step(4)
        for step in range(1, 4):
            (plan,) = {member.plans[step][0] for member in camp.members}
            assert len(plan.members) == 12
            assert sum(not member.aggregates for member in plan.members) == 9
            assert {part.root for part in plan.parts} == {i for i, m in enumerate(plan.members) if m.aggregates}
        await camp.close()

    main()


def test_forming_a_group_costs_two_round_trips_not_seconds() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(8, batch=8 * 4 * 10, latency_s=0.02)
        await camp.begin()
        waits = []
        for step in range(2, 6):
            await camp.until_step(step)
            before = asyncio.get_running_loop().time()
            await camp.until_step(step + 1)
            # ten micro-batches of 0.2 s and a round of 0.3 s; what is left is forming the group
            waits.append(asyncio.get_running_loop().time() - before - 10 * 0.2 - 0.3)
        assert max(waits) < 0.45  # 0.1 s of it is how often this test looks
        await camp.close()

    main()


def test_a_dead_leader_is_overtaken_by_the_next_in_rank() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(5, batch=5 * 4 * 20)
        await camp.begin()
        await camp.until_step(2)
        ids = [member.party.peer_id for member in camp.members]
        order = ranking("run", 2, ids)
        leader = next(m for m in camp.members if m.party.peer_id == order[0])
        await asyncio.sleep(1.0)
        camp.internet.kill(leader.party.network)
        rest = [i for i, m in enumerate(camp.members) if m is not leader]
        await camp.until_step(3, rest, limit_s=15.0)
        (plan,) = {camp.members[i].plans[2][0] for i in rest}
        assert plan.members[0].peer_id == order[1]
        assert len(plan.members) == 4
        await camp.close()

    main()


def test_a_member_that_leaves_while_the_plan_is_made_does_not_end_its_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan has it, and the group no longer: the leader looked it up there, and failed with all its process."""
    plan = PlanMaker.plan

    @virtually
    async def main() -> None:
        camp = Camp(3, batch=40)
        left: list[Member] = []

        async def leave(maker: PlanMaker, step: int, registrations: Mapping[PeerId, Registration]) -> Plan:
            made = await plan(maker, step, registrations)
            if step == 2 and not left:
                left.append(next(m for m in camp.members if m.party.peer_id == made.members[-1].peer_id))
                camp.internet.kill(left[0].party.network)
                await asyncio.sleep(5.0)  # its stream ends
            return made

        monkeypatch.setattr(PlanMaker, "plan", leave)
        await camp.begin()
        await camp.until_step(2)
        while not left:
            await asyncio.sleep(0.1)
        rest = [i for i, member in enumerate(camp.members) if member not in left]
        assert len(rest) == 2
        await camp.until_step(3, rest, limit_s=30.0)
        (made,) = {camp.members[i].plans[2][0] for i in rest}
        assert left[0].party.peer_id in made.ids
        await camp.until_step(5, rest, limit_s=30.0)
        await camp.close()

    main()


@pytest.mark.parametrize("late_s", [0.05, 1.0])
def test_a_newcomer_waits_for_those_from_whom_it_has_its_state(late_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may not know yet at which step they are: a fast one took all steps to the end of a run alone."""

    @virtually
    async def main() -> None:
        camp = Camp(2, batch=40, speeds=[(4, 0.2), (40, 0.001)])
        host, newcomer = camp.members
        await camp.start()
        host.sight.hidden.add(newcomer.party.peer_id)  # it is not there yet
        for live in (host.train(), host.live()):
            host.party.network.process.run(live)
        await camp.until_step(2, [0])
        await asyncio.sleep(0.1)
        newcomer.step = host.step
        host.sight.hidden.clear()
        newcomer.formation.come_back({host.party.peer_id: 0})
        monkeypatch.setattr(newcomer.sight, "at", lambda _: ())
        monkeypatch.setattr(newcomer.sight, "current", lambda _: ())
        for live in (newcomer.train(), newcomer.live()):
            newcomer.party.network.process.run(live)
        await asyncio.sleep(late_s)
        monkeypatch.undo()
        await camp.until_step(newcomer.step + 3)
        assert [plan for plan, _ in newcomer.plans[:3]] == [plan for plan, _ in host.plans[2:5]]
        await camp.close()

    main()


def test_stopping_in_a_minority_says_what_to_do() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(5, batch=60, wait_in_minority=False)
        await camp.begin()
        await camp.until_step(2)
        for index in (2, 3, 4):
            camp.internet.kill(camp.members[index].party.network)
        await asyncio.sleep(30.0)
        for member in camp.members[:2]:  # not only who leads
            assert isinstance(member.error, MinorityError)
            assert "only 2 of the 5 members of the last round can be seen" in str(member.error)
            assert "Check this machine's network" in str(member.error)
        await camp.close()

    main()


def test_those_who_said_goodbye_are_not_missed() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(5, batch=60)
        await camp.begin()
        await camp.until_step(2)
        for index in (2, 3, 4):
            camp.internet.kill(camp.members[index].party.network)
            for member in camp.members[:2]:
                member.sight.observers.tell(camp.members[index].party.peer_id, Presence.LEFT)
        await camp.until_step(5, [0, 1], limit_s=60.0)
        await camp.close()

    main()


# ---- peers that break the rules


async def one_and_a_liar(batch: int = 40) -> tuple[Camp, Member, Party]:
    """A group of three, and a party that forms no groups of its own."""
    camp = Camp(3, batch=batch)
    liar = camp.stranger()
    await camp.begin()
    await camp.until_step(1)
    return camp, camp.members[0], liar


def join_of(party: Party, **changes: Any) -> Join:
    join = Join(1, "0" * 32, party.network.address, True, True, None, None, Report())
    return msgspec.structs.replace(join, **changes)


async def ask(liar: Party, victim: Party, method: str, *messages: msgspec.Struct) -> BaseException | object:
    async def run() -> object:
        async with liar.node.open(victim.peer_id, method) as stream:
            for message in messages:
                await stream.send(message)
            return await stream.receive_one_of(FromLeader)

    return (await asyncio.gather(liar.network.process.run(run()), return_exceptions=True))[0]


@pytest.mark.parametrize("method", [JOIN, PROBE])
def test_a_join_in_the_name_of_somebody_else(method: str) -> None:
    @virtually
    async def main() -> None:
        camp, victim, liar = await one_and_a_liar()
        join = join_of(liar, step=victim.step, address=camp.parties[1].network.address)
        assert isinstance(await ask(liar, victim.party, method, join), RemoteError)
        ((peer, what),) = victim.party.offences()
        assert peer == liar.peer_id
        assert "address of another peer" in what
        await camp.until_step(4)
        assert all(len(plan.members) == 3 for plan, _ in victim.plans[1:])
        await camp.close()

    main()


def test_joins_that_do_not_fit_are_refused_with_the_reason() -> None:
    @virtually
    async def main() -> None:
        camp, victim, liar = await one_and_a_liar()
        answer = await ask(liar, victim.party, JOIN, join_of(liar, layout="1" * 32, step=victim.step))
        assert isinstance(answer, RejectedError)
        assert answer.code == RefusalCode.LAYOUT
        answer = await ask(liar, victim.party, JOIN, join_of(liar, step=0))
        assert isinstance(answer, RejectedError)
        assert answer.code == RefusalCode.BEHIND
        answer = await ask(liar, victim.party, JOIN, join_of(liar, step=1 << 40))
        assert isinstance(answer, RejectedError)
        assert answer.code == RefusalCode.AHEAD
        assert victim.party.offences() == []
        await camp.until_step(4)
        await camp.close()

    main()


def forged(kind: str, victim: Member, liar: Party) -> msgspec.Struct:
    """What a lying leader sends in the place of a good plan."""
    from minga.averaging.messages import GroupMember as Listed

    members = (Listed(liar.network.address, True), Listed(victim.party.network.address, True))
    plan = Plan("0" * 32, victim.step, members, (Part(500, 0), Part(NUMEL, 1)), 16384)
    if kind == "overlap":
        plan = msgspec.structs.replace(plan, parts=(Part(2000, 0), Part(NUMEL, 1)))
    elif kind == "replayed":
        plan = msgspec.structs.replace(plan, step=victim.step - 1)
    elif kind == "without me":
        plan = msgspec.structs.replace(plan, members=(members[0],), parts=(Part(NUMEL, 0),))
    encoded = b"\xc1\xc1" if kind == "garbage" else msgspec.msgpack.encode(plan)
    signer = victim.party.identity if kind == "wrong key" else liar.identity
    context = b"another purpose" if kind == "wrong context" else CONTEXT
    return SignedPlan(encoded, signer.sign(encoded, context=context))


@pytest.mark.parametrize("kind", ["overlap", "replayed", "without me", "garbage", "wrong key", "wrong context"])
def test_forged_and_broken_plans_are_refused_and_their_leader_named(kind: str) -> None:
    @virtually
    async def main() -> None:
        camp = Camp(1, batch=1000)
        victim = camp.members[0]
        liar = camp.stranger()
        await camp.start()

        async def lead(peer: PeerId, stream: MessageStream) -> None:
            await stream.receive(Join)
            await stream.send(Limit(0))
            await stream.send(forged(kind, victim, liar))
            await asyncio.sleep(5.0)

        liar.node.serve(JOIN, lead)
        victim.step, attempt = 3, victim.formation._attempt.next(3)
        with pytest.raises(ProtocolError) as caught:
            await victim.party.network.process.run(victim.formation._follow(attempt, liar.network.address))
        assert caught.value.peer == liar.peer_id
        assert [peer for peer, _ in victim.party.offences()] == [liar.peer_id]
        await camp.close()

    main()


def take_for_a_member(liar: Party, camp: Camp, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let everybody take it for a member of the last round: in some steps it is the first in rank."""
    after = Position.after

    def remember(position: Position, plan: Plan) -> Position:
        position = after(position, plan)
        return replace(position, view=(*position.view, liar.peer_id))

    monkeypatch.setattr(Position, "after", remember)
    for member in camp.members:
        member.sight.also = [liar.peer_id]


def test_a_leader_that_stops_its_members_and_then_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def main() -> None:
        camp, _, liar = await one_and_a_liar()
        heard = 0

        async def stop_and_hush(peer: PeerId, stream: MessageStream) -> None:
            nonlocal heard
            await stream.receive(Join)
            heard += 1
            await stream.send(Limit(0))
            await asyncio.Event().wait()  # pulses go on: it is alive

        liar.node.serve(JOIN, stop_and_hush)
        take_for_a_member(liar, camp, monkeypatch)
        await camp.until_step(12, limit_s=600.0)
        assert heard > 0
        await camp.close()

    main()


def test_who_comes_late_into_a_long_step_stays_with_its_leader() -> None:
    """It stops after one micro-batch, and took its leader for lost half a minute later, again and again."""

    @virtually
    async def main() -> None:
        camp = Camp(30, batch=6000, speeds=[(4, 2.0)] * 30, seed=3)
        await camp.begin()
        await asyncio.sleep(10.0)
        newcomer = Member(camp, Party(camp.internet.host(HostSettings()), camp.book), 6000, 4, 2.0)
        camp.parties.append(newcomer.party)
        camp.members.append(newcomer)
        newcomer.party.node.start()
        for work in (newcomer.train(), newcomer.live()):
            newcomer.party.network.process.run(work)
        await camp.until_step(1)
        assert asyncio.get_running_loop().time() > 90.0
        plan, samples = newcomer.plans[0]
        assert (len(plan.members), samples) == (31, 4)
        assert "group.leader_lost" not in [event.kind for event in newcomer.party.log]
        await camp.close()

    main()


def test_a_leader_that_keeps_a_member_while_the_swarm_goes_on_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One with nothing to give is in no hurry: a newcomer followed for ever what led no more, or one that lied."""

    @virtually
    async def main() -> None:
        camp, _, liar = await one_and_a_liar()

        async def keep(peer: PeerId, stream: MessageStream) -> None:
            await stream.receive(Join)
            await asyncio.Event().wait()  # pulses go on: it is alive

        liar.node.serve(JOIN, keep)
        newcomer = Member(camp, Party(camp.internet.host(HostSettings()), camp.book), 40, 4, 0.2)
        camp.parties.append(newcomer.party)
        newcomer.party.node.start()
        await camp.until_step(3)
        monkeypatch.setattr(newcomer.sight, "is_behind", lambda _: False)
        newcomer.step, attempt = 3, newcomer.formation._attempt.next(3)
        following = newcomer.party.network.process.run(newcomer.formation._follow(attempt, liar.network.address))
        await asyncio.sleep(30.0)
        assert not following.done()
        monkeypatch.undo()
        began_s = asyncio.get_running_loop().time()
        with pytest.raises(OutOfSyncError) as caught:
            await following
        assert caught.value.code == RefusalCode.BEHIND
        assert asyncio.get_running_loop().time() - began_s <= 11.0
        assert newcomer.party.offences() == []
        await camp.close()

    main()


@pytest.mark.parametrize("answer", ["not now", "ask another"])
def test_a_leader_that_neither_leads_nor_says_who_does_is_given_up(
    answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    @virtually
    async def main() -> None:
        camp, _, liar = await one_and_a_liar()
        asked = 0

        async def serve(peer: PeerId, stream: MessageStream) -> None:
            nonlocal asked
            await stream.receive(Join)
            asked += 1
            if answer == "not now":
                raise RejectedError("not now", code=RefusalCode.STAND_BY)
            others = [member.party for member in camp.members if member.party.peer_id != peer]
            await stream.send(Redirect(others[asked % len(others)].network.address))
            await stream.finish()
            await stream.drain()

        liar.node.serve(JOIN, serve)
        take_for_a_member(liar, camp, monkeypatch)
        await camp.until_step(25)
        assert asked > PATIENT_TRIES
        await camp.close()

    main()


def test_who_slows_everybody_down_rests_until_it_is_needed() -> None:
    @virtually
    async def main() -> None:
        camp = Camp(4, batch=4 * 4 * 20, vector_bytes=10_000_000, seed=6)
        camp.tell_rates([1e7, 1e7, 1e7, 1e5], [1e7] * 4)
        await camp.begin()
        await camp.until_step(16)
        for member in camp.members:
            plan, samples = member.plans[-1]
            rests = {plan.members[i].peer_id for i in plan.resting}
            assert rests == {camp.members[3].party.peer_id}
            assert (samples == 0) == (member is camp.members[3])
        resting = camp.members[3]
        for index in range(3):  # one by one: a minority would wait
            camp.internet.kill(camp.parties[index].network)
            await camp.until_step(resting.step + 3, [3])
        assert resting.plans[-1][1] >= 4 * 4 * 20, "it computes alone now"
        told = [(m, e.fields["resting"]) for m in camp.members for e in m.party.log if e.kind == "plan.resting"]
        assert told == [(resting, True), (resting, False)]
        assert not [e for e in resting.party.log if e.kind == "plan.rested_in_vain"]
        await camp.close()

    main()


def test_who_rests_in_vain_computes_again() -> None:
    @virtually
    async def main() -> None:
        # The last one says that it computes a hundred times as fast as it does, and so all others should rest.
        camp = Camp(4, batch=4 * 20, vector_bytes=10_000_000, seed=6, speeds=[(4, 0.2)] * 3 + [(4, 20.0)])
        camp.tell_rates([1e5] * 3 + [1e7], [1e7] * 4)
        liar = camp.members[3]
        report = liar.port.report
        boast = lambda: msgspec.structs.replace(report(), rate=1e4)  # noqa: E731
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(liar.port, "report", boast)
            await camp.begin()
            await camp.until_step(8, limit_s=1200.0)
            honest = camp.members[:3]
            for member in honest:
                told = [e.fields["resting"] for e in member.party.log if e.kind == "plan.resting"]
                assert told[:2] == [True, False]
                assert "plan.rested_in_vain" in [e.kind for e in member.party.log]
                plan, samples = member.plans[-1]
                assert member.party.peer_id in {plan.members[i].peer_id for i in plan.resting}, "still asked to"
                assert samples > 0, "and does not"
        await camp.close()

    main()
