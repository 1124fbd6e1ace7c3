"""The parts of a cut network on the disk of whoever has them."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.files import write_atomically


def save_part(module: nn.Module, path: Path) -> None:
    """Write parameters and buffers. Raises `StorageError` if the disk refuses."""
    tensors = {name: each.detach().cpu().contiguous() for name, each in module.state_dict().items()}
    write_atomically(path, save(tensors))


def load_part(module: nn.Module, path: Path) -> bool:
    """Go on with what was written, if there is such a file; whether there is.

    Raises `ConfigurationError` if it is of another part.
    """
    if not path.exists():
        return False
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigurationError(
            f"{path}: not this part of the model: {str(error)[:200]}; move the file away"
        ) from error
    return True
