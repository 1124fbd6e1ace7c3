"""How a leakage report is made: how the parts are trained, which weights of NoPeek are tried, and by which decoders."""

from __future__ import annotations

import math
from dataclasses import dataclass

from minga.core.errors import ConfigurationError
from minga.split.leakage.no_peek import MOST_WEIGHT


@dataclass(frozen=True)
class LeakageSettings:
    """Samples are divided once, by the seed: a share for validation, a share for the report, and the rest for training.

    The network is trained for `epochs`, without NoPeek and with each of `weights`. Of these the report takes the one
    with the lowest distance correlation among those that lose at most `accuracy_loss` (a share of the samples), judged
    on the validation samples alone. Each decoder, one for each of `decoder_widths`, is trained for `decoder_epochs` on
    the training samples; the best on the validation samples, of all decoders and epochs, is the one that is reported.
    """

    example: str = "digits"
    weights: tuple[float, ...] = (0.5, 1.0, 1.5)
    accuracy_loss: float = 0.02
    validation_share: float = 0.2
    report_share: float = 0.3
    epochs: int = 80
    batch_size: int = 64
    learning_rate: float = 1e-3
    decoder_widths: tuple[int, ...] = (128, 256)
    decoder_epochs: int = 60
    permutations: int = 100
    pictures: int = 12

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` unless each setting is within its bounds."""
        for name, value, low, high in (
            ("epochs", self.epochs, 1, 10_000),
            ("batch_size", self.batch_size, 2, 4096),
            ("decoder_epochs", self.decoder_epochs, 1, 10_000),
            ("permutations", self.permutations, 1, 10_000),
            ("pictures", self.pictures, 1, 64),
            ("accuracy_loss", self.accuracy_loss, 0.0, 1.0),
            ("validation_share", self.validation_share, 0.01, 0.9),
            ("report_share", self.report_share, 0.01, 0.9),
            ("learning_rate", self.learning_rate, 1e-8, 10.0),
            *(("weights", weight, 1e-9, MOST_WEIGHT) for weight in self.weights),
            *(("decoder_widths", width, 1, 1 << 16) for width in self.decoder_widths),
        ):
            if not (math.isfinite(value) and low <= value <= high):
                raise ConfigurationError(f"leakage: {name} = {value}: it must be from {low:g} to {high:g}")
        if not (1 <= len(self.weights) <= 16 and 1 <= len(self.decoder_widths) <= 16):
            raise ConfigurationError("leakage: from 1 to 16 weights and decoder_widths are tried")
        if self.validation_share + self.report_share > 0.9:
            raise ConfigurationError("leakage: validation_share and report_share leave too little to train on")
