"""Why a run with `training.strategy = "auto"` began with the strategy that its spec names: kept in the run's folder.

The spec that is published names the choice, and not why it was made; whoever asks later asks the organiser's machine.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import StorageError
from minga.core.files import write_atomically

CHOSEN_STRATEGY_FILE = "chosen-strategy.json"
_MAX_BYTES = 1 << 14

logger = logging.getLogger("minga.training")


class ChosenStrategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The name of the strategy, and in one line its settings, for which peers it was chosen, and why."""

    strategy: Annotated[str, msgspec.Meta(max_length=200)]
    reason: Annotated[str, msgspec.Meta(max_length=4000)]

    @classmethod
    def read(cls, folder: Path) -> ChosenStrategy | None:
        """What was kept; None where nothing was chosen, or where the file is damaged, which is logged."""
        path = folder / CHOSEN_STRATEGY_FILE
        try:
            with path.open("rb") as file:
                return decode_json(file.read(_MAX_BYTES), cls)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, *DECODING_ERRORS) as error:
            logger.warning("%s is left out, since it cannot be read: %s", path, error)
            return None

    def write(self, folder: Path) -> None:
        """Keep it. Raises `StorageError` if the disk refuses."""
        path = folder / CHOSEN_STRATEGY_FILE
        try:
            write_atomically(path, msgspec.json.format(msgspec.json.encode(self), indent=1))
        except OSError as error:
            raise StorageError(f"{path} cannot be written: {error}") from error
