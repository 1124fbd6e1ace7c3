"""Finite scalar quantisation: a few channels, each rounded to a few levels, together name a code.

With L_j levels in channel j (Mentzer et al. 2023, arXiv:2309.15505):

    z = tanh(h + shift) · half - offset,   half = (L - 1)(1 - 10⁻³)/2, offset = ½ for even L, else 0,
    shift = atanh(offset / half);   id = Σ_j (round(z_j) + ⌊L_j/2⌋) · Π_{i<j} L_i

Gradients pass through the rounding as if it were not there. There is no codebook to collapse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import torch
from torch import Tensor

_MARGIN: Final = 1e-3


class ScalarQuantiser:
    """Quantises the last dimension, of as many channels as there are `levels`, each at least 3."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = tuple(levels)
        self.codes = math.prod(self.levels)
        half = [(level - 1) * (1 - _MARGIN) / 2 for level in self.levels]
        offset = [0.5 if level % 2 == 0 else 0.0 for level in self.levels]
        shift = [math.atanh(o / h) for o, h in zip(offset, half, strict=True)]
        places = [math.prod(self.levels[:channel]) for channel in range(len(self.levels))]
        # On the CPU even where a model is built on `meta`: nothing would fill them there.
        self._half, self._offset, self._shift = (torch.tensor(each, device="cpu") for each in (half, offset, shift))
        self._lowest = torch.tensor([level // 2 for level in self.levels], device="cpu")
        self._places = torch.tensor(places, device="cpu")

    def quantise(self, h: Tensor) -> Tensor:
        """`h` float [..., channels] to rounded values within the levels; the gradient passes through the rounding."""
        z = torch.tanh(h + self._shift) * self._half - self._offset
        return z + (z.round() - z).detach()

    def ids(self, quantised: Tensor) -> Tensor:
        """The code of each vector of rounded values: int64 [...] from 0 to below `codes`."""
        return ((quantised.round().long() + self._lowest) * self._places).sum(dim=-1)

    def values(self, ids: Tensor) -> Tensor:
        """The rounded values of codes int64 [...]: float32 [..., channels]."""
        digits = torch.div(ids[..., None], self._places, rounding_mode="floor") % torch.tensor(self.levels)
        return (digits - self._lowest).float()

    def scaled(self, quantised: Tensor) -> Tensor:
        """Rounded values as a decoder takes them, within -1 to 1."""
        return quantised / self._lowest.clamp(min=1)
