"""`minga evaluate`: what a trained language model is good for."""

from __future__ import annotations

from typing import Any, cast, get_args

from minga.cli.terminal.context import Context
from minga.cli.terminal.output import plain_table
from minga.core.errors import ConfigurationError
from minga.recipes.tasks.evaluate import Score, TaskName, TaskOptions, TaskReport, evaluate_model

NAMES = {"ner": "named entities", "ncc": "classes of texts"}


def run_evaluate(
    model: str, task: str, data: str | None, runs: int, training_examples: int | None, context: Context
) -> None:
    """Fine-tune and test; the table has the same model from scratch beside it. Raises `ConfigurationError`."""
    if task not in get_args(TaskName):
        raise ConfigurationError(f"--task {task}: choose {' or '.join(get_args(TaskName))}")
    import transformers

    transformers.logging.set_verbosity_error()  # it reports each new head as a parameter that is missing
    options = TaskOptions(cast("TaskName", task), data, runs, training_examples)
    report = evaluate_model(model, options, context.output.say)
    context.output.say(_table(report))
    context.output.say(
        f"{NAMES[task]} of {report.data}, {report.examples} examples to train on, mean and deviation of {runs} runs"
    )
    context.output.summary(ok=True, **report.as_json())


def _table(report: TaskReport) -> Any:
    table = plain_table("figure", "trained", "from scratch", left=["figure"])
    for name, score in report.trained.items():
        table.add_row(name, _shown(score), _shown(report.from_scratch[name]))
    return table


def _shown(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.deviation:.3f}"
