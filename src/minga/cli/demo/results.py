"""What a demo leaves behind: the plot, the run's folder, and what the model made of things before and after."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.cli.demo.before_after import BeforeAfter
from minga.cli.demo.report import RUN_FOLDER, DemoFacts
from minga.core.errors import ConfigurationError, StorageError


@dataclass(frozen=True)
class Results:
    """Names of files, and what is shown of the model; None where the demo was too short for a checkpoint."""

    files: Sequence[str]
    shown: BeforeAfter | None

    def as_summary(self) -> dict[str, Any]:
        """Both for JSON."""
        told = {} if self.shown is None else {"data": self.shown.after.data, "shown": self.shown.as_table()}
        return {"results": list(self.files), **told}


def keep_results(facts: DemoFacts, directory: Path) -> Results:
    """Draw the plot, take the organiser's folder of the run (checkpoint, files, history) over into `directory`, and let
    the recipe show its model before training and after.

    Raises `StorageError` if the disk refuses.
    """
    from minga.monitor.history import FILE_NAME, read_history
    from minga.monitor.plot import plot_history

    link = facts.organiser.first("link") or {}
    source = Path(str(link["directory"]))
    plot = directory / "loss.png"
    with contextlib.suppress(ConfigurationError):  # too short for a single loss
        plot_history(read_history(source / FILE_NAME), plot, title="minga demo")
    try:
        shutil.move(source, directory / RUN_FOLDER)
    except OSError as error:
        raise StorageError(f"the results cannot be moved to {directory}: {error}") from error
    files = [plot.name] if plot.is_file() else []
    if (shown := _shown(directory / RUN_FOLDER)) is not None:
        files = [*shown.draw(directory), *files]
    return Results(files, shown)


def _shown(run: Path) -> BeforeAfter | None:
    from minga.recipes.initial import new_model
    from minga.recipes.running.trained_model import from_run_folder

    try:
        trained = from_run_folder(run)
    except ConfigurationError:  # too short for a checkpoint
        return None
    recipe, files = trained.recipe, trained.files
    return BeforeAfter(recipe.show(new_model(recipe), files), recipe.show(trained.model, files))
