"""Which vector each round of a run averages, and one peer's memory for the means and the residuals of these.

A run averages one vector in all rounds, or several in turn: fragments of the model, or the factors of a matrix. Which
one it is follows from the round's number alone, so that all peers agree on it without a word. Each round has one
layout, and with it a plan and a commit of its own; what uploads of a vector left out is made up for in the next round
of that vector, even if it travels by another codec then.

So it is in a *warm-up*: in a run's first rounds a codec that leaves out most sends more, since gradients are large and
change fast then. How much follows from the round's number, too. Each kind of round has a layout of its own, so bytes
are as bounded as in any round.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import MOST_ROUNDS_KEPT, KeptResidual, Residual
from minga.averaging.group import RoundVector

LayoutOf = Callable[[int], VectorLayout]
"""From the number of a round to the layout of its vector: the same on all peers, and quick. Few of them differ."""


@dataclass(frozen=True, slots=True)
class LossySettings:
    """How a run makes up for what its codecs leave out: each residual keeps the share `residual_decay` of itself, and
    the first `warmup_rounds` send more.
    """

    residual_decay: float = 1.0
    warmup_rounds: int = 0


class RoundVectors:
    """The vectors of one peer's rounds. `new` makes a zeroed vector of so many elements, where they are averaged.

    With `keeps_uncounted` the peer's strategy keeps a contribution that a round counts without; see `residual.py`.
    """

    def __init__(
        self,
        layout_of: LayoutOf,
        new: Callable[[int], torch.Tensor],
        lossy: LossySettings = LossySettings(),
        *,
        keeps_uncounted: bool = False,
    ) -> None:
        self._layout_of, self._lossy = layout_of, lossy
        self._new, self._keeps_uncounted = new, keeps_uncounted
        self._results: dict[int, torch.Tensor] = {}
        self._residuals: dict[str, Residual] = {}
        self._restored: dict[str, KeptResidual] = {}  # of an earlier process, by vector, until a round asks for them

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector of the round of `step`; see `LayoutOf`."""
        layout = self._layout_of(step)
        rounds = self._lossy.warmup_rounds
        return layout.warming_up(step / rounds) if step < rounds else layout

    def described(self, step: int) -> RoundVector:
        """The vector of the round of `step`, as group formation wants to know it."""
        return _described(self.layout_of(step))

    def encoded_bytes(self, step: int) -> int:
        """Bytes that the vector of the round of `step` takes as encoded."""
        return self.described(step).encoded_bytes

    def result(self, step: int) -> torch.Tensor:
        """Memory for the mean of the round of `step`, the same for all vectors of one length."""
        numel = self.layout_of(step).total
        if numel not in self._results:
            self._results[numel] = self._new(numel)
        return self._results[numel]

    def residual(self, step: int) -> Residual | None:
        """What was left out in earlier rounds of the vector of `step`; None if its codecs leave nothing out."""
        layout = self.layout_of(step)
        if not layout.needs_residual:
            return None
        name = layout.subject
        if name not in self._residuals:
            self._residuals[name] = Residual(
                layout.total,
                device=self.result(step).device,
                age=lambda a, b: self._rounds_of(name, a, b),
                keeps_uncounted=self._keeps_uncounted,
                decay=self._lossy.residual_decay,
            )
            kept = self._restored.pop(name, None)
            if kept is not None and kept.mass.numel() == layout.total:
                self._residuals[name].restore(kept)
        return self._residuals[name]

    def kept(self, step: int) -> dict[str, KeptResidual] | None:
        """Copies of all residuals that hold anything, by what their vectors are of, which go with the state of `step`;
        None if a round changes one, or changed one for a later state.
        """
        kept = dict(self._restored)
        for name, residual in list(self._residuals.items()):
            if (copy := residual.kept(step)) is None:
                return None
            kept[name] = copy
        return {name: each for name, each in kept.items() if each.mass.any()}

    def restore(self, kept: Mapping[str, KeptResidual]) -> None:
        """Go on from what `kept` returned in an earlier process; what does not fit to its layout is dropped."""
        self._restored = dict(kept)

    def forget(self) -> int:
        """Drop all residuals: rounds may have counted what this peer gave, and nobody can say. Returns of how many
        vectors something was left out.
        """
        masses = [each.mass for each in self._residuals.values()] + [each.mass for each in self._restored.values()]
        self._residuals.clear()
        self._restored.clear()
        return sum(1 for mass in masses if mass.any())

    def begin_anew(self, *, keeps_uncounted: bool) -> int:
        """Another strategy goes on, which `keeps_uncounted` contributions or not; see `forget`."""
        self._keeps_uncounted = keeps_uncounted
        return self.forget()

    def _rounds_of(self, subject: str, since: int, step: int) -> int:
        """How many rounds from `since` on, before `step`, are of this vector; it does not count beyond what matters."""
        count = 0
        for earlier in range(since, step):
            count += self._layout_of(earlier).subject == subject
            if count > MOST_ROUNDS_KEPT:
                break
        return count


@lru_cache(maxsize=64)
def _described(layout: VectorLayout) -> RoundVector:
    sizes = layout.total, layout.encoded_bytes(0, layout.total)
    return RoundVector(layout.fingerprint, *sizes, layout.choosing_block_elements)
