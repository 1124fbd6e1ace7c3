"""Writing a model for the rest of the world: its trunk as `transformers` loads it, its head, and how to use both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from minga.recipes.exported import Exported, Provenance
from minga.recipes.swav.model import SwavModel, mean_and_deviation
from minga.recipes.swav.settings import TRUNKS, SwavSettings

TRUNK_FILE: Final = "model.safetensors"
HEAD_FILE: Final = "head.safetensors"


def export_model(
    model: SwavModel,
    settings: SwavSettings,
    figures: dict[str, float],
    directory: Path,
    provenance: Provenance,
    *,
    title: str,
) -> None:
    """Write trunk, head with prototypes, preprocessing and a README to a new or empty `directory`, or nothing.

    Raises `StorageError`, or `ConfigurationError` if the directory has content.
    """
    parameters = sum(parameter.numel() for parameter in model.parameters())
    trunk = sum(parameter.numel() for parameter in model.trunk.parameters())
    mean, deviation = map(list, mean_and_deviation(settings.data.channels))
    with Exported.to(directory, provenance) as exported:
        exported.tensors(TRUNK_FILE, model.trunk.state_dict())
        model.trunk.config.architectures = [type(model.trunk).__name__]
        model.trunk.config.save_pretrained(exported.folder)
        head = {key: tensor for key, tensor in model.state_dict().items() if not key.startswith("trunk.")}
        exported.tensors(HEAD_FILE, head)
        (exported.folder / "preprocessor_config.json").write_text(json.dumps(_preprocessing(settings), indent=2))
        exported.card(
            title,
            "A ResNet trained without labels by SwAV (Caron et al. 2020, arXiv:2006.09882), with minga, by peers that "
            f"pooled their machines: {parameters:,} parameters, of which {trunk:,} belong to the trunk.",
            figures,
            _loading(settings),
            tags=["resnet", "swav"],
            library="transformers",
            notes=f"""The statistics of BatchNorm were estimated anew on training pictures, and the figures are of
held-out ones. The probe is a logistic regression on the trunk's features; to judge it, compare it with one on raw
pixels and with one on a trunk that was never trained.

Pictures are float [n, {settings.data.channels}, height, width] from 0 to 1, less {mean}, divided by
{deviation}. `trunk(pictures).pooler_output.flatten(1)` are the features. Add a linear layer for your classes, and train
both to fine-tune. The head and the prototypes, which only the pre-training needs, are in `{HEAD_FILE}`.""",
        )


def _preprocessing(settings: SwavSettings) -> dict[str, Any]:
    mean, deviation = mean_and_deviation(settings.data.channels)
    side = settings.crops[0][1]
    return {
        "image_processor_type": "ConvNextImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": side},
        "crop_pct": 1.0 if side <= 64 else 0.875,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(deviation),
    }


def _loading(settings: SwavSettings) -> str:
    """Python that loads the trunk: transformers alone cannot say in its configuration that the stem is small."""
    if not settings.uses_small_stem:
        return 'from transformers import AutoModel\n\ntrunk = AutoModel.from_pretrained("PATH OF THIS DIRECTORY")'
    return f"""from safetensors.torch import load_file
from torch import nn
from transformers import ResNetConfig, ResNetModel
from transformers.models.resnet.modeling_resnet import ResNetConvLayer

folder = "PATH OF THIS DIRECTORY"
trunk = ResNetModel(ResNetConfig.from_pretrained(folder))
stem = trunk.embedder  # for small pictures: 3x3 in the place of 7x7 and pooling
stem.embedder = ResNetConvLayer({settings.data.channels}, {TRUNKS[settings.size].stem_width}, kernel_size=3, \
stride={TRUNKS[settings.size].stride})
stem.pooler = nn.Identity()
trunk.load_state_dict(load_file(folder + "/{TRUNK_FILE}"))
trunk.eval()"""
