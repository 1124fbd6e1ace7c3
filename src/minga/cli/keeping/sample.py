"""`minga sample`: what the model of a run makes of prompts, printed as texts or laid out on one sheet of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from minga.cli.keeping.export import trained_model
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import folder_or_link
from minga.core.errors import StorageError
from minga.core.files import write_atomically
from minga.core.units import counted
from minga.recipes.images.grid import grid_png
from minga.recipes.interface import Sample, SampleOptions
from minga.training.join import PeerOptions

USUAL_SHEET: Final = Path("samples.png")


def run_sample(
    source: str,
    prompts: Sequence[str],
    options: SampleOptions,
    out: Path | None,
    peer: PeerOptions,
    context: Context,
) -> None:
    """Sample from the run in the folder `source`, or from the run that the link `source` names; pictures go to `out`.

    Raises `ConfigurationError` if the recipe of the run draws no samples, `StorageError` if the disk refuses the sheet.
    """
    directory = folder_or_link(source)
    link = source if directory is None else None
    output = context.output
    with trained_model(link, directory, peer, context) as trained:
        samples = trained.recipe.sample(trained.model, trained.files, prompts, options)
    for sample in samples:
        output.event("sample", prompt=sample.prompt, text=sample.text)
        if not output.json_output and sample.image is None:
            output.console.print(f"{sample.text}\n", markup=False, soft_wrap=True)
    sheet = _write_sheet(samples, options, out or USUAL_SHEET)
    if sheet:
        output.say(f"{sheet}: {counted(len(samples), 'picture')} by the model after step {trained.step}")
    elif out is not None:
        output.say(f"The recipe {trained.recipe.context.recipe} makes no pictures: {out} is not written.")
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
