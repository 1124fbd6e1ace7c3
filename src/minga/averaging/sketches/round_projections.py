"""The projections of one peer's rounds: one for a vector that all rounds average, or one for each of several in turn.

A strategy may divide the vector into fragments, of which each round averages the next. Each fragment has a projection
of its own: with F fragments, the round of step r is number r // F of fragment r mod F. By this number a sketch chooses
what it averages and residuals age, so that both sides of a matrix come to turn in each fragment, whatever F is. The
sketch of a fragment is that of the whole vector, restricted to some of its tensors (`Sketch.part_of`): what basis it
has is part of the basis of the whole, which is one in the state of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import KeptResidual
from minga.averaging.sketches.interface import Sketch
from minga.averaging.sketches.projection import Projection


class RoundProjections:
    """What the rounds of one peer average, by its `sketch` of the whole vector; see `Projection`."""

    def __init__(self, sketch: Sketch, *, keeps_uncounted: bool = False, decay: float = 1.0) -> None:
        self.sketch, self._decay = sketch, decay
        self.begin_anew(keeps_uncounted=keeps_uncounted)

    def begin_anew(self, *, keeps_uncounted: bool) -> None:
        """Rounds average the whole vector, for a strategy that `keeps_uncounted` contributions or not; nothing is left
        out yet.
        """
        self._new = partial(Projection, keeps_uncounted=keeps_uncounted, decay=self._decay)
        self._in_turn = [self._new(self.sketch)]
        self._restored: dict[str, KeptResidual] = {}  # of an earlier process, until there is the fragment

    def divide(self, fragments: Sequence[VectorLayout], tensors: Sequence[Sequence[int]]) -> None:
        """From now on rounds average vectors of these layouts in turn, in the place of the whole one.

        Each has some tensors of the whole, `tensors` says which by their places there. Raises `ValueError` where
        shapes do not fit, `ConfigurationError` for a sketch that cannot be used so.
        """
        in_turn = []
        for fragment, places in zip(fragments, tensors, strict=True):
            if fragment.shapes != tuple(self.sketch.whole.shapes[place] for place in places):
                raise ValueError("a fragment does not consist of the tensors that it is said to have")
            in_turn.append(self._new(self.sketch.part_of(fragment, places)))
        self._in_turn = in_turn
        self.restore(self._restored)

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of what the round of `step` averages. Any thread may ask."""
        projection, number = self._at(step)
        return projection.layout_of(number)

    def contribution(self, vector: torch.Tensor | None, weight: int, step: int, round_id: str) -> torch.Tensor | None:
        """What this peer gives to a round of `step`; see `Projection.contribution`."""
        projection, number = self._at(step)
        return projection.contribution(vector, weight, number, round_id)

    def absorb(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The vector that the mean of the round of `step` stands for; see `Projection.absorb`."""
        projection, number = self._at(step)
        return projection.absorb(mean, number, counted_in=counted_in)

    @property
    def left_out(self) -> torch.Tensor:
        """The mass that was left out so far, of one vector after the other."""
        return torch.cat([projection.left_out for projection in self._in_turn])

    def kept(self) -> dict[str, KeptResidual]:
        """Copies of what was left out so far, by the fingerprints of the vectors of which it was left out."""
        found = ((projection.sketch.whole.fingerprint, projection.kept()) for projection in self._in_turn)
        return {name: kept for name, kept in found if kept is not None}

    def restore(self, kept: Mapping[str, KeptResidual]) -> None:
        """Go on from what `kept` returned, in an earlier process too; what does not fit to its vector is dropped."""
        self._restored = dict(kept)
        for projection in self._in_turn:
            known = kept.get(projection.sketch.whole.fingerprint)
            if known is not None and known.mass.numel() == projection.sketch.whole.total:
                projection.restore(known)

    def forget(self) -> None:
        """Rounds may have counted what this peer gave, and nobody can say: drop all that was left out and is sealed."""
        self._restored = {}
        for projection in self._in_turn:
            projection.forget()

    def _at(self, step: int) -> tuple[Projection, int]:
        """The projection of the round of `step`, and which of its rounds that is."""
        count = len(self._in_turn)
        return self._in_turn[step % count], step // count
