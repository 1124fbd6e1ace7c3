"""What belongs to the parameters that a run begins with, such as a tokenizer: of a run, of an export, or of a hub."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from minga.core.errors import ConfigurationError

KEY: Final = "model.init_from"
_HUB: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[\w.-]{1,96}(@[\w./-]{1,96})?", re.ASCII)


def files_of_model(source: str, names: Mapping[str, str]) -> dict[str, Path]:
    """Those of some files that belong to the parameters which `source` names, as `model.init_from` does; by the names
    that they have in a run, each with what it is called in an export.

    Raises `ConfigurationError` if a hub does not answer.
    """
    path = Path(source).expanduser()
    if path.exists():
        folder = (path if path.is_dir() else path.parent).absolute()
        of_run = folder.parent.parent if folder.parent.name == "checkpoints" else folder
    elif names_of_hub(source):
        of_run = folder = _of_hub(source, tuple(names.values()))
    else:
        return {}
    places = {name: (of_run / "files" / name, folder / exported) for name, exported in names.items()}
    found = {name: next(filter(Path.is_file, each), None) for name, each in places.items()}
    return {name: each for name, each in found.items() if each is not None}


def names_of_hub(source: str) -> bool:
    """Whether it could be `OWNER/NAME` or `OWNER/NAME@REVISION` of the hub."""
    return _HUB.fullmatch(source) is not None


@cache
def _of_hub(source: str, names: tuple[str, ...]) -> Path:
    """Asked once, so that all that is read is of one commit."""
    return downloaded(source, KEY, names)


def downloaded(source: str, key: str, wanted: Sequence[str]) -> Path:
    """The folder with the `wanted` files of a model of the hub, in the hub's own cache; `key` is the setting that named
    it. Raises `ConfigurationError` if the hub does not give them.
    """
    name, _, revision = source.partition("@")
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ConfigurationError(
            f"{key} = {source!r}: to download it, install huggingface_hub, or name a local folder"
        ) from error
    try:
        found = snapshot_download(name, revision=revision or None, allow_patterns=list(wanted))
    except Exception as error:  # the hub's library lets errors of its HTTP client through
        why = str(error).strip().split("\n")[0][:200]
        raise ConfigurationError(f"{key} = {source!r}: the hub does not give it: {why}") from error
    return Path(found)
