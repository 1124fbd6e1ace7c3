"""Who validates whom and which samples are drawn: fair, and the same everywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.security.randomness.coin import UniformIntegers, derive
from minga.security.randomness.public_batch import batch_indices, data_seed, micro_batch_seed
from minga.security.randomness.validator_lottery import draw_validations, validator_count
from tests.worlds.btard_rounds import PEERS

MOST_OF_A_THOUSAND = {1: 10.83, 2: 13.82, 6: 22.46, 17: 40.79, 19: 43.82, 29: 58.30}
"""By degrees of freedom, what chi-square exceeds once in a thousand times."""


def are_even(counts: Sequence[int] | np.ndarray) -> bool:
    """Whether chance explains by how much these numbers of equally likely draws differ."""
    numbers = np.asarray(counts, float)
    chi_square = np.square(numbers - numbers.mean()).sum() / numbers.mean()
    return bool(chi_square < MOST_OF_A_THOUSAND[len(numbers) - 1])


def randomness(number: int) -> bytes:
    return derive(bytes(32), "test", number)


def test_numbers_of_validators() -> None:
    assert [validator_count(n) for n in (0, 1, 2, 3, 8, 16, 17, 64, 256)] == [0, 0, 1, 1, 1, 1, 2, 4, 16]
    assert validator_count(16, 16) == 2
    assert validator_count(16, 10_000) == 4  # three quarters keep training, however many candidates come
    assert validator_count(64, peers_per_validator=4) == 16
    assert validator_count(64, peers_per_validator=1) == 16
    # as attackers leave, the others go on being looked at as often as before
    assert [validator_count(n, peers_per_validator=4) for n in (16, 15, 13, 12, 9)] == [4, 4, 4, 3, 3]
    with pytest.raises(ValueError, match="positive"):
        validator_count(4, peers_per_validator=0)


@given(st.integers(0, 30), st.integers(0, 30), st.data())
def test_pairs_are_different_peers(members: int, candidates: int, data: st.DataObject) -> None:
    everybody = data.draw(st.permutations(PEERS[: members + candidates]))
    of_members, of_candidates = everybody[:members], everybody[members:]
    count = data.draw(st.integers(0, min(members, (members + candidates) // 2)))
    pairs = draw_validations(randomness(members), of_members, of_candidates, count)
    assert len(pairs) == count
    validators, targets = {pair.validator for pair in pairs}, {pair.target for pair in pairs}
    assert len(validators | targets) == 2 * count
    assert validators <= set(of_members)
    assert pairs == draw_validations(randomness(members), of_members[::-1], frozenset(of_candidates), count)


def test_draws_that_are_not_possible() -> None:
    for members, candidates, count in ((4, 0, 3), (2, 8, 3), (4, 0, -1)):
        with pytest.raises(ValueError, match="do not give"):
            draw_validations(randomness(0), PEERS[:members], PEERS[members : members + candidates], count)
    with pytest.raises(ValueError, match="either a member or a candidate"):
        draw_validations(randomness(0), PEERS[:4], PEERS[3:6], 1)


def test_draws_are_even() -> None:
    """Chi-square over 6000 draws: every pair of members is equally likely, and no candidate is looked at less."""
    members, candidates = PEERS[:6], PEERS[6:9]
    pairs = Counter(
        (pair.validator, pair.target)
        for seed in range(6000)
        for pair in draw_validations(randomness(seed), members, candidates, 2)
    )
    of_members = [pairs[a, b] for a in members for b in members if a != b]
    of_candidates = [pairs[a, b] for a in members for b in candidates]
    assert are_even(of_members)
    assert are_even(of_candidates)
    looked_at = Counter(dict.fromkeys(PEERS[:9], 0))
    for (_, target), times in pairs.items():
        looked_at[target] += times
    assert min(looked_at[each] for each in candidates) > max(looked_at[each] for each in members)


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 1000, 3 * 2**60])
def test_integers_are_uniform(bound: int) -> None:
    """3 * 2**60 leaves a quarter of all words out: taken modulo it, small numbers would come up to twice as often."""
    values = UniformIntegers(randomness(bound % 1000)).below(bound, 20_000)
    assert values.dtype == np.int64
    assert 0 <= values.min() <= values.max() < bound
    buckets = min(bound, 20)
    # The first `buckets * width` values fall into equal buckets.
    counts = np.bincount((values // -(-bound // buckets)).astype(int), minlength=buckets)
    assert are_even(counts) if buckets > 1 else counts[0] == 20_000


def test_integers_do_not_depend_on_how_many_are_asked_for() -> None:
    bound = 3 * 2**60
    at_once = UniformIntegers(randomness(1)).below(bound, 100)
    stream = UniformIntegers(randomness(1))
    piecewise = np.concatenate([stream.below(bound, count) for count in (0, 1, 9, 40, 50)])
    assert (at_once == piecewise).all()
    for bad in (0, 2**62 + 1):
        with pytest.raises(ValueError, match="bound"):
            stream.below(bad, 1)
    with pytest.raises(ValueError, match="negative"):
        stream.below(1, -1)
    with pytest.raises(ValueError, match="cannot draw"):
        stream.sample(PEERS[:2], 3)


def test_public_batches() -> None:
    seeds = {
        micro_batch_seed(data_seed(randomness(r), PEERS[p]), a) for r in range(3) for p in range(3) for a in (0, 1)
    }
    assert len(seeds) == 18
    seed = micro_batch_seed(data_seed(bytes(32), PEERS[0]), 0)
    assert batch_indices(seed, 6, 60_000).tolist() == [57428, 40285, 33149, 39672, 57185, 47619]
    assert batch_indices(seed, 100, 60_000)[:6].tolist() == [57428, 40285, 33149, 39672, 57185, 47619]
    assert batch_indices(seed, 0, 1).tolist() == []
    assert batch_indices(seed, 3, 1).tolist() == [0, 0, 0]
