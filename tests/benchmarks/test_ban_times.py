"""How long attackers last: as the literature says, and as the draws of validators give it."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._ban_times import mean_steps_to_ban_all, steps_to_ban_all
from minga.security.protocol.rules import SecureSettings
from minga.security.randomness.coin import derive
from minga.security.randomness.validator_lottery import draw_validations
from tests.worlds.btard_rounds import PEERS


@pytest.mark.parametrize(
    ("peers", "attackers", "validators", "mean", "quantile"),
    [(16, 7, 1, 37, 63), (16, 7, 2, 18, 30), (16, 7, 4, 9, 15), (64, 28, 1, 203, 297), (64, 28, 2, 101, 148),
     (64, 28, 4, 51, 74)],
)  # fmt: skip
def test_steps_to_ban_all_as_in_the_literature(
    peers: int, attackers: int, validators: int, mean: float, quantile: int
) -> None:
    """The table of BTARD section 4.9, which was simulated: means within 1, quantiles within 1."""
    assert mean_steps_to_ban_all(peers, attackers, validators) == pytest.approx(mean, abs=1.0)
    assert steps_to_ban_all(peers, attackers, validators) == pytest.approx(quantile, abs=1)


def test_steps_to_ban_all_as_the_draws_give_them() -> None:
    taken = []
    for run in range(300):
        peers, step = set(PEERS[:8]), 0
        while attackers := peers & set(PEERS[:3]):
            for pair in draw_validations(derive(bytes(32), "test", run, step), peers, (), 1):
                if pair.target in attackers and pair.validator not in attackers:
                    peers.discard(pair.target)
            step += 1
        taken.append(step)
    expected = mean_steps_to_ban_all(8, 3, 1)
    assert np.mean(taken) == pytest.approx(expected, abs=4 * np.std(taken) / np.sqrt(len(taken)))
    assert np.mean(np.array(taken) <= steps_to_ban_all(8, 3, 1)) >= 0.9


def test_ban_times_at_the_edges() -> None:
    assert mean_steps_to_ban_all(5, 0, 1) == 0.0
    assert steps_to_ban_all(5, 0, 1) == 0
    assert mean_steps_to_ban_all(2, 1, 4) == pytest.approx(2.0)  # the honest one validates every other step


def test_a_probation_is_three_times_as_long_as_it_takes_to_find_all_hostile_peers() -> None:
    for peers in range(2, 257):
        probation = SecureSettings(peers_per_validator=peers).probation
        assert probation >= 3 * steps_to_ban_all(peers, max(1, peers * 7 // 16), 1), peers
    assert SecureSettings().probation == 208
    assert SecureSettings(peers_per_validator=1).probation == SecureSettings(peers_per_validator=2).probation
    assert SecureSettings(peers_per_validator=65_536).probation == probation  # a step has no more members
