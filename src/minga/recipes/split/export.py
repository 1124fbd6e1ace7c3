"""Writing a trained network as its parts, for `minga.split` or for use as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import nn

from minga.recipes.exported import Provenance
from minga.recipes.new_folder import new_folder
from minga.recipes.split.settings import SplitRecipeSettings

PARTS = ("bottom", "top", "head")


def export_parts(
    model: nn.Module,
    settings: SplitRecipeSettings,
    figures: Mapping[str, float],
    directory: Path,
    provenance: Provenance,
    *,
    title: str,
) -> None:
    """Write bottom, top and head, and a README, to a new or empty `directory`, or nothing.

    Raises `StorageError`, or `ConfigurationError` if the directory has content.
    """
    with new_folder(directory, provenance) as folder:
        for name in PARTS:
            part = model.get_submodule(name).state_dict()
            save_file({key: each.cpu().contiguous() for key, each in part.items()}, folder / f"{name}.safetensors")
        (folder / "README.md").write_text(_card(settings, figures, provenance, title), encoding="utf-8")


def _card(settings: SplitRecipeSettings, figures: Mapping[str, float], provenance: Provenance, title: str) -> str:
    told = "".join(f"| {name} | {value:.4f} |\n" for name, value in figures.items())
    table = f"\n| figure | value |\n| --- | --- |\n{told}" if told else ""
    shape = settings.shape
    return f"""# {title}

The parts of a network for {settings.data}, {provenance.place}, trained with minga.
{table}
```python
from safetensors.torch import load_file
from minga.split.examples.network import CutNetwork, CutShape

folder = "PATH OF THIS DIRECTORY"
network = CutNetwork(CutShape({shape.sample}, {shape.classes}, {shape.channels}, {shape.bottom}, {shape.top}, True))
for name in {PARTS}:
    network.get_submodule(name).load_state_dict(load_file(f"{{folder}}/{{name}}.safetensors"))
network.eval()  # logits [n, {shape.classes}] of inputs [n, {", ".join(map(str, shape.sample))}]
```
"""
