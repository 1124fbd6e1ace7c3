"""What a demo leaves behind: the plot, the run's folder, and what the recipe shows of the trained model."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from minga.cli.demo.report import RUN_FOLDER, DemoFacts
from minga.core.errors import ConfigurationError, StorageError


def keep_results(facts: DemoFacts, results: Path) -> list[str]:
    """Draw the plot, take the organiser's folder of the run (checkpoint, files, history) over into the results, and let
    the recipe show its model; the names of the files for people.

    Raises `StorageError` if the disk refuses.
    """
    from minga.monitor.history import FILE_NAME, read_history
    from minga.monitor.plot import plot_history

    link = facts.organiser.first("link") or {}
    source = Path(str(link["directory"]))
    plot = results / "loss.png"
    with contextlib.suppress(ConfigurationError):  # too short for a single loss
        plot_history(read_history(source / FILE_NAME), plot, title="minga demo")
    try:
        shutil.move(source, results / RUN_FOLDER)
    except OSError as error:
        raise StorageError(f"the results cannot be moved to {results}: {error}") from error
    shown = [plot] if plot.is_file() else []
    with contextlib.suppress(ConfigurationError):  # too short for a checkpoint
        shown += _shown_by_recipe(results)
    return [path.name for path in shown]


def _shown_by_recipe(results: Path) -> list[Path]:
    from minga.recipes.running.trained_model import from_run_folder

    trained = from_run_folder(results / RUN_FOLDER)
    return list(trained.recipe.demo_results(trained.model, trained.files, results))
