"""The setups of `benchmarks.links` are those of the paper, and what counts as passed is what was meant."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks._links_relayed import measure_relayed
from benchmarks._links_setups import CROWD_SCALE, GIGABIT, HOME_SCALE, SCALE, setups
from benchmarks.links import is_ok
from minga.network.virtual.internet import Nat


@pytest.mark.parametrize(
    ("name", "vectors"), [("A", 1.75), ("B", 9.375), ("C", 5.0), ("D", 5.614), ("home", 50.0), ("sites", 5.0)]
)
def test_the_bounds_are_the_known_ones(name: str, vectors: float) -> None:
    setup = setups()[name]
    gigabit = GIGABIT * {"C": CROWD_SCALE, "home": HOME_SCALE}.get(name, SCALE) / SCALE
    assert setup.bound_s() == pytest.approx(vectors * 32 * setup.numel / gigabit, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "figures", "expected"),
    [
        ("A", {"measured_s": 1.15}, True),
        ("A", {"measured_s": 1.16}, False),
        ("A", {"correct": False}, False),
        ("C", {"equal_parts_s": 1.8}, True),
        ("C", {"equal_parts_s": 1.6}, False),
        ("D", {"parameter_server_s": 1.1}, True),
        ("D", {"parameter_server_s": 0.9}, False),
        ("D", {"equal_parts_s": 0.9}, False),
        ("home", {"equal_parts_s": 1.5}, False),
        ("sites", {"flat_s": 4.0, "two_level_s": 2.0}, True),
        ("sites", {"flat_s": 3.9, "two_level_s": 2.0}, False),
        ("sites", {"flat_s": 4.0, "two_level_s": None}, False),
    ],
)
def test_what_passes(name: str, figures: dict[str, Any], expected: bool) -> None:
    usual = {"correct": True, "measured_s": 1.0, "bound_s": 1.0, "equal_parts_s": 3.0, "parameter_server_s": 3.0}
    assert is_ok(name, usual | figures) is expected


def test_five_peers_must_train_three_of_them_as_clients_and_survive() -> None:
    good = {"peers_trained": 5, "clients": 3, "survived_public_peer_death": True, "virtual": {"ok": True}}
    assert is_ok("nat", good)
    wrong = {"peers_trained": 4, "clients": 2, "survived_public_peer_death": False, "virtual": {"ok": False}}
    for name, value in wrong.items():
        assert not is_ok("nat", good | {name: value})


def test_peers_behind_every_kind_of_nat_join_by_one_link_and_train() -> None:
    figures = measure_relayed(3)
    assert figures["ok"]
    assert {each["nat"] for each in figures["peers"].values()} == set(Nat)
    assert figures["peers"]["symmetric0"]["paths"] == {"direct": 3, "relayed": 3}
    assert figures["peers"]["cloud"]["paths"] == {"direct": 6}
