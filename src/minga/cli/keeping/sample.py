"""`minga sample`: what the model of a run makes of prompts, printed as texts or laid out on one sheet of pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from minga.cli.keeping.export import trained_model
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import folder_or_link
from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.core.units import counted
from minga.recipes.images.grid import grid_png
from minga.recipes.images.ranking import CANDIDATES, ClipRanker
from minga.recipes.interface import Sample, SampleOptions
from minga.recipes.running.trained_model import TrainedModel
from minga.training.join import PeerOptions

USUAL_SHEET: Final = Path("samples.png")


@dataclass(frozen=True)
class Pictures:
    """What is done with pictures. `out` is the sheet; `clip` the CLIP model that chooses among more of them."""

    out: Path | None = None
    clip: str | None = None


def run_sample(
    source: str,
    prompts: Sequence[str],
    options: SampleOptions,
    pictures: Pictures,
    peer: PeerOptions,
    context: Context,
) -> None:
    """Sample from the run in the folder `source`, or from the run that the link `source` names.

    Raises `ConfigurationError` if the recipe of the run draws no samples, `StorageError` if the disk refuses the sheet.
    """
    directory = folder_or_link(source)
    link = source if directory is None else None
    ranker = _ranker(pictures.clip, context)
    output = context.output
    with trained_model(link, directory, peer, context) as trained:
        samples = _drawn(trained, prompts, options, ranker)
    for sample in samples:
        output.event("sample", prompt=sample.prompt, text=sample.text)
        if not output.json_output and sample.image is None:
            output.console.print(f"{sample.text}\n", markup=False, soft_wrap=True)
    sheet = _write_sheet(samples, options, pictures.out or USUAL_SHEET)
    if sheet:
        output.say(f"{sheet}: {counted(len(samples), 'picture')} by the model after step {trained.step}")
    elif pictures.out is not None:
        output.say(f"The recipe {trained.recipe.context.recipe} makes no pictures: {pictures.out} is not written.")
    output.summary(ok=True, step=trained.step, samples=len(samples), out=sheet)


def _ranker(clip: str | None, context: Context) -> ClipRanker | None:
    """The CLIP model; without it, pictures come in the order in which they are drawn."""
    if clip is None:
        return None
    try:
        return ClipRanker(clip)
    except ConfigurationError as error:
        context.output.say(f"Pictures are not ranked: {error}")
        return None


def _drawn(
    trained: TrainedModel, prompts: Sequence[str], options: SampleOptions, ranker: ClipRanker | None
) -> list[Sample]:
    if ranker is None:
        return trained.recipe.sample(trained.model, trained.files, prompts, options)
    many = replace(options, count=max(CANDIDATES, options.count))
    best: list[Sample] = []
    for prompt in prompts:
        samples = trained.recipe.sample(trained.model, trained.files, [prompt], many)
        images = [sample.image for sample in samples if sample.image is not None]
        chosen = ranker.best(prompt, images, options.count) if len(images) == len(samples) else range(options.count)
        best += [samples[number] for number in chosen]
    return best


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
