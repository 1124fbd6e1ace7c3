"""Tokenizers from elsewhere: the `tokenizer.json` of a folder, or of a model of the Hugging Face hub."""

from __future__ import annotations

import re
from pathlib import Path

from minga.core.errors import ConfigurationError

TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 << 20
_HUB = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}(@[\w./-]{1,96})?", re.ASCII)


def given_file(source: str, name: str, key: str) -> Path:
    """The file `name` of what `source` names: a folder, or `OWNER/NAME` or `OWNER/NAME@REVISION` of the hub.

    `key` is the setting that named it. Raises `ConfigurationError` if it is not there.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / name).is_file():
            raise ConfigurationError(f"{key} = {source!r}: there is no {name} in it")
        return folder / name
    if not _HUB.fullmatch(source):
        searched = "" if folder.is_absolute() else f" in {Path.cwd()}, where this command was typed"
        raise ConfigurationError(
            f"{key} = {source!r}: no such folder{searched}, and not a name such as OWNER/NAME of the hub"
        )
    repository, _, revision = source.partition("@")
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
    except ImportError as error:
        raise ConfigurationError(
            f"{key} = {source!r}: to download it, install huggingface_hub, or name a local folder"
        ) from error
    try:
        return Path(hf_hub_download(repository, name, revision=revision or None))
    except (OSError, HfHubHTTPError, HFValidationError, LocalEntryNotFoundError) as error:
        why = str(error).strip().split("\n")[0][:200]
        raise ConfigurationError(f"{key} = {source!r}: the hub does not give {name}: {why}") from error


def given_content(source: str, name: str, key: str, most: int) -> bytes:
    """The content of such a file. Raises `ConfigurationError` if it has more than `most` bytes or cannot be read."""
    path = given_file(source, name, key)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise ConfigurationError(f"{path}: more than {most >> 10} KiB")
    return content
