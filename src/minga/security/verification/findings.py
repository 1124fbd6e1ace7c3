"""What a check of published numbers finds: who did what, in which part, and by which figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from minga.network.interface import PeerId


class Offence(Enum):
    """What a peer did wrong."""

    FALSE_CLAIM = "false claim"
    """A projection or a norm that does not belong to the bytes that its author sent."""
    WRONG_RESULT = "wrong result"
    """An aggregate that does not solve the fixed-point equation."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`accused` committed `offence` in the part with the number `part`: `measured` exceeds `allowed`."""

    accused: PeerId
    offence: Offence
    part: int
    measured: float
    allowed: float


@dataclass(frozen=True, slots=True)
class Doubt:
    """Senders with the share `weight_share` of the weight claim norms above `bound`: check the part in public."""

    part: int
    weight_share: float
    bound: float
