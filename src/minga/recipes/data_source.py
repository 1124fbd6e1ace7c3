"""Where data come from, as run specs say it: a data set of the Hugging Face hub, of one commit, or something else.

`datasets` takes one name for two things: a folder below the working directory comes before a data set of the hub, and a
loader such as "text" reads whatever lies there. A run spec of a stranger must lead to neither: what a peer trains on
shows in its gradients.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

from pydantic import Field, model_validator

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Printable, Section, described

S = TypeVar("S", bound="DataSource")
COMMIT: Final = re.compile(r"[0-9a-f]{40}")
"""What the hub calls one state of a model or of a data set."""

HubName = Annotated[
    str, Field(pattern=r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$", max_length=193)
]
"""What a run spec may say for the name of a data set, or nothing."""


Column = Annotated[Printable, Field(max_length=100)]
COLUMN: Final = "a text of at most 100 printable characters"
Named = Annotated[Printable, Field(min_length=1, max_length=100)]
NAMED: Final = "a text of 1 to 100 printable characters"


class DataSource(Section):
    """Where data come from: a data set of the hub, or what else a subclass has for its `source`."""

    source: str = "hub"
    name: HubName = described("", "(hub) name of a data set of the Hugging Face hub", 'a name such as "owner/name"')
    config: Column = described("", "(hub) its configuration", COLUMN)
    revision: Column = described(
        "", "(hub) its branch, tag or commit; refs/convert/parquet where it has a loading script", COLUMN
    )
    split: Named = described("train", "(hub) its split", NAMED)

    of_hub: ClassVar[str] = "hub"
    """The `source` that is a data set of the hub."""

    others: ClassVar[Mapping[str, str]] = {}
    """Other sources, in words that name no place of the organiser's machine."""

    def in_words(self) -> str:
        """Which data they are, and whose, for people."""
        if sources := getattr(self, "sources", ()):
            return "; ".join(f"{each.in_words()} (weight {each.weight:g})" for each in sources)
        if self.source != self.of_hub:
            return self.others.get(self.source, self.source)
        named = " ".join(filter(None, (self.name, self.config, self.revision)))
        return f"the data set {named} of the Hugging Face hub, under its licence there"

    @model_validator(mode="after")
    def _check_hub(self) -> Self:
        if self.source == self.of_hub and not self.name:
            raise ValueError(f'source = "{self.of_hub}" needs name, such as name = "owner/name"')
        if self.source != self.of_hub and (self.name or self.config or self.revision):
            raise ValueError(f'name, config and revision are for source = "{self.of_hub}" only')
        return self


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


def pinned(data: S) -> S:
    """Settings of data with the commits of the data sets of the hub that they name: of a branch, what is streamed and
    what was prepared before would be of different days.

    Raises `ConfigurationError` if the hub does not say them, or a name leads to files of this machine.
    """
    changes: dict[str, Any] = {}
    if data.name:
        changes["revision"] = _commit_of(data.name, data.revision)
    if sources := getattr(data, "sources", ()):
        changes["sources"] = tuple(map(pinned, sources))
    return data.model_copy(update=changes)


def _commit_of(name: str, revision: str) -> str:
    if COMMIT.fullmatch(revision):
        return revision
    check_on_hub(name, "data.name")
    import huggingface_hub

    why = "it says none"
    try:
        found = huggingface_hub.dataset_info(name, revision=revision or None).sha
    except Exception as error:  # the hub's library lets errors of its HTTP client through
        found, why = None, str(error).strip().split("\n")[0][:200]
    if not COMMIT.fullmatch(found or ""):
        raise ConfigurationError(
            f"data.name = {name!r}: the hub does not say which commit {revision or 'its newest one'} is: {why}"
        )
    return str(found)
