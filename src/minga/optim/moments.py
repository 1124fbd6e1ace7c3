"""The two moments that AdamW and LAMB keep: decaying means of the gradient and of its square.

They are float32 tensors `exp_avg` and `exp_avg_sq`, or, where settings ask for 8 bits and the tensor is large, codes
and scales of blocks (`block_codes.py`). These are decoded piece by piece, on an accelerator of many tensors at once; an
update uses the new moments as they are before they are encoded again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from minga.optim.arithmetic import Piece, Tensors, multiply, power, rounded
from minga.optim.block_codes import DEFAULT_BLOCK, DEFAULT_LEAST_NUMEL, blocks_of, code_values, decode, encode
from minga.optim.pieces import Place, is_ready
from minga.optim.reproducible import AlikeParameters, ReproducibleOptimizer, require
from minga.optim.shards import is_sharded

MOMENTS = ("exp_avg", "exp_avg_sq")
CODED = (("m_codes", "m_scale", True), ("v_codes", "v_scale", False))
"""State of a tensor whose moments are encoded: codes, scales, and whether the moment has signs."""


class AdaptiveOptimizer(ReproducibleOptimizer):
    """An optimizer with both moments; see `adaptive_defaults` for its settings."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises `ValueError` for moments of 8 bits where parameters are sharded: blocks are cut from
        whole tensors.
        """
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if group.get("state_bits") == 8 and any(is_sharded(parameter) for parameter in group["params"]):
            raise ValueError("moments of 8 bits are not possible for parameters that are sharded over processes")

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:  # noqa: ARG002
        return MOMENTS

    def _state_of(self, group: dict[str, Any], parameter: Tensor, place: Place) -> dict[str, Tensor]:
        if self._names(group) != MOMENTS or not _is_coded(group, parameter, place):
            return super()._state_of(group, parameter, place)
        state: dict[str, Tensor] = self.state[parameter]
        if CODED[0][0] not in state:
            blocks = blocks_of(parameter.numel(), group["state_block"])
            for codes, scale, signed in CODED:
                zero = code_values(signed=signed).index(0.0)
                state[codes] = torch.full((parameter.numel(),), zero, dtype=torch.uint8, device=parameter.device)
                state[scale] = torch.zeros(blocks, dtype=torch.float32, device=parameter.device)
        state.setdefault("step", torch.zeros((), dtype=torch.float32, device="cpu"))
        return state


def _is_coded(group: dict[str, Any], parameter: Tensor, place: Place) -> bool:
    return group.get("state_bits") == 8 and place.dtype == torch.float32 and parameter.numel() >= group["state_least"]


def moment_pieces(
    group: dict[str, Any], batch: AlikeParameters, extra: Sequence[Sequence[Tensor]] = ()
) -> Iterator[tuple[Any, ...]]:
    """Pieces of values, both moments, `extra` and gradients, in this order; all but the gradients may be changed."""
    if CODED[0][0] not in batch.states[0]:
        yield from batch.pieces(*MOMENTS, extra=extra)
        return
    place, block = batch.place, group["state_block"]
    for rows in _coded_rows(batch, block, extra):
        value, *kept = zip(*rows, strict=True)
        coded = [(kept[0], kept[1], True), (kept[2], kept[3], False)]
        moments = [
            [part.to(place.device) for part in decode(codes, scales, block=block, signed=signed)]
            for codes, scales, signed in coded
        ]
        columns = (value, *moments, *kept[4:])
        yield tuple(Tensors(column) if place.groups else column[0] for column in columns)
        for moment, (codes, scales, signed) in zip(moments, coded, strict=True):
            encode([part.to(codes[0].device) for part in moment], codes, scales, block=block, signed=signed)


def _coded_rows(
    batch: AlikeParameters, block: int, extra: Sequence[Sequence[Tensor]]
) -> Iterator[list[tuple[Tensor, ...]]]:
    """What is updated together, on an accelerator of many parameters: for each piece, which begins with a block, the
    values, codes and scales of both moments, `extra` and the gradient. Of values that are copies the parameters become
    copies once the next is taken.
    """
    place = batch.place
    size = max(block, place.piece_elements // block * block)
    rows, copied, elements = list[tuple[Tensor, ...]](), list[tuple[Tensor, Tensor]](), 0
    for number, (parameter, gradient, state) in enumerate(
        zip(batch.parameters, batch.gradients, batch.states, strict=True)
    ):
        value, slope = (tensor.reshape(-1).to(*place) for tensor in (parameter, gradient))
        for start in range(0, parameter.numel(), size):
            here, blocks = slice(start, start + size), slice(start // block, (start + size) // block)
            numel = min(size, parameter.numel() - start)
            if rows and (not place.groups or elements + numel > size):
                yield rows
                _put_back(copied)
                rows, copied, elements = [], [], 0
            coded = (each for codes, scale, _ in CODED for each in (state[codes][here], state[scale][blocks]))
            rows.append((value[here], *coded, *(column[number][here] for column in extra), slope[here]))
            elements += numel
        if not is_ready(parameter, place):
            copied.append((parameter, value))
    yield rows
    _put_back(copied)


def _put_back(copied: Sequence[tuple[Tensor, Tensor]]) -> None:
    for parameter, value in copied:
        parameter.copy_(value.view(parameter.shape))


@dataclass(frozen=True)
class Decay:
    """The factors by which both moments decay, and by which the gradient and its square enter, rounded to one type."""

    first: float
    first_rest: float
    second: float
    second_rest: float

    @classmethod
    def of(cls, betas: tuple[float, float], dtype: torch.dtype) -> Decay:
        """The factors for the decay rates `betas`."""
        one, two = (float(beta) for beta in betas)
        return cls(*(rounded(each, dtype) for each in (one, 1.0 - one, two, 1.0 - two)))

    def update(self, mean: Piece, square: Piece, gradient: Piece, scratch: Piece) -> None:
        """Let a gradient enter both moments; all are flat and of one length."""
        mean.mul_(self.first)
        mean.add_(multiply(gradient, self.first_rest, scratch))
        square.mul_(self.second)
        multiply(gradient, gradient, scratch)
        scratch.mul_(self.second_rest)
        square.add_(scratch)


def bias_corrections(betas: tuple[float, float], step: int) -> tuple[float, float]:
    """Return 1 - β₁ᵗ and √(1 - β₂ᵗ): what the first moment and the root of the second are to be divided by."""
    one, two = (float(beta) for beta in betas)
    return 1.0 - power(one, step), math.sqrt(1.0 - power(two, step))


@dataclass(frozen=True)
class MomentStorage:
    """How moments are kept: as float32 (`bits` 32), or with 8 bits an element and a scale for each `block` elements.

    Tensors of fewer than `least_numel` elements, and those of float64, are kept as they are in any case. Raises
    `ValueError` for settings out of range.
    """

    bits: int = 32
    block: int = DEFAULT_BLOCK
    least_numel: int = DEFAULT_LEAST_NUMEL

    def __post_init__(self) -> None:
        require(self.bits in (8, 32), "bits", "be 8 or 32", self.bits)
        require(16 <= self.block <= 1 << 16, "block", "be from 16 to 65536", self.block)
        require(self.least_numel >= 1, "least_numel", "be positive", self.least_numel)

    def settings(self) -> dict[str, Any]:
        """The settings of a parameter group; none where moments are float32, so that these states stay as they were."""
        return {"state_bits": 8, "state_block": self.block, "state_least": self.least_numel} if self.bits == 8 else {}


WHOLE_MOMENTS = MomentStorage()


def adaptive_defaults(lr: float, betas: tuple[float, float], eps: float, weight_decay: float) -> dict[str, Any]:
    """The settings that AdamW and LAMB share. Raises `ValueError` for those out of range."""
    require(lr >= 0, "lr", "not be negative", lr)
    require(len(betas) == 2 and all(0 <= beta < 1 for beta in betas), "betas", "be from 0 to below 1", betas)
    require(eps >= 0, "eps", "not be negative", eps)
    require(weight_decay >= 0, "weight_decay", "not be negative", weight_decay)
    return {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
