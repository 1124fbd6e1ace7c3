"""`minga evaluate`: what a trained model is good for, by the tasks that its recipe names, or by its figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from minga.cli.commands import EvaluateCommand
from minga.cli.terminal.context import Context, apply_threads
from minga.cli.terminal.output import Display, plain_table
from minga.core.errors import ConfigurationError
from minga.core.units import counted
from minga.keeping.known_runs import known_run
from minga.keeping.rejoin import SPEC_FILE
from minga.recipes.exported import read_provenance
from minga.recipes.interface import Recipe
from minga.recipes.registry import CUSTOM, RECIPES
from minga.recipes.running.trained_model import TrainedModel, from_run_folder
from minga.recipes.task_report import Score, TaskOptions, TaskReport

NAMES: Final = {"ner": "named entities", "ncc": "classes of texts"}
CHECKPOINTS: Final = "checkpoints"
FROM_ELSEWHERE: Final = "masked-lm"
"""The recipe whose tasks are those of a model that minga did not export, such as one of the hub."""


def run_evaluate(options: EvaluateCommand, context: Context) -> None:
    """Do the task; the table has a model from scratch beside this one. Of a run whose recipe has no tasks it has the
    figures on held-out data. Raises `ConfigurationError`.
    """
    apply_threads(options.threads)
    model, task = options.model, options.task
    folder = Path(model).expanduser()
    provenance = read_provenance(folder)
    of_run, trained = _recipe_of_run(folder)
    name = of_run or (FROM_ELSEWHERE if provenance is None else provenance.recipe)
    recipe: type[Recipe[Any]] | None = None if name == CUSTOM else RECIPES.get(name)
    if of_run is not None and recipe is not None and not recipe.tasks:
        _show_figures(from_run_folder(folder) if trained is None else trained, context)
        return
    if recipe is None or not recipe.tasks:
        raise ConfigurationError(
            f"{model}: a model of the recipe {name}, for which there are no tasks; {_else(recipe)}"
        )
    if of_run is not None:
        typed = f"minga export {model} --out MODEL, and then minga evaluate MODEL"
        raise ConfigurationError(f"{model}: the folder of a run, and no model yet; type {typed}")
    chosen = task or recipe.tasks[0]
    if chosen not in recipe.tasks:
        raise ConfigurationError(f"--task {task}: a model of the recipe {name} has {' and '.join(recipe.tasks)}")
    import transformers

    transformers.logging.set_verbosity_error()  # it reports each new head as a parameter that is missing
    transformers.logging.disable_progress_bar()
    report = recipe.judge(
        model, TaskOptions(chosen, options.data, options.repeat, options.examples), context.output.say
    )
    basis = (
        f"{NAMES.get(chosen, chosen)}; {report.data}, {counted(report.examples, 'example')} to train on, mean and "
        f"deviation of {counted(options.repeat, 'run')}"
    )
    context.output.show(Display([_table(report), basis], report.as_json()))


def _recipe_of_run(folder: Path) -> tuple[str | None, TrainedModel | None]:
    """The recipe of a run by its folder, None for another one; with the model, where that had to be read for it."""
    if (folder / SPEC_FILE).is_file():
        return known_run(folder).spec.model.recipe, None
    if not (folder / CHECKPOINTS).is_dir():
        return None, None
    trained = from_run_folder(folder)  # its host kept no key, and so no spec
    return trained.recipe.context.recipe, trained


def _show_figures(trained: TrainedModel, context: Context) -> None:
    """The figures of the newest checkpoint of a run on its held-out data."""
    context.output.say(f"Measuring the model after step {trained.step} on held-out data …")
    figures = trained.recipe.evaluate(trained.model, trained.files)
    table = plain_table("figure", "value", left=["figure"])
    for name, value in figures.items():
        table.add_row(name, f"{value:.4f}")
    context.output.show(Display([table], {"step": trained.step, **figures}))


def _else(recipe: type[Recipe[Any]] | None) -> str:
    """What to type instead, for a model without tasks."""
    if recipe is None:
        return "the program that trains it has to evaluate it, see minga.Peer.newest_checkpoint"
    return (
        f"it is judged by its {recipe.headline.name}: minga evaluate FOLDER shows it, of the folder of its run, and "
        "minga join LINK --evaluate while the run goes on"
    )


def _table(report: TaskReport) -> Any:
    beside = {"trained": report.trained, "from scratch": report.from_scratch}
    table = plain_table("figure", *beside, left=["figure"])
    for name in report.trained:
        table.add_row(name, *(_shown(scores[name]) for scores in beside.values()))
    return table


def _shown(score: Score) -> str:
    return f"{score.mean:.3f} ± {score.deviation:.3f}"
