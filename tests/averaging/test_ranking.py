from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.election import has_quorum, is_majority, ranking
from minga.network.interface import PeerId

PEERS = [PeerId(f"{i:064x}") for i in range(200)]
groups = st.lists(st.sampled_from(PEERS[:9]), min_size=0, max_size=9, unique=True)


def test_equal_knowledge_gives_the_equal_order() -> None:
    order = ranking("run", 3, PEERS)
    assert sorted(order) == sorted(PEERS)
    assert ranking("run", 3, reversed(PEERS)) == order
    assert ranking("run", 3, PEERS + PEERS) == order
    assert ranking("run", 4, PEERS) != order
    assert ranking("other", 3, PEERS) != order


def test_who_is_missing_changes_nobody_elses_place() -> None:
    order = ranking("run", 3, PEERS)
    assert ranking("run", 3, set(PEERS) - {order[0], order[5]}) == [p for p in order if p not in (order[0], order[5])]


def test_everybody_leads_about_equally_often() -> None:
    leaders = [ranking("run", step, PEERS[:10])[0] for step in range(2000)]
    counts = [leaders.count(peer) for peer in PEERS[:10]]
    assert min(counts) > 140
    assert max(counts) < 260


@given(view=groups, cut=st.sets(st.sampled_from(PEERS[:9])))
def test_of_two_sides_at_most_one_has_the_quorum(view: list[PeerId], cut: set[PeerId]) -> None:
    one, other = {p for p in view if p in cut}, {p for p in view if p not in cut}
    if len(view) > 2:
        assert not (has_quorum(one, view) and has_quorum(other, view))
        assert has_quorum(one, view) or has_quorum(other, view)
    assert has_quorum(set(view), view)


def test_quorum_by_hand() -> None:
    a, b, c, d = PEERS[:4]
    assert has_quorum({a, b}, [a, b, c])
    assert not has_quorum({a}, [a, b, c])
    assert has_quorum({a, d}, [a, b, c, d])
    assert not has_quorum({b, c}, [a, b, c, d])
    assert has_quorum({a}, [a, b])  # of two either may go on
    assert has_quorum({b}, [a, b])
    assert not has_quorum(set(), [a, b])
    assert not has_quorum({d}, [a])
    assert has_quorum(set(), [])


@given(living=groups)
def test_of_disjoint_groups_at_most_one_is_the_majority(living: list[PeerId]) -> None:
    assert is_majority(living, living)
    for size in range(len(living) + 1):
        for group in combinations(living, size):
            rest = [peer for peer in living if peer not in group]
            assert not living or is_majority(group, living) != is_majority(rest, living)
