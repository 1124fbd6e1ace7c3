"""One peer's sketch at work: what its rounds average, and what of its contributions the sketch has left out so far.

What is left out is kept by the error feedback of `averaging/codecs/residual.py`: of the vector, and not of the values:

    vector g of weight n, residual e ──▶ u = g + e / n ──▶ project ──▶ the round ──▶ e = n (u - expand(project(u)))

The residual changes when the mean of the round is absorbed, not before: a round that came to nothing leaves it as it
was. It takes as much memory as the vector does.

Values are rounded as the codec of the round rounds them, in the chunks of that round, before anything else is done with
them. So the residual also takes up what the codec rounds away: encoded again, they are the same. A codec that draws
rounds once, by the seeds of the round (`averaging/codecs/seeds.py`): its errors have no bias and differ by peer, so
they need no residual.

Of a vector whose last tensors travel whole (`VectorLayout.whole`) the sketch has the head alone; they follow its values
as they are, and no residual has anything of them.

Where the sketch loses nothing, nothing is kept here. Then a codec may leave something out, and keeps that itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import Cut, VectorLayout
from minga.averaging.codecs.residual import ContributionFate, Residual, Residuals, TakenUp
from minga.averaging.sketches.interface import Sketch

logger = logging.getLogger("minga.averaging")


class Projection:
    """The vectors that one peer's rounds average, by its sketch of the head of vectors of the layout `whole`. What that
    leaves out is in `residuals`.
    """

    def __init__(
        self, sketch: Sketch, residuals: Residuals | None = None, *, whole: VectorLayout | None = None
    ) -> None:
        self.sketch, self._residuals = sketch, Residuals() if residuals is None else residuals
        self._whole = sketch.whole if whole is None else whole
        self._layouts: dict[VectorLayout, VectorLayout] = {}

    @property
    def residual(self) -> Residual:
        """What was left out so far."""
        return self._residuals.of(self.sketch.whole.fingerprint, self.sketch.whole.total)

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of what the round of `step` averages. Any thread may ask."""
        if self.sketch.is_identity:
            return self._whole
        values = self.sketch.layout(step)
        if not (whole := self._whole.whole):
            return values
        if values not in self._layouts:
            self._layouts[values] = replace(
                values, tensors=(*values.tensors, *self._whole.tensors[-whole:]), whole=whole
            )
        return self._layouts[values]

    def contribution(
        self, vector: torch.Tensor | None, weight: int, step: int, round_id: str, cut: Cut | None = None
    ) -> torch.Tensor | None:
        """What this peer gives to a round of `step`, for its mean `vector`, which counts `weight`; None for none.

        `vector` is not to be changed before `absorb`, if the round counts, or if an earlier one may (`Residual.begin`).
        Without a `cut` a segment is one chunk. A contribution that cannot be sent is left out of the step, with a
        warning. The residual is dropped then, unless `vector` alone could not be sent either.
        """
        if self.sketch.is_identity:
            return vector
        residual = self.residual if self.sketch.needs_residual else None
        if residual is not None:
            residual.take_back()  # what it gave to a round that came to nothing
        if vector is None:
            return None
        head, rest = vector[: self.sketch.whole.total], vector[self.sketch.whole.total :]
        whole = head
        if residual is not None:
            residual.begin(head, weight, step)
            whole = residual.whole(head, weight)
        values = self.sketch.project(whole, step)
        sent = self._as_sent(torch.cat([values, rest]) if rest.numel() else values, step, cut)
        if sent is None:
            logger.warning("left out of step: the sketch of what this peer has for step %d is not finite", step)
        if residual is not None and sent is None:
            residual.take_back()
            if is_finite(vector, CONTRIBUTION_LIMIT):
                residual.forget()
        elif residual is not None and sent is not None:
            residual.note_sent(round_id, (weight, sent[: values.numel()].clone()))
        return sent

    def absorb(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The vector that the mean of the round of `step` stands for. For each round that counts, in its order.

        `counted_in` is the id of the round in which this peer gave what the mean has of it, None if it has nothing: of
        this round, or of an earlier one of the step whose result this one adopted.
        """
        if self.sketch.is_identity:
            return mean
        mean, rest = mean[: self.sketch.layout(step).total], mean[self.sketch.layout(step).total :]
        vector = self.sketch.expand(mean, step)
        if self.sketch.needs_residual:
            if self.residual.open_step != step:
                self.residual.take_back()  # of a round that came to nothing; this state came by a download
            if counted_in is None:
                self.residual.settle(ContributionFate.UNCOUNTED)
            else:
                self.residual.settle(ContributionFate.COUNTED, self._taken_in(counted_in, step), sent_in=counted_in)
        self.sketch.absorb(mean, step)
        return torch.cat([vector, rest]) if rest.numel() else vector

    def _as_sent(self, values: torch.Tensor, step: int, cut: Cut | None) -> torch.Tensor | None:
        """`values` as others will decode them; None if they cannot be sent."""
        if not is_finite(values, CONTRIBUTION_LIMIT):
            return None
        if not self.sketch.needs_residual:
            return values
        for chunk in self.layout_of(step).segments if cut is None else cut():
            codec, piece = chunk.codecs.upload, values[chunk.start : chunk.stop]
            if not (codec.is_identity or codec.draws):
                room = torch.empty(codec.max_encoded_bytes(piece.numel()), dtype=torch.uint8, device="cpu")
                codec.decode(room[: codec.encode(piece, room)], piece)
        return values

    def _taken_in(self, round_id: str, step: int) -> list[TakenUp] | None:
        """What the mean of a round took up of what this peer sent to it; None if that is not known."""
        if (sent := self.residual.sent_in(round_id)) is None:
            return None
        weight, values = sent
        return [TakenUp(0, self.sketch.whole.total, weight, self.sketch.expand(values, step))]


# ---- The projections of one peer's rounds: one for a vector that all rounds average, or one for each of several in
# turn.
#
# A strategy may divide the vector into fragments, of which each round averages the next. Each fragment has a
# projection of its own: with F fragments, the round of step r is number r // F of fragment r mod F. By this number a
# sketch chooses what it averages and residuals age, so that both sides of a matrix come to turn in each fragment,
# whatever F is. The sketch of a fragment is that of the whole vector, restricted to some of its tensors
# (`Sketch.part_of`): what basis it has is part of the basis of the whole, which is one in the state of the run.


class RoundProjections:
    """What the rounds of one peer average, by its `sketch` of the head of the `whole` vector; see `Projection`."""

    def __init__(self, sketch: Sketch, *, whole: VectorLayout | None = None, decay: float = 1.0) -> None:
        self.sketch, self._whole = sketch, sketch.whole if whole is None else whole
        self.left_out = Residuals(decay=decay)
        """What the sketch left out so far, by the fingerprints of the vectors of which it was left out."""
        self._in_turn = [Projection(sketch, self.left_out, whole=self._whole)]

    def begin_anew(self, *, keeps_uncounted: bool) -> None:
        """Rounds average the whole vector, for a strategy that `keeps_uncounted` contributions or not; nothing is left
        out yet.
        """
        self.left_out.begin_anew(keeps_uncounted=keeps_uncounted)
        self._in_turn = [Projection(self.sketch, self.left_out, whole=self._whole)]

    def divide(self, fragments: Sequence[VectorLayout], tensors: Sequence[Sequence[int]]) -> None:
        """From now on rounds average vectors of these layouts in turn, in the place of the whole one.

        Each has some tensors of the whole, `tensors` says which by their places there. Raises `ValueError` where
        shapes do not fit, `ConfigurationError` for a sketch that cannot be used so.
        """
        in_turn = []
        for fragment, places in zip(fragments, tensors, strict=True):
            if fragment.shapes != tuple(self._whole.shapes[place] for place in places):
                raise ValueError("a fragment does not consist of the tensors that it is said to have")
            part = self.sketch.part_of(fragment.head, places[: len(places) - fragment.whole])
            in_turn.append(Projection(part, self.left_out, whole=fragment))
        self._in_turn = in_turn

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of what the round of `step` averages. Any thread may ask."""
        projection, number = self._at(step)
        return projection.layout_of(number)

    def contribution(
        self, vector: torch.Tensor | None, weight: int, step: int, round_id: str, cut: Cut | None = None
    ) -> torch.Tensor | None:
        """What this peer gives to a round of `step`; see `Projection.contribution`."""
        projection, number = self._at(step)
        return projection.contribution(vector, weight, number, round_id, cut)

    def absorb(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The vector that the mean of the round of `step` stands for; see `Projection.absorb`."""
        projection, number = self._at(step)
        return projection.absorb(mean, number, counted_in=counted_in)

    @property
    def masses(self) -> torch.Tensor:
        """The mass that was left out so far, of one vector after the other."""
        return torch.cat([projection.residual.mass for projection in self._in_turn])

    def _at(self, step: int) -> tuple[Projection, int]:
        """The projection of the round of `step`, and which of its rounds that is."""
        count = len(self._in_turn)
        return self._in_turn[step % count], step // count
