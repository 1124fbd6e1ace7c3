"""What an exported model says of where it is from, in `minga.json` beside it: its recipe, and the settings of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import ValidationError

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, without_private
from minga.core.spec.problems import explain

PROVENANCE_FILE: Final = "minga.json"
MAX_BYTES: Final = 64 << 10


class Provenance(msgspec.Struct, frozen=True):
    """The recipe of a model, and the settings with which the run was published."""

    recipe: str
    settings: dict[str, Any]

    @classmethod
    def of(cls, recipe: str, settings: Section) -> Provenance:
        """Without what names things of this machine."""
        return cls(recipe, without_private(settings).model_dump(mode="json"))

    def write(self, folder: Path) -> None:
        """Write `minga.json` into `folder`."""
        (folder / PROVENANCE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")

    def checked(self, kind: type[Section]) -> Section:
        """The settings as those of a recipe. Raises `ConfigurationError` if they are none of it."""
        try:
            return kind.model_validate(self.settings)
        except ValidationError as error:
            raise ConfigurationError(explain(error, kind, PROVENANCE_FILE, within=f"recipe.{self.recipe}")) from error


def read_provenance(folder: Path) -> Provenance | None:
    """What `minga.json` in `folder` says, None if it is not there. Raises `ConfigurationError` if it is damaged."""
    path = folder / PROVENANCE_FILE
    try:
        with path.open("rb") as file:
            body = file.read(MAX_BYTES + 1)
        if len(body) > MAX_BYTES:
            raise ConfigurationError(f"{path}: larger than {MAX_BYTES >> 10} KiB")
        return decode_json(body, Provenance)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error
    except DECODING_ERRORS as error:
        raise ConfigurationError(f"{path}: not what an export writes: {str(error)[:200]}") from error
