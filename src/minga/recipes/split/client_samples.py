"""Which samples of an example are held out, and which client has which of the others."""

from __future__ import annotations

import numpy as np
import torch

from minga.core.errors import ConfigurationError
from minga.split.examples.samples import LabelledSamples, example_samples


class DealtSamples:
    """An example as a run deals it out; equal seeds give equal parts, on any machine.

    Raises `ConfigurationError` if it is not installed, or too small for so many clients.
    """

    def __init__(self, name: str, heldout: float, clients: int, seed: int) -> None:
        samples = example_samples(name)
        order = torch.from_numpy(np.random.default_rng(seed).permutation(len(samples.labels)))
        kept = max(1, round(heldout * len(order)))
        self.heldout, self.training = samples.rows(order[:kept]), samples.rows(order[kept:])
        self._parts = np.array_split(np.arange(len(order) - kept), clients)
        if not len(self._parts[-1]):
            raise ConfigurationError(f'recipe.split: "{name}" has too few samples for {clients} clients')

    def of_client(self, number: int) -> LabelledSamples:
        """The training samples of one client, counted from 0. Raises `ConfigurationError` for one that is not there."""
        if not 0 <= number < len(self._parts):
            raise ConfigurationError(
                f"client {number}: recipe.split.clients = {len(self._parts)}, and they are counted from 0"
            )
        return self.training.rows(torch.from_numpy(self._parts[number]))
