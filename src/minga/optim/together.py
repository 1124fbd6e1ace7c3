"""Several optimizers of one model as one, such as Muon for its matrices and AdamW for the rest.

    Together([torch.optim.Muon(matrices), torch.optim.AdamW(rest)])

They stay the objects that they are, with their own parameter groups and states, so that schedulers made for one of them
go on working; what is said here of all of them is read from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer


class Together(Optimizer):
    """One optimizer that steps `optimizers` one after the other; its parameter groups are theirs, in their order.

    Its `state_dict` is that of one optimizer with all groups. Raises `ValueError` unless there are optimizers, of which
    no two have a parameter in common.
    """

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        if not optimizers or not all(isinstance(each, Optimizer) for each in optimizers):
            raise ValueError("Together needs a list of torch optimizers")
        super().__init__([group for each in optimizers for group in each.param_groups], {})
        self.optimizers = tuple(optimizers)
        self.state = _States(self.optimizers)  # type: ignore[assignment]  # read and changed as a dictionary
        for name in ("train", "eval"):  # of optimizers with two points; where none has them, these are none either
            if any(callable(getattr(each, name, None)) for each in optimizers):
                setattr(self, name, partial(self._switch, name))
        self._show()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step each of them; returns what `closure` returned."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for each in self.optimizers:
            each.step()
        return loss

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raises `ValueError` once they are together: nobody could say which of them it is for."""
        if hasattr(self, "optimizers"):
            raise ValueError("add parameter groups to one of the optimizers, before they are put together")
        super().add_param_group(param_group)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As in torch, to each its own part. Raises `ValueError` for a state with another number of groups."""
        groups = state_dict["param_groups"]
        if len(groups) != len(self.param_groups):
            raise ValueError(f"the state has {len(groups)} parameter groups, these optimizers {len(self.param_groups)}")
        rest = list(groups)
        for each in self.optimizers:
            own, rest = rest[: len(each.param_groups)], rest[len(each.param_groups) :]
            numbers = {number for group in own for number in group["params"]}
            state = {number: kept for number, kept in state_dict["state"].items() if number in numbers}
            each.load_state_dict({"state": state, "param_groups": own})
        self._show()

    def _switch(self, name: str) -> None:
        for each in self.optimizers:
            if callable(switch := getattr(each, name, None)):
                switch()

    def _show(self) -> None:
        self.param_groups = [group for each in self.optimizers for group in each.param_groups]


def members_of(optimizer: Optimizer) -> tuple[Optimizer, ...]:
    """The optimizers that are together in this one; itself, if it is one alone."""
    return optimizer.optimizers if isinstance(optimizer, Together) else (optimizer,)


class _States(MutableMapping[Tensor, dict[str, Any]]):
    """What the optimizers keep for each parameter, where they keep it."""

    def __init__(self, optimizers: Sequence[Optimizer]) -> None:
        self._optimizers = optimizers
        self._owners = {id(each): owner for owner in optimizers for g in owner.param_groups for each in g["params"]}

    def __getitem__(self, key: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = self._owners[id(key)].state[key]  # a new one where there is none, as in torch
        return state

    def __setitem__(self, key: Tensor, value: dict[str, Any]) -> None:
        self._owners[id(key)].state[key] = value

    def __delitem__(self, key: Tensor) -> None:
        del self._owners[id(key)].state[key]

    def __contains__(self, key: object) -> bool:
        owner = self._owners.get(id(key))
        return owner is not None and key in owner.state

    def get(self, key: Tensor, default: Any = None) -> Any:
        """As a dictionary has it: nothing is made."""
        return self._owners[id(key)].state[key] if key in self else default

    def __iter__(self) -> Iterator[Tensor]:
        return (key for each in self._optimizers for key in each.state)

    def __len__(self) -> int:
        return sum(len(each.state) for each in self._optimizers)
