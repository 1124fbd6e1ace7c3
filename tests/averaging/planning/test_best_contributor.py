"""Rounds with one contributor: who that is, and what a member refuses to believe of it."""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import msgspec
import pytest

from minga.averaging.election import ranking
from minga.averaging.messages import GroupMember, Part, PeerScore, Plan, Report
from minga.averaging.planning.best_contributor import REPLACED_S, ToldScores, best_contributor, wrong_choice
from minga.averaging.planning.signed_plan import accept_plan, sign_plan
from minga.core.errors import ProtocolError
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId

IDENTITIES = [Identity.from_seed(bytes([index]) * 32) for index in range(5)]
PEERS = [PeerId(identity.peer_id) for identity in IDENTITIES]
RUN, STEP = "run", 3


def plan_of(scores: tuple[PeerScore | None, ...], *contributors: int) -> Plan:
    members = tuple(GroupMember(Address(peer, ("1.2.3.4:5",)), True) for peer in PEERS)
    return Plan("0" * 32, STEP, members, (Part(8, 0),), 16384, contributors=contributors, scores=scores)


def honest_plan(*values: float | None) -> Plan:
    scores = tuple(None if value is None else PeerScore(value) for value in values)
    best = best_contributor(RUN, STEP, dict(zip(PEERS, scores, strict=True)))
    return plan_of(scores, *([] if best is None else [PEERS.index(best)]))


def test_the_least_score_is_the_best() -> None:
    scores = {PEERS[0]: PeerScore(2.0), PEERS[1]: PeerScore(-1.0), PEERS[2]: None, PEERS[3]: PeerScore(0.0)}
    assert best_contributor(RUN, STEP, scores) == PEERS[1]


def test_no_score_never_leads_nor_does_one_that_is_no_number() -> None:
    for nothing in (None, PeerScore(math.nan), PeerScore(math.inf), PeerScore(-math.inf)):
        assert best_contributor(RUN, STEP, {PEERS[0]: nothing, PEERS[1]: PeerScore(1e9)}) == PEERS[1]
        assert best_contributor(RUN, STEP, {PEERS[0]: nothing}) is None
    assert best_contributor(RUN, STEP, {}) is None


def test_what_is_early_leads_only_where_all_are() -> None:
    assert best_contributor(RUN, STEP, {PEERS[0]: PeerScore(0.1, early=True), PEERS[1]: PeerScore(5.0)}) == PEERS[1]
    early = {PEERS[0]: PeerScore(0.1, early=True), PEERS[1]: PeerScore(0.2, early=True)}
    assert best_contributor(RUN, STEP, early) == PEERS[0]


def test_equal_scores_are_decided_alike_by_all_and_otherwise_at_another_step() -> None:
    tied = dict.fromkeys(PEERS, PeerScore(1.0))
    for order in itertools.islice(itertools.permutations(PEERS), 0, 120, 17):
        assert best_contributor(RUN, STEP, {peer: tied[peer] for peer in order}) == ranking(RUN, STEP, PEERS)[0]
    assert len({best_contributor(RUN, step, tied) for step in range(40)}) == len(PEERS)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e31])
def test_a_score_that_is_no_number_is_refused_on_arrival(value: float) -> None:
    for message in (Report(score=PeerScore(value)), plan_of((PeerScore(value), None, None, None, None))):
        with pytest.raises(msgspec.ValidationError):
            msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))


def test_a_member_believes_a_plan_with_its_score_and_the_right_contributor() -> None:
    rng = random.Random(7)
    for _ in range(50):
        values = [rng.choice([None, 1.0, 2.0, rng.random()]) for _ in PEERS]
        plan = honest_plan(*values)
        for me, value in enumerate(values):
            said = {None, PeerScore(9.0), None if value is None else PeerScore(value)}
            assert wrong_choice(RUN, plan, me, said) is None


@pytest.mark.parametrize(
    ("plan", "said", "why"),
    [
        (honest_plan(1.0, 2.0, 3.0, 4.0, 5.0), {PeerScore(2.5)}, "is not what this peer told"),
        (honest_plan(1.0, None, 3.0, 4.0, 5.0), {PeerScore(0.5)}, "is not what this peer told"),
        (
            plan_of((PeerScore(3.0), PeerScore(2.0), None, None, None), 0),
            {PeerScore(2.0)},
            "another member than the one",
        ),
        (
            plan_of((PeerScore(3.0), PeerScore(2.0), None, None, None), 0, 1),
            {PeerScore(2.0)},
            "another member than the one",
        ),
        (plan_of((PeerScore(3.0), PeerScore(2.0), None, None, None)), {PeerScore(2.0)}, "another member than the one"),
        (plan_of((), 1), {PeerScore(2.0)}, "one score for each member"),
    ],
)
def test_a_member_refuses(plan: Plan, said: set[PeerScore | None], why: str) -> None:
    assert why in str(wrong_choice(RUN, plan, 1, said))


@pytest.mark.parametrize(
    ("changes", "flaw"),
    [({"contributors": (5,)}, "a member that it does not have"), ({"scores": (None,)}, "not one score for each")],
)
def test_a_plan_that_does_not_hold_together_is_refused(changes: dict[str, Any], flaw: str) -> None:
    plan = msgspec.structs.replace(honest_plan(1.0, 2.0, 3.0, None, None), **changes)
    with pytest.raises(ProtocolError, match=flaw):
        accept_plan(sign_plan(plan, IDENTITIES[0]), leader=PEERS[0], step=STEP, numel=8, me=PEERS[1])


def test_what_a_member_replaced_long_ago_is_not_believed_any_more() -> None:
    told = ToldScores()
    told.tell(None, 0.0)
    told.tell(PeerScore(4.0), 1.0)
    told.tell(PeerScore(4.0), 2.0)
    assert told.fresh(2.0) == {None, PeerScore(4.0)}
    assert told.fresh(1.0 + REPLACED_S + 0.1) == {PeerScore(4.0)}
    told.tell(PeerScore(3.0), 20.0)
    assert told.fresh(20.0) == {PeerScore(4.0), PeerScore(3.0)}
    assert told.fresh(99.0) == {PeerScore(3.0)}
