"""The base class of the reproducible optimizers: which parameters are updated together, and what is kept for them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

from minga.optim.pieces import Place, pieces
from minga.optim.shards import local


@dataclass
class AlikeParameters:
    """Parameters of a group that are updated alike: at one place, for the `step`-th time (0 where nothing counts)."""

    place: Place
    step: int
    parameters: list[Tensor] = field(default_factory=list)
    gradients: list[Tensor] = field(default_factory=list)
    states: list[dict[str, Tensor]] = field(default_factory=list)

    def state(self, name: str) -> list[Tensor]:
        """What is kept under `name` for each parameter."""
        return [state[name] for state in self.states]

    def pieces(
        self, *names: str, extra: Sequence[Sequence[Tensor]] = (), gradients: Sequence[Tensor] | None = None
    ) -> Iterator[tuple[Any, ...]]:
        """Pieces of the values, of the state under `names`, of `extra` tensors, and of the gradients, in this order.

        All but the gradients may be changed. Other `gradients` may be given.
        """
        changed = [self.parameters, *(self.state(name) for name in names), *extra]
        return pieces(self.place, changed, [self.gradients if gradients is None else gradients])

    def parts(self) -> Iterator[AlikeParameters]:
        """The same parameters a few at a time, or one that is large, for updates that need memory of their size."""
        limit, part, elements = self.place.part_elements, AlikeParameters(self.place, self.step), 0
        for parameter, gradient, state in zip(self.parameters, self.gradients, self.states, strict=True):
            if limit is not None and part.parameters and elements + parameter.numel() > limit:
                yield part
                part, elements = AlikeParameters(self.place, self.step), 0
            part.parameters.append(parameter)
            part.gradients.append(gradient)
            part.states.append(state)
            elements += parameter.numel()
        yield part

    def scratch(self) -> Tensor:
        """Memory as long as the largest piece."""
        return self.place.scratch(self.parameters)

    def vectors(self) -> list[Tensor]:
        """New flat memory for what is here of each parameter, of the type of the arithmetic."""
        sizes = [local(parameter).numel() for parameter in self.parameters]
        return list(torch.split(self.place.empty(sum(sizes)), sizes))


class ReproducibleOptimizer(Optimizer):
    """An optimizer that gives equal bits from equal gradients everywhere; see `minga.optim.arithmetic`.

    The arithmetic is float32, or float64 for parameters of float64. What is kept for a parameter has that type and the
    parameter's shape; `step`, where updates are counted, is a float32 scalar on the CPU. Raises `ValueError` for
    settings out of range and `RuntimeError` for sparse gradients. Parameters without gradient are left alone.

    Parameters may be sharded over processes (DTensors); then all of these have to call `step`.
    """

    counts: ClassVar[bool] = True
    """Whether updates of each parameter are counted."""

    @property
    def rounds_alike(self) -> bool:
        """Whether equal gradients give equal bits on every device with the settings that the groups have."""
        return True

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Update every parameter that has a gradient; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for batch in self._batches(group):
                self._update(group, batch)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but what is kept stays float32 where the parameters have fewer bits, and codes stay codes."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            dtype = Place.of(parameter).dtype
            for name, value in state_dict["state"].get(number, {}).items():
                if not isinstance(value, Tensor) or name == "step":
                    continue
                kept = dtype if value.is_floating_point() else value.dtype
                if self.state[parameter][name].dtype != kept:
                    self.state[parameter][name] = value.to(parameter.device, kept, copy=True)

    @abstractmethod
    def _names(self, group: dict[str, Any]) -> tuple[str, ...]:
        """The names of the vectors that are kept for each parameter of a group."""

    @abstractmethod
    def _update(self, group: dict[str, Any], batch: AlikeParameters) -> None:
        """Update the parameters of a batch."""

    def _batches(self, group: dict[str, Any]) -> list[AlikeParameters]:
        batches: dict[tuple[Place, int, frozenset[str]], AlikeParameters] = {}
        for parameter in group["params"]:
            gradient = parameter.grad
            if gradient is None:
                continue
            if gradient.is_sparse:
                raise RuntimeError(f"{type(self).__name__} does not support sparse gradients")
            place = Place.of(parameter)
            state = self._state_of(group, parameter, place)
            step = 0
            if self.counts:
                state["step"] += 1
                step = int(state["step"].item())
            batch = batches.setdefault((place, step, frozenset(state)), AlikeParameters(place, step))
            batch.parameters.append(parameter)
            batch.gradients.append(gradient)
            batch.states.append(state)
        return list(batches.values())

    def _state_of(self, group: dict[str, Any], parameter: Tensor, place: Place) -> dict[str, Tensor]:
        names = self._names(group)
        state: dict[str, Tensor] = self.state[parameter] if names else {}
        for name in names:
            if name not in state:
                state[name] = torch.zeros_like(parameter, dtype=place.dtype, memory_format=torch.preserve_format)
        if self.counts and "step" not in state:
            state["step"] = torch.zeros((), dtype=torch.float32, device="cpu")
        return state


def require(is_met: bool, name: str, rule: str, value: object) -> None:
    """Raise `ValueError` unless the setting `name` keeps to its rule."""
    if not is_met:
        raise ValueError(f"{name} must {rule}: {value}")
