"""Where the pictures of a run come from, as its settings say it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.hub_data import of_hub

_DATASET_NAME = r"^$|^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$"
_TEXT = "a text of at most 100 printable characters"
DIGITS = "digits"
STREAMED_SOURCES = ("hub", "shards")

_IN_WORDS = {
    DIGITS: "1,797 handwritten digits of 8 by 8 pixels (package scikit-learn, UCI, CC BY 4.0)",
    "folder": "the organiser's pictures",
    "shards": "the pictures of tar files on the web",
}


class ImageData(Section):
    """The pictures to learn from."""

    source: Literal["digits", "folder", "hub", "shards"] = choice(
        DIGITS, "where the pictures come from", DIGITS, "folder", *STREAMED_SOURCES
    )
    folder: Annotated[Printable, Field(max_length=4096)] = described(
        "",
        "(source folder) a folder here with one folder for each class, or with metadata.csv; its pictures travel with "
        "the run",
        "a path",
        private=True,
    )
    packed_size: int = whole(
        28, 0, 64, "(source folder) pictures travel as squares of so many pixels a side", special="; 0 is as files"
    )
    name: str = described(
        "",
        "(source hub) data set of the Hugging Face hub, which each peer streams",
        'a name such as "owner/name"',
        pattern=_DATASET_NAME,
    )
    config: Annotated[Printable, Field(max_length=100)] = described("", "(source hub) its configuration", _TEXT)
    revision: Annotated[Printable, Field(max_length=100)] = described(
        "", "(source hub) its branch, tag or commit; refs/convert/parquet where it has a loading script", _TEXT
    )
    split: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "train", "(source hub) its split", "a text of 1 to 100 printable characters"
    )
    urls: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=4096)
    ] = described(
        (),
        "(source shards) tar files of WebDataset, which each peer streams",
        "a list of at most 4096 https addresses; paths only where no other machine joins",
    )
    image_column: Annotated[Printable, Field(min_length=1, max_length=100)] = described(
        "image", "(sources hub, shards) column, or suffix in a tar file, that holds the picture", _TEXT
    )
    label_column: Annotated[Printable, Field(max_length=100)] = described(
        "label", "(sources hub, shards) column, or suffix, of the class, for evaluation only; empty for none", _TEXT
    )
    shuffle_buffer: int = whole(
        2048, 1, 1 << 20, "(sources hub, shards) pictures that are put into a new order at once"
    )
    heldout_fraction: Real = real(0.1, 0.0, 0.5, "share of the pictures kept for evaluation")

    @property
    def channels(self) -> int:
        """1 for grey pictures, 3 for those in colour."""
        return 1 if self.source == DIGITS else 3

    @property
    def is_packed(self) -> bool:
        """Whether training reads pictures of one size that came with the run, not files that have to be decoded."""
        return self.source == DIGITS or (self.source == "folder" and self.packed_size > 0)

    def in_words(self) -> str:
        """What pictures they are, and whose."""
        return _IN_WORDS.get(self.source) or of_hub(self.name)

    @model_validator(mode="after")
    def _check_source(self) -> ImageData:
        if self.source == "hub" and not self.name:
            raise ValueError('source = "hub" needs name, such as name = "owner/name"')
        if self.source == "shards" and not self.urls:
            raise ValueError('source = "shards" needs urls')
        if self.source != "hub" and (self.name or self.config or self.revision):
            raise ValueError('name, config and revision are for source = "hub" only')
        if self.source != "shards" and self.urls:
            raise ValueError('urls is for source = "shards" only')
        if self.source != "folder" and self.folder:
            raise ValueError('folder is for source = "folder" only')
        return self
