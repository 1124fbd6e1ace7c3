"""Directions and claims: the same bits however they are computed, and what theory says about their sizes."""

from __future__ import annotations

import math

import msgspec
import numpy as np
import pytest

from minga.security.verification.claims import CLAIM_TOLERANCE, PartClaim, claim_deviation, claims, residual_norm
from minga.security.verification.count_sketch import BLOCK, ENTRY_DEVIATION, Directions, distance, norm
from tests.worlds.btard_rounds import PEERS, entries_of

RANDOMNESS = bytes(range(32))


def claim(part: np.ndarray, result: np.ndarray, radius: float, directions: Directions) -> PartClaim:
    (each,) = claims([part], result, radius, directions)
    assert each is not None
    return each


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def test_entries_and_claims_have_the_same_bits_everywhere() -> None:
    assert entries_of(Directions(RANDOMNESS, 2), 4).tolist() == [[9, -121, 33, -45], [-23, 105, -99, -113]]
    part = (np.arange(50_000) % 997).astype(np.float32) / np.float32(7)
    found = claim(part, np.full_like(part, 0.1), 100.0, Directions(RANDOMNESS, 1))
    assert (found.projections[0].hex(), found.norm.hex()) == ("-0x1.1690e501457b5p+6", "0x1.1e5d474011bb5p+14")


def test_entries_are_odd_even_handed_and_independent() -> None:
    entries = entries_of(Directions(RANDOMNESS, 4), 1 << 16)
    assert set(np.unique(entries)) == set(range(-127, 128, 2))
    assert np.abs(entries.mean(axis=1)).max() < 4 * ENTRY_DEVIATION / 256
    correlations = entries @ entries.T / entries.shape[1] / ENTRY_DEVIATION**2
    assert np.abs(correlations - np.eye(4)).max() < 0.02


def test_parts_of_a_vector_have_directions_of_their_own() -> None:
    some = [entries_of(Directions(RANDOMNESS, 3, start), 1000) for start in (0, 1000, 1001)]
    for one, other in ((0, 1), (1, 2), (0, 2)):
        correlations = some[one] @ some[other].T / 1000 / ENTRY_DEVIATION**2
        assert np.abs(correlations).max() < 0.15


@pytest.mark.parametrize("numel", [0, 1, 7, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_claims_are_what_the_definition_says_and_alike_for_sender_and_aggregator(numel: int) -> None:
    parts, result = vectors(5, numel), vectors(numel, seed=1)
    parts[0] = result
    directions = Directions(RANDOMNESS, 3, 11)
    radius = 0.7 * math.sqrt(numel) + 0.1
    together = claims(list(parts), result, radius, directions)
    assert together == [claim(part, result, radius, directions) for part in parts]
    entries = entries_of(directions, numel) / ENTRY_DEVIATION
    for part, each in zip(parts.astype(float), together, strict=True):
        length = np.linalg.norm(part - result)
        clipped = (part - result) * min(1.0, radius / length if length else 1.0)
        assert each.norm == pytest.approx(length, rel=1e-7)
        assert each.projections == pytest.approx((entries @ clipped).tolist(), abs=1e-6 * radius)
    assert together[0].norm == 0.0
    assert together[0].projections == (0.0, 0.0, 0.0)


@pytest.mark.parametrize("scale", [2.0**-140, 1e-30, 1e-16, 1e-3, 1e15, 2.0**70, 2.0**90])
@pytest.mark.parametrize("shape", ["normal", "even", "one far place", "tiny but for one place"])
def test_single_precision_costs_claims_less_than_a_quarter_of_what_may_be_apart(shape: str, scale: float) -> None:
    """Also where squares leave the range of single precision; an element of a part is up to 2**96."""
    numel = 40 * BLOCK + 9
    part, result = vectors(numel), np.zeros(numel, np.float32)
    if shape == "even":
        part[:] = 1.0
    elif shape == "one far place":
        part[5] = 1e4
    elif shape == "tiny but for one place":
        part *= np.float32(1e-12)
        part[-1] = 1.0
    part = (part * scale).astype(np.float32)
    directions = Directions(RANDOMNESS, 3)
    wide = part.astype(np.float64)
    length = float(np.linalg.norm(wide))
    exact = PartClaim(tuple((entries_of(directions, numel) @ wide / ENTRY_DEVIATION).tolist()), length)
    assert claim_deviation(claim(part, result, math.inf, directions), exact, math.inf) < CLAIM_TOLERANCE / 4


def test_claims_depend_on_the_values_and_not_on_how_they_lie_in_memory() -> None:
    part, result, directions = vectors(3 * BLOCK), vectors(3 * BLOCK, seed=1), Directions(RANDOMNESS, 2)
    plain = claim(part, result, 1.0, directions)
    strided = np.repeat(part, 2)[::2]
    assert claim(strided, result.astype(np.float64), 1.0, directions) == plain
    assert claim(part[::-1][::-1], result, 1.0, directions) == plain


def test_far_parts_and_lengths() -> None:
    """Parts as large as averaging lets pass are clipped without an overflow."""
    result = vectors(100)
    far = np.full(100, 2.0**96, np.float32)
    each = claim(far, result, 2.0, Directions(RANDOMNESS, 4))
    assert each.norm == pytest.approx(10 * 2.0**96)
    assert max(map(abs, each.projections)) < 2.0 * 8
    with pytest.raises(ValueError, match="another length"):
        claim(far[1:], result, 1.0, Directions(RANDOMNESS))
    with pytest.raises(ValueError, match="no difference"):
        distance(far[1:], result)
    assert norm(far) == pytest.approx(10 * 2.0**96)
    assert norm(far[:0]) == 0.0


def test_residual() -> None:
    parts = {PEERS[index]: part for index, part in enumerate(vectors(4, BLOCK + 5))}
    norms = {peer: norm(part) for peer, part in parts.items()}
    result = np.zeros(BLOCK + 5, np.float32)
    clipped = [part.astype(float) * min(1.0, 3.0 / norms[peer]) for peer, part in parts.items()]
    found = residual_norm(parts, norms, result, 3.0)
    assert found == pytest.approx(np.linalg.norm(np.sum(clipped, axis=0)), rel=1e-9)
    assert residual_norm(dict(reversed(parts.items())), norms, result, 3.0) == found


def test_hostile_claims_are_refused() -> None:
    for projections, length in (
        ((math.nan,), 1.0), ((math.inf,), 1.0), ((1e300,), 1.0), ((0.0,), -1.0), ((0.0,), math.nan), ((0.0,), math.inf)
    ):  # fmt: skip
        with pytest.raises(ValueError, match="of a claim"):
            PartClaim(projections, length)
        with pytest.raises(msgspec.ValidationError, match="of a claim"):
            msgspec.msgpack.decode(msgspec.msgpack.encode([list(projections), length]), type=PartClaim)
    for projections in ((), (0.0,) * 65):
        with pytest.raises(msgspec.ValidationError, match="length"):
            msgspec.msgpack.decode(msgspec.msgpack.encode([list(projections), 1.0]), type=PartClaim)
    sent = PartClaim((1.5, -2.0), 3.0)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=PartClaim) == sent
    for count, start in ((0, 0), (65, 0), (1, -1)):
        with pytest.raises(ValueError, match="directions"):
            Directions(RANDOMNESS, count, start)
