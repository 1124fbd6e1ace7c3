"""The strategy "local": each peer steps alone, and rounds average how far peers moved (local SGD, DiLoCo, Streaming).

    shared   Θ (anchor), V (momentum), round          own   θ (the model), moments of its optimizer, samples

    micro_batch ─▶ θ steps ─▶ contribution Δ = Θ - θ ─▶ a round ─▶ outer: V ← μV + mean, Θ ← Θ - η(mean + μV)
                     ▲                                               │
                     └────────────── merge: θ ← Θ + what moved since ┘

A round carries the whole model or one fragment of it. With "eager" a peer does not wait for the mean: it goes on from a
guess. Each section below has one piece of the strategy, and the last one puts the pieces together.

Called by bridge/gradient_port, as every strategy is. The module knows a replica, and no peers.

Sources: DiLoCo (arXiv:2311.08105), Streaming DiLoCo (arXiv:2501.18512), Eager (arXiv:2502.12996), local SGD
(arXiv:1805.09767).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal, cast

import torch
from pydantic import model_validator

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT, is_finite
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import KEPT_ATTEMPTS, ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.sections import MAX_BATCH
from minga.optim.arithmetic import rounded
from minga.training.replica.accelerator import verdict_of
from minga.training.replica.buffers import flat_movements
from minga.training.replica.interface import ReplicaInterface
from minga.training.strategy.centred import own_moments, shared_model
from minga.training.strategy.interface import Recovery, Strategy

# ---- Settings, and the facts that follow from them.


MAX_FRAGMENTS = 24
LEAST_STEPS, MUCH_MOMENTUM = 30, 0.5
"""With more momentum the outer step wants the movement of at least so many inner steps."""


class LocalSettings(Section):
    """How far peers go alone, and how the shared parameters step by the mean of what they did."""

    outer_learning_rate: Real = real(
        0.7, 0.0, 10.0, "rate of the step that the shared parameters take by each mean", above_low=True
    )
    outer_momentum: Real = real(
        0.9, 0.0, 1.0, "momentum of that step; it wants rounds of at least 30 inner steps", below_high=True
    )
    nesterov: bool = described(True, "look ahead by the momentum, as Nesterov does", "true or false")
    fragments: int = whole(
        1,
        1,
        MAX_FRAGMENTS,
        "parts of the model that rounds carry in turn, each after as great a part of the target batch",
    )
    overlap: bool = described(False, "go on computing while a round is under way", "true or false")
    merge: Literal["rebase", "mix", "overwrite", "eager"] = choice(
        "rebase",
        "what becomes of what a peer moved while a round was under way: it is kept, kept in part, lost, or kept with a "
        "jump ahead of the mean",
        "rebase",
        "mix",
        "overwrite",
        "eager",
    )
    alpha: Real = real(0.5, 0.0, 1.0, "(mix) share of a peer's own parameters")
    weight: Literal["samples", "batch"] = choice(
        "samples",
        "what a peer counts by in the mean: its samples, or the samples of its inner steps",
        "samples",
        "batch",
    )
    local_batch: int = whole(
        0, 0, MAX_BATCH, "samples of an inner step", special="; 0 is a micro-batch, whatever it has"
    )
    max_age: int = whole(
        10, 0, 1_000_000, "missed rounds of each fragment after which a peer drops what it moved, and begins anew"
    )

    @model_validator(mode="after")
    def _check_merge(self) -> LocalSettings:
        if self.merge == "overwrite" and self.overlap:
            raise ValueError('merge = "overwrite" drops what peers do while a round is under way: set overlap = false')
        if self.merge == "eager" and not self.overlap:
            raise ValueError('merge = "eager" jumps ahead of a round that is under way: set overlap = true')
        if self.merge == "eager" and self.fragments > 1:
            raise ValueError('merge = "eager" guesses the mean of the whole model: set fragments = 1')
        return self

    def facts(self) -> StrategyFacts:
        """What follows for planners, displays and simulations."""
        is_dropped = self.merge == "overwrite"
        return StrategyFacts(
            max_in_flight=int(self.overlap),
            keeps_late_micro_batches=not is_dropped,
            vectors=self._vectors(),
            payload="pseudo-gradient",
            keeps_uncounted=not is_dropped,
            fragments=self.fragments,
            shared_vectors=int(self.outer_momentum > 0.0),
            least_micro_batches=LEAST_STEPS if self.outer_momentum > MUCH_MOMENTUM else 0,
        )

    def _vectors(self) -> int:
        """Θ, V, the contribution, and the parameters as they are read where they have moved on since it was made."""
        moves_on = self.overlap or self.fragments > 1
        eager = 2 if self.merge == "eager" else 0
        return 2 + (self.outer_momentum > 0.0) + moves_on + (self.local_batch > 0) + eager


# ---- Fragments: the parts of a model that rounds carry in turn, round r fragment r mod F.
#
# Layer j is in fragment j mod F, so that each fragment has layers from all depths. What belongs to no layer
# (embeddings, the head), and small tensors, go one by one, the largest first, to the fragment that has the fewest
# elements so far. Averaged buffers travel with every round: they are small, and each global step begins with those of
# all peers.
#
# All of it follows from names and shapes, which all peers of a run have in common.
#
# Source: Streaming DiLoCo (arXiv:2501.18512), strided fragments.


SMALL: Final = 4096
"""Tensors of fewer elements, such as biases and norms, belong to no layer."""


class Fragments:
    """The `count` fragments of a vector of the layout `whole`, of which the first `parameters_numel` elements are
    parameters, called `names` if they have any.

    Raises `ConfigurationError` if there are fewer tensors than fragments.
    """

    def __init__(self, whole: VectorLayout, parameters_numel: int, names: Sequence[str], count: int) -> None:
        self.count, self._whole = count, whole
        ends = [0]
        for numel in whole.numels:
            ends.append(ends[-1] + numel)
        trained = sum(1 for end in ends[1:] if end <= parameters_numel)
        if count > trained:
            raise ConfigurationError(
                f"fragments = {count}: the model has {trained} tensors that are trained; choose at most as many"
            )
        found = _assign(whole.numels[:trained], names, count) if count > 1 else [list(range(trained))]
        self._runs = [_joined((ends[i], ends[i + 1]) for i in sorted(tensors)) for tensors in found]
        self.tensors = [(*sorted(tensors), *range(trained, len(whole.tensors))) for tensors in found]
        """Those of each fragment, by their places in the whole."""
        self.tail = slice(parameters_numel, whole.total)
        """The averaged buffers in the whole vector."""
        self.layouts = [
            replace(
                whole,
                tensors=tuple(whole.tensors[i] for i in tensors),
                label=f"local fragment {place + 1} of {count}",
            )
            for place, tensors in enumerate(self.tensors)
        ]
        if count == 1:
            self.layouts = [whole]

    def of(self, step: int) -> int:
        """The fragment of the round of `step`."""
        return step % self.count

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector of the round of `step`."""
        return self.layouts[self.of(step)]

    def slices(self, fragment: int) -> Iterator[tuple[slice, slice]]:
        """Where the parameters of a fragment are: in the whole vector, and in its own."""
        start = 0
        for run in self._runs[fragment]:
            stop = start + run.stop - run.start
            yield run, slice(start, stop)
            start = stop

    def take(self, whole: torch.Tensor, fragment: int) -> torch.Tensor:
        """A fragment of a whole vector, with the buffers at its end; the vector itself if there is but one."""
        if self.count == 1:
            return whole
        return torch.cat([*(whole[run] for run in self._runs[fragment]), whole[self.tail]])

    def buffers(self, vector: torch.Tensor) -> torch.Tensor:
        """The buffers at the end of a fragment's vector."""
        return vector[vector.numel() - (self.tail.stop - self.tail.start) :]


def layer_of(name: str) -> int | None:
    """The number of the layer to which a parameter belongs by its name: the first number in it."""
    return next((int(part) for part in name.split(".") if part.isdecimal() and part.isascii()), None)


def _assign(numels: Sequence[int], names: Sequence[str], count: int) -> list[list[int]]:
    """The tensors of each fragment, by their places."""
    found: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    rest = []
    for place, numel in enumerate(numels):
        layer = layer_of(names[place]) if names else None
        if layer is None or numel < SMALL:
            rest.append(place)
        else:
            found[layer % count].append(place)
            loads[layer % count] += numel
    for place in sorted(rest, key=lambda place: (-numels[place], place)):
        # Among equally light ones that with the fewest tensors, so that none stays empty.
        lightest = min(range(count), key=lambda each: (loads[each], len(found[each]), each))
        found[lightest].append(place)
        loads[lightest] += numels[place]
    return _without_empty(found, numels)


def _without_empty(found: list[list[int]], numels: Sequence[int]) -> list[list[int]]:
    """Where layers are fewer than fragments, an empty one gets the smallest tensor of the heaviest that has several."""
    for tensors in found:
        if not tensors:
            several = [each for each in found if len(each) > 1]
            heaviest = max(several, key=lambda each: sum(numels[i] for i in each))
            smallest = min(heaviest, key=lambda place: (numels[place], place))
            heaviest.remove(smallest)
            tensors.append(smallest)
    return found


def _joined(ranges: Iterator[tuple[int, int]]) -> list[slice]:
    """Neighbouring ranges as one slice."""
    found: list[slice] = []
    for start, stop in ranges:
        if found and found[-1].stop == start:
            found[-1] = slice(found[-1].start, stop)
        elif stop > start:
            found.append(slice(start, stop))
    return found


# ---- Merging: what becomes of a peer's own parameters when the shared ones take a step.
#
#     rebase      θ ← Θ' + moved                 what moved counts once: in the next contribution
#     mix         θ ← alpha θ + (1 - alpha) Θ'   part of it is lost, and θ is pulled to Θ'
#     overwrite   θ ← Θ'                         all of it is lost
#
# Moved is by how much θ has left where it was when the contribution was made. Where that is in no mean, it is by how
# much θ has left Θ.
#
# Sources: mix is that of Streaming DiLoCo (arXiv:2501.18512). That rebase conserves all movement is plain algebra.


@dataclass(frozen=True)
class Merge:
    """What a slice of θ becomes, in place: `depart` before Θ takes its step, `arrive` after it.

    `depart` gets θ, Θ as the model holds it, and the contribution if the mean has it; `arrive` θ, the new Θ and alpha.
    """

    depart: Callable[[torch.Tensor, torch.Tensor, torch.Tensor | None], None]
    arrive: Callable[[torch.Tensor, torch.Tensor, float], None]


def _to_moved(own: torch.Tensor, anchor: torch.Tensor, contribution: torch.Tensor | None) -> None:
    own.sub_(anchor)
    if contribution is not None:
        own.add_(contribution)


def _stay(own: torch.Tensor, anchor: torch.Tensor, contribution: torch.Tensor | None) -> None:
    pass


def _add(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:  # noqa: ARG001
    own.add_(anchor)


def _mix(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:
    own.mul_(alpha).add_(anchor, alpha=1.0 - alpha)


def _overwrite(own: torch.Tensor, anchor: torch.Tensor, alpha: float) -> None:  # noqa: ARG001
    own.copy_(anchor)


_REBASE: Final = Merge(_to_moved, _add)
MERGES: Final[dict[str, Merge]] = {
    "rebase": _REBASE,
    "mix": Merge(_stay, _mix),
    "overwrite": Merge(_stay, _overwrite),
    "eager": _REBASE,
}


# ---- The outer optimizer: the step that the shared parameters take by the mean of a round.
#
#     V ← μV + Δ,   Θ ← Θ - η (Δ + μV) with Nesterov's momentum, else Θ - ηV; without momentum Θ - ηΔ
#
# Δ is old minus new, so it points like a gradient. Each operation rounds once, so all peers come to equal bits.
#
# Source: DiLoCo (arXiv:2311.08105), with the formula of torch.optim.SGD.


PIECE: Final = 1 << 20
"""Elements for which memory is taken at a time."""


@dataclass(frozen=True)
class OuterOptimizer:
    """SGD on slices of the shared parameters, which are flat float32 CPU tensors."""

    learning_rate: float
    momentum: float
    nesterov: bool

    def step(self, anchor: torch.Tensor, momentum: torch.Tensor | None, mean: torch.Tensor) -> None:
        """Change a slice of Θ, and the same of V, by that of the mean. `momentum` is None if there is none."""
        for start in range(0, anchor.numel(), PIECE):
            piece = slice(start, start + PIECE)
            update = self._update(None if momentum is None else momentum[piece], mean[piece])
            anchor[piece].sub_(update.mul_(rounded(self.learning_rate, torch.float32)))

    def movement(self, momentum: torch.Tensor | None, mean: torch.Tensor) -> torch.Tensor:
        """By how much such a step would lower Θ, with nothing changed."""
        update = self._update(None if momentum is None else momentum.clone(), mean)
        return update.mul_(rounded(self.learning_rate, torch.float32))

    def _update(self, momentum: torch.Tensor | None, mean: torch.Tensor) -> torch.Tensor:
        """The direction, in memory of its own."""
        if momentum is None:
            return mean.clone()
        momentum.mul_(rounded(self.momentum, torch.float32)).add_(mean)
        if not self.nesterov:
            return momentum.clone()
        return momentum.mul(rounded(self.momentum, torch.float32)).add_(mean)


# ---- Inner steps: those of a peer's own optimizer, by each micro-batch or by several together.


class InnerSteps:
    """Steps on `replica` by the mean gradients of at least `samples` samples; 0 is those of each micro-batch."""

    def __init__(self, replica: ReplicaInterface, samples: int) -> None:
        self._replica, self._least = replica, samples
        self.gradients = replica.new_sum() if samples else None
        """Gradients times samples that wait for a step; None where each micro-batch is one."""
        self.pending = 0
        """Their samples."""

    def take_up(self, samples: int) -> int | None:
        """Take up the present mean gradients of so many samples; how many steps were taken. None, with nothing changed,
        if they are not finite.
        """
        if self.gradients is None:
            return 1 if self._replica.inner_step() else None
        self._replica.look_closely()  # such a step cannot be undone, as in `inner_step`
        if not verdict_of(self.gradients.add(float(samples))):
            return None
        self.pending += samples
        if self.pending < self._least:
            return 0
        self._replica.step_by(self.gradients.divided(float(self.pending)))
        self.drop()
        return 1

    def drop(self) -> None:
        """Nothing waits any more."""
        self.pending = 0
        if self.gradients is not None:
            self.gradients.clear()


# ---- The guess of "eager": a peer goes on from where it expects the shared parameters while its contribution travels.
#
# The expected mean is the last one, in which this peer's part is replaced by its present contribution:
#
#     Δ̃ = mean(t-1) + share · (Δ(t) - Δ(t-1)),     jump = Δ(t) - outer(Δ̃)
#
# The jump changes θ alone, and is taken back when the mean is there, or when the round comes to nothing. Θ, V and
# contributions never hold any of it.
#
# Source: Eager updates for DiLoCo (arXiv:2502.12996); share is 1/N there, and that of the samples here.


class Guess:
    """One peer's guess, in two vectors: what of the last mean is the others', and the jump that θ holds."""

    def __init__(self) -> None:
        self.of_others: torch.Tensor | None = None
        """The last mean without this peer's part of it; None before the first."""
        self.jump: torch.Tensor | None = None
        """By how much θ is beside where its own steps led; None while it is not."""

    def mean_with(self, contribution: torch.Tensor, share: float) -> torch.Tensor | None:
        """The mean that is expected of the round of a contribution that travels; None before a first one has come."""
        return None if self.of_others is None else torch.add(self.of_others, contribution, alpha=share)

    def note(self, mean: torch.Tensor, contribution: torch.Tensor | None, share: float) -> None:
        """A mean has come, with this peer's contribution in it, if there is one; θ is beside nothing any more."""
        self.jump = None
        self.of_others = mean.clone()
        if contribution is not None:
            self.of_others.sub_(contribution, alpha=share)


# ---- The strategy: inner steps on each peer, an outer step by the mean of their movements.


ANCHOR, MOMENTUM = "strategy/anchor", "strategy/momentum"


@dataclass(frozen=True)
class Sealed:
    """A contribution: Δ of a fragment with the movements of averaged buffers, and what it counts by.

    `samples` are those that closed the round, `window` those since the fragment's last contribution that counted, in
    so many inner `steps`.
    """

    delta: torch.Tensor
    samples: int
    window: int
    steps: int
    weight: int


class Local(Strategy):
    """See the module. Θ and V are flat float32 vectors as long as the averaged one, of which they use the parameters;
    θ is in the replica. All of it but the contribution is the training thread's.
    """

    Settings = LocalSettings
    most_windows = 4

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        super().__init__(condition, unit=unit, settings=settings)
        own = self._own = cast("LocalSettings", self.settings)
        self._outer = OuterOptimizer(own.outer_learning_rate, own.outer_momentum, own.nesterov)
        self._merge = MERGES[own.merge]
        self._guess = Guess() if own.merge == "eager" else None
        self._waiting = 0  # samples that wait for an inner step
        self._windows, self._steps = [0] * own.fragments, [0] * own.fragments
        self._sealed: Sealed | None = None
        self._is_asked = False
        self._earlier: list[Sealed | None] = []  # of rounds of this step that came to nothing, the last ones
        self._late_steps = 0  # inner steps since the contribution was made
        self._is_broken = False

    @classmethod
    def facts_for(cls, settings: Section) -> StrategyFacts:
        """See `LocalSettings`."""
        return cast("LocalSettings", settings).facts()

    def begin(self, replica: ReplicaInterface) -> None:
        """See `Strategy`: θ is Θ."""
        super().begin(replica)
        vector, own = replica.vector, self._own
        self._parameters = slice(0, vector.parameters_numel)
        self._anchor = replica.read_values()
        self._anchor[vector.parameters_numel :].zero_()
        self._names = list(replica.named(self._anchor))
        self._fragments = Fragments(vector.layout, vector.parameters_numel, self._names, own.fragments)
        self._momentum = vector.new() if own.outer_momentum else None
        self._inner = InnerSteps(replica, own.local_batch)
        if own.fragments > 1:
            replica.define_fragments(self._fragments.layouts, self._fragments.tensors)

    # ---- counts

    @property
    def complete_samples(self) -> int:
        """Those of the contribution; until it is made, all."""
        return self._samples if self._sealed is None else self._sealed.samples

    def count(self, samples: int) -> None:
        """See `Strategy`: each fragment's window has them. Towards the round they count with their inner step: what
        waits for one has moved nothing, and a round that closes by it alone would be empty, again and again.
        """
        self._windows = [window + samples for window in self._windows]
        self._waiting += samples
        if not self._inner.pending:
            super().count(self._waiting)
            self._waiting = 0

    def _forget_work(self) -> None:
        """No movement of this peer counts any more."""
        self._windows, self._steps = [0] * self._own.fragments, [0] * self._own.fragments
        self._late_steps = 0
        self._inner.drop()
        with self._condition:
            self._sealed, self._samples, self._waiting = None, 0, 0
            self._earlier = [None for _ in self._earlier]  # θ has nothing of these any more

    def _position(self) -> torch.Tensor:
        """Where the inner steps led, without a jump; with the movements of averaged buffers at the end."""
        found = self.replica.read_values()
        if self._guess is not None and self._guess.jump is not None:
            found[self._parameters].sub_(self._guess.jump[self._parameters])
        return found

    # ---- inner steps

    def micro_batch(self, samples: int) -> bool:
        """Take an inner step, or add the gradients to those of the next one."""
        self._settle()
        try:
            steps = self._inner.take_up(samples)
        except BaseException:  # half of them may have been added to those that wait
            self._inner.drop()
            self._windows = [window - self._waiting for window in self._windows]
            self._waiting = 0
            raise
        if steps is not None:
            self._steps = [each + steps for each in self._steps]
            self._late_steps += steps
        return steps is not None

    def _settle(self) -> None:
        """On the training thread: do to θ what was left to it."""
        self._heal()
        if self._guess is None:
            return
        if self._sealed is None and self._guess.jump is not None:
            self.replica.write_values(self._position())
            self._guess.jump = None
        elif self._sealed is not None and self._guess.jump is None:
            mean = self._guess.mean_with(self._sealed.delta, self._share(self._sealed))
            if mean is not None:
                jump = self._sealed.delta - self._outer.movement(self._momentum, mean)
                self.replica.write_values(self._position().add_(jump))
                self._guess.jump = jump

    def _heal(self) -> None:
        """On the training thread: what is no number any more goes back to Θ, with fresh moments."""
        if self._is_broken:
            self.replica.restore(self.replica.capture())
            self._is_broken = False
            if self._guess is not None:
                self._guess.jump = None

    def _share(self, sealed: Sealed) -> float:
        """What part of the mean is this peer's, as far as it knows: its part of the last target batch."""
        return min(1.0, sealed.window / self.target_batch)

    # ---- rounds

    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """Δ = Θ - θ of the fragment whose turn it is; see `Strategy`."""
        self._is_asked = True
        if self._sealed is None:
            self._seal()
        return (None, 0) if self._sealed is None else (self._sealed.delta, self._sealed.weight)

    def _seal(self) -> None:
        if self._earlier and self._earlier[-1] is not None and not self._late_steps:
            with self._condition:
                self._sealed = self._earlier[-1]
            return
        fragment = self._fragments.of(self.replica.step)
        window, steps = self._windows[fragment] - self._inner.pending, self._steps[fragment]
        if self._samples <= 0 or window <= 0 or self._is_broken:
            return
        delta = self._position()
        parameters = delta[self._parameters]
        parameters.neg_().add_(self.replica.rounded(self._anchor)[self._parameters])
        delta = self._fragments.take(delta, fragment)
        if not is_finite(delta, CONTRIBUTION_LIMIT):
            samples = self._samples
            self._forget_work()
            self._is_broken = True
            raise NonFiniteError(f"the parameters after inner steps over {samples} samples are not finite")
        weight = window if self._own.weight == "samples" else max(1, round(window / max(1, steps)))
        with self._condition:
            self._sealed = Sealed(delta, self._samples, window, steps, weight)
        self._late_steps = 0

    def take_back(self) -> None:
        """See `Strategy`: θ was never changed, so nothing but the contribution is forgotten."""
        if self._is_asked:
            self._earlier = [*self._earlier[1 - KEPT_ATTEMPTS :], self._sealed]
        self._is_asked = False
        with self._condition:
            self._sealed = None

    def counted_earlier(self, attempts: int) -> None:
        """What moved since that contribution was made goes on counting, unless it is dropped ("overwrite")."""
        if self.facts.keeps_uncounted and attempts <= len(self._earlier):
            with self._condition:
                self._sealed = self._earlier[-attempts]
            self._late_steps += 1

    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """Take the outer step, and bring θ along; see `Strategy`."""
        self._heal()
        fragment = self._fragments.of(round - 1)
        sealed = self._sealed if fate is ContributionFate.COUNTED else None
        moved_on = sealed is None or self._late_steps > 0 or self._own.fragments > 1
        own = self._position() if moved_on else None
        moved = flat_movements(self.replica.moved)  # by micro-batches that wait for an inner step, too
        if sealed is not None:
            moved.sub_(self._fragments.buffers(sealed.delta)[: moved.numel()])
        if own is not None:
            before = self.replica.rounded(self._anchor)
            for run, part in self._fragments.slices(fragment):
                self._merge.depart(own[run], before[run], None if sealed is None else sealed.delta[part])
        for run, part in self._fragments.slices(fragment):
            momentum = None if self._momentum is None else self._momentum[run]
            self._outer.step(self._anchor[run], momentum, mean[part])
        self._adopt(round, mean)
        if own is not None:
            for run, _ in self._fragments.slices(fragment):
                self._merge.arrive(own[run], self._anchor[run], self._own.alpha)
            self.replica.write_values(own)
        if self.facts.keeps_uncounted:
            self.replica.move_buffers(moved)
        if self._guess is not None:
            self._guess.note(
                mean, None if sealed is None else sealed.delta, 0.0 if sealed is None else self._share(sealed)
            )
            self._guess.jump = None
        self._settle_counts(fragment, sealed, fate)

    def _adopt(self, round: int, mean: torch.Tensor) -> None:
        """Bring the replica to Θ at `round`, with the mean movements of buffers, by the rules of the model."""
        tail = self._fragments.tail
        self._anchor[tail] = self._fragments.buffers(mean)
        adopted = self.replica.adopt(self._anchor, round)
        if adopted is not self._anchor:
            self._anchor[self._parameters] = adopted[self._parameters]
        self._anchor[tail].zero_()

    def _settle_counts(self, fragment: int, sealed: Sealed | None, fate: ContributionFate) -> None:
        """What counted counts no more; what did not, and what came later, does."""
        gone = sealed
        if fate is ContributionFate.UNCOUNTED and not self.facts.keeps_uncounted:
            gone = self._sealed
        self._earlier, self._is_asked = [], False
        with self._condition:
            self._sealed = None
            if gone is not None:
                self._samples -= gone.samples
                self._windows[fragment] -= gone.window
                self._steps[fragment] -= gone.steps

    def missed(self, rounds: int) -> Recovery:
        """Go on with what this peer moved, unless it is too old."""
        return Recovery.REBASE if rounds <= self._own.max_age * self._own.fragments else Recovery.FETCH

    def conclude(self) -> None:
        """The model of the run is Θ. What moved beside the last round is gone, and counts no more in a later one."""
        super().conclude()
        self.replica.write_values(self._anchor)
        self._forget_work()

    # ---- state

    def shared_tensors(self) -> Mapping[str, torch.Tensor]:
        """Θ as the model, V, and Θ itself where the model has fewer bits."""
        found = shared_model(self.replica, self._anchor, ANCHOR)
        if self._momentum is not None:
            found[MOMENTUM] = self._momentum
        return found

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """θ, the moments of the optimizer, the counts, and what waits."""
        found = self.replica.moments()
        found["parameters"] = self._position()
        counts = (self.replica.step, self._samples, self._inner.pending, *self._windows, *self._steps)
        found["counts"] = torch.tensor(counts, device="cpu")
        if self._inner.gradients is not None:
            found["gradients"] = self._inner.gradients.vector()
        if self._guess is not None:
            known = self._guess.of_others
            found["guess"] = torch.full_like(self._anchor, math.nan) if known is None else known
        return found

    def restored(
        self,
        shared: Mapping[str, torch.Tensor],
        round: int,
        local: Mapping[str, torch.Tensor] | None,
    ) -> None:
        """Take over Θ and V, and θ from what is kept; see `Strategy`."""
        before, after = self._anchor, self._anchor_in(shared)
        earlier, late_steps = self._earlier, self._late_steps
        if self._momentum is not None and MOMENTUM in shared:
            self._momentum.copy_(shared[MOMENTUM])
        self._forget_work()
        self._is_broken = False
        if self._guess is not None:
            self._guess = Guess()
        if local is None:
            self.replica.write_values(after)
        else:
            own = local["parameters"]
            is_same = int(local["counts"][0]) == round  # else it is of this process, where Θ was `before`
            found = own if is_same else after + (own - self.replica.rounded(before))
            self.replica.write_values(found)
            self.replica.move_buffers(found[self._fragments.tail])
            self.replica.put(own_moments(local))
            self._take_up(local)
            if is_same:  # a later round of the step may have the result of an earlier one
                self._earlier, self._late_steps = earlier, late_steps
        self._anchor = after

    def _anchor_in(self, shared: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Θ of a shared state."""
        found = self._anchor.clone()
        if ANCHOR in shared:
            found.copy_(shared[ANCHOR])
        elif self._names:
            values = [shared[name].detach().reshape(-1).to("cpu", torch.float32) for name in self._names]
            found[self._parameters] = torch.cat(values)
        return found

    def _take_up(self, local: Mapping[str, torch.Tensor]) -> None:
        _, samples, pending, *rest = (max(0, int(each)) for each in local["counts"])
        self._windows, self._steps = rest[: self._own.fragments], rest[self._own.fragments :]
        self._inner.pending = self._waiting = pending
        if self._inner.gradients is not None:
            self._inner.gradients.fill(local["gradients"])
        if self._guess is not None:
            known = local["guess"]
            self._guess.of_others = None if known.is_meta or known.isnan().all() else known.clone()
        self._count_anew(samples)
