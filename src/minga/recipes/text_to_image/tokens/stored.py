"""The image tokenizer as files of a run: a description and parameters, read without running any code of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.text_to_image.tokens.fsq import HALVINGS, FsqTokenizer

DESCRIPTION_FILE: Final = "image_tokenizer.json"
PARAMETERS_FILE: Final = "image_tokenizer.safetensors"
_MAX_DESCRIPTION: Final = 64 << 10


def image_tokenizer_files(tokenizer: FsqTokenizer) -> dict[str, bytes]:
    """The tokenizer as files by name."""
    description = {"kind": tokenizer.kind, **tokenizer.description()}
    return {
        DESCRIPTION_FILE: json.dumps(description, sort_keys=True).encode(),
        PARAMETERS_FILE: save({name: tensor.contiguous() for name, tensor in tokenizer.state_dict().items()}),
    }


def read_image_tokenizer(files: Mapping[str, Path]) -> FsqTokenizer:
    """The tokenizer that came with a run.

    Raises `ConfigurationError` if none came, or its files are not what `image_tokenizer_files` makes, `StorageError`
    if they cannot be read.
    """
    if DESCRIPTION_FILE not in files or PARAMETERS_FILE not in files:
        raise ConfigurationError("this run came without an image tokenizer: its codes cannot be turned into pictures")
    try:
        described, body = files[DESCRIPTION_FILE].read_bytes(), files[PARAMETERS_FILE].read_bytes()
    except OSError as error:
        raise StorageError(f"the image tokenizer cannot be read: {reason_of(error)}") from error
    try:
        if len(described) > _MAX_DESCRIPTION:
            raise ValueError("its description is too long")
        with torch.device("meta"):  # so that a false description takes no memory, and nothing is drawn at random
            tokenizer = _built(json.loads(described))
        tokenizer.load_state_dict({name: each.float() for name, each in load(body).items()}, assign=True)
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigurationError(f"the image tokenizer is damaged: {str(error)[:200]}") from error
    if not all(bool(each.isfinite().all()) for each in tokenizer.parameters()):
        raise ConfigurationError("the image tokenizer holds numbers that are not finite")
    for each in tokenizer.parameters():
        each.requires_grad_(False)
    return tokenizer.eval()


def _built(description: Any) -> FsqTokenizer:
    levels, halvings = description["levels"], description["halvings"]
    whole = isinstance(levels, list) and all(type(level) is int and 3 <= level <= 64 for level in levels)
    is_local = description["is_local"]
    if description["kind"] != FsqTokenizer.kind or not whole or not 1 <= len(levels) <= 8 or halvings not in HALVINGS:
        raise ValueError("there is no such tokenizer")
    if not isinstance(is_local, bool):
        raise ValueError("is_local is neither true nor false")
    return FsqTokenizer(levels, halvings, is_local=is_local)
