"""What all members of a secure run must compute alike: its settings, the shape of the vector, numbers of the checks.

Each commitment holds the digest, so members with other rules are told apart before they do harm, and a verifier of
evidence later knows by which rules the members went, without having to believe it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from blake3 import blake3
from pydantic import ValidationError

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import MAX_CHOICE_CHARACTERS
from minga.core.spec.plugins import Origin
from minga.core.spec.sections import DEFAULT_AGGREGATOR
from minga.security.parts.transfer_limits import WaitPolicy
from minga.security.protocol.statements import MAX_MEMBERS
from minga.security.randomness.validator_lottery import PEERS_PER_VALIDATOR
from minga.security.robust.interface import AGGREGATORS
from minga.security.verification.count_sketch import DEFAULT_DIRECTIONS
from minga.security.verification.gradient_match import GradientTolerance

# ---- Settings: what a secure run may be tuned by, the same for all its members.


MAX_PROBATION_STEPS = 1 << 20
HONEST_ERROR = 1e-4
"""Largest relative difference of float32 gradients between kinds of devices, with kernels that are deterministic."""


@dataclass(frozen=True)
class SecureSettings:
    """Directions of the projections, members for each validator, the clipping radius as a multiple of the median
    distance from the aggregate, from where on two computations of one gradient differ too much, how long to wait
    for whom, how many clean steps make a candidate a member (None: see `probation`), and the name of the aggregator.

    Raises `ConfigurationError` for a wrong probation, and for an aggregator that is not installed here.
    """

    directions: int = DEFAULT_DIRECTIONS
    peers_per_validator: int = PEERS_PER_VALIDATOR
    clip_factor: float = 1.5
    thresholds: GradientTolerance = field(default_factory=lambda: GradientTolerance.calibrated([HONEST_ERROR]))
    patience: WaitPolicy = field(default_factory=WaitPolicy)
    probation_steps: int | None = None
    aggregator: str = DEFAULT_AGGREGATOR

    def __post_init__(self) -> None:
        AGGREGATORS.get(self.aggregator)
        if self.probation_steps is not None and not 1 <= self.probation_steps <= MAX_PROBATION_STEPS:
            raise ConfigurationError(
                f"a probation of {self.probation_steps} steps: 1 to {MAX_PROBATION_STEPS} are possible"
            )

    @property
    def probation(self) -> int:
        """Clean steps; 208 by default. Where none are set, a validator that is alone among `peers_per_validator` peers
        finds all that are hostile, 7 of 16, in a third of them with a probability of 95 %; and a newcomer that cheats
        in every step is found with 99.7 %, even if half of the validators say nothing.
        """
        if self.probation_steps is not None:
            return self.probation_steps
        peers = max(2, min(self.peers_per_validator, MAX_MEMBERS))
        return peers * (9 + (peers - 1).bit_length())


# ---- The rules of a run, in one digest.


MAX_TENSORS = 1 << 16
_LABEL = b"minga secure rules 3"
"""The number grows with each change of who goes by the same words (`minga.security.accountability.rulings`)."""

Numel = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """See `VectorLayout` and `SecureSettings`; how long to wait is everybody's own affair. `package` and `version` are
    those of the aggregator, empty for one of minga's own.
    """

    codec: Annotated[str, msgspec.Meta(max_length=MAX_CHOICE_CHARACTERS)]
    numels: Annotated[tuple[Numel, ...], msgspec.Meta(max_length=MAX_TENSORS)]
    directions: Annotated[int, msgspec.Meta(ge=1, le=64)]
    peers_per_validator: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    clip_factor: Annotated[float, msgspec.Meta(gt=0.0)]
    aggregator: Annotated[str, msgspec.Meta(max_length=64)]
    package: Annotated[str, msgspec.Meta(max_length=100)]
    version: Annotated[str, msgspec.Meta(max_length=64)]
    thresholds: tuple[float, float]
    probation_steps: Annotated[int, msgspec.Meta(ge=1, le=MAX_PROBATION_STEPS)]

    @classmethod
    def of(cls, layout: VectorLayout, settings: SecureSettings) -> Rules:
        """The rules of a run. Raises `ConfigurationError` for codecs whose bytes others cannot make again."""
        for codec in (segment.codecs.upload for segment in layout.segments):
            if codec.needs_residual or codec.draws or not codec.has_fixed_size:
                raise ConfigurationError(f'members cannot make the bytes of the codec "{codec.choice}" again')
        thresholds, origin = settings.thresholds, AGGREGATORS.origin(settings.aggregator)
        return cls(
            layout.codec_choice,
            layout.numels,
            settings.directions,
            settings.peers_per_validator,
            float(settings.clip_factor),
            settings.aggregator,
            origin.package if origin else "",
            origin.version if origin else "",
            (thresholds.convict, thresholds.accuse),
            settings.probation,
        )

    @property
    def layout(self) -> VectorLayout:
        """The vector's. Raises `ConfigurationError` if there is no such layout."""
        return VectorLayout(self.numels, self.codec)

    @property
    def settings(self) -> SecureSettings:
        """With the usual patience. Raises `ConfigurationError` for thresholds that are none, and for an aggregator that
        is not installed here as the members had it.
        """
        try:
            origin = Origin(package=self.package, version=self.version) if self.package else None
        except ValidationError:
            raise ConfigurationError("the rules name no package of the aggregator") from None
        AGGREGATORS.require(self.aggregator, origin)
        return SecureSettings(
            self.directions,
            self.peers_per_validator,
            self.clip_factor,
            GradientTolerance(*self.thresholds),
            probation_steps=self.probation_steps,
            aggregator=self.aggregator,
        )

    @property
    def digest(self) -> bytes:
        """32 bytes that are equal for equal rules."""
        return blake3(_LABEL + msgspec.msgpack.encode(self)).digest()
