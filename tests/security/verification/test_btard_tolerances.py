"""How far honest numbers may be apart, what honest peers see of each other, and what the checks cost."""

from __future__ import annotations

import math

import numpy as np
import pytest

from minga.core.errors import ConfigurationError
from minga.security.verification.claims import KAPPA, PartClaim, ResultAccuracy, claim_deviation, claims
from minga.security.verification.count_sketch import Directions, norm
from minga.security.verification.gradient_match import GradientTolerance, claimed_errors
from minga.security.verification.norm_bound import NORM_FACTOR, DispersionHistory, dispersions, norm_bound


def test_the_tolerance_of_v2() -> None:
    accuracy = ResultAccuracy(1e-6)
    limit = accuracy.sum_limit(16, 1.0, 0.0, 100)
    assert limit == pytest.approx(KAPPA * 16 * (1e-6 + 6 * 2.0**-24), rel=1e-6)
    assert accuracy.sum_limit(32, 1.0, 0.0, 100) == pytest.approx(2 * limit)
    # Rounding of a very long result outweighs all else.
    assert accuracy.residual_limit(16, 1.0, 1e6, 100) == pytest.approx(16 * 1e6 * 2.0**-24, rel=1e-4)


def test_rounding_a_result_stays_within_the_tolerance() -> None:
    rng = np.random.default_rng(1)
    for scale in (1e-9, 1e-6, 1e-3, 1.0, 1e4):
        exact = scale * rng.normal(size=1000)
        rounded = exact.astype(np.float32)
        allowed = ResultAccuracy(1e-6).residual_limit(1, 1e-30, float(np.linalg.norm(rounded.astype(float))), 1000)
        assert np.linalg.norm(rounded.astype(float) - exact) <= allowed


def test_settings_out_of_range() -> None:
    for stop in (0.0, 0.1, math.nan):
        with pytest.raises(ConfigurationError, match="stop"):
            ResultAccuracy(stop)


def test_deviations_of_claims() -> None:
    true = PartClaim((1.0, -2.0), 4.0)
    assert claim_deviation(true, true, 3.0) == 0.0
    assert claim_deviation(PartClaim((1.0, -2.3), 4.0), true, 3.0) == pytest.approx(0.1)
    assert claim_deviation(PartClaim((1.0, -2.0), 4.4), true, 3.0) == pytest.approx(0.1)
    assert claim_deviation(PartClaim((1.0,), 4.0), true, 3.0) == math.inf
    nothing = PartClaim((0.0, 0.0), 0.0)
    assert claim_deviation(nothing, nothing, 3.0) == 0.0
    assert claim_deviation(PartClaim((0.0, 1e-300), 0.0), nothing, 3.0) == math.inf


def test_calibrated_thresholds() -> None:
    thresholds = GradientTolerance.calibrated([1e-5, 3e-5, 2e-6])
    assert thresholds.convict == pytest.approx(3e-4)
    assert thresholds.convict < thresholds.accuse
    assert not any(map(thresholds.accuses, (0.0, 3e-5, 3e-4)))
    assert all(map(thresholds.accuses, (0.01, math.inf, math.nan)))
    assert not thresholds.convicts(2e-4)
    assert thresholds.convicts(4e-4)
    assert thresholds.convicts(math.nan)
    assert GradientTolerance.calibrated([0.0]).convict == 1e-5


def test_thresholds_that_would_let_attacks_pass_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"differ by 0\.001 in their gradients, more than 0\.00033"):
        GradientTolerance.calibrated([1e-3])
    for errors in ([], [math.nan], [-1.0]):
        with pytest.raises(ConfigurationError, match="calibration"):
            GradientTolerance.calibrated(errors)
    for wrong in ((0.0, 1e-3), (1e-3, 1e-3), (1e-3, 2e-2), (2e-3, math.nan)):
        with pytest.raises(ConfigurationError, match="must rise"):
            GradientTolerance(*wrong)


def test_claims_tell_the_error_of_a_gradient_that_nobody_has() -> None:
    """Of an honest one they tell at most as much as a projection of its rounding can be."""
    rng = np.random.default_rng(4)
    own = rng.normal(size=3000).astype(np.float32)
    mean = (own + 0.5 * rng.normal(size=len(own))).astype(np.float32)
    noise = rng.normal(size=len(own)).astype(np.float32)

    def told(sent: np.ndarray, aggregate: np.ndarray, radius: float, seed: int) -> float:
        directions = Directions(bytes([seed]) * 32)
        claimed, true = claims([sent, own], aggregate, radius, directions)
        (error,) = claimed_errors([claimed], [true], [norm(own)], [len(own)])
        return error

    for radius in (1e-3, 20.0, 1e3):  # the last one clips nothing
        for aggregate in (mean, mean * 1e6, own):
            for seed in range(20):
                assert told(own, aggregate, radius, seed) == 0.0
                assert told(own + 1e-4 * noise, aggregate, radius, seed) < KAPPA * 1e-4
    assert all(told(own + 0.02 * noise, mean, 1e3, seed) > 3e-3 for seed in range(20))
    assert claimed_errors([None], [None], [1.0], [1]) == [math.inf]


def test_claims_about_a_part_that_is_rounding_only_convict_nobody() -> None:
    true = [PartClaim((0.0,), 1e-9), PartClaim((0.0,), 1.0)]
    claimed = [PartClaim((1e-8,), 1e-8), PartClaim((0.0,), 1.0)]
    assert max(claimed_errors(claimed, true, [1e-9, 1.0], [100, 100])) < 2e-6


def test_dispersions_and_bounds() -> None:
    assert norm_bound(1.0, 1.0) == NORM_FACTOR == pytest.approx(3.8637, abs=1e-4)
    assert norm_bound(1.0, 10.0) == pytest.approx(5 * NORM_FACTOR)
    assert dispersions([2.0, 2.0, 50.0, 0.0], [1.0, 1.0, 1.0, 0.0]) == (2.0, 2.0, 2.0, 0.0)
    assert dispersions([0.0], [0.0]) == (0.0,)


def test_references_are_medians_of_past_steps_however_they_were_cut() -> None:
    history = DispersionHistory(3)
    assert history.references([4, 4, 20]) == (2.0, 0.0, 4.0)
    for scale in (1.0, 2.0, 300.0, 4.0):
        history.add([10, 20], [3.0 * scale, 4.0 * scale])
    assert history.references([10, 20]) == pytest.approx((12.0, 16.0))  # of 2, 300 and 4
    assert history.references([20]) == pytest.approx((20.0,))
    assert history.references([5, 5, 15, 20]) == pytest.approx(
        (12 / math.sqrt(2), 0.0, math.sqrt(200), 16 / math.sqrt(2))
    )
    for stops, norms in (([2, 1], [1.0, 1.0]), ([1], []), ([-1], [1.0])):
        with pytest.raises(ValueError, match="each part"):
            history.add(stops, norms)
