"""What a secure run may be tuned by; the same for all its members."""

from __future__ import annotations

from dataclasses import dataclass, field

from minga.security._draws import PEERS_PER_VALIDATOR
from minga.security._stragglers import Patience


@dataclass(frozen=True)
class SecureSettings:
    """Directions of the projections, members for each validator, the clipping radius as a multiple of the median
    distance from the aggregate, the largest relative difference between two honest computations of one gradient, and
    how long to wait for whom.
    """

    directions: int = 4
    peers_per_validator: int = PEERS_PER_VALIDATOR
    clip_factor: float = 1.5
    gradient_tolerance: float = 1e-2
    patience: Patience = field(default_factory=Patience)
