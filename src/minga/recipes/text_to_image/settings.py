"""What a run spec may say to the text-to-image recipe, in `[recipe.text-to-image]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field, field_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.data_source import COLUMN, Column
from minga.recipes.images.source import OF_ORGANISER, PictureSource
from minga.recipes.text_to_image.decoder import DecoderShape

# ---- The sizes in which the recipe builds its decoder, and the pictures that go with them.


Size = Literal["tiny", "small", "base", "paper"]


@dataclass(frozen=True)
class TextToImageSize:
    """What distinguishes the sizes; see `DecoderShape`. `side`: of a picture, in pixels."""

    width: int
    layers: int
    heads: int
    text_length: int
    vocabulary: int
    side: int
    codes: int
    grid: int
    levels: tuple[int, ...]


SIZES: Final[dict[Size, TextToImageSize]] = {
    # Learns background colours within a minute on one CPU core.
    "tiny": TextToImageSize(128, 6, 4, 24, 2048, 32, 256, 8, (8, 6, 5)),
    "small": TextToImageSize(256, 12, 4, 32, 4096, 64, 512, 16, (8, 8, 8)),
    "base": TextToImageSize(512, 24, 8, 64, 8192, 128, 1024, 16, (8, 8, 4, 4)),
    # The model of the paper: 125,894,244 parameters, with the vocabulary of T5 and 8,192 codes.
    "paper": TextToImageSize(1024, 64, 16, 256, 32_100, 256, 8192, 32, (8, 8, 8, 4, 4)),
}


# ---- What a run spec may say.


_OVERRIDES: Final = {
    "width": 4096,
    "layers": 256,
    "heads": 64,
    "text_length": 1024,
    "vocabulary": 1 << 20,
    "codes": 1 << 16,
    "grid": 64,
    "side": 1024,
}
Override = Literal["width", "layers", "heads", "text_length", "vocabulary", "codes", "grid", "side"]
_TOKENIZER = r"^(train:(wordpiece|unigram)|from:.+)$"


class ImageTextFilters(Section):
    """Which pairs of a data set are taken."""

    min_caption: int = whole(3, 0, 1000, "fewest characters of a caption")
    max_aspect: Real = real(2.0, 1.0, 1000.0, "longest side of a picture, in shortest sides")
    require: Annotated[
        tuple[Annotated[Printable, Field(pattern=r"^[^=]{1,100}=.{0,100}$")], ...], Field(strict=False, max_length=16)
    ] = described((), "what columns must say", 'a list of at most 16 such as "NSFW=UNLIKELY"')


class ImageTextData(PictureSource):
    """Captions with pictures or with codes of pictures."""

    source: Literal["shapes", "folder", "hub"] = choice(
        "shapes",
        "where pairs come from: plain shapes on coloured backgrounds, which minga paints; a folder of pictures with "
        "captions; a data set of the Hugging Face hub",
        "shapes",
        "folder",
        "hub",
    )
    compositions: int = whole(20_000, 40, 1_000_000, "(source shapes) pictures that are painted")
    colours: int = whole(8, 2, 8, "(source shapes) colours of shapes and backgrounds")
    places: int = whole(5, 1, 5, "(source shapes) places of a shape; 1 is the center alone")
    sizes: int = whole(2, 1, 2, "(source shapes) sizes of a shape; 1 is large alone")
    most_pictures: int = whole(20_000, 2, 1_000_000, "(sources folder, hub) pictures that are taken at most")
    caption_column: Column = described("caption", "column with the caption", COLUMN)
    code_column: Column = described(
        "",
        "(source hub) column with the codes of pictures, a list of numbers or int16 bytes, which each peer streams; "
        "none: there are pictures",
        COLUMN,
    )
    width_column: Column = described("", "column with a picture's width, for max_aspect", COLUMN)
    height_column: Column = described("", "column with a picture's height, for max_aspect", COLUMN)
    shuffle_buffer: int = whole(8192, 1, 1 << 20, "(streamed codes) pairs that are put into a new order at once")
    heldout_fraction: Real = real(0.05, 0.0, 0.5, "share of the pictures kept for evaluation")
    filters: ImageTextFilters = ImageTextFilters()

    others: ClassVar = {"shapes": "plain shapes in colours, painted by minga itself", "folder": OF_ORGANISER}

    @property
    def is_streamed(self) -> bool:
        """Whether each peer reads the data set itself, which then must hold codes."""
        return self.source == "hub" and bool(self.code_column)


class TextToImageSettings(Section):
    """Pictures as codes, predicted one by one after their caption."""

    size: Literal["tiny", "small", "base", "paper"] = choice(
        "tiny", "preset of model and pictures", "tiny", "small", "base", "paper"
    )
    overrides: dict[Override, int] = described(
        {},
        "numbers that replace those of the preset: width, layers, heads, text_length (tokens of a caption), "
        "vocabulary, codes, grid (codes in a row), side (pixels)",
        "a table of whole numbers above 0",
    )
    dropout: Real = real(0.0, 0.0, 0.5, "share of each sub-layer's outputs that training zeroes")
    tokenizer: Annotated[Printable, Field(max_length=1024)] = described(
        "train:wordpiece",
        "tokenizer of captions: one trained on them, or the file tokenizer.json of another",
        '"train:wordpiece", "train:unigram" or "from:" and a folder, or OWNER/NAME of the hub',
        pattern=_TOKENIZER,
        private=True,
    )
    image_tokenizer: Literal["fsq", "shapes"] = choice(
        "fsq",
        "how pictures become codes: by a tokenizer trained on them, or by the one for plain shapes that comes with "
        "minga; it travels with the run",
        "fsq",
        "shapes",
    )
    tokenizer_steps: int = whole(
        800, 1, 1_000_000, "steps of 64 pictures that the image tokenizer is trained; 800 take a minute on one core"
    )
    levels: Annotated[tuple[Annotated[int, Field(ge=3, le=64)], ...], Field(strict=False, max_length=8)] = described(
        (), "levels of each channel of the image tokenizer; none: those of the size", "up to 8 numbers"
    )
    reversible: bool = described(
        True, "whether layers compute activations again instead of keeping them; no result changes", "true or false"
    )
    caption_dropout: Real = real(
        0.0, 0.0, 0.5, "share of training samples without caption; samples can be guided from 0.1 on"
    )
    loss_on_padding: bool = described(False, "whether padding of captions is predicted, too", "true or false")
    image_weight: Real = real(7.0, 0.0, 1000.0, "weight of the picture in the loss; that of the caption is 1")
    data: ImageTextData = ImageTextData()

    @field_validator("overrides")
    @classmethod
    def _bound_overrides(cls, overrides: dict[Override, int]) -> dict[Override, int]:
        for name, value in overrides.items():
            if not 1 <= value <= _OVERRIDES[name]:
                raise ValueError(f"{name} must be from 1 to {_OVERRIDES[name]}")
        return overrides

    def shape(self) -> DecoderShape:
        """The decoder of these settings. Raises `ConfigurationError` for a shape that no decoder can have."""
        names: tuple[Override, ...] = ("width", "layers", "heads", "text_length", "vocabulary", "codes", "grid")
        return DecoderShape(**{name: self._number(name) for name in names}, dropout=self.dropout)

    @property
    def side(self) -> int:
        """Pixels along each side of a picture."""
        return self._number("side")

    def _number(self, name: Override) -> int:
        return self.overrides.get(name, int(getattr(SIZES[self.size], name)))
