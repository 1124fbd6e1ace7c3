"""What cannot be combined, why, and what to set instead."""

from __future__ import annotations

from typing import Final

from minga.core.spec.sections import DEFAULT_SKETCH, MAX_BATCH, TrainingSection
from minga.training.combinations.facts import RunFacts
from minga.training.combinations.rule import Rule, setting

UPLOAD: Final = "averaging.codec"
DOWNLOAD: Final = "averaging.download_codec"
SKETCH: Final = "averaging.sketch"
STRATEGY: Final = "training.strategy"
STRATEGY_CHANGES: Final = "training.strategy_changes"
AVERAGE_PARAMETERS: Final = "averaging.average_parameters_every"
DECAY: Final = "averaging.residual_decay"
WARM_UP: Final = "averaging.warmup_rounds"
BATCH: Final = "training.target_batch_size"

OPTIMIZER: Final = "optimizer.name"

ALL_OF_IT: Final = {UPLOAD: "float16"}
WHOLE_VECTORS: Final = {SKETCH: DEFAULT_SKETCH}
CHECKED_STRATEGY: Final = "synchronous"
"""A name and no fact: members of checked runs do what this strategy does, and ask no strategy for it."""

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


def _is_no_multiple(run: RunFacts) -> bool:
    return isinstance(run.target_batch_size, int) and run.target_batch_size % run.strategy.fragments > 0


def _no_multiple(run: RunFacts) -> str:
    return (
        f"{setting(BATCH, run.target_batch_size)} is not a multiple of the {run.strategy.fragments} fragments of "
        f"{_strategy(run)}"
    )


def _nearest_multiple(run: RunFacts) -> int:
    """A target batch size that the fragments divide."""
    fragments = run.strategy.fragments
    wanted = int(run.target_batch_size)
    return max(fragments, min(wanted + fragments // 2, MAX_BATCH) // fragments * fragments)


def _codec_of_means(run: RunFacts) -> str:
    """What the means of such contributions travel by."""
    return run.upload.usual_download or "float16"


def _what(run: RunFacts) -> str:
    return "one peer's parameters once" if run.strategy.contributors == "best" else "parameters"


VERIFICATION: Final = (
    Rule(
        "R16",
        "checked runs, and scheduled changes of the strategy",
        lambda run: run.is_verified and run.changes_strategy,
        lambda run: f"{VERIFIED} needs one strategy to the end of the run, not {STRATEGY_CHANGES}",  # noqa: ARG005
        {STRATEGY_CHANGES: None},
    ),
    Rule(
        "R2",
        "checked runs, and a codec with a residual or with bytes that others cannot make again",
        lambda run: run.is_verified and (run.upload.leaves_out or not run.upload.recomputable),
        lambda run: (
            f"{VERIFIED} needs a codec without private state, not {_upload(run)}: nobody could recompute a "
            "contribution that holds a residual"
            if run.upload.leaves_out
            else f"{VERIFIED} needs a codec of fixed size whose bytes others can make again, not {_upload(run)}"
        ),
        ALL_OF_IT,
    ),
    Rule(
        "R2",
        "checked runs, and a sketch",
        lambda run: run.is_verified and not run.sketch.is_identity,
        lambda run: f"{VERIFIED} needs whole gradients, which members check, not {_sketch(run)}",
        WHOLE_VECTORS,
    ),
    Rule(
        "R3",
        "checked runs, and rounds that run while peers compute",
        lambda run: run.is_verified and run.strategy.max_in_flight > 0,
        lambda run: (
            f"{VERIFIED} needs a strategy whose peers wait for each round, not {_strategy(run)}: members check the "
            "gradients of the step that they take"
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R4",
        "checked runs, and peers that step on their own, or a strategy of another package",
        lambda run: run.is_verified and run.strategy.max_in_flight == 0 and run.strategy_name != CHECKED_STRATEGY,
        lambda run: (
            f"{VERIFIED} needs contributions that any member can recompute, not those of {_strategy(run)}"
            + ("" if _sends_gradients(run) else ": its peers step with private optimizer moments")
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R5",
        "checked runs, and rounds with one contributor",
        lambda run: run.is_verified and run.strategy.contributors == "best",
        lambda run: (
            f"{VERIFIED} needs several contributions a round, not {_strategy(run)}: of one there is nothing to clip or "
            "to compare"
        ),
        SYNCHRONOUS,
    ),
    Rule(
        "R10",
        "checked runs, and a measured target batch size",
        lambda run: run.is_verified and run.target_batch_size == "auto",
        lambda run: (
            f"{VERIFIED} needs a number, not {setting(BATCH, run.target_batch_size)}, since all members compute "
            "equally much"
        ),
        {BATCH: TrainingSection.model_fields["target_batch_size"].default},
    ),
    Rule(
        "R11",
        "checked runs, and averaged parameters",
        lambda run: run.is_verified and run.average_parameters_every > 0,
        lambda run: (
            f"{VERIFIED} needs parameters that members compute, not "
            f"{setting(AVERAGE_PARAMETERS, run.average_parameters_every)}"
        ),
        {AVERAGE_PARAMETERS: 0},
    ),
    Rule(
        "R12",
        "checked runs, and a codec of their own for means",
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
        "strategies that send parameters, or those of one peer, and a codec that leaves something out",
        lambda run: _sends_whole(run) and run.upload.leaves_out,
        lambda run: f"{_strategy(run)} sends {_what(run)}, of which {_upload(run)} would send a part",
        ALL_OF_IT,
    ),
    Rule(
        "R7",
        "strategies that send parameters, or those of one peer, and a sketch that leaves something out",
        lambda run: _sends_whole(run) and run.sketch.leaves_out,
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
        lambda run: run.download.leaves_out,
        lambda run: (
            f"{_download(run)} leaves out of the means what nobody would make up for later: it is for contributions"
        ),
        {DOWNLOAD: _codec_of_means},
    ),
    Rule(
        "R9",
        "means that give back to senders, and a codec of uploads that keeps nothing",
        lambda run: run.own_download and run.download.returns and not run.upload.leaves_out,
        lambda run: (
            f"{_download(run)} gives back to senders what means left out, which needs a sparse {UPLOAD}, not "
            f"{_upload(run)}"
        ),
        {DOWNLOAD: "float16"},
    ),
    Rule(
        "R9",
        "a target batch size that the fragments of the model cannot share",
        lambda run: _is_no_multiple(run) and not run.is_changed_batch,
        _no_multiple,
        {BATCH: _nearest_multiple},
    ),
    Rule(
        "R9",
        "the same where a change of the strategy sets the target batch size",
        lambda run: _is_no_multiple(run) and run.is_changed_batch,
        _no_multiple,
        {STRATEGY_CHANGES: None},
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
        lambda run: run.upload.leaves_out and run.sketch.leaves_out,
        lambda run: f"{_upload(run)} and {_sketch(run)} both leave something out: one of them can be made up for",
        ALL_OF_IT,
    ),
    Rule(
        "R15",
        "a decay of residuals, and nothing that is left out",
        lambda run: run.residual_decay != 1.0 and not run.leaves_out,
        lambda run: f"{setting(DECAY, run.residual_decay)} is for residuals, and {_upload(run)} leaves none",
        {DECAY: 1.0},
    ),
    Rule(
        "R15",
        "a warm-up, and a codec that leaves nothing out",
        lambda run: run.warmup_rounds > 0 and not run.upload.leaves_out,
        lambda run: f"{setting(WARM_UP, run.warmup_rounds)} is for codecs that leave something out, not {_upload(run)}",
        {WARM_UP: 0},
    ),
)
"""What cannot be in any run."""

REFUSALS: Final = (*VERIFICATION, *OTHERS)
