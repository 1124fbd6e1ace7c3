"""Training that attacks are tried on: a perceptron with one hidden layer on scikit-learn's digits (8x8 pixels).

Everybody has all samples; who takes which in a step follows from its public seed. Simulated members in equal states
share what was computed of these, since validators, judges and omniscient attackers ask for the same gradients; each
has its own parameters, so that it would be seen if they came to differ.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from blake3 import blake3
from torch.nn import functional

from minga.averaging.codecs.layout import VectorLayout
from minga.security.protocol.behaviour import KEPT_STEPS
from minga.security.randomness.public_batch import batch_indices
from tests.worlds.secure_swarm import DonatedBackend

PIXELS, HIDDEN, CLASSES = 64, 32, 10
BATCH = 32
RATE, MOMENTUM = 0.1, 0.9
HELD_OUT = 360
KEPT_RESULTS = 1 << 11
FINAL_STEPS = 10


@dataclass(frozen=True)
class Samples:
    """Pixels from 0 to 1, float32 [n, 64], and labels, int64 [n]."""

    pixels: torch.Tensor
    labels: torch.Tensor


class Digits:
    """The samples, the initial parameters (both by `seed`), and what was computed of them already."""

    def __init__(self, seed: int) -> None:
        from sklearn.datasets import load_digits

        data, labels = load_digits(return_X_y=True)
        order = np.random.default_rng(seed).permutation(len(data))
        samples = Samples(torch.from_numpy(data[order] / 16.0).float(), torch.from_numpy(labels[order]).long())
        self._held_out = Samples(samples.pixels[:HELD_OUT], samples.labels[:HELD_OUT])
        self._training = Samples(samples.pixels[HELD_OUT:], samples.labels[HELD_OUT:])
        generator = torch.Generator().manual_seed(seed)
        shapes = [(HIDDEN, PIXELS), (HIDDEN,), (CLASSES, HIDDEN), (CLASSES,)]
        pieces = [
            torch.randn(shape, generator=generator) / shape[-1] ** 0.5 if len(shape) == 2 else torch.zeros(shape)
            for shape in shapes
        ]
        self.initial = torch.cat([piece.flatten() for piece in pieces])
        """float32 [numel]."""
        self._shapes = shapes
        self._stops = np.cumsum([0, *(piece.numel() for piece in pieces)])
        self._gradients: OrderedDict[tuple[bytes, bytes, bool], torch.Tensor] = OrderedDict()
        self._accuracies: dict[bytes, float] = {}

    def gradient(self, parameters: torch.Tensor, seed: bytes, *, flipped: bool = False) -> torch.Tensor:
        """Of the mean loss over the batch of a seed; `flipped` with labels 9 - y."""
        key = (_digest(parameters), seed, flipped)
        if key not in self._gradients:
            self._gradients[key] = self._computed(parameters, seed, flipped)
            if len(self._gradients) > KEPT_RESULTS:
                self._gradients.popitem(last=False)
        return self._gradients[key]

    def accuracy(self, parameters: torch.Tensor) -> float:
        """The share of the held-out samples that are recognised."""
        key = _digest(parameters)
        if key not in self._accuracies:
            with torch.no_grad():
                guesses = self._logits(parameters, self._held_out.pixels).argmax(1)
            self._accuracies[key] = float((guesses == self._held_out.labels).float().mean())
        return self._accuracies[key]

    def _computed(self, parameters: torch.Tensor, seed: bytes, flipped: bool) -> torch.Tensor:
        chosen = torch.from_numpy(batch_indices(seed, BATCH, len(self._training.labels)))
        labels = self._training.labels[chosen]
        leaf = parameters.clone().requires_grad_()
        logits = self._logits(leaf, self._training.pixels[chosen])
        loss = functional.cross_entropy(logits, CLASSES - 1 - labels if flipped else labels)
        return torch.autograd.grad(loss, leaf)[0]

    def _logits(self, parameters: torch.Tensor, pixels: torch.Tensor) -> torch.Tensor:
        slices = (parameters[start:stop] for start, stop in pairwise(self._stops))
        first, first_bias, second, second_bias = (
            piece.view(shape) for piece, shape in zip(slices, self._shapes, strict=True)
        )
        return functional.linear(functional.linear(pixels, first, first_bias).relu(), second, second_bias)


class DigitsWork(DonatedBackend):
    """One member's training: SGD with momentum; a gradient takes it `compute_s` seconds.

    Remembers its accuracy after each step.
    """

    def __init__(self, digits: Digits, compute_s: float = 0.0) -> None:
        self._digits, self._compute_s = digits, compute_s
        self._parameters = {0: digits.initial}
        self._momenta = {0: torch.zeros_like(digits.initial)}
        self._step = 0
        self.layout = VectorLayout((len(digits.initial),), "float32")
        self.accuracies = [digits.accuracy(digits.initial)]

    @property
    def metric(self) -> float:
        """The mean accuracy of the last steps: single ones go up and down by some samples."""
        last = self.accuracies[-FINAL_STEPS:]
        return sum(last) / len(last)

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """Of the batch of a seed."""
        if self._compute_s:
            await asyncio.sleep(self._compute_s)
        return self._digits.gradient(self._parameters[step], seed)

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """Of the same batch with other labels."""
        return self._digits.gradient(self._parameters[step], seed, flipped=True)

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """Take a step."""
        self._momenta[step + 1] = MOMENTUM * self._momenta[step] + mean
        self._parameters[step + 1] = self._parameters[step] - RATE * self._momenta[step + 1]
        self._step = step + 1
        self._parameters.pop(step - KEPT_STEPS, None)
        self._momenta.pop(step - KEPT_STEPS, None)
        self.accuracies.append(self._digits.accuracy(self._parameters[step + 1]))

    async def digest(self) -> bytes:
        """Of parameters and momentum."""
        return blake3(_digest(self._parameters[self._step]) + _digest(self._momenta[self._step])).digest()

    def dump(self, step: int) -> bytes | None:
        """Parameters and momentum, if they are kept."""
        if step not in self._parameters:
            return None
        return torch.cat([self._parameters[step], self._momenta[step]]).numpy().tobytes()

    def load(self, step: int, data: bytes) -> None:
        """Undo `dump`; the accuracies begin anew. Raises `ValueError` for another length."""
        if len(data) != 8 * self.layout.total:
            raise ValueError("a state of another length")
        both = torch.frombuffer(bytearray(data), dtype=torch.float32)
        self._parameters, self._momenta = {step: both[: self.layout.total]}, {step: both[self.layout.total :]}
        self._step, self.accuracies = step, [self._digits.accuracy(self._parameters[step])]


def _digest(vector: torch.Tensor) -> bytes:
    return blake3(vector.numpy().tobytes()).digest()
