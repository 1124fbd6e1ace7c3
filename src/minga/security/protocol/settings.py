"""What a secure run may be tuned by; the same for all its members."""

from __future__ import annotations

from dataclasses import dataclass, field

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import DEFAULT_AGGREGATOR
from minga.security.parts.wait_policy import WaitPolicy
from minga.security.protocol.statements import MAX_MEMBERS
from minga.security.randomness.detection_time import steps_to_ban_all
from minga.security.randomness.validator_lottery import PEERS_PER_VALIDATOR
from minga.security.robust.registry import verifiable_aggregator
from minga.security.verification.count_sketch import DEFAULT_DIRECTIONS
from minga.security.verification.gradient_match import GradientTolerance

MAX_PROBATION_STEPS = 1 << 20
PROBATION_QUANTILES = 3
HONEST_ERROR = 1e-4
"""Largest relative difference of float32 gradients between kinds of devices, with kernels that are deterministic."""


@dataclass(frozen=True)
class SecureSettings:
    """Directions of the projections, members for each validator, the clipping radius as a multiple of the median
    distance from the aggregate, from where on two computations of one gradient differ too much, how long to wait
    for whom, how many clean steps make a candidate a member (None: see `probation`), and the name of the aggregator.

    Raises `ConfigurationError` for a wrong probation, and for an aggregator that is not installed here or that nobody
    could verify.
    """

    directions: int = DEFAULT_DIRECTIONS
    peers_per_validator: int = PEERS_PER_VALIDATOR
    clip_factor: float = 1.5
    thresholds: GradientTolerance = field(default_factory=lambda: GradientTolerance.calibrated([HONEST_ERROR]))
    patience: WaitPolicy = field(default_factory=WaitPolicy)
    probation_steps: int | None = None
    aggregator: str = DEFAULT_AGGREGATOR

    def __post_init__(self) -> None:
        verifiable_aggregator(self.aggregator)
        if self.probation_steps is not None and not 1 <= self.probation_steps <= MAX_PROBATION_STEPS:
            raise ConfigurationError(
                f"a probation of {self.probation_steps} steps: 1 to {MAX_PROBATION_STEPS} are possible"
            )

    @property
    def probation(self) -> int:
        """Clean steps: `PROBATION_QUANTILES` times as many as it takes to find, with a probability of 95 %, all of
        7 hostile peers of 16 by one validator, or as many of a hundred where members have fewer validators.
        """
        if self.probation_steps is not None:
            return self.probation_steps
        peers = max(2, min(self.peers_per_validator, MAX_MEMBERS))
        return PROBATION_QUANTILES * steps_to_ban_all(peers, max(1, peers * 7 // 16), 1)
