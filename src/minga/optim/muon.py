"""Muon: momentum whose matrix of each layer is made orthogonal before it moves the weights; AdamW for all the rest.

For each matrix θ with gradient g (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; as the inner optimizer
of local steps: Thérien et al. 2025, arXiv:2505.23725):

    m ← μ m + g
    u = g + μ m                                  (u = m without Nesterov)
    X = u / ‖u‖,  five times  A = X Xᵀ,  X ← a X + (b A + c A²) X     with (a, b, c) = (3.4445, -4.7750, 2.0315)
    θ ← (1 - lr λ) θ - lr s X

which brings the singular values of X, each at most 1 at first, to between 0.7 and 1.2. The scale s is 0.2 √max(rows,
columns), with which updates are as large as those of AdamW, so that one learning rate and one decay serve both (Liu et
al. 2025, arXiv:2502.16982), or √max(1, rows / columns), as Jordan has it.

Theory of operation. A product of matrices is a sum whose order each kernel chooses, so floats differ from device to
device. Here no sum rounds, so that its order does not matter. Before each product the elements of both factors are
rounded to multiples of 2^-25. Products of such are multiples of 2^-50, which float64 holds exactly up to 8. No part of
any sum is larger: by Cauchy and Schwarz it is at most the length of a row of one factor times that of a column of the
other, and these are bounded by the factors' singular values: 1.21 for X, 1.47 for A, 2.81 for b A + c A².

That costs arithmetic in float64, which processors and accelerators of data centres do at half the speed of float32, and
those for games at 1/32 to 1/64. Where peers need not have equal bits, as in local steps, `exact=False` multiplies in
the type of the parameters' arithmetic, float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from minga.optim.adamw import AdamW
from minga.optim.arithmetic import multiply, passes, rounded, scale
from minga.optim.moments import WHOLE_MOMENTS, MomentStorage, adaptive_defaults
from minga.optim.norms import norms
from minga.optim.pieces import pieces
from minga.optim.reproducible import AlikeParameters, require
from minga.optim.shards import is_sharded

_ROUNDS: Final = 5
_A, _B, _C = 3.4445, -4.7750, 2.0315
_GRID_BITS: Final = 25
_GRID: Final = 1.5 * 2.0 ** (52 - _GRID_BITS)
"""A float64 of this size has steps of 2^-25, so adding and subtracting it rounds to multiples of that."""
_CPU: Final = torch.device("cpu")


class Muon(AdamW):
    """Muon for groups of matrices and AdamW for the others, as a `torch.optim.Optimizer`; see `muon_groups`.

    A group with `use_muon=False` is updated as by `AdamW`: biases, norms, embeddings and the output layer belong there.
    Of a parameter of more than two dimensions the matrix has the first one as its rows. All groups go by `lr` and
    `weight_decay`, `momentum` and `nesterov` are Muon's, and `betas`, `eps` and `storage` AdamW's. `match_adamw` scales
    updates to the size of AdamW's, which one learning rate for both needs; without it they are those of Jordan.

    With `exact` equal gradients give equal bits on every device; without it products of matrices are those of the
    device, which is faster and enough for strategies whose peers take steps of their own ("local").

    State of a matrix: `step` and `momentum_buffer`; of the others that of `AdamW`. An update needs memory of the size
    of the largest matrix, on an accelerator of that of the group, and five times that of one matrix. Raises
    `ValueError` for settings out of range, and for matrices that are sharded over processes. See
    `ReproducibleOptimizer` for other errors.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        weight_decay: float = 0.01,
        *,
        nesterov: bool = True,
        match_adamw: bool = True,
        exact: bool = True,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        storage: MomentStorage = WHOLE_MOMENTS,
    ) -> None:
        require(0 <= momentum < 1, "momentum", "be from 0 to below 1", momentum)
        own = {"momentum": momentum, "nesterov": nesterov, "match_adamw": match_adamw, "exact": exact, "use_muon": True}
        of_adamw = {**adaptive_defaults(lr, betas, eps, weight_decay), **storage.settings()}
        super(AdamW, self).__init__(params, {**of_adamw, **own})

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As in torch. Raises `ValueError` for parameters that Muon cannot update."""
        super().add_param_group(param_group)
        group = self.param_groups[-1]
        if not group["use_muon"]:
            return
        if any(parameter.ndim < 2 for parameter in group["params"]):
            raise ValueError(
                "Muon updates matrices: put biases, norms, embeddings and the output layer into a group with "
                "use_muon=False, as minga.optim.muon_groups(model) does"
            )
        if any(is_sharded(parameter) for parameter in group["params"]):
            raise ValueError("Muon needs whole matrices: it is not possible for parameters sharded over processes")

    @property
    def rounds_alike(self) -> bool:
        """See `ReproducibleOptimizer`."""
        return all(group["exact"] for group in self.param_groups if group["use_muon"])

    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        return ("momentum_buffer",) if group["use_muon"] else super()._names(group)

    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        if not group["use_muon"]:
            super()._update(group, batch)
            return
        for part in batch.parts():
            self._update_matrices(group, part)

    def _update_matrices(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        dtype, lr = batch.place.dtype, float(group["lr"])
        momentum = rounded(float(group["momentum"]), dtype)
        updates = batch.vectors()
        for _, buffer, update, gradient in batch.pieces("momentum_buffer", extra=[updates]):
            buffer.mul_(momentum)
            buffer.add_(gradient)
            multiply(buffer, momentum if group["nesterov"] else 1.0, update)
            if group["nesterov"]:
                update.add_(gradient)
        rates = []
        for parameter, update, norm in zip(batch.parameters, updates, norms(updates), strict=True):
            if parameter.numel():
                matrix = update.view(parameter.shape[0], -1)
                matrix.copy_(orthogonal(matrix, norm, exact=group["exact"]))
                rates.append(rounded(lr * _scale(matrix.shape, match_adamw=group["match_adamw"]), dtype))
            else:
                rates.append(0.0)
        scale(updates, rates)
        kept = rounded(1.0 - lr * float(group["weight_decay"]), dtype)
        for value, update in pieces(batch.place, [batch.parameters], [updates]):
            if kept != 1.0:
                value.mul_(kept)
            value.sub_(update)


def muon_groups(model: nn.Module, weight_decay: float = 0.01) -> list[dict[str, Any]]:
    """The trained parameters of `model` as groups for `Muon`: matrices of hidden layers, the other matrices, and the
    rest without decay; empty groups are left out.
    """
    hidden = hidden_matrices(model)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    others = [parameter for parameter in trained if parameter not in hidden]
    groups = (
        {"params": [each for each in trained if each in hidden], "use_muon": True, "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim >= 2], "use_muon": False, "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim < 2], "use_muon": False, "weight_decay": 0.0},
    )
    return [group for group in groups if group["params"]]


def hidden_matrices(model: nn.Module) -> set[Tensor]:
    """The parameters of two and more dimensions, but embeddings and the output layer: that which the model names by
    `get_output_embeddings`, as those of transformers do, or else the last layer that has a matrix.
    """
    found, outer = set[Tensor](), set[Tensor]()
    last: Sequence[Tensor] = ()
    for module in model.modules():
        matrices = [each for each in module.parameters(recurse=False) if each.ndim >= 2]
        (outer if isinstance(module, nn.Embedding | nn.EmbeddingBag) else found).update(matrices)
        last = matrices or last
    named: Any = getattr(model, "get_output_embeddings", None)
    output = named() if callable(named) else None
    outer.update(last if output is None else output.parameters())
    return found - outer


@torch.no_grad()
def orthogonal(matrix: Tensor, norm: float, *, exact: bool) -> Tensor:
    """Return a matrix with the singular vectors of `matrix`, whose Euclidean norm is given, and singular values near 1;
    zeros where the norm is 0. With `exact` it is float64, with equal bits on every device.
    """
    if norm == 0.0:
        return torch.zeros_like(matrix)
    wide = matrix.to(torch.float64, copy=True).mul_(1.0 / norm)
    wide = wide.t() if (is_tall := matrix.shape[0] > matrix.shape[1]) else wide
    here = matrix.device if not exact or multiplies_exactly(matrix.device) else _CPU
    values = wide.to(here, torch.float64 if exact else matrix.dtype)
    for _ in range(_ROUNDS):
        values = _on_grid(values, exact)
        gram = _on_grid(values @ values.t(), exact)
        factor = (gram @ gram).mul_(_C)
        factor = _on_grid(factor.add_(gram.mul_(_B)), exact)
        change = factor @ values
        values = values.mul(_A).add_(change)
    return (values.t() if is_tall else values).to(matrix.device)


def _on_grid(values: Tensor, exact: bool) -> Tensor:
    return (values + _GRID).sub_(_GRID) if exact else values


def multiplies_exactly(device: torch.device) -> bool:
    """Whether products of matrices on `device` are exact where float64 holds every sum, by a trial."""
    return passes(_multiplies_exactly, device)


@cache
def _multiplies_exactly(device: torch.device) -> bool:
    drawn = np.random.default_rng(0).integers(-(1 << _GRID_BITS), 1 << _GRID_BITS, (2, 192, 192)) // 5
    one, other = (torch.from_numpy(each.astype(np.float64) * 2.0**-_GRID_BITS).to(device) for each in drawn)
    expected = (drawn[0] @ drawn[1]).astype(np.float64) * 2.0 ** (-2 * _GRID_BITS)
    return bool(np.array_equal((one @ other).cpu().numpy(), expected))


def _scale(shape: torch.Size, *, match_adamw: bool) -> float:
    rows, columns = shape
    return 0.2 * math.sqrt(max(rows, columns)) if match_adamw else math.sqrt(max(1.0, rows / columns))
