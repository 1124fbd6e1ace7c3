"""Increasing numbers in few bits: all of them come back, and no other bytes are taken for numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.compressors.sparse_codec import IncreasingNumbers, increasing


@pytest.mark.parametrize("universe", [1, 2, 3, 7, 10])
def test_every_choice_of_every_size_comes_back_from_bytes_of_its_own(universe: int) -> None:
    for count in range(1, universe + 1):
        rows = np.array(list(itertools.combinations(range(universe), count)))
        encoded = increasing(count, universe).encode(rows)
        assert encoded.shape == (len(rows), increasing(count, universe).encoded_bytes)
        assert np.array_equal(increasing(count, universe).decode(encoded), rows)
        assert len({row.tobytes() for row in encoded}) == len(rows)


@pytest.mark.parametrize("count", [1, 31, 41, 64, 256, 2000, 4096])
def test_numbers_below_4096(count: int) -> None:
    chance = np.random.default_rng(count)
    rows = np.sort(np.stack([chance.permutation(4096)[:count] for _ in range(20)]), axis=1)
    rows[0], rows[1] = np.arange(count), np.arange(4096 - count, 4096)
    assert np.array_equal(increasing(count, 4096).decode(increasing(count, 4096).encode(rows)), rows)


def test_it_takes_the_bytes_of_the_formula() -> None:
    sizes = {count: increasing(count, 4096).encoded_bytes for count in (32, 41, 64, 128, 256, 4096)}
    assert sizes == {32: 36, 41: 44, 64: 64, 128: 112, 256: 192, 4096: 1024}
    assert increasing(2000, 65_536).encoded_bytes == -(-(2000 * 6 + 2048) // 8)


@pytest.mark.parametrize(("count", "universe"), [(0, 5), (6, 5), (1, 65_537)])
def test_other_sizes_are_refused(count: int, universe: int) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        IncreasingNumbers(count, universe)


def test_all_bytes_are_numbers_or_refused_and_no_two_are_the_same_numbers() -> None:
    numbers, found = increasing(2, 5), set()
    assert numbers.encoded_bytes == 1
    for value in range(256):
        encoded = np.array([[value]], np.uint8)
        try:
            (row,) = numbers.decode(encoded)
        except InvalidEncodingError:
            continue
        assert np.array_equal(numbers.encode(row[None]), encoded)
        found.add(tuple(row))
    assert found == set(itertools.combinations(range(5), 2))
