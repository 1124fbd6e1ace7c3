"""An attack by which reports judge leakage: a network that is trained to turn activations back into inputs.

The attacker has the bottom, or pairs of inputs and activations from a client that gives them away, and as many samples
of the same kind as the network was trained on. That is more than an honest server has.

Activations are cut off where samples rarely lie: else a few unusual ones would make the attack look weaker than it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.split.leakage.settings import LeakageSettings
from minga.split.leakage.training import epoch

_DEAD: float = 1e-3
"""Activations that vary by less than this share of the one that varies most are not scaled up to the others."""

_LEARNING_RATE: float = 2e-3
_FARTHEST: float = 4.0
"""Standard deviations from the mean at which activations are cut off."""


@dataclass(frozen=True)
class PairedSamples:
    """Activations [n, …] with the inputs [n, …] that they are of, both float32."""

    activations: Tensor
    inputs: Tensor


class InvertingDecoder(nn.Module):
    """Two hidden layers of `width` from standardised activations to flattened inputs."""

    _middle: Tensor
    _spread: Tensor

    def __init__(self, known: PairedSamples, width: int) -> None:
        super().__init__()
        given, wanted = known.activations.flatten(1), known.inputs.flatten(1)
        spread = given.std(0)
        self.register_buffer("_middle", given.mean(0))
        self.register_buffer("_spread", spread.clamp_min(max(_DEAD * float(spread.max()), 1e-12)))
        self._layers = nn.Sequential(
            nn.Linear(given.shape[1], width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            last := nn.Linear(width, wanted.shape[1]),
        )
        with torch.no_grad():  # begin with the mean of the inputs, the best guess without activations
            last.bias.copy_(wanted.mean(0))
        self._shape = known.inputs.shape[1:]

    def forward(self, activations: Tensor) -> Tensor:
        """Inputs [n, …] as the decoder takes them to be, of activations [n, …]."""
        standardised = (activations.flatten(1) - self._middle) / self._spread
        found: Tensor = self._layers(standardised.clamp(-_FARTHEST, _FARTHEST))
        return found.reshape(-1, *self._shape)


def best_decoder(
    known: PairedSamples, validation: PairedSamples, settings: LeakageSettings, seed: int
) -> InvertingDecoder:
    """The decoder with the least error on `validation`, of all widths and epochs; trained on `known`, by the seed."""
    best: tuple[float, InvertingDecoder] | None = None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for width in settings.decoder_widths:
            decoder = InvertingDecoder(known, width)
            optimizer = torch.optim.Adam(decoder.parameters(), lr=_LEARNING_RATE)
            generator = torch.Generator().manual_seed(seed)
            for number in range(settings.decoder_epochs + 1):
                if number:
                    _train(decoder, known, optimizer, epoch(len(known.inputs), settings.batch_size, generator))
                error = decoding_error(decoder, validation)
                if best is None or error < best[0]:
                    best = error, copy.deepcopy(decoder)
    if best is None:
        raise ValueError("a decoder needs at least one width")
    return best[1].eval()


def decoding_error(decoder: InvertingDecoder, samples: PairedSamples) -> float:
    """The mean squared error of what the decoder makes of the activations."""
    with torch.no_grad():
        return float(functional.mse_loss(decoder(samples.activations), samples.inputs))


def _train(
    decoder: nn.Module, known: PairedSamples, optimizer: torch.optim.Optimizer, batches: Iterator[Tensor]
) -> None:
    for rows in batches:
        optimizer.zero_grad()
        functional.mse_loss(decoder(known.activations[rows]), known.inputs[rows]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
