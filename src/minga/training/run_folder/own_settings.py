"""What an organiser set for their own machine: read from the run spec, not published, and kept in the run's folder.

The published spec has these settings at their defaults, so a run that is hosted again would lack them.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write_atomically
from minga.core.spec.run_spec import RunSpec

OWN_SETTINGS_FILE = "own-settings.json"
_MAX_BYTES = 1 << 16

logger = logging.getLogger("minga.training")


class OwnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The private settings of a run spec; see `network.announce`, `checkpoints.archive_every` and `upload_to`."""

    announce: Annotated[tuple[str, ...], msgspec.Meta(max_length=16)] = ()
    archive_every: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)] = 0
    upload_to: str | None = None

    @classmethod
    def of(cls, spec: RunSpec) -> OwnSettings:
        """Those of the organiser's own spec."""
        return cls(spec.network.announce, spec.checkpoints.archive_every, spec.checkpoints.upload_to)

    @classmethod
    def read(cls, folder: Path) -> OwnSettings:
        """Those that were kept; without the file, or with a damaged one, none are set."""
        path = folder / OWN_SETTINGS_FILE
        try:
            with path.open("rb") as file:
                return decode_json(file.read(_MAX_BYTES), cls)
        except FileNotFoundError:
            return cls()
        except (OSError, *DECODING_ERRORS) as error:
            logger.warning("%s is left out, since it cannot be read: %s", path, error)
            return cls()

    def write(self, folder: Path) -> None:
        """Keep them. Raises `StorageError` if the disk refuses."""
        try:
            write_atomically(folder / OWN_SETTINGS_FILE, msgspec.json.format(msgspec.json.encode(self), indent=1))
        except OSError as error:
            raise StorageError(f"{folder / OWN_SETTINGS_FILE} cannot be written: {error}") from error

    def updated(self, newer: OwnSettings) -> OwnSettings:
        """These, but for what `newer` sets. Raises `ConfigurationError` if the two do not go together."""
        every, to = newer.archive_every or self.archive_every, newer.upload_to or self.upload_to
        if to is not None and not every:
            raise ConfigurationError("checkpoints.upload_to needs checkpoints.archive_every")
        return OwnSettings(newer.announce or self.announce, every, to)
