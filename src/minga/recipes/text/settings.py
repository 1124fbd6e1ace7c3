"""Where the text of a recipe comes from, as its settings say it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole

_DATASET_NAME = r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$"


class TextData(Section):
    """What it is trained on."""

    source: Literal["bible", "files", "datasets"] = choice(
        "bible", "where the text comes from", "bible", "files", "datasets"
    )
    files: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=256)
    ] = described(
        (),
        "(source files) .txt and .jsonl files or globs here; peers that join get their text, not their paths",
        "a list of at most 256 paths",
        private=True,
    )
    name: str = described(
        "",
        "(source datasets) name on the Hugging Face hub",
        'a name such as "wikitext" or "owner/name"',
        pattern=_DATASET_NAME,
    )
    config: Annotated[Printable, Field(max_length=100)] = described(
        "", "(source datasets) its configuration", "a text of at most 100 printable characters"
    )
    split: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "train", "(source datasets) its split", "a text of 1 to 100 printable characters"
    )
    text_column: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "text", "column (or key of .jsonl lines) that holds the text", "a text of 1 to 100 printable characters"
    )
    shuffle_buffer: int = whole(10_000, 1, 1_000_000, "documents among which the next one is drawn")
    heldout_fraction: Real = real(0.01, 0.0, 0.5, "share of the documents kept for evaluation")

    @model_validator(mode="after")
    def _check_source(self) -> TextData:
        if self.source == "datasets" and not self.name:
            raise ValueError('source = "datasets" needs name, such as name = "wikitext"')
        if self.source != "datasets" and (self.name or self.config):
            raise ValueError('name and config are for source = "datasets" only')
        if self.source != "files" and self.files:
            raise ValueError('files is for source = "files" only')
        return self
