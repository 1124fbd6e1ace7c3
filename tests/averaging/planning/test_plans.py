"""Plans: what a leader makes, and what a member refuses; and whom a member does not ask to lead."""

from __future__ import annotations

import asyncio
import random
import zlib
from typing import Any

import msgspec
import pytest

from minga.averaging.allreduce.round import chunk_table
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.matchmaking.attempt import Suspects
from minga.averaging.messages import MAX_CHUNKS, MAX_PLAN_BYTES, GroupMember, Part, Plan, SignedPlan
from minga.averaging.planning.signed_plan import CONTEXT, PlanNeeds, accept_plan, make_plan, sign_plan
from minga.averaging.solver.division import Division, PartShare, PeerRates, SwarmRates
from minga.averaging.solver.flat import predict
from minga.averaging.solver.planner import divide
from minga.core.errors import ProtocolError
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.simulation import run_virtual

LEADER = Identity.from_seed(bytes(32))
PEERS = [LEADER.peer_id, PeerId(f"{1:064x}"), PeerId(f"{2:064x}")]
MEMBERS = tuple(GroupMember(Address(peer, ("10.0.0.1:1",)), peer != PEERS[2]) for peer in PEERS)
ARGUMENTS: dict[str, Any] = {"leader": LEADER.peer_id, "step": 5, "numel": 100, "me": PEERS[1]}
PARTS = tuple(Part(stop, 0) for stop in range(1, 4097))


def plan_of(**changes: Any) -> Plan:
    plan = Plan("0" * 32, 5, MEMBERS, (Part(40, 0), Part(100, 1)), 16384)
    return msgspec.structs.replace(plan, **changes)


@pytest.mark.parametrize(
    ("changes", "arguments", "flaw"),
    [
        ({"step": 4}, {}, "it is for step 4"),
        ({}, {"step": 6}, "it is for step 5"),
        ({"members": (MEMBERS[1], MEMBERS[0], MEMBERS[2])}, {}, "not the leader"),
        ({}, {"me": PeerId("f" * 64)}, "leaves out"),
        ({"members": (MEMBERS[0], MEMBERS[1], MEMBERS[1])}, {}, "listed twice"),
        ({"parts": (Part(40, 0), Part(99, 1))}, {}, "do not cover"),
        ({"parts": (Part(40, 0), Part(101, 1))}, {}, "do not cover"),
        ({}, {"numel": 99}, "do not cover"),
        ({"parts": (Part(120, 0), Part(100, 1))}, {}, "overlap"),
        ({"parts": (Part(40, 0), Part(40, 1), Part(100, 1))}, {}, "overlap"),
        ({"parts": (Part(0, 0), Part(100, 1))}, {}, "overlap"),
        ({"parts": (Part(40, 2), Part(100, 1))}, {}, "a client is to aggregate"),
        ({"parts": (Part(40, 0), Part(100, 3))}, {}, "a member that it does not have"),
        ({"resting": (3,)}, {}, "a member that it does not have"),
        ({"sites": ((0, 3),)}, {}, "a member that it does not have"),
        ({"sites": ((0, 1), (1, 2))}, {}, "on two sites"),
        ({"sites": ((0, 1),)}, {}, "not one relay for each site"),
        ({"parts": (Part(100, 0, (0,)),)}, {}, "not one relay for each site"),
        ({"parts": (Part(100, 0, (1,)),), "sites": ((0, 1),)}, {}, "stands beside the root"),
        ({"parts": (Part(100, 0, (2,)),), "sites": ((1, 2),)}, {}, "cannot aggregate"),
        ({"parts": (Part(100, 0, (0,)),), "sites": ((1, 2),)}, {}, "not of its site"),
        ({"parts": (Part(1 << 30, 0),), "chunk_bytes": 1024}, {"numel": 1 << 30}, "chunks are too many"),
        ({"chunk_bytes": 1 << 23}, {}, "chunks are too large"),
        ({"parts": PARTS, "part_chunks": 64}, {"numel": 4096}, "chunks are too many"),
        ({"parts": tuple(Part(i, 0, (0,)) for i in range(1, 101)), "sites": ((0, 1),)}, {}, "too many parts"),
    ],
)
def test_plans_that_do_not_hold_together(changes: dict[str, Any], arguments: dict[str, Any], flaw: str) -> None:
    assert accept_plan(sign_plan(plan_of(), LEADER), **ARGUMENTS) == plan_of()
    with pytest.raises(ProtocolError, match=flaw) as caught:
        accept_plan(sign_plan(plan_of(**changes), LEADER), **{**ARGUMENTS, **arguments})
    assert caught.value.peer == LEADER.peer_id
    assert caught.value.phase == "group"


@pytest.mark.parametrize("rate", [1e-300, 0.0, 125_000.0, 1e300])
@pytest.mark.parametrize("numel", [1, 100, 1 << 33])
def test_whatever_rates_are_declared_the_plan_is_accepted(rate: float, numel: int) -> None:
    rates = SwarmRates((PeerRates(rate, rate), PeerRates(None, None), PeerRates(1e-9, 1e-9, aggregates=False)))
    plan = make_plan("a name", PlanNeeds(5, numel, 4 * numel), MEMBERS, divide(rates, 4.0 * numel))
    assert accept_plan(sign_plan(plan, LEADER), **{**ARGUMENTS, "numel": numel}) == plan
    assert 4 * numel / plan.chunk_bytes <= MAX_CHUNKS / 2
    assert all(part.root != 2 for part in plan.parts), "a client reduces nothing"


def test_parts_follow_the_shares_and_names_the_text() -> None:
    division = Division((PartShare(0.5, 1), PartShare(0.3, 0), PartShare(0.2, 0)), predicted_s=7.0)
    plan = make_plan("a name", PlanNeeds(5, 3000, 12000), MEMBERS, division, resting=[2])
    assert plan.parts == (Part(1500, 1), Part(2400, 0), Part(3000, 0))
    assert (plan.predicted_s, plan.resting, plan.sites) == (7.0, (2,), ())
    assert plan.round_id != make_plan("another", PlanNeeds(5, 3000, 12000), MEMBERS, division).round_id


def test_parts_have_whole_blocks_where_a_codec_chooses_within_blocks() -> None:
    """Unless they have few of these."""
    division = Division((PartShare(0.5, 1), PartShare(0.3, 0), PartShare(0.2, 0)))
    plan = make_plan("a name", PlanNeeds(5, 400_003, 12000, block_elements=4096), MEMBERS, division)
    assert plan.parts == (Part(49 * 4096, 1), Part(78 * 4096, 0), Part(400_003, 0))
    plan = make_plan("a name", PlanNeeds(5, 300_000, 12000, block_elements=4096), MEMBERS, division)
    assert plan.parts == (Part(150_000, 1), Part(240_000, 0), Part(300_000, 0))


def test_parts_too_small_for_an_element_are_left_out() -> None:
    division = Division((PartShare(0.999, 0), PartShare(0.001, 1)))
    plan = make_plan("a name", PlanNeeds(5, 10, 40), MEMBERS, division)
    assert plan.parts == (Part(10, 0),)


def test_a_later_leaders_plan_is_checked_as_it_was_sent() -> None:
    fields = msgspec.msgpack.decode(msgspec.msgpack.encode(plan_of()))
    plan = msgspec.msgpack.encode({**fields, "advice": [1]})
    signed = SignedPlan(plan, LEADER.sign(plan, context=CONTEXT))
    assert accept_plan(signed, **ARGUMENTS) == plan_of()


def large_plan(count: int = 1000) -> Plan:
    """With so many members, each with two endpoints and a relay."""
    drawn = random.Random(count)

    def address(n: int) -> Address:
        endpoints = (f"203.0.{drawn.randrange(256)}.{n % 256}:{n + 4000}", f"192.168.0.{n % 256}:{n + 9000}")
        return Address(PEERS[0] if n == 0 else PeerId(drawn.randbytes(32).hex()), endpoints, "https://relay.example./")

    members = tuple(GroupMember(address(n), True) for n in range(count))
    return plan_of(members=members, voters=tuple(range(count)), electorate=count)


def test_the_plan_of_a_large_group_goes_packed_and_takes_less_than_half() -> None:
    plan = large_plan()
    signed = sign_plan(plan, LEADER)
    assert 2 * len(signed.plan) < len(msgspec.msgpack.encode(plan))
    assert accept_plan(signed, **{**ARGUMENTS, "me": plan.ids[-1]}) == plan


def test_builds_before_this_one_read_the_plans_of_groups_up_to_64() -> None:
    assert not sign_plan(large_plan(64), LEADER).packed
    assert sign_plan(large_plan(65), LEADER).packed


@pytest.mark.parametrize("flaw", ["cut off", "more after it", "too long", "not packed", "packed twice"])
def test_a_plan_that_is_not_packed_rightly_blames_the_leader(flaw: str) -> None:
    plan = large_plan()
    encoded = msgspec.msgpack.encode(plan)
    packed = {
        "cut off": zlib.compress(encoded)[:-1],
        "more after it": zlib.compress(encoded) + b"more",
        "too long": zlib.compress(
            msgspec.msgpack.encode({**msgspec.to_builtins(plan), "later": bytes(MAX_PLAN_BYTES)})
        ),
        "not packed": encoded,
        "packed twice": zlib.compress(zlib.compress(encoded)),
    }[flaw]
    signed = SignedPlan(packed, LEADER.sign(packed, context=CONTEXT), packed=True)
    with pytest.raises(ProtocolError, match="malformed plan"):
        accept_plan(signed, **{**ARGUMENTS, "me": plan.ids[-1]})


def test_text_that_is_no_utf8_blames_the_leader() -> None:
    plan = msgspec.msgpack.encode(plan_of()).replace(b"0" * 32, b"\xff" * 32)
    signed = SignedPlan(plan, LEADER.sign(plan, context=CONTEXT))
    with pytest.raises(ProtocolError, match="malformed plan") as caught:
        accept_plan(signed, **ARGUMENTS)
    assert caught.value.peer == LEADER.peer_id


def test_suspicions_end_and_last_longer_each_time() -> None:
    async def suspect() -> None:
        suspects = Suspects([PEERS[1]])
        for pause_s in (2.0, 4.0, 8.0, 16.0, 32.0, 32.0):
            await asyncio.sleep(pause_s - 0.5)
            assert suspects.now() == {PEERS[1]}
            await asyncio.sleep(0.5)
            assert suspects.now() == set()
            suspects.add(PEERS[1])
        suspects.clear()
        assert suspects.now() == set()

    run_virtual(suspect())


def test_small_parts_go_in_smaller_chunks() -> None:
    numel = 6_000_000
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}"), ("1.2.3.4:5",)), True) for i in range(17))
    parts = (PartShare(0.86, 0), PartShare(0.1, 1), PartShare(0.03, 2), PartShare(0.01, 3))
    layout = VectorLayout((numel,), "float32")

    def counts(predicted_s: float | None) -> list[int]:
        plan = make_plan("a name", PlanNeeds(5, numel, 4 * numel), members, Division(parts, predicted_s=predicted_s))
        _, assignments = chunk_table(layout, plan)
        return [len(assignment.chunks) for assignment in assignments]

    assert counts(30.0) == [234, 28, 16, 15], "the last in chunks of 16 KiB"
    assert counts(1.0) == counts(None) == [117, 14, 8, 8]


@pytest.mark.parametrize(("peers", "times_as_long"), [(64, 1.0), (65, 1.5)])
def test_the_last_chunk_of_a_large_group_has_three_more_lines_to_pass(peers: int, times_as_long: float) -> None:
    """Else each of its rounds would be late, and all members would measure their lines again, with 15 MB each time."""
    rates = SwarmRates((PeerRates(4e6, 4e6),) * peers)
    division = divide(rates, 1e8)
    members = tuple(GroupMember(Address(PeerId(f"{i:064x}"), ("1.2.3.4:5",)), True) for i in range(peers))
    plan = make_plan("a name", PlanNeeds(5, 25_000_000, 100_000_000), members, division)
    foreseen = predict(division, rates, 1e8)
    assert foreseen.seconds == pytest.approx(times_as_long * foreseen.busy_s)
    assert plan.predicted_s == division.predicted_s == pytest.approx(foreseen.seconds), "and planners say the same"


@pytest.mark.parametrize("count", [17, 1000, 4096])
def test_a_plan_of_many_parts_is_accepted(count: int) -> None:
    division = Division(tuple(PartShare(1.0 / count, 0) for _ in range(count)), predicted_s=100.0)
    plan = make_plan("a name", PlanNeeds(5, 1 << 33, 1 << 35), MEMBERS, division)
    assert len(plan.parts) == count
    assert accept_plan(sign_plan(plan, LEADER), **{**ARGUMENTS, "numel": 1 << 33}) == plan
