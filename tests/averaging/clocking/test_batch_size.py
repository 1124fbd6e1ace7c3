"""The target batch size: chosen by leaders where the run spec says "auto", within its limits."""

from __future__ import annotations

import msgspec
import pytest

from minga.averaging.clocking.batch_size import FEWEST_ROUNDS, STRIDE, BatchSize
from minga.averaging.clocking.sample_quota import Registration
from minga.averaging.group import GroupSettings
from minga.averaging.messages import GroupMember, Join, Part, Plan, Report
from minga.core.errors import ProtocolError
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.swarm import Swarm, TrainerSettings
from tests.worlds.reduce_world import one_vector
from tests.worlds.swarm_tools import make_spec, rounds, virtually

LEADER = PeerId("1" * 64)
PLAN = Plan("0" * 32, 3, (GroupMember(Address(LEADER), True),), (Part(10, 0),), 1024, next_batch=100)


def batch_size(least: int = 100, most: int = 10_000, share: float = 0.1) -> BatchSize:
    return BatchSize(GroupSettings(least, one_vector(1), True, largest_batch_size=most, most_communication=share))


def registration(rate: float, batch: int = 0) -> Registration:
    join = Join(3, "0" * 32, Address(LEADER), True, True, None, None, Report(), batch=batch)
    return Registration(join, Report(10, rate), 0.0)


def note(size: BatchSize, seconds: float, batch: int, times: int = FEWEST_ROUNDS) -> None:
    for _ in range(times):
        size.note(msgspec.structs.replace(PLAN, next_batch=batch), seconds)


def test_the_smallest_batch_with_little_communication_is_wished_but_not_at_one_stride() -> None:
    size = batch_size()
    note(size, 1.0, 100)
    assert size.after(4, [registration(100.0), registration(50.0)]) == 100 * STRIDE
    note(size, 1.0, 100 * STRIDE)
    assert size.after(4, [registration(100.0), registration(50.0)]) == 1350  # 150 samples/s x 1 s x 0.9 / 0.1
    note(size, 1.0, 1350)
    assert size.after(4, [registration(100.0), registration(60.0)]) == 1350, "a little more is not worth a change"
    assert size.after(4, [registration(1.0)]) == 1350 // STRIDE


def test_it_stays_within_the_limits_and_where_nothing_is_known() -> None:
    size = batch_size(most=300)
    assert size.after(4, [registration(100.0)]) == 100
    note(size, 1.0, 100)
    assert size.after(4, [registration(100.0)]) == 300
    assert size.after(4, [registration(0.0)]) == 100
    fixed = batch_size(most=100)
    note(fixed, 9.0, 100)
    assert fixed.after(4, [registration(100.0)]) == 100


@pytest.mark.parametrize("batch", [0, 99, 10_001])
def test_a_plan_that_leaves_the_limits_is_refused_and_its_leader_named(batch: int) -> None:
    with pytest.raises(ProtocolError, match="is not from 100 to 10000") as caught:
        batch_size().check(msgspec.structs.replace(PLAN, next_batch=batch))
    assert caught.value.peer == LEADER
    batch_size().check(msgspec.structs.replace(PLAN, next_batch=10_000))


def test_who_has_not_had_the_last_plan_goes_by_what_most_say_within_the_limits() -> None:
    size = batch_size()
    size.learn(
        4,
        [
            registration(1.0, 5000),
            registration(1.0, 5000),
            registration(1.0, 200),
            *[registration(1.0, 10**9)] * 5,
            *[registration(1.0)] * 5,
        ],
    )
    assert size.of(4) == 5000
    size.learn(4, [registration(1.0, 200)] * 9)
    assert size.of(4) == 5000, "it knows already"
    size.forget()
    assert (size.of(4), size.told) == (100, 0)


def test_a_swarm_settles_at_the_right_batch_and_newcomers_know_it() -> None:
    """Three trainers of 40 samples/s each, whose rounds take about 0.25 s, and then one more."""

    @virtually
    async def main() -> tuple[Swarm, list[int]]:
        auto = {"target_batch_size": "auto", "target_batch_size_min": 32, "most_communication": 0.2}
        swarm = Swarm(make_spec(1, training=auto), seed=1)
        for _ in range(3):
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(4, 0.1, jitter=0.02))
        await swarm.run_until_step(10, limit_s=600)
        late = swarm.add(HostSettings(latency_s=0.02), TrainerSettings(4, 0.1, jitter=0.02))
        await swarm.run_until_step(14, limit_s=600)
        members = [peer.session.member for peer in swarm.peers.values()]
        known = [member._formation.batch.of(14) for member in members if member is not None]
        assert late.replica.step >= 14
        await swarm.close()
        return swarm, known

    swarm, known = main()
    applied = [e for e in swarm.log.of("step.applied") if e.peer != "peer-3"]  # it hears of the batch when it joins
    told = {int(str(e.event.fields["step"])): int(str(e.event.fields["batch"])) for e in applied}
    assert told[1] == 32
    settled = [told[step] for step in range(7, 11)]
    assert max(settled) <= 1.3 * min(settled)
    assert len(set(known)) == 1, "all agree, the newcomer too"
    spent = [
        float(str(e.event.fields["waited_s"])) for e in swarm.log.of("round.begun") if e.event.fields["step"] in (8, 9)
    ]
    steps_s = settled[2] / 120
    assert sum(spent) / len(spent) == pytest.approx(steps_s, rel=0.2), "the time is spent on computing"
    for step, groups in rounds(swarm).items():
        for members in groups.values():
            if 2 <= step < 13:
                assert told[step + 1] <= sum(members.values()) <= 1.1 * told[step + 1] + 4
