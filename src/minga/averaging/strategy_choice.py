"""Which strategies a run can choose from, and what planners, displays and simulations may know of each.

Nobody but the strategy itself asks for its name: they ask for its facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, get_args

from pydantic import ValidationError

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section
from minga.core.spec.plugins import Registry
from minga.core.spec.problems import explain
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import TrainingSection
from minga.core.units import counted

Payload = Literal["gradient", "pseudo-gradient", "parameters", "coefficients"]
Contributors = Literal["all", "best"]
Weights = Literal["samples", "equal"]


@dataclass(frozen=True)
class StrategyFacts:
    """What follows from a run's strategy, the same on all peers.

    max_in_flight: rounds that may run while the trainer computes, 0 or 1. With 0 the trainer is parked meanwhile.
    keeps_late_micro_batches: one that ends after its step was sealed counts towards the next; else it is dropped.
    vectors: how many vectors as long as the averaged one it holds.
    payload: the quantity whose mean is taken; "coefficients" are those of gradients or movements in another basis.
        Gradients and movements are given once. "parameters", or how far they are from others, are given anew in each
        round, so what a codec left out of them is not to be made up for later.
    fragments: the parts of the model that rounds carry in turn. Each round closes with as great a part of the target
        batch.
    keeps_uncounted: the strategy itself keeps a contribution that a round counted without, for a later one. Else it
        forgets it, and what keeps it is the residual of a codec or of a sketch that leaves something out, if there is
        one. So it never counts twice.
    contributors: whose contributions a round takes: those of all, or that of the member with the best score alone (see
        `Strategy.score`), while all others only receive. The last round of a run takes those of all.
    weights: what a contribution counts in a mean of several: its samples, or as much as any other.
    shared_vectors: how many vectors the shared state has beside the parameters and what the optimizer keeps.
    least_micro_batches: fewer micro-batches of a peer between two means of the same vector are known to do harm.
    owns_optimizer: the strategy decides how a mean changes parameters; the optimizer is to be plain gradient descent,
        without momentum or clipping.

    Raises `ConfigurationError` for values out of range.
    """

    max_in_flight: int
    keeps_late_micro_batches: bool
    vectors: int
    payload: Payload = "gradient"
    keeps_uncounted: bool = False
    contributors: Contributors = "all"
    weights: Weights = "samples"
    owns_optimizer: bool = False
    fragments: int = 1
    shared_vectors: int = 0
    least_micro_batches: int = 0

    @property
    def shares_optimizer(self) -> bool:
        """Whether the optimizer steps by means, so that its state is the same for all; else each peer has its own."""
        return self.payload == "gradient"

    @property
    def counts_late(self) -> bool:
        """Whether what a peer does alone counts in a later round, however many rounds the others take meanwhile."""
        return self.max_in_flight > 0 and not self.shares_optimizer

    def __post_init__(self) -> None:
        if self.max_in_flight not in (0, 1) or self.vectors < 0:
            raise ConfigurationError(f"strategy: {self} has other than 0 or 1 rounds in flight, or less than 0 vectors")
        if self.payload not in get_args(Payload):
            raise ConfigurationError(f"strategy: {self} has an unknown payload")
        if self.contributors not in get_args(Contributors) or self.weights not in get_args(Weights):
            raise ConfigurationError(f"strategy: {self} takes other contributions or weights than there are")
        if self.fragments < 1:
            raise ConfigurationError(f"strategy: {self} has less than one fragment")


STRATEGIES: Final[Registry[Any]] = Registry(
    "minga.strategies",
    "strategy",
    {
        "synchronous": "minga.training.strategy.synchronous:Synchronous",
        "delayed": "minga.training.strategy.synchronous:Delayed",
        "local": "minga.training.strategy.local:Local",
        "leader": "minga.training.strategy.leader:Leader",
        "elastic": "minga.training.strategy.centred:Elastic",
        "demo": "minga.training.strategy.demo:Demo",
    },
)
"""Subclasses of `minga.training.strategy.interface.Strategy`."""


class NoSettings(Section):
    """The settings of a strategy that has none."""


class StrategyUser(Protocol):
    """A run spec, or what else says how a run trains."""

    @property
    def training(self) -> TrainingSection:
        """The section that names the strategy."""

    @property
    def strategy(self) -> Mapping[str, Mapping[str, Any]]:
        """Tables of settings by the names of strategies."""


@dataclass(frozen=True)
class StrategyChoice:
    """A strategy by its name, with the `table` of those settings that are not at their defaults.

    What it says of the strategy raises `ConfigurationError` if no installed package brings it, or if the strategy does
    not take its settings.
    """

    name: str
    table: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, run: StrategyUser, name: str | None = None) -> StrategyChoice:
        """That of a run spec: the one with which the run begins, or the one called `name`."""
        chosen = name or run.training.strategy
        return cls(chosen, run.strategy.get(chosen, {}))

    @property
    def kind(self) -> Any:
        """The subclass of `minga.training.strategy.interface.Strategy`."""
        kind = STRATEGIES.get(self.name)
        if not callable(getattr(kind, "facts_for", None)):
            raise ConfigurationError(f"strategy: what an installed package brings as {self.name!r} is none")
        return kind

    @property
    def settings(self) -> Section:
        """All settings of the strategy."""
        kind: type[Section] = self.kind.Settings
        try:
            return kind.model_validate(dict(self.table))
        except ValidationError as error:
            raise ConfigurationError(explain(error, kind, "run spec", within=f"strategy.{self.name}")) from error

    @property
    def facts(self) -> StrategyFacts:
        """What planners, displays and simulations may know of it."""
        facts = self.kind.facts_for(self.settings)
        if not isinstance(facts, StrategyFacts):
            raise ConfigurationError(f"strategy: what an installed package brings as {self.name!r} has no facts")
        return facts


def facts_of(run: StrategyUser) -> StrategyFacts:
    """The facts of a run's strategy, which follow from its settings, too. Raises as `StrategyChoice`."""
    return StrategyChoice.of(run).facts


def steps_alike(run: StrategyUser) -> bool:
    """Whether all peers take the same optimizer steps with the strategy of the run's beginning, so that equal bits of
    these matter. Amendments do not change it, and so peers that come later agree.
    """
    return facts_of(run).shares_optimizer


def largest_strategy(run: StrategyUser) -> StrategyChoice:
    """Of all strategies that a run has one after the other, the one that holds most vectors."""
    return max((StrategyChoice.of(run, name) for name in run.training.strategies), key=lambda each: each.facts.vectors)


def samples_of_rounds(run: RunSpec) -> list[tuple[int, int]]:
    """From which step on rounds close with how many samples, as the run spec plans it."""
    starts = (0, *(change.from_step for change in run.training.strategy_changes))
    return [(start, round_batch_range(phase)[0]) for start, phase in zip(starts, run.phases, strict=True)]


def smallest_round(run: RunSpec) -> int:
    """The fewest samples with which a round of this run closes, as the run spec plans it: no micro-batch has more."""
    return min(samples for _, samples in samples_of_rounds(run))


def phases_in_words(run: RunSpec) -> str:
    """The strategies of a run one after the other, and how many samples their steps have; empty if nothing changes."""
    if not run.training.strategy_changes:
        return ""
    return "; ".join(filter(None, (run.training.phase_at(0), _steps_in_words(run))))


def _steps_in_words(run: RunSpec) -> str:
    last = run.training.stop_after_steps
    phases = [each for each in samples_of_rounds(run) if last is None or each[0] < last]
    if run.training.target_batch_size == "auto" or len({samples for _, samples in phases}) == 1:
        return ""
    ends = [*(start for start, _ in phases[1:]), last]
    spans = [(end and end - start, samples) for (start, samples), end in zip(phases, ends, strict=True)]
    said = ", then ".join(
        f"{counted(steps, 'step') if steps else 'steps'} of {samples:,} samples" for steps, samples in spans
    )
    whole = sum(steps * samples for steps, samples in spans if steps)
    return said if last is None else f"{said}: {whole:,} samples in all"


def round_batch_range(run: StrategyUser) -> tuple[int, int]:
    """The smallest and the largest number of samples with which a round of this run may close.

    With fragments that is their part of the target batch, rounded down, so that each fragment is averaged once for each
    batch; and at least one sample.
    """
    fragments = facts_of(run).fragments
    least, most = run.training.batch_range
    return max(1, least // fragments), max(1, most // fragments)
