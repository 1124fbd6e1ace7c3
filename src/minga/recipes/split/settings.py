"""What a run spec may say to the recipe of split learning, in `[recipe.split]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StrictInt, model_validator

from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.split.examples.network import CutShape

Widths = tuple[Annotated[StrictInt, Field(ge=1, le=65_536)], ...]

_SHAPES = {"digits": ((1, 8, 8), 10), "breast-cancer": ((30,), 2), "wine": ((13,), 3)}


class SplitRecipeSettings(Section):
    """A network that is cut, and samples with labels, of which each client has its own."""

    data: Literal["digits", "breast-cancer", "wine", "table"] = choice(
        "digits",
        "samples: an example that comes with scikit-learn, dealt out to the clients; or table: each client brings its "
        "own with --data, and holds out a tenth of it",
        "digits",
        "breast-cancer",
        "wine",
        "table",
    )
    clients: int = whole(4, 1, 1024, "clients to which an example is dealt out, in equal parts by the run's seed")
    heldout: Real = real(0.2, 0.0, 0.9, "share of an example that nobody trains on", above_low=True)
    features: int = whole(0, 0, 1 << 20, "values of a sample of a table", special="; 0 unless the data are a table")
    classes: int = whole(0, 0, 1 << 16, "classes of a table", special="; 0 unless the data are a table")
    channels: Annotated[Widths, Field(strict=False, max_length=8)] = described(
        (),
        "channels of 3x3 convolutions at the start of the bottom, for pictures; all but the first halve the sides",
        "a list of at most 8 whole numbers",
    )
    bottom: Annotated[Widths, Field(strict=False, max_length=16)] = described(
        (128, 128),
        "widths of the dense layers of the bottom, which clients have; the last is what they send of a sample",
        "a list of at most 16 whole numbers",
    )
    top: Annotated[Widths, Field(strict=False, min_length=1, max_length=16)] = described(
        (64,), "widths of the dense layers of the top, which the server has", "a list of 1 to 16 whole numbers"
    )
    no_peek: Real = real(0.0, 0.0, 1e6, "weight of NoPeek in the loss of the clients' bottoms; 0 is without")

    @model_validator(mode="after")
    def _check(self) -> SplitRecipeSettings:
        if (self.data == "table") != (self.features > 0 and self.classes > 1):
            raise ValueError('features (1 or more) and classes (2 or more) have to be given with data = "table" only')
        if self.data != "table" and (self.features or self.classes):
            raise ValueError('features and classes belong to data = "table"')
        if self.channels and self.data != "digits":
            raise ValueError("channels are for pictures, which only digits are")
        if not self.channels + self.bottom:
            raise ValueError("the bottom has no layer: give channels or bottom")
        return self

    @property
    def shape(self) -> CutShape:
        """The network, with the layer that gives the logits as its head."""
        sample, classes = _SHAPES.get(self.data, ((self.features,), self.classes))
        return CutShape(sample, classes, self.channels, self.bottom, self.top, has_head=True)
