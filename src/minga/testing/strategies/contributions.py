"""Checks of what a strategy sends, and of what becomes of it."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyFacts
from minga.testing.strategies.trainer import NUMEL, UNIT, Trainer, facts_for, sends_gradients
from minga.testing.violation import require
from minga.training.replica.flat_vector import ParameterVector
from minga.training.strategy.interface import Strategy


def check_facts(kind: type[Strategy], **settings: Any) -> None:
    """The facts are facts of the class, equal for every instance; gradients it sends take the vectors that it says."""
    facts = facts_for(kind, settings)
    require(isinstance(facts, StrategyFacts), kind, "its facts are none")
    of_instances = [Trainer(kind, settings, unit).strategy.facts for unit in (1, 7)]
    require(of_instances == [facts, facts], kind, "its facts differ")
    vectors = 0

    class Counting(ParameterVector):
        def new(self, numel: int | None = None) -> torch.Tensor:
            nonlocal vectors
            vectors += 1
            return super().new(numel)

    trainer = Trainer(kind, settings)
    trainer.replica.vector.__class__ = Counting
    kind(threading.Condition(), unit=1, settings=kind.Settings(**settings)).begin(trainer.replica)
    require(vectors <= facts.vectors, kind, f"it holds {vectors} vectors, not {facts.vectors}")


def check_mean(kind: type[Strategy], **settings: Any) -> None:
    """A contribution is the mean by samples of all that came before it was closed, whatever `unit` is."""
    facts = facts_for(kind, settings)
    for unit in (1, UNIT):
        trainer = Trainer(kind, settings, unit)
        trainer.feed((2.0, 1), (6.0, 3))
        require(trainer.strategy.samples == 4, kind, "samples are miscounted")
        trainer.strategy.close()
        require(trainer.strategy.complete_samples == 4, kind, "not all samples are complete once they are closed")
        if sends_gradients(facts):
            trainer.contributes(5.0, 4, f"two micro-batches with unit={unit}")


def check_clipping(kind: type[Strategy], **settings: Any) -> None:
    """Where the codec leaves something out, and the optimizer steps by means of gradients, a contribution is clipped to
    the largest norm of the run (`clip_own`), and what is taken back is as long as before.
    """
    facts = facts_for(kind, settings)
    if not sends_gradients(facts) or facts.owns_optimizer:
        return
    trainer = Trainer(kind, settings, own_norm=1.0)
    trainer.feed((2.0, 1), (6.0, 3))
    norm = float(trainer.seal()[0][:NUMEL].norm())
    what = f"it contributed a gradient of norm {norm:g}, where the run's largest is 1: it has to call replica.clip_own"
    require(abs(norm - 1.0) < 1e-5, kind, what)
    trainer.take_back()
    trainer.feed((-5.0, 4))
    norm = float(trainer.seal()[0][:NUMEL].norm())
    require(norm < 1e-5, kind, "what it took back is not the gradient that it had before it was clipped")


def check_take_back(kind: type[Strategy], **settings: Any) -> None:
    """After `take_back` a new contribution is the same, and micro-batches that came meanwhile count as well."""
    facts = facts_for(kind, settings)
    late = facts.keeps_late_micro_batches
    trainer, whole = Trainer(kind, settings), Trainer(kind, settings)
    trainer.feed((2.0, 2), (4.0, 2))
    given = trainer.seal()[0]
    first = given.clone()
    trainer.strategy.take_back()
    require(torch.equal(trainer.contribution()[0], first), kind, "after take_back it contributed something else")
    if late:
        trainer.feed((11.0, 4))
    trainer.take_back()
    if not late:
        trainer.feed((11.0, 4))
    require(trainer.strategy.samples == 8, kind, "samples were lost or doubled by take_back")
    whole.feed((2.0, 2), (4.0, 2), (11.0, 4))
    same = torch.equal(trainer.seal()[0], whole.seal()[0])
    require(same, kind, "after take_back and more micro-batches it contributed something else")
    is_intact = not facts.keeps_uncounted or torch.equal(given, first)
    require(is_intact, kind, "it keeps what was not counted, and changed what it gave to an attempt that may count yet")


def check_repeated_calls(kind: type[Strategy], **settings: Any) -> None:
    """A contribution gives the same bytes again, and taking it back twice takes it back once."""
    trainer = Trainer(kind, settings, unit=8)
    trainer.feed((0.3, 3), (0.7, 4))
    vector, samples = trainer.seal()
    first = vector.clone()
    again, samples_again = trainer.contribution()
    same = torch.equal(first, again) and samples == samples_again
    require(same, kind, "a second contribution of the same samples differs")
    trainer.strategy.take_back()
    once = trainer.strategy.samples, trainer.contribution()[0].clone()
    trainer.strategy.take_back()
    trainer.strategy.take_back()
    twice = trainer.strategy.samples, trainer.contribution()[0]
    good = once[0] == twice[0] == 7 and torch.allclose(once[1], twice[1], rtol=1e-6)
    require(good, kind, "taking back twice is not taking back once")


def check_late_micro_batches(kind: type[Strategy], **settings: Any) -> None:
    """Micro-batches after a contribution was closed, however many, all count after it is taken back."""
    facts = facts_for(kind, settings)
    if not facts.keeps_late_micro_batches:
        return
    for late in (1, 2, 5):
        trainer, whole = Trainer(kind, settings), Trainer(kind, settings)
        trainer.feed((4.0, 2))
        trainer.seal()
        trainer.feed(*[(8.0, 2)] * late)
        trainer.take_back()
        whole.feed((4.0, 2), *[(8.0, 2)] * late)
        got, wanted = trainer.seal()[0], whole.seal()[0]
        good = trainer.strategy.complete_samples == 2 + 2 * late and torch.allclose(got, wanted, rtol=1e-6)
        require(good, kind, f"{late} late micro-batches do not all count after take_back")


def check_alone(kind: type[Strategy], **settings: Any) -> None:
    """One peer, whose mean is its own contribution, comes down: sign and scale. With gradients of which the optimizer
    makes steps, by hand's steps.
    """
    facts = facts_for(kind, settings)
    by_hand, trainer = torch.full((NUMEL,), 8.0), Trainer(kind, settings)
    for _ in range(20):
        micro_batches = [(1.0, 1), (2.0, 3)]  # targets, samples
        gradient = sum((by_hand - target) * samples for target, samples in micro_batches) / 4
        by_hand = by_hand - 0.5 * gradient
        trainer.pull(*micro_batches)
        mean, _ = trainer.seal()
        samples = trainer.strategy.complete_samples
        require(samples == 4, kind, f"alone it contributed {samples} of 4 samples")
        trainer.absorb(mean)
    through = trainer.values()
    if sends_gradients(facts) and not facts.owns_optimizer:
        good = torch.allclose(by_hand, through, rtol=1e-6)
        require(good, kind, f"alone it came to {through}, by hand to {by_hand}")
    require(bool(((through - 1.5).abs() < 3.0).all()), kind, f"alone it came from 8 to {through}, not near 1 to 2")


def check_unequal_speeds(kind: type[Strategy], **settings: Any) -> None:
    """Peers with 1, 4 and 16 times the samples count as much; of gradients the mean is over samples, not peers."""
    facts = facts_for(kind, settings)
    total, weights = torch.zeros(1), 0
    for value, speed in ((32.0, 1), (16.0, 4), (2.0, 16)):
        trainer = Trainer(kind, settings)
        trainer.feed(*[(value, 1)] * speed)
        mean, weight = trainer.seal()
        samples = weight if sends_gradients(facts) else trainer.strategy.complete_samples
        require(samples == speed, kind, f"it counted {samples} samples, not {speed}")
        total = total + mean * weight
        weights += weight
    wanted = (32.0 + 64.0 + 32.0) / 21
    if sends_gradients(facts):
        mean = (total / weights)[:NUMEL]
        good = torch.allclose(mean, torch.full((NUMEL,), wanted), rtol=1e-6)
        require(good, kind, f"the mean over samples is {mean}, not {wanted}")


def check_absorb(kind: type[Strategy], **settings: Any) -> None:
    """`absorb` forgets what was complete and nothing that came after it; `restored` forgets everything."""
    facts = facts_for(kind, settings)
    trainer = Trainer(kind, settings)
    trainer.feed((2.0, 2))
    mean, _ = trainer.seal()
    late = 4 if facts.keeps_late_micro_batches else 0
    if late:
        trainer.feed((8.0, late))
    before = mean.clone()
    trainer.absorb(mean := before.clone())
    require(torch.equal(mean, before), kind, "absorb changed the mean, which is served to other peers")
    require(trainer.replica.step == 1, kind, "absorb did not bring the replica to the step of the round")
    counts = trainer.strategy.samples, trainer.strategy.complete_samples
    require(counts[0] == late and counts[1] in (0, late), kind, "absorb forgot other samples")
    trainer.feed((16.0, 4))
    trainer.seal()
    require(trainer.strategy.complete_samples == late + 4, kind, "after absorb samples are miscounted")
    if sends_gradients(facts):
        trainer.contributes(12.0 if late else 16.0, late + 4, "after absorb")
    trainer.absorb(trainer.mean())
    trainer.feed((1.0, 1))
    trainer.strategy.restored(trainer.strategy.shared_tensors(), trainer.replica.step, None)
    require(trainer.strategy.samples == 0, kind, "it kept samples that it was to forget")
    trainer.feed((5.0, 1))
    require(trainer.seal()[1] == 1, kind, "it kept samples that it was to forget")
    if sends_gradients(facts):
        trainer.contributes(5.0, 1, "after everything was forgotten")


def check_uncounted(kind: type[Strategy], **settings: Any) -> None:
    """After a round that counted without its contribution it keeps the samples, as its facts say, or forgets them."""
    facts = facts_for(kind, settings)
    trainer = Trainer(kind, settings)
    trainer.pull((1.0, 2))
    mean = trainer.seal()[0].clone()
    trainer.absorb(mean, ContributionFate.UNCOUNTED)
    kept = 2 if facts.keeps_uncounted else 0
    what = f"after a round without its contribution it has {trainer.strategy.samples} samples, not {kept}"
    require(trainer.strategy.samples == kept, kind, what)
    trainer.pull((1.0, 3))
    trainer.seal()
    samples = trainer.strategy.complete_samples
    what = f"after a round without its contribution it contributed {samples} samples, not {kept + 3}"
    require(samples == kept + 3, kind, what)


def check_buffers(kind: type[Strategy], **settings: Any) -> None:
    """How far averaged buffers moved counts once: with the samples that it came with, beside a round or not, and not at
    all where they do not count. At the end of a run buffers are where all have them.
    """
    facts = facts_for(kind, settings)
    windows = (3, 2, 4)
    alone = {window: _moved(kind, settings, [window])[0] for window in (1, *windows)}
    good = all(0.0 < moved <= window for window, moved in alone.items())
    require(good, kind, f"a buffer to which each micro-batch adds 1 moves by {alone} in rounds of so many")
    for late in (0, 1, 2) if facts.keeps_late_micro_batches else (0,):
        moved, wanted = _moved(kind, settings, windows, late), [alone[window] for window in windows]
        require(
            moved == wanted, kind, f"with {late} micro-batches beside a round a buffer moves by {moved}, not {wanted}"
        )
    for fate, counts in ((None, True), (ContributionFate.UNCOUNTED, facts.keeps_uncounted)):
        trainer = Trainer(kind, settings, has_buffer=True)
        trainer.feed((1.0, 1), (1.0, 1))
        trainer.seal()
        if fate is not None:
            trainer.absorb(trainer.mean(0.0), fate)
        elif facts.keeps_late_micro_batches:
            trainer.feed((1.0, 1))
            trainer.take_back()
        else:
            trainer.take_back()
        trainer.feed(*[(1.0, 1)] * (3 - trainer.strategy.samples if counts else 1))
        trainer.absorb(trainer.seal()[0].clone())
        moved, wanted = [trainer.shared_count()], [alone[3 if counts else 1]]
        what = "came to nothing" if fate is None else "counted without its contribution"
        require(moved == wanted, kind, f"after a round that {what} a buffer moves by {moved}, not {wanted}")
        trainer.feed((1.0, 1))
        trainer.strategy.conclude()
        is_there = trainer.buffer is not None and float(trainer.buffer) == trainer.shared_count()
        require(is_there, kind, "a run ended with other buffers than those of all")


def _moved(kind: type[Strategy], settings: dict[str, Any], windows: Sequence[int], late: int = 0) -> list[float]:
    """By how much rounds of so many micro-batches move a buffer that each adds 1 to, of which so many come `late`:
    while the round before is under way.
    """
    trainer, found, before, beside = Trainer(kind, settings, has_buffer=True), list[float](), 0.0, 0
    for window in windows:
        trainer.feed(*[(1.0, 1)] * (window - beside))
        mean, beside = trainer.seal()[0].clone(), late if len(found) + 1 < len(windows) else 0
        trainer.feed(*[(1.0, 1)] * beside)
        trainer.absorb(mean)
        found.append(trainer.shared_count() - before)
        before += found[-1]
    return found


def check_score(kind: type[Strategy], **settings: Any) -> None:
    """Where rounds take the best contribution, a peer has a score that is a number when it has one to give, and only
    then.
    """
    trainer = Trainer(kind, settings)
    takes_best = trainer.strategy.facts.contributors == "best"
    require(trainer.strategy.score is None, kind, "it has a score, and nothing to give")
    trainer.feed((2.0, 2))
    score = trainer.strategy.score
    has_one = score is not None and math.isfinite(score.value)
    require(has_one == takes_best, kind, f"its score is {score}")
    mean = trainer.seal()[0].clone()
    require(trainer.strategy.score == score, kind, "its score changed while nothing was computed")
    trainer.absorb(mean)
    require(trainer.strategy.score is None, kind, "it has a score after a round, and nothing to give")
