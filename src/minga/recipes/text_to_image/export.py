"""Writing a model for the rest of the world, and reading it again without a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError
from safetensors.torch import load_file, save

from minga.core.errors import ConfigurationError
from minga.recipes.exported import Provenance
from minga.recipes.new_folder import new_folder
from minga.recipes.text_to_image.decoder.model import TextToImageDecoder
from minga.recipes.text_to_image.decoder.shape import DecoderShape
from minga.recipes.text_to_image.tokens.stored import DESCRIPTION_FILE, PARAMETERS_FILE

WEIGHTS_FILE: Final = "model.safetensors"
CONFIG_FILE: Final = "config.json"
TOKENIZER_FILE: Final = "tokenizer.json"
IMAGE_TOKENIZER: Final = {
    DESCRIPTION_FILE: "image_tokenizer/config.json",
    PARAMETERS_FILE: "image_tokenizer/model.safetensors",
}
"""Files of a run, and what they are called in an export."""

_KIND: Final = "minga-text-to-image"
_MAX_CONFIG: Final = 64 << 10


def export_model(
    model: TextToImageDecoder,
    files: Mapping[str, bytes],
    directory: Path,
    provenance: Provenance,
    *,
    title: str,
    grid: bytes | None,
    attribution: str,
) -> None:
    """Write weights, configuration, tokenizers (`files`, by the names that they have in a run), README and samples.

    All or nothing; see `new_folder` for what is raised.
    """
    with new_folder(directory, provenance) as folder:
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        (folder / WEIGHTS_FILE).write_bytes(save(tensors, metadata={"format": "pt"}))
        config = {"model_type": _KIND, **asdict(model.shape)}
        (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        for name, body in files.items():
            path = folder / IMAGE_TOKENIZER.get(name, name)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(body)
        if grid is not None:
            (folder / "grid.png").write_bytes(grid)
        card = _model_card(model, title, provenance, grid is not None, attribution)
        (folder / "README.md").write_text(card, encoding="utf-8")


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


def _model_card(model: TextToImageDecoder, title: str, provenance: Provenance, has_grid: bool, attribution: str) -> str:
    shape = model.shape
    parameters = sum(parameter.numel() for parameter in model.parameters())
    shown = title.replace("\\", "\\\\").replace("`", "\\`")
    samples = "![Samples](grid.png)\n\n" if has_grid else ""
    licence = f"{attribution}\n\n" if attribution else ""
    return f"""---
tags: [text-to-image, minga]
---

# {shown}

A text-to-image decoder of {parameters:,} parameters, trained with minga by peers that pooled their machines.
These are the parameters {provenance.place}.

{samples}{licence}| | |
| --- | --- |
| width | {shape.width} |
| layers (sharing {len(model.attentions)} sets of weights) | {shape.layers} |
| attention heads | {shape.heads} |
| caption | {shape.text_length} tokens of {shape.vocabulary} |
| picture | {shape.grid} by {shape.grid} tokens of {shape.codes} |

```python
from pathlib import Path

from minga.recipes.text_to_image.export import load_exported

model = load_exported(Path("PATH OF THIS DIRECTORY"))
```
"""
