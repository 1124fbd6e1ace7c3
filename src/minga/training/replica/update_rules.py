"""What a recipe may say about updates besides the optimizer: parameters that rest, and values that parameters keep to.

Both rules are functions of the global step and of the parameters alone, so that peers which hold equal states go on
holding equal states.
"""

from __future__ import annotations

from typing import Protocol

import torch

from minga.core.errors import ConfigurationError
from minga.training.state.model_names import ModelNames, unwrapped


class UpdateRules(Protocol):
    """The rules of one run, the same on all its peers."""

    def frozen(self, step: int) -> frozenset[str]:
        """The names of the parameters that the update from global step `step` to the next leaves as they are: without
        gradient, decay or momentum.
        """

    def constrain(self, model: torch.nn.Module, step: int) -> None:
        """Change the parameters that an update has led to, those of global step `step`, to what they have to be.

        To do so twice changes nothing more. It is computed by operations that round alike everywhere; see
        `minga.optim.arithmetic`.
        """


class RuledModel:
    """A model under such rules, or under none. Raises `ConfigurationError` for rules without a model."""

    def __init__(self, rules: UpdateRules | None, model: torch.nn.Module | None) -> None:
        if rules is not None and model is None:
            raise ConfigurationError("rules of updates name parameters of a model: pass model=..., too")
        self._rules, self._model = rules, None if model is None else unwrapped(model)
        self._names = None if rules is None or self._model is None else ModelNames(self._model)

    @property
    def has_rules(self) -> bool:
        """Whether `constrain` may change anything."""
        return self._rules is not None

    def resting(self, step: int) -> frozenset[str]:
        """The names of the parameters that rest at `step`, without what wrappers add to them."""
        if self._rules is None or self._names is None:
            return frozenset()
        return frozenset(map(self._names.clean, self._rules.frozen(step)))

    def drop_frozen(self, step: int) -> None:
        """Forget the gradients of the parameters that rest at `step`, so that they count as zero.

        Raises `ConfigurationError` if the rules name a parameter that the model lacks.
        """
        if self._model is None or self._names is None or not (names := self.resting(step)):
            return
        clean = self._names.clean
        parameters = {clean(n): each for n, each in self._model.named_parameters(remove_duplicate=False)}
        if unknown := sorted(names - parameters.keys()):
            raise ConfigurationError(f"the model has no parameter {unknown[0]}, which the recipe freezes")
        for name in names:
            parameters[name].grad = None

    @torch.no_grad()
    def constrain(self, step: int) -> None:
        """Bring the parameters to what they have to be at `step`."""
        if self._rules is not None and self._model is not None:
            self._rules.constrain(self._model, step)
