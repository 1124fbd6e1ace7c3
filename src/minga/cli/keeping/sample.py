"""`minga sample`: what the model of a run makes of prompts, printed as texts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from minga.cli.keeping.export import trained_model
from minga.cli.terminal.context import Context
from minga.identity.links.links import Link
from minga.recipes.interface import SampleOptions
from minga.training.join import PeerOptions


def run_sample(
    source: str, prompts: Sequence[str], options: SampleOptions, peer: PeerOptions, context: Context
) -> None:
    """Sample from the run in the folder `source`, or from the run that the link `source` names.

    Raises `ConfigurationError` if the recipe of the run draws no samples.
    """
    folder = Path(source).expanduser()
    is_folder = folder.is_dir()
    if not is_folder:
        Link.parse(source)
    link, directory = (None, folder) if is_folder else (source, None)
    with trained_model(link, directory, peer, context) as trained:
        samples = trained.recipe.sample(trained.model, trained.files, prompts, options)
    output = context.output
    for sample in samples:
        output.event("sample", prompt=sample.prompt, text=sample.text)
        if not output.json_output:
            output.console.print(f"{sample.text}\n", markup=False, soft_wrap=True)
    output.summary(ok=True, step=trained.step, samples=len(samples))
