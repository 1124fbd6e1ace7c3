"""What the rules ask about a run: facts that its strategy, its codecs and its sketch state about themselves."""

from __future__ import annotations

from dataclasses import dataclass, replace

from minga.averaging.codecs.layout import VectorLayout, codecs_of
from minga.averaging.sketches.interface import make_sketch
from minga.averaging.strategy_choice import StrategyFacts, facts_of
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import DEFAULT_SKETCH

MOMENT_OPTIMIZERS = ("adamw", "lamb")
"""Those that divide by a mean of squared gradients."""


@dataclass(frozen=True)
class CodecFacts:
    """What follows from a codec choice.

    leaves_out: whether senders have to keep what it leaves out, and add it to later contributions.
    recomputable: whether anybody who has the values can make the same bytes again, as many as for any other values.
    returns: whether, as a download codec, it gives back to the senders what of their contributions the mean left out.
    usual_download: how the means of such contributions travel where the run does not say; None: by this codec, too.
    """

    choice: str
    leaves_out: bool
    recomputable: bool
    returns: bool
    usual_download: str | None


@dataclass(frozen=True)
class SketchFacts:
    """What follows from a sketch choice.

    leaves_out: whether peers have to keep what it leaves out, and add it to later contributions.
    """

    choice: str
    is_identity: bool
    leaves_out: bool


@dataclass(frozen=True)
class RunFacts:
    """What follows from a run spec while one strategy is in force, the same on all peers.

    `own_download` says whether means travel by another codec than contributions. `has_moments`: whether the optimizer
    divides by a mean of squared gradients; never if the program brings its own. `is_plain_descent`: whether it is
    gradient descent without momentum and clipping; always if the program brings its own, which is looked at later.
    `changes_strategy`: whether the run has scheduled changes; `is_changed_batch`: whether one of them set the target
    batch size.
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
    warmup_rounds: int
    target_batch_size: int | str
    changes_strategy: bool
    is_changed_batch: bool

    @property
    def leaves_out(self) -> bool:
        """Whether contributions lack something that later ones make up for."""
        return self.upload.leaves_out or self.sketch.leaves_out


def facts_of_run(spec: RunSpec) -> tuple[RunFacts, ...]:
    """The facts of this run as it begins, and as it goes on after each scheduled change of the strategy.

    Raises `ConfigurationError` for a strategy, codec or sketch that is not installed.
    """
    changes, batch = bool(spec.training.strategy_changes), spec.training.target_batch_size
    return tuple(
        replace(
            _facts_of_phase(phase),
            changes_strategy=changes,
            is_changed_batch=phase.training.target_batch_size != batch,
        )
        for phase in spec.phases
    )


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
        warmup_rounds=averaging.warmup_rounds,
        target_batch_size=training.target_batch_size,
        changes_strategy=False,
        is_changed_batch=False,
    )


def codec_facts(choice: str) -> CodecFacts:
    """Those of a codec choice. Raises `ConfigurationError` if it is none here."""
    found = codecs_of(choice)
    return CodecFacts(
        choice,
        leaves_out=any(each.needs_residual for each in found),
        recomputable=all(each.recomputable and each.has_fixed_size for each in found),
        returns=any(each.returns for each in found),
        usual_download=next((each.usual_download for each in found if each.usual_download), None),
    )


def sketch_facts(choice: str) -> SketchFacts:
    """Those of a sketch choice. Raises `ConfigurationError` if it is none here."""
    if choice == DEFAULT_SKETCH:
        return SketchFacts(choice, is_identity=True, leaves_out=False)
    found = make_sketch(choice, _SMALL)
    return SketchFacts(choice, found.is_identity, leaves_out=not found.is_lossless)


_SMALL = VectorLayout(((4, 4),), "float32")
"""A sketch is asked for its facts on a vector: any will do."""
