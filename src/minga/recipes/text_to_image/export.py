"""Writing a model for the rest of the world, and reading it again without a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file

from minga.core.errors import ConfigurationError
from minga.recipes.exported import Exported, Provenance
from minga.recipes.text_to_image.decoder import DecoderShape, TextToImageDecoder
from minga.recipes.text_to_image.tokens import DESCRIPTION_FILE, PARAMETERS_FILE

WEIGHTS_FILE: Final = "model.safetensors"
CONFIG_FILE: Final = "config.json"
IMAGE_TOKENIZER: Final = {
    DESCRIPTION_FILE: "image_tokenizer/config.json",
    PARAMETERS_FILE: "image_tokenizer/model.safetensors",
}
"""Files of a run, and what they are called in an export."""

_KIND: Final = "minga-text-to-image"
_MAX_CONFIG: Final = 64 << 10
_LOADING: Final = """from pathlib import Path

from minga.recipes.text_to_image.export import load_exported

model = load_exported(Path("PATH OF THIS DIRECTORY"))"""


def export_model(
    model: TextToImageDecoder,
    files: Mapping[str, bytes],
    directory: Path,
    provenance: Provenance,
    *,
    title: str,
    grid: bytes | None,
) -> None:
    """Write weights, configuration, tokenizers (`files`, by the names that they have in a run), README and samples.

    All or nothing; see `Exported.to` for what is raised.
    """
    shape, parameters = model.shape, sum(parameter.numel() for parameter in model.parameters())
    with Exported.to(directory, provenance) as exported:
        exported.tensors(WEIGHTS_FILE, model.state_dict())
        config = {"model_type": _KIND, **asdict(shape)}
        (exported.folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name, body in files.items():
            path = exported.folder / IMAGE_TOKENIZER.get(name, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body)
        if grid is not None:
            (exported.folder / "grid.png").write_bytes(grid)
        exported.card(
            title,
            f"A text-to-image decoder of {parameters:,} parameters, trained with minga by peers that pooled their "
            "machines.",
            {
                "width": shape.width,
                f"layers (sharing {len(model.attentions)} sets of weights)": shape.layers,
                "attention heads": shape.heads,
                "caption": f"{shape.text_length} tokens of {shape.vocabulary}",
                "picture": f"{shape.grid} by {shape.grid} tokens of {shape.codes}",
            },
            _LOADING,
            tags=["text-to-image"],
            notes="![Samples](grid.png)" if grid is not None else "",
        )


def load_exported(directory: Path) -> TextToImageDecoder:
    """The model in a folder that `export_model` wrote, in evaluation mode. Raises `ConfigurationError` for others."""
    try:
        body = (directory / CONFIG_FILE).read_bytes()
        config: Any = json.loads(body) if len(body) <= _MAX_CONFIG else {}
        if config.pop("model_type") != _KIND or not all(isinstance(each, int | float) for each in config.values()):
            raise ValueError("another kind of model")
        model = TextToImageDecoder(DecoderShape(**config))
        model.load_state_dict(load_file(directory / WEIGHTS_FILE))
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(f"{directory}: not an exported text-to-image model: {str(error)[:200]}") from error
    return model.eval()
