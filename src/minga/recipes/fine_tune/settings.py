"""What a run spec may say to the recipe `fine-tune`, in `[recipe.fine-tune]`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.language.settings import MAX_CONFIG_CHARACTERS
from minga.recipes.text.settings import MAX_SOURCES, TextSource

BaseBits = Literal[32, 16, 8, 4]
BASE_BYTES: Final[dict[BaseBits, float]] = {32: 4.0, 16: 2.0, 8: 1.0, 4: 0.5 + 0.127 / 8}
"""Bytes for each parameter of a frozen linear layer: of 8 bits without the scales of rows, of 4 bits with those of
blocks, themselves quantised (Dettmers et al. 2023, arXiv:2305.14314, section 3).
"""

TINY = "tiny"
HUB = "hub:"
ALL_LINEAR = "all-linear"
_OTHERS: Final = {
    "sentences": "questions and answers that minga makes by rules, under its own licence (Apache-2.0)",
    "files": "files of the organiser",
}


class LoraSettings(Section):
    """The adapters, as `peft` has them."""

    rank: int = whole(8, 1, 1024, "rank of the two matrices of an adapter")
    alpha: Real = real(16.0, 0.0, 1e6, "adapters count alpha / rank", above_low=True)
    rslora: bool = described(False, "adapters count alpha / sqrt(rank) instead", "true or false")
    dora: bool = described(
        False, "DoRA: the lengths of the rows of a layer are learned apart from their directions", "true or false"
    )
    dropout: Real = real(0.0, 0.0, 1.0, "share of an adapter's inputs that is left out at random", below_high=True)
    targets: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=100)], ...],
        Field(strict=False, min_length=1, max_length=64),
    ] = described(
        (ALL_LINEAR,),
        "layers that get an adapter, by the ends of their names",
        f'a list of at most 64 names, or ["{ALL_LINEAR}"]: all but the last layer',
    )


class ChatSource(TextSource):
    """One source of a mixture: files of the organiser, or a data set of the hub.

    A row has the key `messages` (a list of `role` and `content`), or `prompt` and `completion`, or a text.
    """

    weight: Real = real(
        1.0, 0.0, 1e6, "share of the conversations, beside the weights of the other sources", above_low=True
    )
    source: Literal["files", "hub"] = choice("files", "where the conversations come from", "files", "hub")

    others: ClassVar = _OTHERS


class ChatData(TextSource):
    """What the adapters learn from: rows as `ChatSource` describes them.

    The organiser reads all of it, and it travels with the run as tokens.
    """

    source: Literal["sentences", "files", "hub", "mixture"] = choice(
        "files",
        "where conversations come from; sentences: questions and answers that minga makes by rules, for first tries",
        "sentences",
        "files",
        "hub",
        "mixture",
    )
    sources: Annotated[tuple[ChatSource, ...], Field(strict=False, max_length=MAX_SOURCES)] = described(
        (), "(source mixture) what is mixed", f"at most {MAX_SOURCES} tables [[recipe.fine-tune.data.sources]]"
    )
    heldout_fraction: Real = real(0.05, 0.0, 0.5, "share of the conversations kept for evaluation")

    others: ClassVar = _OTHERS

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        if (self.source == "mixture") != bool(self.sources):
            raise ValueError('sources, one table each, are for source = "mixture", which needs them')
        return self


class FineTuneSettings(Section):
    """Adapters of a model that is there already: the base of the run, which stays as it is."""

    base: Annotated[Printable, Field(max_length=1024)] = described(
        "",
        "the model to tune; in a run that is published it names the commit of the hub, or is empty for a folder. tiny: "
        "a small one that minga trains on plain sentences within a minute, for first tries",
        f'"{HUB}OWNER/NAME@REVISION", a folder with config.json and model.safetensors, or "{TINY}"',
    )
    base_bits: BaseBits = described(
        32,
        "how peers hold the base that do not say otherwise by --base-bits: in float32, in bfloat16, or its linear "
        "layers in 8 or 4 bits; adapters are float32 always",
        "32, 16, 8 or 4",
    )
    config: Annotated[str, Field(max_length=MAX_CONFIG_CHARACTERS)] = described(
        "",
        "shape of the base, written by the peer that starts the run",
        f"a JSON object of at most {MAX_CONFIG_CHARACTERS >> 10} Ki characters",
    )
    max_length: int = whole(1024, 16, 1 << 17, "tokens of a sample; longer conversations are cut off")
    packing: bool = described(
        True,
        "several short conversations share a sample, and none attends to another; without, each is padded",
        "true or false",
    )
    lora: LoraSettings = LoraSettings()
    data: ChatData = ChatData()

    @field_validator("base")
    @classmethod
    def _check_base(cls, base: str) -> str:
        if base.startswith(HUB) and "@" not in base:
            raise ValueError(f"a model of the hub is named with a revision, such as {base}@main")
        return base
