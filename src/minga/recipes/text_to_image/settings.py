"""What a run spec may say to the text-to-image recipe, in `[recipe.text-to-image]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal

from pydantic import Field, field_validator, model_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.data.hub import HubName, of_hub
from minga.recipes.text_to_image.decoder.shape import DecoderShape

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

_IN_WORDS: Final = {
    "shapes": "plain shapes in colours, painted by minga itself",
    "openmoji": "drawings by OpenMoji (openmoji.org, CC BY-SA 4.0) on coloured backgrounds",
    "folder": "the organiser's pictures",
    "codes": "captions and codes of the organiser",
    "shards": "pictures of files on the web",
}

Paths = Annotated[
    tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=256)
]
Column = Annotated[Printable, Field(max_length=100)]


class ImageTextFilters(Section):
    """Which pairs of a data set are taken."""

    min_caption: int = whole(3, 0, 1000, "fewest characters of a caption")
    max_aspect: Real = real(2.0, 1.0, 1000.0, "longest side of a picture, in shortest sides")
    require: Annotated[
        tuple[Annotated[Printable, Field(pattern=r"^[^=]{1,100}=.{0,100}$")], ...], Field(strict=False, max_length=16)
    ] = described((), "what columns must say", 'a list of at most 16 such as "NSFW=UNLIKELY"')


class ImageTextData(Section):
    """Captions with pictures or with codes of pictures."""

    source: Literal["shapes", "openmoji", "folder", "codes", "hub", "shards"] = choice(
        "openmoji",
        "where pairs come from: plain shapes, or drawings of OpenMoji, on coloured backgrounds; a folder of pictures "
        "with captions; files with captions and codes; a data set of the Hugging Face hub; files on the web",
        "shapes",
        "openmoji",
        "folder",
        "codes",
        "hub",
        "shards",
    )
    compositions: int = whole(20_000, 40, 1_000_000, "(sources shapes, openmoji) pictures that are composed")
    colours: int = whole(8, 2, 8, "(sources shapes, openmoji) colours of shapes and backgrounds")
    places: int = whole(5, 1, 5, "(sources shapes, openmoji) places of a drawing; 1 is the center alone")
    sizes: int = whole(2, 1, 2, "(sources shapes, openmoji) sizes of a drawing; 1 is large alone")
    most_pictures: int = whole(20_000, 2, 1_000_000, "(other sources of pictures) pictures that are taken at most")
    files: Paths = described(
        (),
        "(folder) the folder, (codes) .jsonl or .parquet files here; peers get the codes, not the paths",
        "a list of at most 256 paths",
        private=True,
    )
    urls: Paths = described(
        (), "(shards) addresses of .parquet, .jsonl or .tar files", "a list of at most 256 https addresses"
    )
    name: HubName = described("", "(hub) name on the Hugging Face hub", 'a name such as "owner/name"')
    config: Column = described("", "(hub) its configuration", "a text of at most 100 printable characters")
    split: Column = described("train", "(hub) its split", "a text of at most 100 printable characters")
    caption_column: Column = described("caption", "column with the caption", "a text of at most 100 characters")
    image_column: Column = described("image", "column with the picture", "a text of at most 100 characters")
    code_column: Column = described(
        "",
        "(codes, hub, shards) column with the codes, a list of numbers or int16 bytes; none: there are pictures",
        "a text of at most 100 characters",
    )
    width_column: Column = described("", "column with a picture's width, for max_aspect", "a text")
    height_column: Column = described("", "column with a picture's height, for max_aspect", "a text")
    shuffle_buffer: int = whole(8192, 1, 1_000_000, "(streamed codes) pairs among which the next one is drawn")
    heldout_fraction: Real = real(0.05, 0.0, 0.5, "share of the drawings or pictures kept for evaluation")
    filters: ImageTextFilters = ImageTextFilters()

    @property
    def is_streamed(self) -> bool:
        """Whether each peer reads the data set itself, which then must hold codes."""
        return self.source in ("hub", "shards") and bool(self.code_column)

    def in_words(self) -> str:
        """What pictures they are, and whose."""
        return _IN_WORDS.get(self.source) or of_hub(self.name)

    @field_validator("urls")
    @classmethod
    def _check_urls(cls, urls: tuple[str, ...]) -> tuple[str, ...]:
        if not all(url.startswith("https://") for url in urls):
            raise ValueError("each must begin with https://")
        return urls

    @model_validator(mode="after")
    def _check_source(self) -> ImageTextData:
        needs = {"folder": "files", "codes": "files", "hub": "name", "shards": "urls"}
        for source, field in needs.items():
            given = bool(getattr(self, field))
            # Paths of the organiser are not published, so a received spec has none.
            if self.source == source and not given and field != "files":
                raise ValueError(f'source = "{source}" needs {field}')
            if given and needs.get(self.source) != field:
                raise ValueError(f'{field} is not for source = "{self.source}"')
        if self.source == "folder" and len(self.files) > 1:
            raise ValueError('source = "folder" takes one folder')
        if self.source == "codes" and not self.code_column:
            raise ValueError('source = "codes" needs code_column')
        return self


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
        '"train:wordpiece", "train:unigram" or "from:PATH"',
        pattern=_TOKENIZER,
        private=True,
    )
    image_tokenizer: Literal["fsq", "shapes", "codes"] = choice(
        "fsq",
        "how pictures become codes: by a tokenizer trained on them, by the one for plain shapes that comes with minga, "
        "or not at all, as the data has codes; it travels with the run",
        "fsq",
        "shapes",
        "codes",
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
