"""What updates depend on beside the state's tensors and numbers, so that all peers of a run have to have it alike.

Theory of operation. A peer that froze what the others train averages another vector, and one with another optimizer or
clipping comes to other parameters from equal means: it would drag others along, or fetch their state again and again.
Tensors do not show it, since an optimizer that has not stepped yet keeps none. So each state says what its peers have,
and a peer that takes it over compares. States of builds that did not say it are good for any. Learning rates are no
part of it: they are numbers of the state, which a newcomer takes over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import torch

from minga.core.errors import ConfigurationError
from minga.core.units import counted
from minga.training.state.scalars import Json, decode_number, encode_number

_SWITCHES: Final = ("amsgrad", "maximize", "nesterov")
"""Settings that are no numbers, which a newcomer would take over, and make other updates."""
_FROZEN, _OPTIMIZER, _NORM, _VALUE = "frozen", "optimizer", "max_grad_norm", "max_grad_value"


def name_of(optimizer: torch.optim.Optimizer) -> str:
    """The optimizer's class, without the package, as what keeps equal tensors goes by equal names, and which switches
    are on. Of a class that a program derived it is the one of torch or minga.
    """
    known = (each for each in type(optimizer).__mro__ if each.__module__.startswith(("torch.optim.", "minga.optim.")))
    kind = next(known, torch.optim.Optimizer)
    kind = type(optimizer) if kind is torch.optim.Optimizer else kind
    on = sorted({name for name in _SWITCHES for group in optimizer.param_groups if group.get(name) is True})
    return f"{kind.__name__} ({', '.join(on)})" if on else kind.__name__


@dataclass(frozen=True)
class UpdateSettings:
    """Those of one peer, as they were when its replica was made."""

    frozen: Sequence[str]
    """Names of the parameters that no mean changes: they require no gradient, or the optimizer does not have them."""
    optimizer: str
    """As `name_of` has it."""
    max_grad_norm: float | None
    """As at the beginning of the run: the organisers' amendments, which reach all peers, leave it."""
    max_grad_value: float | None = None

    def written(self) -> Json:
        """As it stands in a state."""
        norm = None if self.max_grad_norm is None else encode_number(float(self.max_grad_norm))
        value: dict[str, Json] = {} if self.max_grad_value is None else {_VALUE: encode_number(self.max_grad_value)}
        return {_FROZEN: list[Json](sorted(self.frozen)), _OPTIMIZER: self.optimizer, _NORM: norm, **value}

    def check(self, there: Json) -> None:
        """Raise `ConfigurationError` naming what is other than `there`, which another peer wrote."""
        if not isinstance(there, dict) or not isinstance(frozen := there.get(_FROZEN), list):
            raise ConfigurationError("the state's scalars are malformed: they do not say what is frozen")
        self._check_frozen({str(name) for name in frozen})
        if (kind := there.get(_OPTIMIZER)) != self.optimizer:
            raise ConfigurationError(
                f"the run is trained by {str(kind)[:100]}, and the optimizer here is {self.optimizer}: all "
                "peers need the same one"
            )
        if (norm := decode_number(there.get(_NORM))) != self.max_grad_norm:
            raise ConfigurationError(
                f"the run began with max_grad_norm={norm}, and here it is {self.max_grad_norm}: give minga.Optimizer "
                "that one, which is peer.spec.optimizer.max_grad_norm where the run's host takes the run spec's; what "
                "organisers made of it by minga amend counts by itself"
            )

        if (value := decode_number(there.get(_VALUE))) != self.max_grad_value:
            raise ConfigurationError(
                f"the run began with max_grad_value={value}, and here it is {self.max_grad_value}: give "
                "minga.Optimizer that one"
            )

    def _check_frozen(self, there: set[str]) -> None:
        if not (differing := sorted(there ^ set(self.frozen))):
            return
        first, more = differing[0], len(differing) - 1
        run, here = ("frozen", "trained") if first in there else ("trained", "frozen")
        rest = f" ({counted(more, 'other differs', 'others differ')})" if more else ""
        raise ConfigurationError(
            f"{first[:100]} is {run} in the run and {here} here{rest}: before minga.Optimizer is made, the same "
            "parameters have to require a gradient and to be in the optimizer on all peers"
        )
