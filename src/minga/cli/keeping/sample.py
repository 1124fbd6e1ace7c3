"""`minga sample`: what the model of a run makes of prompts, printed as texts or laid out on one sheet of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minga.cli.commands import SampleCommand
from minga.cli.keeping.export import trained_model
from minga.cli.terminal.context import Context
from minga.core.errors import StorageError
from minga.core.files import write_atomically
from minga.core.units import counted
from minga.recipes.images.grid import grid_png
from minga.recipes.interface import Sample, SampleOptions

USUAL_SHEET: Final = Path("samples.png")


def run_sample(given: SampleCommand, context: Context) -> None:
    """Sample from a run, and write the pictures among the samples on one sheet.

    Raises `ConfigurationError` if the recipe of the run draws no samples, `StorageError` if the disk refuses the sheet.
    """
    options = SampleOptions(
        given.n, given.temperature, given.top_k, given.top_p, given.guidance, given.length, given.seed
    )
    output = context.output
    with trained_model(given.run, given, context) as trained:
        samples = trained.recipe.sample(trained.model, trained.files, given.prompts, options)
    for sample in samples:
        output.event("sample", prompt=sample.prompt, text=sample.text)
        if not output.json_output and sample.image is None:
            output.console.print(f"{sample.text}\n", markup=False, soft_wrap=True)
    sheet = _write_sheet(samples, options, given.out or USUAL_SHEET)
    if sheet:
        output.say(f"{sheet}: {counted(len(samples), 'picture')} by the model after step {trained.step}")
    elif given.out is not None:
        output.say(f"The recipe {trained.recipe.context.recipe} makes no pictures: {given.out} is not written.")
    output.summary(ok=True, step=trained.step, samples=len(samples), out=sheet)


def _write_sheet(samples: Sequence[Sample], options: SampleOptions, path: Path) -> str | None:
    """Write the pictures among the samples; where to, None if there are none."""
    shown = [(sample.image, sample.prompt) for sample in samples if sample.image is not None]
    if not shown:
        return None
    images, captions = zip(*shown, strict=True)
    try:
        write_atomically(path, grid_png(images, captions, notes={"seed": str(options.seed)}))
    except OSError as error:
        raise StorageError(f"--out {path}: cannot be written: {error.strerror}") from error
    return str(path)
