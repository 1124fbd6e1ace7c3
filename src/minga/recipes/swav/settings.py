"""What a run spec may say to the SwAV recipe, in `[recipe.swav]`. What is left out is as the size says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.recipes.data_source import COLUMN, Column
from minga.recipes.images.source import OF_ORGANISER, PictureSource

DIGITS = "digits"


class ImageData(PictureSource):
    """The pictures to learn from."""

    source: Literal["digits", "folder", "hub"] = choice(
        DIGITS,
        "where the pictures come from: 1,797 digits of scikit-learn; a folder with one folder for each class, or with "
        "metadata.csv, which travels with the run; a data set that each peer streams",
        DIGITS,
        "folder",
        "hub",
    )
    packed_size: int = whole(
        28, 0, 64, "(source folder) pictures travel as squares of so many pixels a side", special="; 0 is as files"
    )
    label_column: Column = described(
        "label", "(source hub) column of the class, for evaluation only; empty for none", COLUMN
    )

    others: ClassVar = {
        DIGITS: "1,797 handwritten digits of 8 by 8 pixels (package scikit-learn, UCI, CC BY 4.0)",
        "folder": OF_ORGANISER,
    }

    @property
    def channels(self) -> int:
        """1 for grey pictures, 3 for those in colour."""
        return 1 if self.source == DIGITS else 3

    @property
    def is_packed(self) -> bool:
        """Whether training reads pictures of one size that came with the run, not files that have to be decoded."""
        return self.source == DIGITS or (self.source == "folder" and self.packed_size > 0)


# ---- The sizes in which the recipe builds its model: the trunk, and the settings that go with it.


Size = Literal["tiny", "small", "paper"]


@dataclass(frozen=True)
class Trunk:
    """A ResNet: how many blocks each stage has and how wide it is; `stride` is that of a 3x3 stem."""

    layer_type: Literal["basic", "bottleneck"]
    depths: tuple[int, ...]
    widths: tuple[int, ...]
    stem_width: int
    stride: int


TRUNKS: Final[dict[str, Trunk]] = {
    "tiny": Trunk("basic", (1, 1, 1), (16, 32, 64), 16, 2),
    "small": Trunk("basic", (2, 2, 2, 2), (64, 128, 256, 512), 64, 1),  # ResNet-18
    "paper": Trunk("bottleneck", (3, 4, 6, 3), (256, 512, 1024, 2048), 64, 1),  # ResNet-50
}

PRESETS: Final[dict[str, dict[str, Any]]] = {
    # For digits, whose 8 by 8 pixels hold little: small crops, strong changes of brightness and soft assignments would
    # leave nothing to predict, and the model would give all the same answer. A mirrored digit is none.
    "tiny": {
        "crops": [[2, 16, 0.4, 1.0]],
        "prototypes": 64,
        "head": [128, 64],
        "epsilon": 0.03,
        "flip": 0.0,
        "jitter": 0.3,
        "blur": 0.0,
        "data": {"source": "digits", "packed_size": 28},
    },
    "small": {
        "crops": [[2, 32, 0.3, 1.0], [4, 20, 0.1, 0.4]],
        "prototypes": 300,
        "head": [512, 128],
        "data": {"source": "folder", "packed_size": 64},
    },
    "paper": {
        "crops": [[2, 224, 0.14, 1.0], [6, 96, 0.05, 0.14]],
        "prototypes": 3000,
        "head": [2048, 128],
        "epsilon": 0.03,
        "queue": 3840,
        "queue_from_step": 1531,
        "freeze_prototypes_steps": 40,
        "data": {"source": "folder", "packed_size": 0},
    },
}
"""What each size sets. That of the paper (Diskin et al. 2021, arXiv:2106.10207) is SwAV's on ImageNet, with DeDLOC's
assignment; steps of its peers are counted here in global steps of 32,768 pictures.
"""


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
        """Whether the first layer is 3x3 without pooling, for crops of at most 64 pixels."""
        return self.crops[0][1] <= 64
