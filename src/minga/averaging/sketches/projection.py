"""One peer's sketch at work: what its rounds average, and what of its contributions the sketch has left out so far.

What is left out is counted as mass, values times what they count in the round, as in `averaging/codecs/residual.py`.
That is their samples as a rule, and 1 where all peers weigh the same (`StrategyFacts.weights`):

    vector g of weight n, residual e ──▶ u = g + e / n ──▶ project ──▶ the round ──▶ e = n (u - expand(project(u)))

A round may count without this peer's contribution: then e = n u, unless the peer's strategy keeps that itself. A round
may adopt the result of an earlier one: then the values of that round are subtracted, not those of this one. The
residual changes when the mean of the round is absorbed, not before: a round that came to nothing leaves it as it was.
It takes as much memory as the vector does, and as much again while a round runs.

Values are rounded as the codec of the round rounds them, before anything else is done with them. So the residual also
takes up what the codec rounds away: encoded again, they are the same. A codec that draws rounds once, by the seeds of
the round (`averaging/codecs/seeds.py`): its errors have no bias and differ by peer, so they need no residual.

Where the sketch loses nothing, nothing is kept here. Then a codec may leave something out, and keeps that itself.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import MOST_ROUNDS_KEPT, KeptResidual, forget_oldest
from minga.averaging.sketches.interface import Sketch

logger = logging.getLogger("minga.averaging")


class _SealedValues(NamedTuple):
    """A contribution under way."""

    step: int
    weight: int
    whole: torch.Tensor
    values: torch.Tensor


class Projection:
    """The vectors that one peer's rounds average, by its sketch.

    With `keeps_uncounted` the strategy keeps a contribution that a round counts without. Each round that counts
    multiplies what is left out after it by `decay`.
    """

    def __init__(self, sketch: Sketch, *, keeps_uncounted: bool = False, decay: float = 1.0) -> None:
        self.sketch, self._keeps_uncounted, self._decay = sketch, keeps_uncounted, decay
        self._mass: torch.Tensor | None = None
        self._step = 0  # of the round that the mass was last brought up to date in
        self._sealed: _SealedValues | None = None
        self._given: dict[str, tuple[int, torch.Tensor]] = {}  # weights and values of one step's rounds, by their ids
        self._given_step = 0

    @property
    def left_out(self) -> torch.Tensor:
        """The mass that was left out so far."""
        return torch.zeros(self.sketch.whole.total) if self._mass is None else self._mass.clone()

    def kept(self) -> KeptResidual | None:
        """A copy of what was left out so far, as it goes with the present state; None if that is nothing."""
        return None if self._mass is None else KeptResidual(self._step, self._mass.clone())

    def restore(self, kept: KeptResidual) -> None:
        """Go on from what `kept` returned before, of a vector of this length."""
        self._mass, self._step = kept.mass.clone(), kept.step

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of what the round of `step` averages. Any thread may ask."""
        return self.sketch.layout(step)

    def forget(self) -> None:
        """A round may have counted what this peer gave, and nobody can say: drop what was left out and is sealed."""
        self._mass, self._sealed = None, None

    def contribution(self, vector: torch.Tensor | None, weight: int, step: int, round_id: str) -> torch.Tensor | None:
        """What this peer gives to a round of `step`, for its mean `vector`, which counts `weight`; None for none.

        `vector` is not to be changed before `absorb`, if the round counts.
        A contribution that cannot be sent is left out of the step, with a warning, and so is the residual then.
        """
        if self.sketch.is_identity:
            return vector
        self._sealed = None
        if step != self._given_step:
            self._given, self._given_step = {}, step
        if vector is None:
            return None
        if self._mass is not None and not 0 <= step - self._step <= MOST_ROUNDS_KEPT:
            self._mass = None
        whole = vector if self._mass is None else torch.add(vector, self._mass, alpha=1.0 / weight)
        values = self._as_sent(self.sketch.project(whole, step), step)
        if values is None:
            logger.warning("left out of step: the sketch of what this peer has for step %d is not finite", step)
            self._mass = None
            return None
        if not self.sketch.needs_residual:
            return values
        self._sealed = _SealedValues(step, weight, whole, values)
        self._given[round_id] = weight, values.clone()
        forget_oldest(self._given)
        return values

    def absorb(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The vector that the mean of the round of `step` stands for. For each round that counts, in its order.

        `counted_in` is the id of the round in which this peer gave what the mean has of it, None if it has nothing: of
        this round, or of an earlier one of the step whose result this one adopted.
        """
        if self.sketch.is_identity:
            return mean
        vector = self.sketch.expand(mean, step)
        if self.sketch.needs_residual:
            self._settle(step, counted_in)
        self.sketch.absorb(mean, step)
        return vector

    def _as_sent(self, values: torch.Tensor, step: int) -> torch.Tensor | None:
        """`values` as others will decode them; None if they cannot be sent."""
        if not is_finite(values, CONTRIBUTION_LIMIT):
            return None
        for segment in self.sketch.layout(step).segments if self.sketch.needs_residual else ():
            codec, piece = segment.codecs.upload, values[segment.start : segment.stop]
            if not (codec.is_identity or codec.draws):
                room = torch.empty(codec.max_encoded_bytes(piece.numel()), dtype=torch.uint8, device="cpu")
                codec.decode(room[: codec.encode(piece, room)], piece)
        return values

    def _settle(self, step: int, counted_in: str | None) -> None:
        sealed, given = self._sealed, self._given.get(counted_in or "")
        self._sealed, self._given = None, {}
        if counted_in is not None and (given is None or sealed is None):
            self._mass = None  # nobody can say what of it the mean has
        elif sealed is not None and sealed.step == step and not (counted_in is None and self._keeps_uncounted):
            self._mass, self._step = sealed.whole * sealed.weight, step
            if given is not None:
                weight, values = given
                self._mass.sub_(self.sketch.expand(values, step), alpha=weight)
            if self._decay != 1.0:
                self._mass.mul_(self._decay)


# ---- The projections of one peer's rounds: one for a vector that all rounds average, or one for each of several in
# turn.
#
# A strategy may divide the vector into fragments, of which each round averages the next. Each fragment has a
# projection of its own: with F fragments, the round of step r is number r // F of fragment r mod F. By this number a
# sketch chooses what it averages and residuals age, so that both sides of a matrix come to turn in each fragment,
# whatever F is. The sketch of a fragment is that of the whole vector, restricted to some of its tensors
# (`Sketch.part_of`): what basis it has is part of the basis of the whole, which is one in the state of the run.


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
