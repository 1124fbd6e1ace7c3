"""Which parameters a run trains: fixed when the replica is made, since all peers average one vector from then on.

What it does not train belongs to the state all the same: a target network, or an average of the weights, that the
program changes in its loop is another one on each peer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

import torch

from minga.core.units import counted
from minga.optim.shards import local

logger = logging.getLogger(__name__)

SAMPLED_TENSORS, SAMPLED_ELEMENTS = 64, 4
"""So many parameters that are not trained are watched, by so many elements each."""


class TrainedSet:
    """Those of `parameters`, by name, whose `id` is in `trained`; tells people of any that changed sides since."""

    def __init__(self, parameters: Mapping[str, torch.Tensor], trained: Collection[int]) -> None:
        self.frozen = sorted(name for name, each in parameters.items() if id(each) not in trained)
        """The names of the others."""
        self._watched = {name: (each, each.requires_grad) for name, each in parameters.items()}
        self._sampled = {name: parameters[name] for name in self.frozen[:SAMPLED_TENSORS] if parameters[name].numel()}
        self.note()

    def note(self) -> None:
        """What is not trained has the values now that the run's state says."""
        self._noted = _samples(list(self._sampled.values()))

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
        self._look_at_values()

    def _look_at_values(self) -> None:
        found = _samples(list(self._sampled.values()))
        pairs = zip(self._sampled, found, self._noted, strict=True)
        if changed := [name for name, now, before in pairs if now != before]:
            self._sampled = {}
            logger.warning(
                "%s was changed by the program, and the run does not train it: each peer has another then. What is to "
                "follow the trained parameters, such as an average of them or a target network, is changed once for "
                "each global step on all peers by minga.Optimizer(..., model=all_of_it, after_update=function)",
                _listed(changed),
            )


@torch.no_grad()
def _samples(tensors: list[torch.Tensor]) -> list[tuple[float, ...]]:
    """A few numbers of each, by one transfer from each device."""
    found: list[tuple[float, ...]] = [()] * len(tensors)
    real = [place for place, tensor in enumerate(tensors) if not (tensor.is_meta or tensor.is_complex())]
    for device in {tensors[place].device for place in real}:
        here = [place for place in real if tensors[place].device == device]
        parts = [local(tensors[place]).reshape(-1)[:SAMPLED_ELEMENTS].to(torch.float32) for place in here]
        numbers = iter(torch.cat(parts).nan_to_num().tolist())
        for place, part in zip(here, parts, strict=True):
            found[place] = tuple(next(numbers) for _ in part)
    return found


def _listed(names: list[str]) -> str:
    rest = f" (and {counted(len(names) - 1, 'other')})" if len(names) > 1 else ""
    return names[0] + rest
