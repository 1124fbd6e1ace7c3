"""What an exported model says of where it is from, in `minga.json` beside it: its recipe, and which state it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, without_private
from minga.training.lineage import Lineage

PROVENANCE_FILE: Final = "minga.json"
MAX_BYTES: Final = 64 << 10


class Provenance(msgspec.Struct, frozen=True):
    """The recipe of a model, the settings with which its run was published, and which state of the run it is: that
    after `step` steps, which descends from this `founding` by these `rounds` (`minga.training.lineage`). Both are ""
    for a model that is of no run.
    """

    recipe: str
    settings: dict[str, Any]
    run_id: str = ""
    step: int = 0
    founding: str = ""
    rounds: str = ""

    @classmethod
    def of(cls, recipe: str, settings: Section, run_id: str, step: int, lineage: Lineage) -> Provenance:
        """Without what names things of this machine."""
        shown = without_private(settings).model_dump(mode="json")
        return cls(recipe, shown, run_id, step, lineage.founding, lineage.rounds)

    @property
    def place(self) -> str:
        """Which state it is, in words for a model card."""
        history = f" (founding `{self.founding}`, rounds `{self.rounds}`)" if self.founding else ""
        return f"after {self.step} global steps of run `{self.run_id}`{history}"

    def write(self, folder: Path) -> None:
        """Write `minga.json` into `folder`."""
        (folder / PROVENANCE_FILE).write_bytes(msgspec.json.format(msgspec.json.encode(self)) + b"\n")


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
