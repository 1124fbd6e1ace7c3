"""The sources of a mixture as a run spec says them: `[[recipe.NAME.data.sources]]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole

MAX_SOURCES = 16
_DATASET_NAME = r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$"


class SourceSettings(Section):
    """One source of a mixture. Filters are settings, never code: a run spec cannot make a peer execute anything."""

    weight: Real = real(
        1.0, 0.0, 1e6, "share of the documents, beside the weights of the other sources", above_low=True
    )
    source: Literal["bible", "files", "translations", "hub"] = choice(
        "files", "where the documents come from", "bible", "files", "translations", "hub"
    )
    files: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=256)
    ] = described(
        (),
        "(files) .txt and .jsonl files or globs; (translations) .mo and .xpi files or globs, none for those found here",
        "a list of at most 256 paths",
        private=True,
    )
    name: str = described(
        "", "(hub) name on the Hugging Face hub", 'a name such as "owner/name"', pattern=_DATASET_NAME
    )
    config: Annotated[Printable, Field(max_length=100)] = described(
        "", "(hub) its configuration", "a text of at most 100 printable characters"
    )
    revision: Annotated[Printable, Field(max_length=100)] = described(
        "", "(hub) its revision, such as refs/convert/parquet", "a text of at most 100 printable characters"
    )
    split: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "train", "(hub) its split", "a text of 1 to 100 printable characters"
    )
    text_column: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "text", "column (or key of .jsonl lines) that holds the text", "a text of 1 to 100 printable characters"
    )
    min_characters: int = whole(0, 0, 1_000_000, "shorter documents are left out")
    max_characters: int = whole(1_000_000, 1, 1_000_000, "longer documents are left out")
    script: Annotated[str, Field(pattern=r"^$|^[A-Z][a-z]{1,30}$")] = described(
        "", "script that most letters of a document have to belong to", 'a Unicode script such as "Bengali", or ""'
    )
    script_share: Real = real(0.5, 0.0, 1.0, "share of its letters that has to belong to the script")
    drop: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=200)], ...], Field(strict=False, max_length=16)
    ] = described((), "documents with one of these texts in them are left out", "a list of at most 16 texts")

    @model_validator(mode="after")
    def _check(self) -> SourceSettings:
        if self.source == "hub" and not self.name:
            raise ValueError('source = "hub" needs a name')
        if self.source == "files" and self.min_characters > self.max_characters:
            raise ValueError("min_characters exceeds max_characters")
        return self


class MixtureData(Section):
    """What a recipe with several sources is trained on."""

    sources: Annotated[tuple[SourceSettings, ...], Field(strict=False, min_length=1, max_length=MAX_SOURCES)] = (
        described(
            (SourceSettings(source="translations"),),
            "where the text comes from",
            f"1 to {MAX_SOURCES} tables [[recipe.NAME.data.sources]]",
        )
    )
    shuffle_buffer: int = whole(10_000, 1, 1_000_000, "documents that are shuffled among each other")
    heldout_fraction: Real = real(0.01, 0.0, 0.5, "share of the documents kept for evaluation")
