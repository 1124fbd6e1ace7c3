"""What a member saw, and which claims it doubts."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from minga.averaging.allreduce.messages import Assignment
from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.routes import Routes
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import GroupMember, Part, Plan
from minga.network.interface import Address
from minga.receipts.attestation import MAX_SPAN_STEPS, Claim, unpack
from minga.receipts.book import RECENT_ROUNDS, Sight, reduced_bytes
from tests.worlds.receipt_world import IDS, make_count

ME, OTHER, THIRD = IDS[:3]
KIB = 256  # elements


def make_plan(step: int, *, roots: tuple[int, ...] = (0, 1, 2), members: int = 3, **facts: object) -> Plan:
    parts = tuple(Part((index + 1) * 4 * KIB, root) for index, root in enumerate(roots))
    named = tuple(GroupMember(Address(peer, (), None), aggregates=True) for peer in IDS[:members])
    return Plan(f"{step:032x}", step, named, parts, 1 << 16, **facts)  # type: ignore[arg-type]


def outcome(plan: Plan, heard: Mapping[str, int], lost: Mapping[str, str] | None = None) -> RoundOutcome:
    return RoundOutcome(plan, dict(lost or {}), 1.0, 0, 0, ContributionFate.COUNTED, heard=dict(heard))  # type: ignore[arg-type]


def seen(steps: range, **facts: object) -> Sight:
    """Three members, of which this one gave 5 samples to each round, and the others 7 and 9."""
    sight = Sight(ME)
    for step in steps:
        sight.note(outcome(make_plan(step, **facts), {OTHER: 7, THIRD: 9}), 5, 100)  # type: ignore[arg-type]
    return sight


def test_a_peer_claims_what_it_did_since_its_last_claim() -> None:
    sight = seen(range(10))
    # 4 KiB of each part, from two others.
    assert sight.claim(10) == Claim(10, 10, 50, 80)
    sight.note_claimed(8)
    assert sight.claim(10) == Claim(2, 2, 10, 16)
    sight.note_claimed(10)
    assert sight.claim(10) is None


@pytest.mark.parametrize(
    ("claim", "is_doubted"),
    [
        (Claim(4, 4, 28, 32), False),
        (Claim(4, 3, 20, 0), False),
        (Claim(1, 0, 0, 0), False),
        (Claim(4, 4, 29, 32), True),
        (Claim(4, 4, 28, 33), True),
        (Claim(4, 5, 28, 32), True),
        (Claim(11, 4, 28, 32), True),  # began before this member was there
    ],
)
def test_a_witness_doubts_what_exceeds_its_sight(claim: Claim, is_doubted: bool) -> None:
    judged = seen(range(100, 110)).judge(make_count(110, [None, claim, None]))
    assert judged.is_witness
    assert unpack(judged.doubts) == ({1} if is_doubted else set())


def test_a_hole_in_the_sight_is_doubted_over() -> None:
    sight = seen(range(5))
    for step in range(6, 10):
        sight.note(outcome(make_plan(step), {OTHER: 7, THIRD: 9}), 5, 100)
    assert unpack(sight.judge(make_count(10, [None, Claim(4, 4, 28, 32)])).doubts) == frozenset()
    assert unpack(sight.judge(make_count(10, [None, Claim(5, 4, 28, 32)])).doubts) == {1}


def test_a_member_that_nobody_heard_gave_nothing_and_a_dead_one_reduced_nothing() -> None:
    sight = Sight(ME)
    sight.note(outcome(make_plan(0), {THIRD: 9}, lost={OTHER: "silent"}), 5, 100)
    judged = sight.judge(make_count(1, [None, Claim(1, 1, 1, 0), Claim(1, 1, 9, 8)]))
    assert unpack(judged.doubts) == {1}
    assert unpack(sight.judge(make_count(1, [None, Claim(1, 1, 0, 1)])).doubts) == {1}


def test_nobody_gives_more_to_a_round_than_its_target_batch() -> None:
    sight = Sight(ME)
    sight.note(outcome(make_plan(0), {OTHER: 10**9, THIRD: 1}), 10**9, 64)
    assert sight.claim(1) == Claim(1, 1, 64, 8)
    assert unpack(sight.judge(make_count(1, [None, Claim(1, 1, 65, 0)])).doubts) == {1}


def test_one_leader_makes_no_witness_blind() -> None:
    """Its friends alone are roots in a round that it leads: the others still count as witnesses, and doubt."""
    sight = seen(range(10))
    sight.note(outcome(make_plan(10, roots=(1,)), {}), 5, 100)
    judged = sight.judge(make_count(11, [None, Claim(1, 1, 1000, 0)]))
    assert judged.is_witness
    assert unpack(judged.doubts) == {1}
    for step in range(11, 11 + RECENT_ROUNDS):
        sight.note(outcome(make_plan(step, roots=(1,)), {}), 5, 100)
    assert not sight.judge(make_count(11 + RECENT_ROUNDS, [None, None])).is_witness


def test_a_member_without_parts_compares_rounds_and_bytes_only() -> None:
    sight = seen(range(10), roots=(1, 2))
    judged = sight.judge(make_count(10, [None, Claim(2, 2, 10**6, 16), Claim(2, 2, 0, 17)]))
    assert not judged.is_witness
    assert unpack(judged.doubts) == {2}


def test_a_round_that_adopts_a_result_gives_nobody_anything() -> None:
    sight = seen(range(1))
    sight.note_claimed(1)
    sight.note(outcome(make_plan(1, adopts="f" * 32, holders=(0,), view=(ME,)), {OTHER: 5}), 5, 100)
    assert sight.claim(2) == Claim(1, 1, 0, 0)
    assert unpack(sight.judge(make_count(2, [None, Claim(1, 1, 1, 0), Claim(1, 1, 0, 0)])).doubts) == {1}


@pytest.mark.parametrize("sites", [(), ((0, 1), (2, 3)), ((1, 2, 3),)])
def test_the_bytes_to_add_up_are_those_that_the_routes_bring(sites: tuple[tuple[int, ...], ...]) -> None:
    parts = []
    for index in range(5):
        relays = tuple(index if index in site else site[index % len(site)] for site in sites)
        parts.append(Part((index + 1) * 100, index, relays))
    plan = make_plan(0, members=5)
    plan = Plan(plan.round_id, 0, plan.members, tuple(parts), 1 << 16, sites=sites)
    expected = dict.fromkeys(range(5), 0)
    for index, part in enumerate(parts):
        assignment = Assignment((0, index), part.root, (), part.relays)
        for hop in Routes.hops(assignment):
            expected[hop] += 400 * len(Routes(sites).children(assignment, hop, range(5)))
    assert reduced_bytes(plan) == {IDS[member]: size for member, size in expected.items()}


def test_a_claim_is_the_sum_over_all_rounds_that_were_not_claimed() -> None:
    """With holes, rounds that adopt, and a span that is at an end, whatever was asked in between."""
    sight, given = Sight(ME), dict[int, int]()
    steps = [step for step in range(3 * MAX_SPAN_STEPS // 2) if step % 7]
    for step in steps:
        sight.note(outcome(make_plan(step), {OTHER: 7, THIRD: 9}), step % 5, 100)
        given[step] = step % 5
        if step in (100, 333):
            sight.note_claimed(step + 1)
            given.clear()
        if step % 11 == 0:
            known = [each for each in given if each >= step + 1 - MAX_SPAN_STEPS]
            expected = Claim(step + 1 - known[0], len(known), sum(given[s] for s in known), 8 * len(known))
            assert sight.claim(step + 1) == (expected if known else None)
            assert sight.claim(known[1]) == Claim(known[1] - known[0], 1, given[known[0]], 8)
    sight.note(outcome(make_plan(5), {OTHER: 7, THIRD: 9}), 3, 100)  # the organisers regrouped the run
    assert sight.claim(6) == Claim(1, 1, 3, 8)


def test_a_sight_is_bounded() -> None:
    sight = seen(range(MAX_SPAN_STEPS + 100))
    claim = sight.claim(MAX_SPAN_STEPS + 100)
    assert claim is not None
    assert claim.span == claim.rounds == MAX_SPAN_STEPS
