"""Writing a trained network as its parts, for `minga.split` or for use as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from minga.recipes.exported import Exported, Provenance
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
    shape = settings.shape
    with Exported.to(directory, provenance) as exported:
        for name in PARTS:
            exported.tensors(f"{name}.safetensors", model.get_submodule(name).state_dict())
        exported.card(
            title,
            f"The parts of a network for {settings.data}, trained with minga.",
            figures,
            f"""from safetensors.torch import load_file
from minga.split.examples.network import CutNetwork, CutShape

folder = "PATH OF THIS DIRECTORY"
network = CutNetwork(CutShape({shape.sample}, {shape.classes}, {shape.channels}, {shape.bottom}, {shape.top}, True))
for name in {PARTS}:
    network.get_submodule(name).load_state_dict(load_file(f"{{folder}}/{{name}}.safetensors"))
network.eval()  # logits [n, {shape.classes}] of inputs [n, {", ".join(map(str, shape.sample))}]""",
        )
