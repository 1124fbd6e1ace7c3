"""The vectors of one peer's rounds, and what lossy uploads of each leave out, kept for its next round.

Keeping it is *error feedback*, done here for all codecs that need it. Everything is counted as *mass*, values times
samples, or times 1 where all peers weigh the same. A peer with the mean gradient g of n samples and the residual e
contributes (n g + e) / n; what of that mass no mean takes up becomes the next e:

                                    ┌─ the round has a result ─▶ commit     e = n g + e - what was counted of it
    Residual ─ seal ─▶ Encoder ─────┤
                                    └─ it came to nothing ─────▶ take_back  e stays as it was

Between seal and commit e is only read, so a repair sends the same bytes again. Nothing is lost but by rounding:
what all rounds applied and what all residuals hold is what all peers contributed.

The mean may leave out some of what was counted, too (`Codec.returns`). Where it is exactly 0 nothing was applied, and
each peer takes back what it sent there. All peers have the same bytes of the mean, so all agree on what that is. This
is why sums that cancel out, or that are too small for the mean's codec, lose nothing either.

With a `decay` below 1 a residual forgets that share of itself in each round, on purpose: what it holds was computed
for a model of long ago. A crash loses all of it that the peer's own checkpoint does not have, and nothing else.

A round that came to nothing here may have a result elsewhere, which a later round of the step adopts. What that counted
is what was sent in the first round, and not what was sealed since. So the bytes that were sent are set aside with the
round's id, until a round of the step is committed.

A round may count without this peer. Then the residual takes up all of its contribution, unless the peer's strategy
keeps that itself (`StrategyFacts.keeps_uncounted`): one of both has it, and never both.

Source: error feedback (Seide et al. 2014, Karimireddy et al. 2019), with the mass form for weights that change.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NamedTuple

import torch

from minga.averaging.codecs.interface import CONTRIBUTION_LIMIT, is_finite, largest_magnitude
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.group import RoundVector
from minga.core.errors import NonFiniteError

logger = logging.getLogger("minga.averaging")

MOST_ROUNDS_KEPT: Final = 10
"""A residual that was last committed longer ago than so many rounds is forgotten: the model is elsewhere by now."""

NO_SEEDS: Final = RoundSeeds()
"""For contributions of no round: all peers draw the same."""

MOST_ATTEMPTS_KEPT: Final = 16
"""Of so many rounds of a step that came to nothing a peer knows what it sent."""


ROUNDING: Final = 2.0**-20
"""More than the sum of a vector and a residual may be off by, relatively."""


class Fate(enum.Enum):
    """What became of one chunk of a contribution."""

    COUNTED = "counted"
    """Its encoded values are in the mean; also where nobody says whether they are."""
    WHOLE = "whole"
    """Its values are in the mean without having been encoded: this peer summed them up itself."""
    UNCOUNTED = "uncounted"
    """The mean was made without it."""


class KeptResidual(NamedTuple):
    """Mass that was left out, float32, and the step of the round that was committed last."""

    step: int
    mass: torch.Tensor


class _Sent(NamedTuple):
    """What a round may have counted of one chunk, for `weight` samples: encoded bytes, or values that this peer summed
    up itself.
    """

    chunk: Chunk
    weight: int
    content: bytes | torch.Tensor


def forget_oldest(by_round: dict[str, Any]) -> None:
    """Keep what is kept for the last `MOST_ATTEMPTS_KEPT` rounds."""
    while len(by_round) > MOST_ATTEMPTS_KEPT:
        del by_round[next(iter(by_round))]


def rounds_between(since: int, step: int) -> int:
    """How many rounds there are from step `since` on, before `step`, if each step has one."""
    return step - since


class Residual:
    """The residual of one peer, for vectors of `numel` elements. Use it in one round at a time.

    `age` tells how many rounds there are for its vector from one step on until another one: where several vectors take
    turns, not each step has one. With `keeps_uncounted` the strategy keeps what a round counts without. Each commit
    multiplies what is left by `decay`.
    """

    def __init__(
        self,
        numel: int,
        *,
        device: torch.device | str = "cpu",
        age: Callable[[int, int], int] = rounds_between,
        keeps_uncounted: bool = False,
        decay: float = 1.0,
    ) -> None:
        self.mass = torch.zeros(numel, dtype=torch.float32, device=device)
        self.step = 0
        """The step whose round was committed last."""
        self.keeps_uncounted = keeps_uncounted
        self._age, self._decay = age, decay
        self._sealed: int | None = None  # the step of the contribution that is neither committed nor taken back
        self._aside: dict[str, list[_Sent]] = {}  # what was sent in rounds that came to nothing, by their ids
        self._aside_step = 0

    def seal(self, vector: torch.Tensor, weight: int, step: int, seeds: RoundSeeds = NO_SEEDS) -> Encoder:
        """The contribution of `step`: a mean over `weight` samples, neither to be changed before commit or take_back.

        Its chunks are encoded with these `seeds`. What was left out is dropped, with a warning, if with it the
        contribution were too large to be sent: else no round could have it, and nothing of it would ever get less.

        Raises `RuntimeError` if the one before was neither committed nor taken back.
        """
        if self._sealed is not None:
            raise RuntimeError("the last contribution is neither committed nor taken back")
        if step < self.step or self._age(self.step, step) > MOST_ROUNDS_KEPT:
            self.mass.zero_()
        room = (CONTRIBUTION_LIMIT - largest_magnitude(vector)) * weight
        if not is_finite(self.mass, room * (1 - ROUNDING)):
            logger.warning("what earlier rounds left out is too large to be sent, and dropped")
            self.mass.zero_()
        if step != self._aside_step:
            self._aside, self._aside_step = {}, step
        self._sealed = step
        return Encoder(vector, weight, self, seeds)

    def set_aside(self, round_id: str, sent: list[_Sent]) -> None:
        """Keep what was sent in a round that came to nothing here."""
        self._aside[round_id] = sent
        forget_oldest(self._aside)

    def sent_in(self, round_id: str) -> list[_Sent] | None:
        """What was sent in an earlier round of the step; None if that is not known."""
        return self._aside.get(round_id)

    def kept(self, step: int) -> KeptResidual | None:
        """A copy that goes with the state of `step`; None if a round changes it, or changed it for a later state."""
        if self._sealed is not None or self.step >= max(step, 1):
            return None
        return KeptResidual(self.step, self.mass.clone())

    def restore(self, kept: KeptResidual) -> None:
        """Go on from what `kept` returned before. Raises `ValueError` if it is of another length."""
        if kept.mass.shape != self.mass.shape:
            raise ValueError(f"a residual of {kept.mass.numel()} elements is none of {self.mass.numel()}")
        self.mass.copy_(kept.mass)
        self.step = kept.step

    def forget(self) -> None:
        """A round may have counted some of it, and nobody can say how much: so that nothing counts twice."""
        self.mass.zero_()

    def close(self, *, committed: bool) -> None:
        """The contribution was committed or taken back."""
        if committed and self._sealed is not None:
            self.step = self._sealed
            self._aside = {}
            if self._decay != 1.0:
                self.mass.mul_(self._decay)
        self._sealed = None


class Encoder:
    """One contribution: its chunks as values and as bytes. Without a `residual` these are those of the vector alone."""

    def __init__(
        self, vector: torch.Tensor, weight: int, residual: Residual | None = None, seeds: RoundSeeds = NO_SEEDS
    ) -> None:
        self.weight = weight
        self._vector, self._residual, self._seeds = vector, residual, seeds

    def own_share(self, chunk: Chunk) -> torch.Tensor:
        """What a sum that this peer makes itself has of it; not to be changed. Raises `NonFiniteError`."""
        return self._sent(chunk) if chunk.codecs.encodes_own else self.values(chunk)

    def values(self, chunk: Chunk) -> torch.Tensor:
        """The mean that this peer stands for, what was left out before included; not to be changed."""
        mean = self._vector[chunk.start : chunk.stop]
        if self._residual is None:
            return mean
        return torch.add(mean, self._residual.mass[chunk.start : chunk.stop], alpha=1.0 / self.weight).float()

    def encode(self, chunk: Chunk, buffer: memoryview) -> memoryview:
        """The bytes to upload, in `buffer` or in place; the same however often. Raises `NonFiniteError`."""
        codec, values = chunk.codecs.upload, self.values(chunk)
        if codec.is_identity:
            return as_bytes(values)
        seed, room = self._seeds.upload(chunk), buffer[: chunk.upload_bytes]
        return buffer[: codec.encode(values, room, seed=seed, limit=CONTRIBUTION_LIMIT)]

    def commit(self, fates: Iterable[tuple[Chunk, Fate]], mean: torch.Tensor) -> None:
        """The round has the result `mean`, as all decode it: keep what of each chunk it left out.

        Takes as long as encoding everything.
        """
        if self._residual is None:
            return
        known = list(fates)
        if all(fate is Fate.UNCOUNTED for _, fate in known):
            self._keep_uncounted(self._residual)
            known = []
        for chunk, fate in known:
            mass = self._residual.mass[chunk.start : chunk.stop]
            sent = self._sent(chunk) if fate is Fate.COUNTED else None
            mass.add_(self._vector[chunk.start : chunk.stop], alpha=self.weight)
            if fate is Fate.WHOLE:
                mass.sub_(_taken(mass, chunk, mean))
            elif sent is not None:
                mass.sub_(_taken(sent, chunk, mean), alpha=self.weight)
        self._residual.close(committed=True)

    def commit_adopted(self, round_id: str, mean: torch.Tensor, *, counted: bool) -> None:
        """The round ended with the result `mean` of an earlier one, which `counted` what this peer sent in that, or
        not.
        """
        residual = self._residual
        if residual is None:
            return
        sent = residual.sent_in(round_id)
        if not counted:
            self._keep_uncounted(residual)
        elif sent is None:
            residual.forget()
        else:
            residual.mass.add_(self._vector, alpha=self.weight)
            for each in sent:
                taken = _taken(self._values_of(each), each.chunk, mean)
                residual.mass[each.chunk.start : each.chunk.stop].sub_(taken, alpha=each.weight)
        residual.close(committed=True)

    def set_aside(self, round_id: str, fates: Iterable[tuple[Chunk, Fate]]) -> None:
        """The round came to nothing here, and another member may have its result: keep what was sent to it.

        Takes as long as encoding everything. What cannot be encoded was not sent.
        """
        if self._residual is None:
            return
        sent = []
        for chunk, fate in fates:
            if fate is Fate.WHOLE:
                sent.append(_Sent(chunk, self.weight, self.values(chunk).clone()))
            elif fate is Fate.COUNTED:
                try:
                    sent.append(_Sent(chunk, self.weight, bytes(self._encoded(chunk))))
                except NonFiniteError:
                    return
        self._residual.set_aside(round_id, sent)

    def take_back(self) -> None:
        """The round came to nothing: the vector counts again elsewhere, and the residual is as it was."""
        if self._residual is not None:
            self._residual.close(committed=False)

    def _keep_uncounted(self, residual: Residual) -> None:
        """The mean has nothing of this contribution."""
        if not residual.keeps_uncounted:
            residual.mass.add_(self._vector, alpha=self.weight)

    def _encoded(self, chunk: Chunk) -> memoryview:
        room = torch.empty(chunk.upload_bytes, dtype=torch.uint8, device=self._vector.device)
        return self.encode(chunk, as_bytes(room))

    def _sent(self, chunk: Chunk) -> torch.Tensor:
        """What others decode."""
        return self._decoded(chunk, self._encoded(chunk))

    def _values_of(self, sent: _Sent) -> torch.Tensor:
        content = sent.content
        return content if isinstance(content, torch.Tensor) else self._decoded(sent.chunk, memoryview(content))

    def _decoded(self, chunk: Chunk, encoded: memoryview) -> torch.Tensor:
        decoded = torch.empty_like(self._vector[chunk.start : chunk.stop])
        chunk.codecs.upload.decode(encoded, decoded)
        return decoded


def _taken(sent: torch.Tensor, chunk: Chunk, mean: torch.Tensor) -> torch.Tensor:
    """What the mean of a whole vector took up of what was sent of a chunk."""
    if not chunk.codecs.download.returns:
        return sent
    return sent.masked_fill(mean[chunk.start : chunk.stop] == 0.0, 0.0)


# ---- Which vector each round of a run averages, and one peer's memory for the means and the residuals of these.
#
# A run averages one vector in all rounds, or several in turn: fragments of the model, or the factors of a matrix.
# Which one it is follows from the round's number alone, so that all peers agree on it without a word. Each round has
# one layout, and with it a plan and a commit of its own; what uploads of a vector left out is made up for in the next
# round of that vector, even if it travels by another codec then.
#
# So it is in a *warm-up*: in a run's first rounds a codec that leaves out most sends more, since gradients are large
# and change fast then. How much follows from the round's number, too. Each kind of round has a layout of its own, so
# bytes are as bounded as in any round.


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

    With `keeps_uncounted` the peer's strategy keeps a contribution that a round counts without; see `Residual`.
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
