"""Data sets of the hub: what they are called for people, and names that lead to the hub alone.

`datasets` takes one name for two things: a folder below the working directory comes before a data set of the hub, and a
loader such as "text" reads whatever lies there. A run spec of a stranger must lead to neither: what a peer trains on
shows in its gradients.
"""

from __future__ import annotations

from pathlib import Path

from minga.core.errors import ConfigurationError


def of_hub(name: str, *details: str) -> str:
    """A data set of the hub for people; `details` are its configuration and the like, empty ones are left out."""
    return " ".join(["the data set", name, *filter(None, details), "of the Hugging Face hub, under its licence there"])


def check_on_hub(name: str, setting: str) -> None:
    """Raise `ConfigurationError` if `datasets` would read files of this machine under that name."""
    from datasets.packaged_modules import _PACKAGED_DATASETS_MODULES

    if name in _PACKAGED_DATASETS_MODULES:
        raise ConfigurationError(f"{setting} = {name!r}: this is no data set, but a loader of files on this machine")
    if Path(name).exists():
        raise ConfigurationError(
            f"{setting} = {name!r}: there is a folder or file of this name in {Path.cwd()}, which would be read in the "
            "place of the data set of the hub; start the command in another folder"
        )
