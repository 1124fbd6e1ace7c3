"""What a secure run may be tuned by; the same for all its members."""

from __future__ import annotations

from dataclasses import dataclass, field

from minga.security._directions import DEFAULT_DIRECTIONS
from minga.security._draws import PEERS_PER_VALIDATOR
from minga.security._hysteresis import Hysteresis
from minga.security._stragglers import Patience

HONEST_ERROR = 1e-4
"""Largest relative difference of float32 gradients between kinds of devices, with kernels that are deterministic."""


@dataclass(frozen=True)
class SecureSettings:
    """Directions of the projections, members for each validator, the clipping radius as a multiple of the median
    distance from the aggregate, from where on two computations of one gradient differ too much, and how long to wait
    for whom.
    """

    directions: int = DEFAULT_DIRECTIONS
    peers_per_validator: int = PEERS_PER_VALIDATOR
    clip_factor: float = 1.5
    thresholds: Hysteresis = field(default_factory=lambda: Hysteresis.calibrated([HONEST_ERROR]))
    patience: Patience = field(default_factory=Patience)
