"""Where the text of a recipe comes from, as its settings say it."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from minga.core.spec.fields import Printable, Real, choice, described, real, whole
from minga.recipes.data_source import NAMED, DataSource, Named

MAX_SOURCES = 16
_OTHERS = {
    "sentences": "plain sentences that minga makes by rules: which animal eats what, and when",
    "bible": "the World English Bible, which is in the public domain",
    "files": "files of the organiser",
}


class TextSource(DataSource):
    """Text of files, or of a data set of the Hugging Face hub."""

    source: str = "files"
    files: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=256)
    ] = described(
        (),
        "(files) .jsonl files or globs here, or .txt of text, .parquet of conversations; peers that join get what is "
        "in them, not their paths",
        "a list of at most 256 paths",
        private=True,
    )
    text_column: Named = described("text", "column (or key of .jsonl lines) that holds the text", NAMED)

    @model_validator(mode="after")
    def _check_files(self) -> Self:
        if self.source != "files" and self.files:
            raise ValueError('files is for source = "files" only')
        return self


class SourceSettings(TextSource):
    """One source of a mixture. Filters are settings, never code: a run spec cannot make a peer execute anything."""

    weight: Real = real(
        1.0, 0.0, 1e6, "share of the documents, beside the weights of the other sources", above_low=True
    )
    source: Literal["bible", "files", "hub"] = choice("files", "where the documents come from", "bible", "files", "hub")
    min_characters: int = whole(0, 0, 1_000_000, "shorter documents are left out")
    max_characters: int = whole(1_000_000, 1, 1_000_000, "longer documents are left out")
    script: Annotated[str, Field(pattern=r"^$|^[A-Z][a-z]{1,30}$")] = described(
        "", "script that most letters of a document have to belong to", 'a Unicode script such as "Bengali", or ""'
    )
    script_share: Real = real(0.5, 0.0, 1.0, "share of its letters that has to belong to the script")
    drop: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=200)], ...], Field(strict=False, max_length=16)
    ] = described((), "documents with one of these texts in them are left out", "a list of at most 16 texts")

    others: ClassVar = _OTHERS

    @model_validator(mode="after")
    def _check_characters(self) -> Self:
        if self.min_characters > self.max_characters:
            raise ValueError("min_characters exceeds max_characters")
        return self


class TextData(TextSource):
    """What it is trained on."""

    source: Literal["sentences", "bible", "files", "datasets", "mixture"] = choice(
        "bible",
        "where the text comes from; sentences: a few thousand that minga makes by rules, for first tries",
        "sentences",
        "bible",
        "files",
        "datasets",
        "mixture",
    )
    language: Literal["", "bn", "bn-paper"] = choice(
        "", 'a language that is written in its own way; "bn-paper": as sahajBERT read Bengali', "", "bn", "bn-paper"
    )
    sources: Annotated[tuple[SourceSettings, ...], Field(strict=False, max_length=MAX_SOURCES)] = described(
        (), "(source mixture) what is mixed", f"at most {MAX_SOURCES} tables [[recipe.NAME.data.sources]]"
    )
    shuffle_buffer: int = whole(10_000, 1, 1_000_000, "documents among which the next one is drawn")
    heldout_fraction: Real = real(0.01, 0.0, 0.5, "share of the documents kept for evaluation")

    of_hub: ClassVar = "datasets"
    others: ClassVar = _OTHERS

    @property
    def is_streamed(self) -> bool:
        """Whether some of the text comes from the hub while peers train."""
        return self.source == "datasets" or any(source.source == "hub" for source in self.sources)

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if (self.source == "mixture") != bool(self.sources):
            raise ValueError('sources, one table each, are for source = "mixture", which needs them')
        return self
