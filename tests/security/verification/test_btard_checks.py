"""The checks V1 to V3 and the public check: honest rounds pass, each lie is found and nobody else is."""

from __future__ import annotations

import statistics

import numpy as np
import pytest

from minga.security.verification.checks import (
    PublishedClaims,
    check_averaging,
    check_senders,
    is_far,
    largest_sum,
)
from minga.security.verification.claims import PartClaim, ResultAccuracy, claims
from minga.security.verification.count_sketch import ENTRY_DEVIATION, Directions, norm
from minga.security.verification.norm_bound import dispersions, norm_bound
from tests.worlds.btard_rounds import PEERS, STOP, clipped, entries_of, random_rounds, solve

ACCURACY = ResultAccuracy(STOP)


class Round:
    """One part of one round, as its peers see it, with an aggregator that may be wrong by `shift`."""

    def __init__(
        self, seed: int, *, numel: int = 200, directions: int = 4, shift: float = 0.0, too_far: int | None = None
    ) -> None:
        rng = np.random.default_rng(seed)
        parts, radius = random_rounds(rng, 1, numel)
        if too_far is not None:
            parts[0, too_far] = 3e38
        self.radius = float(radius[0])
        self.parts = {PEERS[index]: part.astype(np.float32) for index, part in enumerate(parts[0])}
        direction = rng.normal(size=numel)
        wrong_by = shift * direction / np.linalg.norm(direction)
        self.result = (solve(parts, radius)[0] + wrong_by).astype(np.float32)
        self.directions = Directions(rng.bytes(32), directions)
        self.true_claims = {
            sender: claim or PartClaim((0.0,) * directions, 1.0)  # of what is too far away nothing true can be claimed
            for sender, claim in zip(self.parts, self._claims(), strict=True)
        }

    def _claims(self) -> list[PartClaim | None]:
        return claims(list(self.parts.values()), self.result, self.radius, self.directions)

    def published(self, **lies: PartClaim) -> PublishedClaims:
        return PublishedClaims(3, self.radius, self.true_claims | lies)

    @property
    def sum_limit(self) -> float:
        return ACCURACY.sum_limit(len(self.parts), self.radius, norm(self.result), len(self.result))

    def public_check(self, published: PublishedClaims) -> tuple[tuple[str, ...], bool]:
        """Who lies, and whether the result is wrong."""
        return check_averaging(published, self.parts, self.result, self.directions, ACCURACY)


def sums_and_limits(
    rng: np.random.Generator, v: np.ndarray, rounds: tuple[np.ndarray, np.ndarray], directions: int
) -> tuple[np.ndarray, np.ndarray]:
    """|Σ w s| of many rounds, [directions, rounds], for results rounded to float32, and what V2 allows."""
    parts, radius = rounds
    v = v.astype(np.float32).astype(float)
    entries = entries_of(Directions(rng.bytes(32), directions), v.size).reshape(directions, *v.shape) / ENTRY_DEVIATION
    projections = np.einsum("qrd,rnd->qrn", entries, clipped(parts, v, radius))
    sums = np.abs(projections.sum(axis=2))
    # Plain step_math, so it takes arrays as well.
    limits = ACCURACY.sum_limit(parts.shape[1], radius, np.linalg.norm(v, axis=1), v.shape[1])
    return sums, limits


def test_v2_never_flags_an_honest_round_in_20_000() -> None:
    rng = np.random.default_rng(1)
    worst = 0.0
    for _ in range(10):
        rounds = random_rounds(rng, 2000, 6)
        sums, limits = sums_and_limits(rng, solve(*rounds), rounds, 4)
        worst = max(worst, float((sums / limits).max()))
    assert 0.02 < worst < 1.0


def test_v2_flags_shifts_of_a_thousandth_of_a_radius() -> None:
    rng = np.random.default_rng(2)
    rounds = random_rounds(rng, 10_000, 16)
    parts, _ = rounds
    radius = np.ones(len(parts))  # as large as the dispersion
    v = solve(parts, radius)
    direction = rng.normal(size=v.shape)
    v += 1e-3 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    sums, limits = sums_and_limits(rng, v, (parts, radius), 3)
    assert np.mean((sums > limits).any(axis=0)) >= 0.99


@pytest.mark.parametrize("seed", range(30))
def test_an_honest_round_passes_every_check(seed: int) -> None:
    round_ = Round(seed)
    published = round_.published()
    assert check_senders(published, round_.true_claims) == ()
    assert largest_sum(published) <= round_.sum_limit
    assert not is_far(published, norm_bound(1.0, round_.radius))
    assert round_.public_check(published) == ((), False)


@pytest.mark.parametrize("seed", range(10))
def test_a_wrong_result_is_found_by_anybody(seed: int) -> None:
    round_ = Round(seed, shift=0.01)
    assert largest_sum(round_.published()) > round_.sum_limit
    assert round_.public_check(round_.published()) == ((), True)


def test_a_result_that_is_far_too_long_buys_no_tolerance_by_its_length() -> None:
    round_ = Round(3, shift=2.0**32)
    assert largest_sum(round_.published()) <= round_.sum_limit
    assert is_far(round_.published(), norm_bound(1.0, round_.radius))
    assert round_.public_check(round_.published()) == ((), True)


@pytest.mark.parametrize("what", ["projection", "norm"])
def test_a_lying_sender_is_found_by_its_aggregator(what: str) -> None:
    round_ = Round(5)
    true = round_.true_claims[PEERS[9]]
    if what == "norm":
        lie = PartClaim(true.projections, true.norm * (1 + 1e-6))
    else:
        lie = PartClaim((true.projections[0] + 1e-5 * round_.radius, *true.projections[1:]), true.norm)
    published = round_.published(**{PEERS[9]: lie})
    assert check_senders(published, round_.true_claims) == (PEERS[9],)
    assert round_.public_check(published) == ((PEERS[9],), False)


def test_a_sender_who_lies_about_its_projection_does_not_get_the_aggregator_banned() -> None:
    round_ = Round(6)
    true = round_.true_claims[PEERS[2]]
    lie = PartClaim(tuple(s + round_.radius for s in true.projections), true.norm)
    published = round_.published(**{PEERS[2]: lie})
    assert largest_sum(published) > round_.sum_limit
    assert round_.public_check(published) == ((PEERS[2],), False)


@pytest.mark.parametrize("seed", range(5))
def test_a_part_too_far_away_for_any_claim_shields_nobody(seed: int) -> None:
    honest = Round(seed, too_far=4)
    assert honest.public_check(honest.published()) == ((PEERS[4],), False)
    wrong = Round(seed, too_far=4, shift=0.1)
    true = wrong.true_claims[PEERS[2]]
    lie = PartClaim(true.projections, 2.0 * true.norm + wrong.radius)
    assert wrong.public_check(wrong.published(**{PEERS[2]: lie})) == ((PEERS[2], PEERS[4]), True)


@pytest.mark.parametrize("seed", range(5))
def test_a_shift_that_colluders_cancel_is_found_by_its_length(seed: int) -> None:
    """Senders 0 and 1 make the sum zero and their aggregator says nothing: only the norms tell."""
    round_ = Round(seed, shift=20.0)
    sums = [sum(claim.projections[k] for claim in round_.true_claims.values()) for k in range(4)]
    lies = {}
    for peer in PEERS[:2]:
        true = round_.true_claims[peer]
        cancelling = tuple(s - total / 2 for s, total in zip(true.projections, sums, strict=True))
        lies[peer] = PartClaim(cancelling, true.norm)
    published = round_.published(**lies)
    assert largest_sum(published) <= round_.sum_limit
    assert is_far(published, norm_bound(1.0, min(round_.radius, 2.0)))
    assert round_.public_check(published) == ((PEERS[0], PEERS[1]), True)


def test_v3_asks_for_more_than_half() -> None:
    far, near = PartClaim((0.0,), 9.0), PartClaim((0.0,), 1.0)
    claimed = {PEERS[0]: far, PEERS[1]: far, PEERS[2]: near, PEERS[3]: near}
    assert not is_far(PublishedClaims(0, 1.0, claimed), 5.0)
    assert is_far(PublishedClaims(0, 1.0, claimed | {PEERS[2]: far}), 5.0)


def test_v3_stays_silent_whatever_honest_aggregators_get() -> None:
    """The bound of a part from all claims of the step, with 7 of 16 attackers in every part or in one of them."""
    rng = np.random.default_rng(8)
    numel, parts_count = 64, 16
    for attacked in (range(parts_count), range(1), range(7)):
        for radius in (0.1, 0.5, 1.0, 2.0, 10.0):
            norms = []
            for part in range(parts_count):
                x = rng.normal(size=(1, 16, numel)) / np.sqrt(numel)
                if part in attacked:
                    x[0, :7] = 1000 * rng.normal(size=numel)
                v = solve(x, np.array([radius]))[0]
                norms.append(np.linalg.norm(x[0] - v, axis=1))
            typical = [statistics.median_low(of_part.tolist()) for of_part in norms]
            for part, dispersion in enumerate(dispersions(typical, [1.0] * parts_count)):
                assert np.sum(norms[part] > norm_bound(dispersion, radius)) <= 8


def test_an_aggregator_cannot_raise_its_own_bound() -> None:
    honest = [1.0] * 16
    shifted = [10.0, *[1.02] * 15]
    assert norm_bound(dispersions(shifted, honest)[0], 1.0) < 4.0
    seven = [10.0] * 7 + [1.02] * 9
    assert norm_bound(dispersions(seven, honest)[0], 1.0) < 4.0
    noisier = dispersions([5.0] * 16, honest)
    assert noisier == (5.0,) * 16


def test_published_claims_are_complete_and_alike() -> None:
    claim = PartClaim((0.0,), 1.0)
    for claims_, radius, message in (
        ({}, 1.0, "no claims"),
        ({PEERS[0]: claim, PEERS[1]: PartClaim((0.0, 1.0), 1.0)}, 1.0, "different numbers"),
        ({PEERS[0]: claim}, float("nan"), "radius"),
        ({PEERS[0]: claim}, 0.0, "radius"),
    ):
        with pytest.raises(ValueError, match=message):
            PublishedClaims(0, radius, claims_)
    published = PublishedClaims(0, 1.0, {PEERS[0]: claim})
    with pytest.raises(ValueError, match="not those of the senders"):
        check_senders(published, {})
    with pytest.raises(ValueError, match="not those of the senders"):
        check_averaging(published, {}, np.zeros(2), Directions(bytes(32), 1), ACCURACY)
