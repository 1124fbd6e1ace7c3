"""`minga sample`: what the model of a run makes of prompts, printed as texts or laid out on one sheet of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minga.cli.commands import SampleCommand
from minga.cli.keeping.export import trained_model
from minga.cli.terminal.context import Context
from minga.core.files import store
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
        beside = {} if sample.of_base is None else {"of_base": sample.of_base}
        output.event("sample", prompt=sample.prompt, text=sample.text, **beside)
        if sample.of_base is not None:
            output.say_whole(f"{sample.prompt}\n  base:  {sample.of_base}\n  tuned: {sample.text}\n")
        elif sample.image is None:
            output.say_whole(f"{sample.text}\n")
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
    store(path, grid_png(images, captions, notes={"seed": str(options.seed)}))
    return str(path)
