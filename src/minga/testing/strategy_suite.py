"""What every strategy must do, as checks to be run against its class.

    @pytest.mark.parametrize("check", STRATEGY_CHECKS)
    def test_my_strategy(check):
        check(MyStrategy)

A strategy with settings is checked with some of them: `check(MyStrategy, fragments=3)`.

Each check raises `StrategyViolation` with the case that failed. All numbers are exact in float32, so that all sums are.
What is said of gradients is checked where the strategy's facts say that it sends these.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import NonFiniteError
from minga.core.spec.run_spec import RunSpec
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.replica import Replica
from minga.training.strategy.interface import ContributionFate, Recovery, Strategy

_NUMELS: Final = (2, 2, 1)
_NUMEL: Final = sum(_NUMELS)
_SPEC: Final = RunSpec.from_mapping({"name": "suite"})


class StrategyViolation(AssertionError):
    """A strategy broke a promise of the interface."""


def _require(holds: bool, kind: type[Strategy], what: str) -> None:
    if not holds:
        raise StrategyViolation(f"{kind.__name__}: {what}")


class _Trainer:
    """One strategy at work on a model of a few numbers, all 8 at first, under plain gradient descent."""

    def __init__(
        self, kind: type[Strategy], settings: Mapping[str, Any], unit: int = 1, *, dtype: torch.dtype = torch.float32
    ) -> None:
        tensors = [torch.nn.Parameter(torch.full((numel,), 8.0, dtype=dtype)) for numel in _NUMELS]
        model = torch.nn.ParameterList(tensors)
        self.kind, self.tensors = kind, tensors
        self.replica = Replica(_SPEC, torch.optim.SGD(model.parameters(), lr=0.5), model=model)
        self.strategy = kind(threading.Condition(), unit=unit, settings=kind.Settings(**settings))
        self.strategy.begin(self.replica)

    def feed(self, *micro_batches: tuple[float, int]) -> None:
        """Micro-batches by the value of their mean gradients and their samples."""
        for value, samples in micro_batches:
            for tensor in self.tensors:
                tensor.grad = torch.full_like(tensor, value)
            self._take(samples, abs(value))

    def _take(self, samples: int, loss: float) -> None:
        self.strategy.note_loss(loss)
        if self.strategy.micro_batch(samples):
            self.strategy.count(samples)
        self.replica.zero_grad()

    def pull(self, *micro_batches: tuple[float, int]) -> None:
        """The same by the values to which they pull all numbers."""
        for target, samples in micro_batches:
            for tensor in self.tensors:
                tensor.grad = tensor.detach() - target
            self._take(samples, float((self.values() - target).abs().sum()))

    def values(self) -> torch.Tensor:
        """All numbers of the model, as float32."""
        return torch.cat([tensor.detach().float() for tensor in self.tensors])

    def mean(self, value: float = 0.25) -> torch.Tensor:
        """A mean of the present round with this value everywhere."""
        return torch.full((self.replica.layout_of(self.replica.step).total,), value)

    def seal(self) -> tuple[torch.Tensor, int]:
        """Close the round; what is contributed. Raises `StrategyViolation` if that is nothing."""
        self.strategy.close()
        return self.contribution()

    def contribution(self) -> tuple[torch.Tensor, int]:
        """What is contributed to a round that was closed. Raises `StrategyViolation` if that is nothing."""
        vector, samples = self.strategy.contribution()
        if vector is None:
            raise StrategyViolation(f"{self.kind.__name__}: it contributed nothing")
        return vector, samples

    def contributes(self, value: float, samples: int, what: str) -> None:
        """Require that a mean gradient of `value` is contributed to a round that was closed."""
        mean, weight = self.contribution()
        good = weight == samples and torch.equal(mean, torch.full((_NUMEL,), value))
        _require(good, self.kind, f"{what}: contributed {mean} of {weight} samples, not {value} of {samples}")

    def take_back(self) -> None:
        """The round came to nothing."""
        self.strategy.take_back()
        if self.strategy.has_leftover:
            self.strategy.merge()

    def absorb(self, mean: torch.Tensor, fate: ContributionFate = ContributionFate.COUNTED) -> None:
        """The round counted."""
        self.strategy.absorb(self.replica.step + 1, mean, fate)


def _facts(kind: type[Strategy], settings: Mapping[str, Any]) -> StrategyFacts:
    return kind.facts_for(kind.Settings(**settings))


def _sends_gradients(facts: StrategyFacts) -> bool:
    return facts.payload == "gradient"


def check_facts(kind: type[Strategy], **settings: Any) -> None:
    """The facts are facts of the class, equal for every instance; gradients it sends take the vectors that it says."""
    facts = _facts(kind, settings)
    _require(isinstance(facts, StrategyFacts), kind, "its facts are none")
    of_instances = [_Trainer(kind, settings, unit).strategy.facts for unit in (1, 7)]
    _require(of_instances == [facts, facts], kind, "its facts differ")
    vectors = 0

    class Counting(ParameterVector):
        def new(self, numel: int | None = None) -> torch.Tensor:
            nonlocal vectors
            vectors += 1
            return super().new(numel)

    trainer = _Trainer(kind, settings)
    trainer.replica.vector.__class__ = Counting
    kind(threading.Condition(), unit=1, settings=kind.Settings(**settings)).begin(trainer.replica)
    _require(vectors <= facts.vectors, kind, f"it holds {vectors} vectors, not {facts.vectors}")


def check_mean(kind: type[Strategy], **settings: Any) -> None:
    """A contribution is the mean by samples of all that came before it was closed, whatever `unit` is."""
    facts = _facts(kind, settings)
    trainer = _Trainer(kind, settings)
    trainer.feed((2.0, 1), (6.0, 3))
    _require(trainer.strategy.samples == 4, kind, "samples are miscounted")
    trainer.strategy.close()
    _require(trainer.strategy.complete_samples == 4, kind, "not all samples are complete once they are closed")
    if _sends_gradients(facts):
        trainer.contributes(5.0, 4, "two micro-batches")


def check_take_back(kind: type[Strategy], **settings: Any) -> None:
    """After `take_back` a new contribution is the same, and micro-batches that came meanwhile count as well."""
    facts = _facts(kind, settings)
    late = facts.keeps_late_micro_batches
    trainer, whole = _Trainer(kind, settings), _Trainer(kind, settings)
    trainer.feed((2.0, 2), (4.0, 2))
    first = trainer.seal()[0].clone()
    trainer.strategy.take_back()
    _require(torch.equal(trainer.contribution()[0], first), kind, "after take_back it contributed something else")
    if late:
        trainer.feed((11.0, 4))
    trainer.take_back()
    if not late:
        trainer.feed((11.0, 4))
    _require(trainer.strategy.samples == 8, kind, "samples were lost or doubled by take_back")
    whole.feed((2.0, 2), (4.0, 2), (11.0, 4))
    same = torch.equal(trainer.seal()[0], whole.seal()[0])
    _require(same, kind, "after take_back and more micro-batches it contributed something else")


def check_repeated_calls(kind: type[Strategy], **settings: Any) -> None:
    """A contribution gives the same bytes again, and taking it back twice takes it back once."""
    trainer = _Trainer(kind, settings, unit=8)
    trainer.feed((0.3, 3), (0.7, 4))
    vector, samples = trainer.seal()
    first = vector.clone()
    again, samples_again = trainer.contribution()
    same = torch.equal(first, again) and samples == samples_again
    _require(same, kind, "a second contribution of the same samples differs")
    trainer.strategy.take_back()
    once = trainer.strategy.samples, trainer.contribution()[0].clone()
    trainer.strategy.take_back()
    trainer.strategy.take_back()
    twice = trainer.strategy.samples, trainer.contribution()[0]
    good = once[0] == twice[0] == 7 and torch.allclose(once[1], twice[1], rtol=1e-6)
    _require(good, kind, "taking back twice is not taking back once")


def check_late_micro_batches(kind: type[Strategy], **settings: Any) -> None:
    """Micro-batches after a contribution was closed, however many, all count after it is taken back."""
    facts = _facts(kind, settings)
    if not facts.keeps_late_micro_batches:
        return
    for late in (1, 2, 5):
        trainer, whole = _Trainer(kind, settings), _Trainer(kind, settings)
        trainer.feed((4.0, 2))
        trainer.seal()
        trainer.feed(*[(8.0, 2)] * late)
        trainer.take_back()
        whole.feed((4.0, 2), *[(8.0, 2)] * late)
        got, wanted = trainer.seal()[0], whole.seal()[0]
        good = trainer.strategy.complete_samples == 2 + 2 * late and torch.allclose(got, wanted, rtol=1e-6)
        _require(good, kind, f"{late} late micro-batches do not all count after take_back")


def check_alone(kind: type[Strategy], **settings: Any) -> None:
    """One peer, whose mean is its own contribution, comes down: sign and scale. With gradients of which the optimizer
    makes steps, by hand's steps.
    """
    facts = _facts(kind, settings)
    by_hand, trainer = torch.full((_NUMEL,), 8.0), _Trainer(kind, settings)
    for _ in range(20):
        micro_batches = [(1.0, 1), (2.0, 3)]  # targets, samples
        gradient = sum((by_hand - target) * samples for target, samples in micro_batches) / 4
        by_hand = by_hand - 0.5 * gradient
        trainer.pull(*micro_batches)
        mean, _ = trainer.seal()
        samples = trainer.strategy.complete_samples
        _require(samples == 4, kind, f"alone it contributed {samples} of 4 samples")
        trainer.absorb(mean)
    through = trainer.values()
    if _sends_gradients(facts) and not facts.owns_optimizer:
        good = torch.allclose(by_hand, through, rtol=1e-6)
        _require(good, kind, f"alone it came to {through}, by hand to {by_hand}")
    _require(bool(((through - 1.5).abs() < 3.0).all()), kind, f"alone it came from 8 to {through}, not near 1 to 2")


def check_unequal_speeds(kind: type[Strategy], **settings: Any) -> None:
    """Peers with 1, 4 and 16 times the samples count as much; of gradients the mean is over samples, not peers."""
    facts = _facts(kind, settings)
    total, weights = torch.zeros(1), 0
    for value, speed in ((32.0, 1), (16.0, 4), (2.0, 16)):
        trainer = _Trainer(kind, settings)
        trainer.feed(*[(value, 1)] * speed)
        mean, weight = trainer.seal()
        samples = weight if _sends_gradients(facts) else trainer.strategy.complete_samples
        _require(samples == speed, kind, f"it counted {samples} samples, not {speed}")
        total = total + mean * weight
        weights += weight
    wanted = (32.0 + 64.0 + 32.0) / 21
    if _sends_gradients(facts):
        good = torch.allclose(total / weights, torch.full((_NUMEL,), wanted), rtol=1e-6)
        _require(good, kind, f"the mean over samples is {total / weights}, not {wanted}")


def check_absorb(kind: type[Strategy], **settings: Any) -> None:
    """`absorb` forgets what was complete and nothing that came after it; `restored` forgets everything."""
    facts = _facts(kind, settings)
    trainer = _Trainer(kind, settings)
    trainer.feed((2.0, 2))
    mean, _ = trainer.seal()
    late = 4 if facts.keeps_late_micro_batches else 0
    if late:
        trainer.feed((8.0, late))
    before = mean.clone()
    trainer.absorb(mean := before.clone())
    _require(torch.equal(mean, before), kind, "absorb changed the mean, which is served to other peers")
    _require(trainer.replica.step == 1, kind, "absorb did not bring the replica to the step of the round")
    counts = trainer.strategy.samples, trainer.strategy.complete_samples
    _require(counts[0] == late and counts[1] in (0, late), kind, "absorb forgot other samples")
    trainer.feed((16.0, 4))
    trainer.seal()
    _require(trainer.strategy.complete_samples == late + 4, kind, "after absorb samples are miscounted")
    if _sends_gradients(facts):
        trainer.contributes(12.0 if late else 16.0, late + 4, "after absorb")
    trainer.absorb(trainer.mean())
    trainer.feed((1.0, 1))
    trainer.strategy.restored(trainer.strategy.shared_tensors(), trainer.replica.step, None)
    _require(trainer.strategy.samples == 0, kind, "it kept samples that it was to forget")
    trainer.feed((5.0, 1))
    _require(trainer.seal()[1] == 1, kind, "it kept samples that it was to forget")
    if _sends_gradients(facts):
        trainer.contributes(5.0, 1, "after everything was forgotten")


def check_uncounted(kind: type[Strategy], **settings: Any) -> None:
    """After a round that counted without its contribution it keeps the samples, as its facts say, or forgets them."""
    facts = _facts(kind, settings)
    trainer = _Trainer(kind, settings)
    trainer.pull((1.0, 2))
    mean = trainer.seal()[0].clone()
    trainer.absorb(mean, ContributionFate.UNCOUNTED)
    kept = 2 if facts.keeps_uncounted else 0
    what = f"after a round without its contribution it has {trainer.strategy.samples} samples, not {kept}"
    _require(trainer.strategy.samples == kept, kind, what)
    trainer.pull((1.0, 3))
    trainer.seal()
    samples = trainer.strategy.complete_samples
    what = f"after a round without its contribution it contributed {samples} samples, not {kept + 3}"
    _require(samples == kept + 3, kind, what)


def check_shared_part(kind: type[Strategy], **settings: Any) -> None:
    """Peers that absorb equal means are in equal states, whatever each computed and whether that is in the mean."""
    digests = []
    for fate, targets in (
        (ContributionFate.COUNTED, [(1.0, 2), (2.0, 3)]),
        (ContributionFate.COUNTED, [(5.0, 7)]),
        (ContributionFate.UNCOUNTED, [(3.0, 1)]),
        (ContributionFate.ABSENT, []),
    ):
        trainer = _Trainer(kind, settings)
        for _ in range(2):
            trainer.pull(*targets)
            trainer.strategy.close()
            trainer.strategy.contribution()
            trainer.absorb(trainer.mean(), fate)
            trainer.pull((2.5, 1))
        digests.append(trainer.replica.digest())
    _require(len(set(digests)) == 1, kind, "what peers share depends on more than the mean and the round")


def check_parts_of_the_state(kind: type[Strategy], **settings: Any) -> None:
    """Shared and local tensors have different names; with both a peer goes on to the bit, with the first it joins."""
    first = _Trainer(kind, settings)
    first.pull((1.0, 2), (2.0, 3))
    mean = first.seal()[0].clone()
    first.absorb(mean)
    if first.strategy.local_tensors():
        first.pull((5.0, 1))
    local = {name: tensor.clone() for name, tensor in first.strategy.local_tensors().items()}
    snapshot = first.replica.capture()
    shared = {entry.name: tensor for entry, tensor in snapshot.named_tensors()}
    _require(not shared.keys() & local.keys(), kind, "a tensor is both shared and local")
    again, joiner = _Trainer(kind, settings), _Trainer(kind, settings)
    for trainer, own in ((again, local), (joiner, None)):
        trainer.replica.restore(snapshot)
        trainer.strategy.restored(shared, snapshot.step, own)
        _require(trainer.replica.digest() == first.replica.digest(), kind, "a restored state has another digest")
    _require(joiner.strategy.samples == 0, kind, "a newcomer has samples")
    contributions = []
    for trainer in (first, again):
        trainer.pull((3.0, 2))
        contributions.append(trainer.seal())
    same = torch.equal(contributions[0][0], contributions[1][0]) and contributions[0][1] == contributions[1][1]
    _require(same, kind, "after both parts of its state were restored it contributed something else")
    for trainer in (first, again, joiner):
        trainer.absorb(trainer.mean())
    digests = {trainer.replica.digest() for trainer in (first, again, joiner)}
    _require(len(digests) == 1, kind, "a restored peer and a newcomer are in other states after a round")


def check_missed_rounds(kind: type[Strategy], **settings: Any) -> None:
    """A peer that missed 1, 2 or 20 rounds, and does as it says, has the digest of the others."""
    for rounds in (1, 2, 20):
        others, late = _Trainer(kind, settings), _Trainer(kind, settings)
        late.pull((5.0, 2))
        for _ in range(rounds):
            others.pull((1.0, 2))
            others.absorb(others.seal()[0].clone())
        recovery = late.strategy.missed(rounds)
        _require(isinstance(recovery, Recovery), kind, f"missed({rounds}) is {recovery}")
        rebases = recovery is Recovery.REBASE
        local = {name: each.clone() for name, each in late.strategy.local_tensors().items()} if rebases else None
        snapshot = others.replica.capture()
        late.replica.restore(snapshot)
        late.strategy.restored({entry.name: each for entry, each in snapshot.named_tensors()}, snapshot.step, local)
        same = late.replica.digest() == others.replica.digest()
        _require(same, kind, f"after {rounds} missed rounds it is in another state than the others")


def check_dtypes(kind: type[Strategy], **settings: Any) -> None:
    """Parameters of 16 bits are trained as well, and equal means lead to equal states."""
    source = _Trainer(kind, settings, dtype=torch.bfloat16)
    source.pull((1.0, 2))
    mean = source.seal()[0].clone()
    _require(mean.dtype is torch.float32, kind, f"it contributes {mean.dtype}")
    other = _Trainer(kind, settings, dtype=torch.bfloat16)
    for trainer in (source, other):
        trainer.absorb(mean)
    _require(source.replica.digest() == other.replica.digest(), kind, "with bfloat16 equal means lead apart")


def check_score(kind: type[Strategy], **settings: Any) -> None:
    """Where rounds take the best contribution, a peer has a score that is a number when it has one to give, and only
    then.
    """
    trainer = _Trainer(kind, settings)
    takes_best = trainer.strategy.facts.contributors == "best"
    _require(trainer.strategy.score is None, kind, "it has a score, and nothing to give")
    trainer.feed((2.0, 2))
    score = trainer.strategy.score
    has_one = score is not None and math.isfinite(score.value)
    _require(has_one == takes_best, kind, f"its score is {score}")
    mean = trainer.seal()[0].clone()
    _require(trainer.strategy.score == score, kind, "its score changed while nothing was computed")
    trainer.absorb(mean)
    _require(trainer.strategy.score is None, kind, "it has a score after a round, and nothing to give")


def check_conclusion(kind: type[Strategy], **settings: Any) -> None:
    """At the end of a run the replica has the parameters that all share, and no state changes."""
    trainer = _Trainer(kind, settings)
    trainer.pull((1.0, 2))
    trainer.absorb(trainer.seal()[0].clone())
    digest = trainer.replica.digest()
    trainer.strategy.conclude()
    tensors = trainer.strategy.shared_tensors()
    shared = torch.cat([tensor.float() for name, tensor in tensors.items() if name.startswith("model/")])
    _require(torch.equal(trainer.values(), shared), kind, "a run ended with other parameters than those of all")
    _require(trainer.replica.digest() == digest, kind, "the end of a run changed what peers share")


def check_nothing(kind: type[Strategy], **settings: Any) -> None:
    """Without samples there is no contribution, of weight 0; and the round may count or come to nothing."""
    trainer = _Trainer(kind, settings)
    for _ in range(2):
        strategy = trainer.strategy
        strategy.close()
        _require(strategy.contribution() == (None, 0), kind, "it contributed something without samples")
        strategy.take_back()
        trainer.absorb(trainer.mean(), ContributionFate.ABSENT)


def check_not_finite(kind: type[Strategy], **settings: Any) -> None:
    """A micro-batch that is not finite is refused, or later raises `NonFiniteError` once and is forgotten."""
    for value in (math.nan, math.inf, 1e38):
        trainer = _Trainer(kind, settings)
        trainer.replica.look_closely()
        trainer.feed((value, 1))
        trainer.strategy.close()
        with contextlib.suppress(NonFiniteError):
            contributed = trainer.strategy.contribution()
            _require(contributed == (None, 0), kind, f"gradients of {value} were contributed")
        _require(trainer.strategy.samples == 0, kind, f"samples with gradients of {value} still count")
        trainer.feed((3.0, 1))
        vector, samples = trainer.seal()
        good = samples == 1 and bool(vector.isfinite().all())
        _require(good, kind, f"after gradients of {value} it contributed {vector}")


def check_broken_sum(kind: type[Strategy], **settings: Any) -> None:
    """A sum of gradients that is not finite, each of which was, raises `NonFiniteError` and is forgotten."""
    facts = _facts(kind, settings)
    if not _sends_gradients(facts):
        return
    trainer = _Trainer(kind, settings)
    trainer.feed((1e28, 1 << 36), (1e28, 1 << 36))
    trainer.strategy.close()
    try:
        trainer.strategy.contribution()
    except NonFiniteError:
        _require(trainer.strategy.samples == 0, kind, "samples of a sum that is not finite still count")
    else:
        raise StrategyViolation(f"{kind.__name__}: a sum that is not finite was contributed")
    trainer.feed((3.0, 1))
    trainer.strategy.close()
    trainer.contributes(3.0, 1, "after a sum that was not finite")


def check_interrupted(kind: type[Strategy], **settings: Any) -> None:
    """A micro-batch that fails half-way leaves nothing behind in the open sum."""
    facts = _facts(kind, settings)
    if not _sends_gradients(facts):
        return
    trainer = _Trainer(kind, settings)
    accumulate = trainer.replica.accumulate

    def broken(vector: torch.Tensor, weight: float) -> bool:
        vector[0] = weight
        raise KeyboardInterrupt

    trainer.replica.accumulate = broken  # type: ignore[method-assign]
    try:
        trainer.strategy.micro_batch(1)
    except KeyboardInterrupt:
        trainer.replica.accumulate = accumulate  # type: ignore[method-assign]
    else:
        raise StrategyViolation(f"{kind.__name__}: an interrupt was swallowed")
    trainer.feed((3.0, 1))
    trainer.strategy.close()
    trainer.contributes(3.0, 1, "after an interrupt")


STRATEGY_CHECKS: Final[tuple[Callable[..., None], ...]] = (
    check_facts,
    check_mean,
    check_take_back,
    check_repeated_calls,
    check_late_micro_batches,
    check_alone,
    check_unequal_speeds,
    check_absorb,
    check_uncounted,
    check_shared_part,
    check_parts_of_the_state,
    check_missed_rounds,
    check_dtypes,
    check_score,
    check_conclusion,
    check_nothing,
    check_not_finite,
    check_broken_sum,
    check_interrupted,
)
"""All checks, each taking the class and some of its settings, and raising `StrategyViolation` if it fails."""


def check_strategy(kind: type[Strategy], **settings: Any) -> None:
    """Run every check in turn. Raises the first failure."""
    for check in STRATEGY_CHECKS:
        check(kind, **settings)
