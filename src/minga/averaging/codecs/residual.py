"""The vectors of one peer's rounds, and what lossy contributions to each leave out, kept for its next round.

Keeping it is *error feedback*, done here for all codecs and sketches that need it. Everything is counted as *mass*,
values times samples, or times 1 where all peers weigh the same. A peer with the mean gradient g of n samples and the
residual e contributes u = g + e / n; what of that mass no mean takes up becomes the next e:

                                    ┌─ the round has a result ─▶ settle     e = n u - what was counted of what was sent
    Residual ─ begin ─▶ what is sent┤
                                    └─ it came to nothing ─────▶ take_back  e stays as it was

What is sent are the chunks of u as others decode them (`Encoder`), or what a sketch makes of it
(`averaging/sketches/projection.py`). Between begin and settle e is only read, so a repair sends the same bytes again.
Nothing is lost but by rounding: what all rounds applied and what all residuals hold is what all peers contributed.

The mean may leave out some of what was counted, too (`Codec.returns`). Where it is exactly 0 nothing was applied, and
each peer takes back what it sent there. All peers have the same bytes of the mean, so all agree on what that is. This
is why sums that cancel out, or that are too small for the mean's codec, lose nothing either.

Nothing is kept of tensors that travel whole: what a round did not take of the movement of a buffer is measured again
(`training/replica/buffers.py`), and would be twice in the next contribution.

With a `decay` below 1 a residual forgets that share of itself in each round, on purpose: what it holds was computed
for a model of long ago. A crash loses all of it that the peer's own checkpoint does not have, and nothing else.

A round that came to nothing here may have a result elsewhere, which a later round of the step adopts. What that counted
is what was sent in the first round, and not what was sealed since. So what was sent is kept under the round's id, until
a round of the step is committed.

Whose the movement since is depends on the strategy. One that keeps nothing forgets all that it sealed last, so the
residual takes up that, less what was counted. One that `keeps_uncounted` contributions takes what it gave to the first
round for counted, and keeps the rest. Then what the residual takes up is that first contribution, less what was counted
of it: it holds the contributions to the last `KEPT_ATTEMPTS` attempts as long as the strategy does. These are the
strategy's own vectors and not copies, so as a rule they take no more memory; where a sketch that loses nothing makes
others of them, they take as much as a residual each.

A round may count without this peer. Then the residual takes up all of its contribution, unless the peer's strategy
keeps that itself (`StrategyFacts.keeps_uncounted`): one of both has it, and never both.

Source: error feedback (Seide et al. 2014, Karimireddy et al. 2019), with the mass form for weights that change.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
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

KEPT_ATTEMPTS: Final = 2
"""Of so many attempts at a step that came to nothing a strategy that `keeps_uncounted` has its contributions yet, and
the residual has them, too. If the result of an older one counts, both take the last contribution for what counted."""

ROUNDING: Final = 2.0**-20
"""More than the sum of a vector and a residual may be off by, relatively."""


class ContributionFate(enum.Enum):
    """Whether this peer's contribution is in the mean of a round that counted."""

    COUNTED = "counted"
    """It is; also where nobody says whether each slice of it is."""
    UNCOUNTED = "uncounted"
    """The mean was made without it, as one is that adopts an earlier result in which this peer had no part. A strategy
    whose facts say `keeps_uncounted` keeps it for a later round. Another one forgets it: what keeps it then is the
    residual of the run's codec or sketch, if there is one, and never both."""
    ABSENT = "absent"
    """There was none: this peer only received."""


class KeptResidual(NamedTuple):
    """Mass that was left out, float32, and the step of the round that was committed last."""

    step: int
    mass: torch.Tensor


class TakenUp(NamedTuple):
    """What a mean took up of the elements `start` to `stop` of what was sent: `values` for `weight` samples, or nothing
    of it.
    """

    start: int
    stop: int
    weight: int
    values: torch.Tensor | None


class _UnderWay(NamedTuple):
    """A contribution whose round has no result yet."""

    vector: torch.Tensor
    weight: int
    step: int
    attempt: int


def rounds_between(since: int, step: int) -> int:
    """How many rounds there are from step `since` on, before `step`, if each step has one."""
    return step - since


class Residual:
    """The residual of one peer, for vectors of `numel` elements. Use it in one round at a time.

    `age` tells how many rounds there are for its vector from one step on until another one: where several vectors take
    turns, not each step has one. With `keeps_uncounted` the strategy keeps what a round counts without. Each round that
    counts multiplies what is left by `decay`. Of the elements behind the first `kept` nothing is kept.
    """

    def __init__(
        self,
        numel: int,
        *,
        kept: int | None = None,
        device: torch.device | str = "cpu",
        age: Callable[[int, int], int] = rounds_between,
        keeps_uncounted: bool = False,
        decay: float = 1.0,
    ) -> None:
        self.mass = torch.zeros(numel, dtype=torch.float32, device=device)
        self.step = 0
        """The step whose round was committed last."""
        self.keeps_uncounted = keeps_uncounted
        self._age, self._decay, self._kept = age, decay, kept
        self._under_way: _UnderWay | None = None
        self._sent: dict[str, Any] = {}  # what was sent in rounds of one step, by their ids
        self._given: dict[str, _UnderWay] = {}  # what it was made of, as long as the strategy keeps that, too
        self._sent_step = self._attempts = 0

    def begin(self, vector: torch.Tensor, weight: int, step: int) -> None:
        """A contribution to a round of `step`: a mean over `weight` samples, which is not to be changed before settle
        or take_back; where the strategy `keeps_uncounted`, not before a round of the step counts.

        What was left out is dropped, with a warning, if with it the contribution were too large to be sent, and without
        it not: else no round could have it, and nothing of it would ever get less.

        Raises `RuntimeError` if the one before was neither settled nor taken back.
        """
        if self._under_way is not None:
            raise RuntimeError("the last contribution is neither settled nor taken back")
        if step < self.step or self._age(self.step, step) > MOST_ROUNDS_KEPT:
            self.mass.zero_()
        room = (CONTRIBUTION_LIMIT - largest_magnitude(vector)) * weight
        if room >= 0.0 and not is_finite(self.mass, room * (1 - ROUNDING)):
            logger.warning("what earlier rounds left out is too large to be sent, and dropped")
            self.mass.zero_()
        if step != self._sent_step:
            self._sent, self._given, self._sent_step, self._attempts = {}, {}, step, 0
        self._attempts += 1
        self._under_way = _UnderWay(vector, weight, step, self._attempts)

    def seal(self, vector: torch.Tensor, weight: int, step: int, seeds: RoundSeeds = NO_SEEDS) -> Encoder:
        """The same, to be sent in chunks that are encoded with these `seeds`; see `begin`."""
        self.begin(vector, weight, step)
        return Encoder(vector, weight, self, seeds)

    def whole(self, vector: torch.Tensor, weight: int, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """Elements `start` to `stop` of the mean that a contribution stands for, what was left out before included."""
        return torch.add(vector[start:stop], self.mass[start:stop], alpha=1.0 / weight).float()

    def note_sent(self, round_id: str, sent: Any) -> None:
        """What was sent in a round of the step that may come to nothing here, and count elsewhere."""
        self._sent[round_id] = sent
        if self.keeps_uncounted and self._under_way is not None:
            self._given[round_id] = self._under_way
            oldest = self._attempts - KEPT_ATTEMPTS  # the next attempt is one more
            self._given = {name: given for name, given in self._given.items() if given.attempt > oldest}
        while len(self._sent) > MOST_ATTEMPTS_KEPT:
            del self._sent[next(iter(self._sent))]

    def sent_in(self, round_id: str) -> Any | None:
        """What was sent in a round of the step; None if that is not known."""
        return self._sent.get(round_id)

    def settle(
        self, fate: ContributionFate, taken: Iterable[TakenUp] | None = None, *, sent_in: str | None = None
    ) -> None:
        """The round has a result, which took up this of what this peer sent, from the first element to the last: keep
        the rest. It was `sent_in` the round of that id, in this attempt at the step or an earlier one. Where something
        of it was counted, and nobody can say what (`taken` is None, or this peer gave nothing now), what was left out
        is forgotten, so that nothing counts twice.
        """
        known, self._under_way = self._under_way, None
        if fate is ContributionFate.COUNTED and (known is None or taken is None):
            self.forget()
        if known is None:
            return
        if fate is ContributionFate.COUNTED:
            counted = known if sent_in is None else self._given.get(sent_in, known)
            for start, stop, weight, values in taken or ():
                mass = self.mass[start:stop]
                mass.add_(counted.vector[start:stop], alpha=counted.weight)
                if values is not None:
                    mass.sub_(values, alpha=weight)
        elif not self.keeps_uncounted:
            self.mass.add_(known.vector, alpha=known.weight)
        if self._kept is not None:
            self.mass[self._kept :].zero_()
        self.step, self._sent, self._given = known.step, {}, {}
        if self._decay != 1.0:
            self.mass.mul_(self._decay)

    def take_back(self) -> None:
        """The round came to nothing: the vector counts again elsewhere, and the residual is as it was."""
        self._under_way = None

    @property
    def open_step(self) -> int | None:
        """The step of the contribution that is neither settled nor taken back; None if there is none."""
        return None if self._under_way is None else self._under_way.step

    def kept(self, step: int) -> KeptResidual | None:
        """A copy that goes with the state of `step`; None if a round changes it, or changed it for a later state."""
        if self._under_way is not None or self.step >= max(step, 1):
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


class Residuals:
    """All residuals of one peer's codec or sketch, by what their vectors are of.

    With `keeps_uncounted` the peer's strategy keeps a contribution that a round counts without; each round that counts
    multiplies what is left by `decay`.
    """

    def __init__(self, *, keeps_uncounted: bool = False, decay: float = 1.0) -> None:
        self._keeps_uncounted, self._decay = keeps_uncounted, decay
        self._by_subject: dict[str, Residual] = {}
        self._restored: dict[str, KeptResidual] = {}  # of an earlier process, until a round asks for them

    def of(
        self,
        subject: str,
        numel: int,
        *,
        kept: int | None = None,
        device: torch.device | str = "cpu",
        age: Callable[[int, int], int] = rounds_between,
    ) -> Residual:
        """That of the vector which is called `subject`, as it was kept, if that fits; see `Residual`."""
        if subject not in self._by_subject:
            keeps, decay = self._keeps_uncounted, self._decay
            residual = Residual(numel, kept=kept, device=device, age=age, keeps_uncounted=keeps, decay=decay)
            earlier = self._restored.pop(subject, None)
            if earlier is not None and earlier.mass.numel() == numel:
                residual.restore(earlier)
            self._by_subject[subject] = residual
        return self._by_subject[subject]

    def kept(self, step: int) -> dict[str, KeptResidual] | None:
        """Copies of all residuals that hold anything, by what their vectors are of, which go with the state of `step`;
        None if a round changes one, or changed one for a later state.
        """
        kept = dict(self._restored)
        for name, residual in list(self._by_subject.items()):
            if (copy := residual.kept(step)) is None:
                return None
            kept[name] = copy
        return {name: each for name, each in kept.items() if each.mass.any()}

    def restore(self, kept: Mapping[str, KeptResidual]) -> None:
        """Go on from what `kept` returned in an earlier process; what does not fit to its vector is dropped."""
        self._by_subject, self._restored = {}, dict(kept)

    def forget(self) -> int:
        """Drop all of them: rounds may have counted what this peer gave, and nobody can say. Returns of how many
        vectors something was left out.
        """
        masses = [each.mass for each in self._by_subject.values()] + [each.mass for each in self._restored.values()]
        self._by_subject, self._restored = {}, {}
        return sum(1 for mass in masses if mass.any())

    def take_back(self) -> None:
        """The round under way, if there is one, came to nothing."""
        for residual in self._by_subject.values():
            residual.take_back()

    def begin_anew(self, *, keeps_uncounted: bool) -> int:
        """Another strategy goes on, which `keeps_uncounted` contributions or not; see `forget`."""
        self._keeps_uncounted = keeps_uncounted
        return self.forget()


# ---- A contribution that is sent in chunks by codecs.


class _SentChunk(NamedTuple):
    """What a round may have counted of one chunk, for `weight` samples: encoded bytes, values that this peer summed up
    itself, or nothing.
    """

    chunk: Chunk
    weight: int
    content: bytes | torch.Tensor | None


class Encoder:
    """One contribution: its chunks as values and as bytes. Without a `residual` these are those of the vector alone."""

    def __init__(
        self, vector: torch.Tensor, weight: int, residual: Residual | None = None, seeds: RoundSeeds = NO_SEEDS
    ) -> None:
        self.weight = weight
        self.summed: set[int] = set()
        """Where the chunks begin whose values are in the mean without having been encoded: this peer summed them up."""
        self._vector, self._residual, self._seeds = vector, residual, seeds

    def own_share(self, chunk: Chunk) -> torch.Tensor:
        """What a sum that this peer makes itself has of it; not to be changed. Raises `NonFiniteError`."""
        return self._decoded(chunk, self._encoded(chunk)) if chunk.codecs.encodes_own else self.values(chunk)

    def values(self, chunk: Chunk) -> torch.Tensor:
        """The mean that this peer stands for, what was left out before included; not to be changed."""
        if self._residual is None:
            return self._vector[chunk.start : chunk.stop]
        return self._residual.whole(self._vector, self.weight, chunk.start, chunk.stop)

    def encode(self, chunk: Chunk, buffer: memoryview) -> memoryview:
        """The bytes to upload, in `buffer` or in place; the same however often. Raises `NonFiniteError`."""
        codec, values = chunk.codecs.upload, self.values(chunk)
        if codec.is_identity:
            return as_bytes(values)
        seed, room = self._seeds.upload(chunk), buffer[: chunk.upload_bytes]
        return buffer[: codec.encode(values, room, seed=seed, limit=CONTRIBUTION_LIMIT)]

    def settle(self, counted: Iterable[tuple[Chunk, bool]], mean: torch.Tensor) -> None:
        """The round has the result `mean`, as all decode it, with these chunks counted in it or not: keep what it left
        out. Takes as long as encoding everything.
        """
        if (residual := self._residual) is None:
            return
        known = list(counted)
        if any(is_counted for _, is_counted in known):
            residual.settle(ContributionFate.COUNTED, self._taken_of(known, mean, residual))
        else:
            residual.settle(ContributionFate.UNCOUNTED)

    def settle_adopted(self, round_id: str, mean: torch.Tensor, *, counted: bool) -> None:
        """The round ended with the result `mean` of an earlier one, which `counted` what this peer sent in that, or
        not.
        """
        if (residual := self._residual) is None:
            return
        if not counted:
            residual.settle(ContributionFate.UNCOUNTED)
        elif (sent := residual.sent_in(round_id)) is None:
            residual.settle(ContributionFate.COUNTED)
        else:
            taken = (_taken(each.chunk, each.weight, self._values_of(each), mean) for each in sent)
            residual.settle(ContributionFate.COUNTED, taken, sent_in=round_id)

    def set_aside(self, round_id: str, counted: Iterable[tuple[Chunk, bool]]) -> None:
        """The round came to nothing here, and another member may have its result: keep what was sent to it.

        Takes as long as encoding everything. What cannot be encoded was not sent.
        """
        if self._residual is None:
            return
        sent = []
        for chunk, is_counted in counted:
            content: bytes | torch.Tensor | None = None
            if is_counted and chunk.start in self.summed:
                content = self.values(chunk).clone()
            elif is_counted:
                try:
                    content = bytes(self._encoded(chunk))
                except NonFiniteError:
                    return
            sent.append(_SentChunk(chunk, self.weight, content))
        self._residual.note_sent(round_id, sent)

    def take_back(self) -> None:
        """The round came to nothing; see `Residual.take_back`."""
        if self._residual is not None:
            self._residual.take_back()

    def _taken_of(
        self, counted: Iterable[tuple[Chunk, bool]], mean: torch.Tensor, residual: Residual
    ) -> Iterator[TakenUp]:
        for chunk, is_counted in counted:
            weight, values = self.weight, None
            if is_counted and chunk.start in self.summed:  # nothing is left, not even what rounding would leave
                part = slice(chunk.start, chunk.stop)
                weight, values = 1, torch.add(residual.mass[part], self._vector[part], alpha=self.weight)
            elif is_counted:
                values = self._decoded(chunk, self._encoded(chunk))
            yield _taken(chunk, weight, values, mean)

    def _encoded(self, chunk: Chunk) -> memoryview:
        room = torch.empty(chunk.upload_bytes, dtype=torch.uint8, device=self._vector.device)
        return self.encode(chunk, as_bytes(room))

    def _values_of(self, sent: _SentChunk) -> torch.Tensor | None:
        content = sent.content
        return self._decoded(sent.chunk, memoryview(content)) if isinstance(content, bytes) else content

    def _decoded(self, chunk: Chunk, encoded: memoryview) -> torch.Tensor:
        """What others decode."""
        decoded = torch.empty_like(self._vector[chunk.start : chunk.stop])
        chunk.codecs.upload.decode(encoded, decoded)
        return decoded


def _taken(chunk: Chunk, weight: int, values: torch.Tensor | None, mean: torch.Tensor) -> TakenUp:
    """What the mean of a whole vector took up of what was sent of a chunk."""
    if values is not None and chunk.codecs.download.returns:
        values = values.masked_fill(mean[chunk.start : chunk.stop] == 0.0, 0.0)
    return TakenUp(chunk.start, chunk.stop, weight, values)


# ---- Which vector each round of a run averages, and one peer's memory for the means and the residuals of these.
#
# A run averages one vector in all rounds, or several in turn: fragments of the model, or the factors of a matrix.
# Which one it is follows from the round's number alone, so that all peers agree on it without a word. Each round has
# one layout, and with it a plan and a commit of its own; what uploads of a vector left out is made up for in the next
# round of that vector.


LayoutOf = Callable[[int], VectorLayout]
"""From the number of a round to the layout of its vector: the same on all peers, and quick. Few of them differ."""


class RoundVectors:
    """The vectors of one peer's rounds. `new` makes a zeroed vector of so many elements, where they are averaged.

    Each residual keeps the share `decay` of itself from one round to the next. With `keeps_uncounted` the peer's
    strategy keeps a contribution that a round counts without; see `Residual`.
    """

    def __init__(
        self,
        layout_of: LayoutOf,
        new: Callable[[int], torch.Tensor],
        *,
        keeps_uncounted: bool = False,
        decay: float = 1.0,
    ) -> None:
        self.layout_of = layout_of
        """From the number of a round to the layout of its vector; see `LayoutOf`."""
        self.left_out = Residuals(keeps_uncounted=keeps_uncounted, decay=decay)
        """What codecs left out of the uploads so far."""
        self._new = new
        self._results: dict[int, torch.Tensor] = {}

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
        name, device = layout.fingerprint, self.result(step).device
        age = partial(self._rounds_of, name)
        return self.left_out.of(name, layout.total, kept=layout.head_total, device=device, age=age)

    def _rounds_of(self, vector: str, since: int, step: int) -> int:
        """How many rounds from `since` on, before `step`, are of the vector with this fingerprint, counted no further
        than matters.
        """
        count = 0
        for earlier in range(since, step):
            count += self.layout_of(earlier).fingerprint == vector
            if count > MOST_ROUNDS_KEPT:
                break
        return count


@lru_cache(maxsize=64)
def _described(layout: VectorLayout) -> RoundVector:
    sizes = layout.total, layout.encoded_bytes(0, layout.total)
    return RoundVector(layout.fingerprint, *sizes, layout.choosing_block_elements)
