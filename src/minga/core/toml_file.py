"""Reading settings: a bounded TOML file, or KEY=VALUE as it is written on a command line."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from minga.core.errors import ConfigurationError
from minga.core.files import NOT_TEXT, decode_text


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
        return tomllib.loads(decode_text(data))
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: byte {error.start}: {NOT_TEXT}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path}: not valid TOML: {str(error)[:200]}") from error


def split_setting(text: str, option: str, example: str) -> tuple[str, str]:
    """Key and value of KEY=VALUE. A `ConfigurationError` names the `option` and an `example`."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip() or not value.strip():
        raise ConfigurationError(f"{option}{text[:60]!r}: write KEY=VALUE, such as {example}")
    return key.strip(), value.strip()


def parse_value(text: str) -> Any:
    """A number, a truth value or a list if it reads like one in TOML, else the text itself."""
    try:
        values = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):  # no TOML, or more digits or brackets than anybody needs
        return text
    return values["value"] if len(values) == 1 else text  # a text of several lines can be several settings
