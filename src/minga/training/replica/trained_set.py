"""Which parameters a run trains: fixed when the replica is made, since all peers average one vector from then on."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import torch

from minga.core.units import counted

logger = logging.getLogger(__name__)


class TrainedSet:
    """Those of `parameters`, by name, whose `id` is in `trained`; tells people of any that changed sides since."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], trained: Collection[int]) -> None:
        self.frozen = sorted(name for name, each in parameters.items() if id(each) not in trained)
        """The names of the others."""
        self._watched = {name: (each, each.requires_grad) for name, each in parameters.items()}

    def look(self, resting: Collection[str]) -> None:
        """Warn, once for each, of parameters whose `requires_grad` was changed; those that rest by rules may be so."""
        changed = {name: before for name, (each, before) in self._watched.items() if each.requires_grad != before}
        may_change = {*self.frozen, *resting}
        thawed = [name for name, before in changed.items() if not before]
        frozen = [name for name, before in changed.items() if before and name not in may_change]
        if thawed:
            logger.warning(
                "%s requires a gradient now and did not when minga.Optimizer was made: the run does not train it",
                _listed(thawed),
            )
        if frozen:
            logger.warning(
                "%s requires no gradient now and did when minga.Optimizer was made: the run goes on training it. To "
                "let parameters rest for some steps, pass rules= on all peers",
                _listed(frozen),
            )
        for name in (*thawed, *frozen):
            del self._watched[name]


def _listed(names: list[str]) -> str:
    rest = f" (and {counted(len(names) - 1, 'other')})" if len(names) > 1 else ""
    return names[0] + rest
