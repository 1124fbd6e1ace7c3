"""Reading a bounded TOML file, with errors that name it."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError


def read_toml(path: Path, max_bytes: int) -> dict[str, Any]:
    """The values of a TOML file. Raises `ConfigurationError` if it cannot be read, is too large or is no TOML."""
    try:
        with open(path, "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    if len(data) > max_bytes:
        raise ConfigurationError(f"{path}: more than {max_bytes} bytes; is it the right file?")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: not a text file in UTF-8 (byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {str(error)[:200]}") from error
