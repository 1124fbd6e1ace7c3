"""What a run spec may say to the SwAV recipe, in `[recipe.swav]`. What is left out is as the size says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.recipes.swav.data.settings import ImageData
from minga.recipes.swav.sizes import PRESETS, Size

CropKind = Annotated[
    tuple[
        Annotated[StrictInt, Field(ge=1, le=16)],
        Annotated[StrictInt, Field(ge=8, le=512)],
        Annotated[Real, Field(gt=0.0, le=1.0)],
        Annotated[Real, Field(gt=0.0, le=1.0)],
    ],
    Field(strict=False),
]
"""How many crops, their side in pixels, and the smallest and the largest share of a picture's area that one shows."""


class SwavSettings(Section):
    """Self-supervised: all crops of a picture should get the same prototype."""

    size: Size = choice("tiny", "preset of the model and of the settings below", "tiny", "small", "paper")
    crops: Annotated[tuple[CropKind, ...], Field(strict=False, min_length=1, max_length=4)] = described(
        ((2, 16, 0.4, 1.0),),
        "kinds of crops; the first two crops of the first kind are assigned to prototypes",
        "a list of 1 to 4 lists [number, side in pixels, least share of the area, largest share]",
    )
    prototypes: int = whole(64, 2, 100_000, "prototypes, to which crops are assigned in equal shares")
    head: Annotated[
        tuple[Annotated[StrictInt, Field(ge=4, le=16_384)], Annotated[StrictInt, Field(ge=4, le=4096)]],
        Field(strict=False),
    ] = described((128, 64), "widths of the head: hidden, and of the embedding", "two whole numbers, such as [128, 64]")
    temperature: Real = real(0.1, 0.0, 10.0, "of the predicted assignments", above_low=True)
    epsilon: Real = real(0.05, 0.0, 10.0, "of the assignments themselves: the smaller, the sharper", above_low=True)
    sinkhorn: int = whole(3, 1, 1000, "iterations that make the shares of the prototypes equal")
    queue: int = whole(0, 0, 1 << 20, "earlier embeddings of a peer that are assigned together with its micro-batch")
    queue_from_step: int = whole(0, 0, 10**9, "global step from which on they are")
    freeze_prototypes_steps: int = whole(0, 0, 10**9, "global steps in which the prototypes stay as they are")
    micro_batch_size: int = whole(64, 2, 1 << 16, "pictures that are assigned together; the same on all peers")
    norm: Literal["batch", "group"] = choice(
        "batch", "normalisation: by the pictures of a micro-batch, or by groups of channels", "batch", "group"
    )
    stem: Literal["auto", "3x3", "7x7"] = choice(
        "auto", "first layer; auto takes 3x3, without pooling, for crops of at most 64 pixels", "auto", "3x3", "7x7"
    )
    flip: Real = real(0.5, 0.0, 1.0, "share of the crops that are mirrored; 0 where left and right tell, as in writing")
    jitter: Real = real(0.8, 0.0, 1.0, "strength of the changes of brightness, contrast and saturation")
    blur: Real = real(0.5, 0.0, 1.0, "share of the crops that are blurred")
    data: ImageData = ImageData()

    @model_validator(mode="before")
    @classmethod
    def _as_the_size_says(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        preset = PRESETS.get(values.get("size", "tiny"))
        if preset is None:
            return values  # the field says which sizes there are
        data = values.get("data", {})
        if isinstance(data, dict):
            data = {**preset["data"], **data}
        return {**preset, **values, "data": data}

    @field_validator("crops")
    @classmethod
    def _check_crops(
        cls, crops: tuple[tuple[int, int, float, float], ...]
    ) -> tuple[tuple[int, int, float, float], ...]:
        if crops[0][0] < 2:
            raise ValueError("the first kind must have at least two crops, since these are assigned")
        if any(low > high for _, _, low, high in crops):
            raise ValueError("the least share of a crop's area exceeds the largest")
        return crops

    @property
    def views(self) -> int:
        """Crops of one picture, of all kinds."""
        return sum(count for count, *_ in self.crops)

    @property
    def uses_small_stem(self) -> bool:
        """Whether the first layer is 3x3 without pooling."""
        return self.stem == "3x3" or (self.stem == "auto" and self.crops[0][1] <= 64)
