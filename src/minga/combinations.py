"""What may be combined in a run: one table of rules, asked wherever a run spec is read.

    run spec ─▶ facts (of its strategy, codecs, sketch) ─▶ rules ─▶ an error, with what to set instead; warnings

Rules ask for facts and not for names, so they hold for strategies, codecs and sketches of other packages, too. Rules R2
to R16 refuse what cannot be combined, and what a refusal says to set instead is allowed. Rule W1 warns of what has a
price.

Called by plugins_of_run, by plans, and by commands that print warnings; `docs/combinations.md` is made from it. Lower
layers guard themselves, in fewer words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from minga.averaging.codecs import layout
from minga.averaging.sketches.interface import make_sketch
from minga.averaging.strategy_choice import StrategyFacts, facts_of
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import DEFAULT_SKETCH, TrainingSection

# ---- Facts about a run, which its strategy, its codecs and its sketch state about themselves.


MOMENT_OPTIMIZERS = ("adamw", "lamb")
"""Those that divide by a mean of squared gradients."""


@dataclass(frozen=True)
class CodecFacts:
    """What follows from a codec choice.

    needs_residual: whether senders have to keep what it leaves out, and add it to later contributions.
    recomputable: whether anybody who has the values can make the same bytes again, as many as for any other values.
    returns: whether, as a download codec, it gives back to the senders what of their contributions the mean left out.
    usual_download: how the means of such contributions travel where the run does not say; None: by this codec, too.
    """

    choice: str
    needs_residual: bool
    recomputable: bool
    returns: bool
    usual_download: str | None


@dataclass(frozen=True)
class SketchFacts:
    """What follows from a sketch choice.

    needs_residual: whether peers have to keep what it leaves out, and add it to later contributions.
    """

    choice: str
    is_identity: bool
    needs_residual: bool


@dataclass(frozen=True)
class RunFacts:
    """What follows from a run spec while one strategy is in force, the same on all peers.

    `own_download` says whether means travel by another codec than contributions. `has_moments`: whether the optimizer
    divides by a mean of squared gradients; never if the program brings its own. `is_plain_descent`: whether it is
    gradient descent without momentum and clipping; always if the program brings its own, which is looked at later.
    `changes_strategy`: whether the run has scheduled changes.
    """

    strategy_name: str
    strategy: StrategyFacts
    upload: CodecFacts
    download: CodecFacts
    own_download: bool
    sketch: SketchFacts
    is_verified: bool
    optimizer: str
    has_moments: bool
    is_plain_descent: bool
    average_parameters_every: int
    residual_decay: float
    target_batch_size: int | str
    changes_strategy: bool

    @property
    def needs_residual(self) -> bool:
        """Whether contributions lack something that later ones make up for."""
        return self.upload.needs_residual or self.sketch.needs_residual


def facts_of_run(spec: RunSpec) -> tuple[RunFacts, ...]:
    """The facts of this run as it begins, and as it goes on after each scheduled change of the strategy.

    Raises `ConfigurationError` for a strategy, codec or sketch that is not installed.
    """
    changes = bool(spec.training.strategy_changes)
    return tuple(replace(_facts_of_phase(phase), changes_strategy=changes) for phase in spec.phases)


def _facts_of_phase(spec: RunSpec) -> RunFacts:
    averaging, training = spec.averaging, spec.training
    upload = codec_facts(averaging.codec)
    brings_own, optimizer = spec.model.recipe == "custom", spec.optimizer
    is_plain = (optimizer.name, optimizer.momentum, optimizer.max_grad_norm) == ("sgd", 0.0, None)
    return RunFacts(
        strategy_name=training.strategy,
        strategy=facts_of(spec),
        upload=upload,
        download=codec_facts(averaging.download_codec or upload.usual_download or averaging.codec),
        own_download=averaging.download_codec is not None,
        sketch=sketch_facts(averaging.sketch),
        is_verified=spec.security.verification == "byzantine",
        optimizer=optimizer.name,
        has_moments=not brings_own and optimizer.name in MOMENT_OPTIMIZERS,
        is_plain_descent=brings_own or is_plain,
        average_parameters_every=averaging.average_parameters_every,
        residual_decay=averaging.residual_decay,
        target_batch_size=training.target_batch_size,
        changes_strategy=False,
    )


def codec_facts(choice: str) -> CodecFacts:
    """Those of a codec choice. Raises `ConfigurationError` if it is none here."""
    return CodecFacts(
        choice,
        needs_residual=layout.needs_residual(choice),
        recomputable=all(each.has_fixed_size and not each.draws for each in layout.codecs_of(choice)),
        returns=layout.returns(choice),
        usual_download=layout.usual_download(choice),
    )


def sketch_facts(choice: str) -> SketchFacts:
    """Those of a sketch choice. Raises `ConfigurationError` if it is none here."""
    if choice == DEFAULT_SKETCH:
        return SketchFacts(choice, is_identity=True, needs_residual=False)
    found = make_sketch(choice, _SMALL)
    return SketchFacts(choice, found.is_identity, found.needs_residual)


_SMALL = layout.VectorLayout(((4, 4),), "float32")
"""A sketch is asked for its facts on a vector: any will do."""


# ---- Rules, and how their findings are worded: each message ends with a choice that is allowed.


Changes = Mapping[str, Any]
"""Settings by their keys in the run spec, such as averaging.codec; None is to leave the setting out."""

Instead = Mapping[str, Any | Callable[[RunFacts], Any]]
"""The same, where some values depend on the run."""


@dataclass(frozen=True)
class Rule:
    """What some runs are not, or only at a price.

    code: R and a number for a refusal, W for a warning, G for a guarantee that is lost.
    title: what it is about, for the documentation.
    applies: whether a run is such a one.
    reason: why, for this run, in the words of the run spec.
    instead: the settings to change so that the rule does not apply any more, or what tells them of a run; none for
        what is allowed.
    """

    code: str
    title: str
    applies: Callable[[RunFacts], bool]
    reason: Callable[[RunFacts], str]
    instead: Instead = field(default_factory=dict)

    @property
    def refuses(self) -> bool:
        """Whether runs to which it applies cannot be."""
        return self.code.startswith("R")


@dataclass(frozen=True)
class Ruling:
    """A rule that applies to a run."""

    code: str
    reason: str
    instead: Changes


def find(rules: tuple[Rule, ...], run: RunFacts) -> tuple[Ruling, ...]:
    """Which of the rules apply, in their order."""
    return tuple(_ruling(rule, run) for rule in rules if rule.applies(run))


def _ruling(rule: Rule, run: RunFacts) -> Ruling:
    changes = {key: value(run) if callable(value) else value for key, value in rule.instead.items()}
    return Ruling(rule.code, rule.reason(run), changes)


def advice(changes: Changes) -> str:
    """The changes in words, such as: set averaging.codec = "float16" and leave averaging.download_codec out."""
    settings = [setting(key, value) for key, value in changes.items() if value is not None]
    without = [key for key, value in changes.items() if value is None]
    words = [f"set {_listed(settings)}"] if settings else []
    words += [f"leave {_listed(without)} out"] if without else []
    return (", and " if len(settings) > 1 else " and ").join(words)


def _listed(words: list[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def setting(key: str, value: object) -> str:
    """A setting as the run spec spells it."""
    return f'{key} = "{value}"' if isinstance(value, str) else f"{key} = {value}"


# ---- Refusals: what cannot be combined, why, and what to set instead.


UPLOAD: Final = "averaging.codec"
DOWNLOAD: Final = "averaging.download_codec"
SKETCH: Final = "averaging.sketch"
STRATEGY: Final = "training.strategy"
STRATEGY_CHANGES: Final = "training.strategy_changes"
AVERAGE_PARAMETERS: Final = "averaging.average_parameters_every"
DECAY: Final = "averaging.residual_decay"
BATCH: Final = "training.target_batch_size"

OPTIMIZER: Final = "optimizer.name"

ALL_OF_IT: Final = {UPLOAD: "float16"}
WHOLE_VECTORS: Final = {SKETCH: DEFAULT_SKETCH}
CHECKED_STRATEGY: Final = "synchronous"
"""A name and no fact: members of Byzantine-tolerant runs do what this strategy does, and ask no strategy for it."""

PLAIN_DESCENT: Final = {OPTIMIZER: "sgd", "optimizer.momentum": 0.0, "optimizer.max_grad_norm": "off"}
SYNCHRONOUS: Final = {STRATEGY: CHECKED_STRATEGY}
VERIFIED: Final = 'security.verification = "byzantine"'


def _strategy(run: RunFacts) -> str:
    return setting(STRATEGY, run.strategy_name)


def _upload(run: RunFacts) -> str:
    return setting(UPLOAD, run.upload.choice)


def _download(run: RunFacts) -> str:
    return setting(DOWNLOAD if run.own_download else UPLOAD, run.download.choice)


def _sketch(run: RunFacts) -> str:
    return setting(SKETCH, run.sketch.choice)


def _sends_gradients(run: RunFacts) -> bool:
    return run.strategy.payload == "gradient"


def _sends_whole(run: RunFacts) -> bool:
    """Whether half of a contribution is of no use."""
    return run.strategy.payload == "parameters" or run.strategy.contributors == "best"


def _codec_of_means(run: RunFacts) -> str:
    """What the means of such contributions travel by."""
    return run.upload.usual_download or "float16"


def _what(run: RunFacts) -> str:
    return "one peer's parameters once" if run.strategy.contributors == "best" else "what is there again in each round"


VERIFICATION: Final = (
    Rule(
        "R16",
        "Byzantine-tolerant runs, and scheduled changes of the strategy",
        lambda run: run.is_verified and run.changes_strategy,
        lambda run: f"{VERIFIED} needs one strategy to the end of the run, not {STRATEGY_CHANGES}",  # noqa: ARG005
        {STRATEGY_CHANGES: None},
    ),
    Rule(
        "R2",
        "Byzantine-tolerant runs, and a codec with a residual or with bytes that others cannot make again",
        lambda run: run.is_verified and (run.upload.needs_residual or not run.upload.recomputable),
        lambda run: (
            f"{VERIFIED} needs a codec without private state, not {_upload(run)}: nobody could recompute a "
            "contribution that holds a residual"
            if run.upload.needs_residual
            else f"{VERIFIED} needs a codec of fixed size whose bytes others can make again, not {_upload(run)}"
        ),
        ALL_OF_IT,
    ),
    Rule(
        "R2",
        "Byzantine-tolerant runs, and a sketch",
        lambda run: run.is_verified and not run.sketch.is_identity,
        lambda run: f"{VERIFIED} needs whole gradients, which members check, not {_sketch(run)}",
        WHOLE_VECTORS,
    ),
    Rule(
        "R3",
        "Byzantine-tolerant runs, and rounds that run while peers compute",
        lambda run: run.is_verified and run.strategy.max_in_flight > 0,
        lambda run: (
            f"{VERIFIED} needs a strategy whose peers wait for each round, not {_strategy(run)}: members check the "
            "gradients of the step that they take"
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R4",
        "Byzantine-tolerant runs, and peers that step on their own, or a strategy of another package",
        lambda run: run.is_verified and run.strategy.max_in_flight == 0 and run.strategy_name != CHECKED_STRATEGY,
        lambda run: (
            f"{VERIFIED} needs contributions that any member can recompute, not those of {_strategy(run)}"
            + ("" if _sends_gradients(run) else ": its peers step with private optimizer moments")
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R5",
        "Byzantine-tolerant runs, and rounds with one contributor",
        lambda run: run.is_verified and run.strategy.contributors == "best",
        lambda run: (
            f"{VERIFIED} needs several contributions a round, not {_strategy(run)}: of one there is nothing to clip or "
            "to compare"
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R10",
        "Byzantine-tolerant runs, and a measured target batch size",
        lambda run: run.is_verified and run.target_batch_size == "auto",
        lambda run: (
            f"{VERIFIED} needs a number, not {setting(BATCH, run.target_batch_size)}, since all members compute "
            "equally much"
        ),
        {BATCH: TrainingSection.model_fields["target_batch_size"].default},
    ),
    Rule(
        "R11",
        "Byzantine-tolerant runs, and averaged parameters",
        lambda run: run.is_verified and run.average_parameters_every > 0,
        lambda run: (
            f"{VERIFIED} needs parameters that members compute, not "
            f"{setting(AVERAGE_PARAMETERS, run.average_parameters_every)}"
        ),
        {AVERAGE_PARAMETERS: 0},
    ),
    Rule(
        "R12",
        "Byzantine-tolerant runs, and a codec of their own for means",
        lambda run: run.is_verified and run.own_download,
        lambda run: f"{VERIFIED} needs one codec for both directions, not {_download(run)}",
        {DOWNLOAD: None},
    ),
)
"""What members of a run cannot check."""

OTHERS: Final = (
    Rule(
        "R6",
        "averaged parameters, and strategies that share parameters anyway",
        lambda run: run.average_parameters_every > 0 and not _sends_gradients(run),
        lambda run: (
            f"{setting(AVERAGE_PARAMETERS, run.average_parameters_every)} needs a strategy that shares gradients: with "
            f"{_strategy(run)} peers share their parameters in every round"
        ),
        {AVERAGE_PARAMETERS: 0},
    ),
    Rule(
        "R7",
        "strategies that send parameters, their distances or one peer's, and a codec that leaves something out",
        lambda run: _sends_whole(run) and run.upload.needs_residual,
        lambda run: f"{_strategy(run)} sends {_what(run)}, of which {_upload(run)} would send a part",
        ALL_OF_IT,
    ),
    Rule(
        "R7",
        "strategies that send parameters, their distances or one peer's, and a sketch that leaves something out",
        lambda run: _sends_whole(run) and run.sketch.needs_residual,
        lambda run: f"{_strategy(run)} sends {_what(run)}, of which {_sketch(run)} would send a part",
        WHOLE_VECTORS,
    ),
    Rule(
        "R9",
        "contributions by a codec that gives back to senders",
        lambda run: run.upload.returns,
        lambda run: f"{_upload(run)} leaves out what senders take back by the mean: it is for means, not contributions",
        ALL_OF_IT,
    ),
    Rule(
        "R8",
        "strategies that bring their own optimizer, and another one",
        lambda run: run.strategy.owns_optimizer and not run.is_plain_descent,
        lambda run: (
            f"{_strategy(run)} brings its own optimizer, which needs gradient descent without momentum and clipping, "
            f"not {setting(OPTIMIZER, run.optimizer)} as it is set"
        ),
        PLAIN_DESCENT,
    ),
    Rule(
        "R9",
        "means by a codec that leaves something out",
        lambda run: run.download.needs_residual,
        lambda run: (
            f"{_download(run)} leaves out of the means what nobody would make up for later: it is for contributions"
        ),
        {DOWNLOAD: _codec_of_means},
    ),
    Rule(
        "R9",
        "means that give back to senders, and a codec of uploads that keeps nothing",
        lambda run: run.own_download and run.download.returns and not run.upload.needs_residual,
        lambda run: (
            f"{_download(run)} gives back to senders what means left out, which needs an {UPLOAD} with a residual, "
            f'such as "topk", not {_upload(run)}'
        ),
        {DOWNLOAD: "float16"},
    ),
    Rule(
        "R13",
        "averaged parameters, and a sketch",
        lambda run: run.average_parameters_every > 0 and not run.sketch.is_identity,
        lambda run: (
            f"{setting(AVERAGE_PARAMETERS, run.average_parameters_every)} needs rounds that are planned for whole "
            f"vectors, not for {_sketch(run)}"
        ),
        {AVERAGE_PARAMETERS: 0},
    ),
    Rule(
        "R14",
        "a codec and a sketch that both leave something out",
        lambda run: run.upload.needs_residual and run.sketch.needs_residual,
        lambda run: f"{_upload(run)} and {_sketch(run)} both leave something out: one of them can be made up for",
        ALL_OF_IT,
    ),
    Rule(
        "R15",
        "a decay of residuals, and nothing that is left out",
        lambda run: run.residual_decay != 1.0 and not run.needs_residual,
        lambda run: f"{setting(DECAY, run.residual_decay)} is for residuals, and {_upload(run)} leaves none",
        {DECAY: 1.0},
    ),
)
"""What cannot be in any run."""

REFUSALS: Final = (*VERIFICATION, *OTHERS)


# ---- Cautions: what can be combined at a price, for a warning or the loss of a guarantee.


def _what_needs_residual(run: RunFacts) -> str:
    return setting(UPLOAD, run.upload.choice) if run.upload.needs_residual else setting(SKETCH, run.sketch.choice)


CAUTIONS: Final = (
    Rule(
        "W1",
        "error feedback of gradients, and an optimizer with second moments",
        lambda run: run.needs_residual and run.has_moments and run.strategy.payload == "gradient",
        lambda run: (
            f"{_what_needs_residual(run)} sends old gradients in lumps, which make the second moments of "
            f'optimizer.name = "{run.optimizer}" grow: lower optimizer.learning_rate, or take another codec or '
            "optimizer. In our benchmark topk of 1 % and powersgd ended 16 to 40 % above the loss of float16 with "
            "adamw, and powersgd at about that loss with muon (docs/benchmarks.md)"
        ),
    ),
)
"""In the order of their codes."""


# ---- Judgement: a run spec against all rules.


def refusals(spec: RunSpec) -> tuple[Ruling, ...]:
    """Why this run cannot be; empty if it can. Raises `ConfigurationError` for what is not installed."""
    return _found(REFUSALS, spec)


def cautions(spec: RunSpec) -> tuple[Ruling, ...]:
    """What an organiser should know about this run: warnings and lost guarantees; raises as `refusals` does."""
    return _found(CAUTIONS, spec)


def _found(rules: tuple[Rule, ...], spec: RunSpec) -> tuple[Ruling, ...]:
    """What applies to any strategy of the run, once each."""
    by_reason = {ruling.reason: ruling for run in facts_of_run(spec) for ruling in find(rules, run)}
    return tuple(by_reason.values())


def check_combinations(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with all reasons and a choice that is allowed, if such a run cannot be."""
    found = refusals(spec)
    if not found:
        return
    reasons = [each.reason for each in found]
    changes = dict(nearest_allowed(spec))
    changes |= {f"[strategy.{name}]": None for name in spec.strategy.keys() - with_changes(spec, changes).strategy}
    way_out = advice(changes)
    if len(reasons) == 1:
        raise ConfigurationError(f"{reasons[0]}; {way_out}")
    raise ConfigurationError("\n".join([*reasons, f"for all of this: {way_out}"]))


def nearest_allowed(spec: RunSpec) -> Changes:
    """The settings to change for an allowed run, one rule after the other; `with_changes` takes them."""
    changes: dict[str, object] = {}
    for _ in REFUSALS:  # a change takes one refusal back at least, so there are never more of them
        found = refusals(with_changes(spec, changes))
        if not found:
            break
        changes.update(found[0].instead)
    return changes


def with_changes(spec: RunSpec, changes: Changes) -> RunSpec:
    """The spec with these settings, and with settings of no other strategies than it has then."""
    values = {key: [] if (key, value) == (STRATEGY_CHANGES, None) else value for key, value in changes.items()}
    later = () if STRATEGY_CHANGES in values else spec.training.strategies[1:]
    used = {values.get(STRATEGY, spec.training.strategy), *later}
    tables = {name: table for name, table in spec.strategy.items() if name in used}
    return spec.model_copy(update={"strategy": tables}).amended(values)
