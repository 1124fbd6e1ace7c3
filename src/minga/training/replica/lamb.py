"""LAMB: Adam whose update of each tensor is scaled to the norm of that tensor, for very large batches.

For each tensor θ with gradient g, at its t-th update (You et al. 2020, arXiv:1904.00962, with bias correction as a
factor of the learning rate and a bound on the norm):

    m ← β₁ m + (1 - β₁) g
    v ← β₂ v + (1 - β₂) g²
    r = m / (√v + ε) + λ θ
    trust = min(‖θ‖, clamp) / ‖r‖            (1 where either norm is 0)
    θ ← θ - lr · √(1 - β₂ᵗ) / (1 - β₁ᵗ) · trust · r

All tensors of a device are updated together by torch's foreach operations. The arithmetic is float32 whatever the
parameters are; the norms are summed in float64 where the device has it, so that peers with different numbers of
threads round them alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, overload

import torch
from torch import Tensor
from torch.optim import Optimizer

_MOMENTS = ("exp_avg", "exp_avg_sq")


class Lamb(Optimizer):
    """LAMB as a `torch.optim.Optimizer`; settings may differ between parameter groups.

    State of each parameter: `step` (float32 scalar on the CPU), `exp_avg` and `exp_avg_sq` (float32, the parameter's
    shape). Raises `ValueError` for settings out of range and `RuntimeError` for sparse gradients.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.01,
        clamp_value: float = 10_000.0,
    ) -> None:
        if not lr >= 0:
            raise ValueError(f"lr must not be negative: {lr}")
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"betas must be from 0 to below 1: {betas}")
        if not eps >= 0:
            raise ValueError(f"eps must not be negative: {eps}")
        if not weight_decay >= 0:
            raise ValueError(f"weight_decay must not be negative: {weight_decay}")
        if not clamp_value > 0:
            raise ValueError(f"clamp_value must be positive: {clamp_value}")
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "clamp_value": clamp_value,
        }
        super().__init__(params, defaults)

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
            # Tensors that were updated equally often, on one device, share their factors.
            alike: dict[tuple[torch.device, int], list[Tensor]] = defaultdict(list)
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                if parameter.grad.is_sparse:
                    raise RuntimeError("Lamb does not support sparse gradients")
                state = self._state_of(parameter)
                state["step"] += 1
                alike[parameter.device, int(state["step"].item())].append(parameter)
            for (_, step), parameters in alike.items():
                self._update(group, parameters, step)
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, but the moments stay float32 where the parameters have fewer bits."""
        super().load_state_dict(state_dict)
        numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
        parameters = [parameter for group in self.param_groups for parameter in group["params"]]
        for number, parameter in zip(numbers, parameters, strict=True):
            for name in _MOMENTS:
                moment = state_dict["state"].get(number, {}).get(name)
                if moment is not None and parameter.dtype != torch.float32:
                    self.state[parameter][name] = moment.to(parameter.device, torch.float32, copy=True)

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(parameter, dtype=torch.float32, memory_format=torch.preserve_format)
        return state

    def _update(self, group: dict[str, Any], parameters: list[Tensor], step: int) -> None:
        beta1, beta2 = group["betas"]
        gradients = [p.grad.float() for p in parameters if p.grad is not None]
        moments1, moments2 = ([self.state[p][name] for p in parameters] for name in _MOMENTS)
        torch._foreach_lerp_(moments1, gradients, 1 - beta1)
        torch._foreach_mul_(moments2, beta2)
        torch._foreach_addcmul_(moments2, gradients, gradients, 1 - beta2)

        roots = list(torch._foreach_sqrt(moments2))  # noqa: SLF001  # foreach operations have no public names
        torch._foreach_add_(roots, group["eps"])
        updates = list(torch._foreach_div(moments1, roots))  # noqa: SLF001
        values = [p.float() for p in parameters]  # the parameters themselves where they are float32
        if group["weight_decay"] != 0:
            torch._foreach_add_(updates, values, alpha=group["weight_decay"])

        trust = _trust_ratios(values, updates, group["clamp_value"])
        correction = (1 - beta2**step) ** 0.5 / (1 - beta1**step)
        torch._foreach_mul_(updates, list((trust * (-group["lr"] * correction)).unbind()))
        torch._foreach_add_(values, updates)
        for parameter, value in zip(parameters, values, strict=True):
            if value is not parameter:
                parameter.copy_(value)


def _trust_ratios(values: list[Tensor], updates: list[Tensor], clamp_value: float) -> Tensor:
    """One factor for each tensor, as a float32 vector on their device."""
    dtype = torch.float32 if values[0].device.type == "mps" else torch.float64
    value_norms = torch.stack([torch.linalg.vector_norm(value, dtype=dtype) for value in values]).clamp(max=clamp_value)
    update_norms = torch.stack([torch.linalg.vector_norm(update, dtype=dtype) for update in updates])
    usable = (value_norms > 0) & (update_norms > 0)
    return torch.where(usable, value_norms / update_norms, 1.0).float()
