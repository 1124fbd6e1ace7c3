"""Reversible residual layers: activations are computed again in the backward pass, not kept.

Two streams, y1 = x1 + f(x2), y2 = x2 + g(y1), can be inverted: x2 = y2 - g(y1), x1 = y1 - f(x2) (Gomez et al. 2017,
arXiv:1707.04585). So only the last y1, y2 are kept, and memory does not grow with depth; the price is one more forward
pass. Gradients of weights that several layers share are summed as the pass goes back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from minga.training.replica.draws import draws, replaying

Branch = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ReversibleLayer:
    """The two functions of a layer, each with the parameters that it uses. `is_random`: they draw dropout masks."""

    first: Branch
    second: Branch
    first_parameters: tuple[nn.Parameter, ...]
    second_parameters: tuple[nn.Parameter, ...]
    is_random: bool = False


def run_plain(layers: Sequence[ReversibleLayer], x: Tensor) -> Tensor:
    """Both streams begin as `x`, and their mean comes out; ordinary automatic differentiation."""
    first = second = x
    for layer in layers:
        first = first + layer.first(second)
        second = second + layer.second(first)
    return (first + second) / 2


def run_reversible(layers: Sequence[ReversibleLayer], x: Tensor) -> Tensor:
    """What `run_plain` computes, with memory for its gradient that does not grow with the number of layers."""
    parameters = {id(each): each for layer in layers for each in (*layer.first_parameters, *layer.second_parameters)}
    result: Tensor = _Reversible.apply(tuple(layers), x, *parameters.values())  # type: ignore[no-untyped-call]
    return result


class _Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, layers: tuple[ReversibleLayer, ...], x: Tensor, *parameters: nn.Parameter) -> Tensor:
        ctx.layers, ctx.parameters = layers, parameters
        ctx.autocast = _autocast_of(x.device.type)
        ctx.generators = []
        first = second = x
        for layer in layers:
            if layer.is_random:
                ctx.generators.append(draws(x.device))
            first = first + layer.first(second)
            if layer.is_random:
                ctx.generators.append(draws(x.device))
            second = second + layer.second(first)
        ctx.save_for_backward(first, second)
        return (first + second) / 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        y1, y2 = ctx.saved_tensors
        d1 = d2 = gradients[0] / 2
        totals: dict[int, Tensor] = {}
        states = list(ctx.generators)
        with ctx.autocast():
            for layer in reversed(ctx.layers):
                undone, passed = _invert(layer.second, layer.second_parameters, y1, d2, totals, _pop(states, layer))
                y2, d1 = y2 - undone, d1 + passed
                undone, passed = _invert(layer.first, layer.first_parameters, y2, d1, totals, _pop(states, layer))
                y1, d2 = y1 - undone, d2 + passed
        return None, d1 + d2, *(totals.get(id(each)) for each in ctx.parameters)


def _invert(
    branch: Branch,
    parameters: tuple[nn.Parameter, ...],
    x: Tensor,
    gradient: Tensor,
    totals: dict[int, Tensor],
    state: list[Tensor] | None,
) -> tuple[Tensor, Tensor]:
    """What `branch` adds at `x`, and what `gradient` of that means for `x`; for its parameters, that goes to `totals`.

    `state` is that of the random generators when the branch ran first.
    """
    with torch.enable_grad(), replaying(state, x.device) if state else nullcontext():
        leaf = x.detach().requires_grad_()
        y = branch(leaf.view_as(leaf))  # torch's counters of operations cannot follow a leaf into a module here
        trained = [each for each in parameters if each.requires_grad]
        passed, *of_parameters = torch.autograd.grad(y, (leaf, *trained), gradient.to(y.dtype))
    for parameter, each in zip(trained, of_parameters, strict=True):
        known = totals.get(id(parameter))
        totals[id(parameter)] = each if known is None else known.add_(each)
    return y.detach(), passed


def _pop(states: list[list[Tensor]], layer: ReversibleLayer) -> list[Tensor] | None:
    return states.pop() if layer.is_random else None


def _autocast_of(device: str) -> Callable[[], AbstractContextManager[None]]:
    """A context in which operations have the types that they have now."""
    if device == "meta":
        return nullcontext
    enabled, kind = torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)

    @contextmanager
    def entered() -> Iterator[None]:
        # Without the cache: it would keep casts of parameters that were made before they required gradients.
        with torch.autocast(device, dtype=kind, enabled=enabled, cache_enabled=False):
            yield

    return entered
