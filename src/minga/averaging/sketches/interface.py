"""The sketch seam: a linear map, the same on all peers, whose image is averaged in the place of the vector itself.

    vector ── project ──▶ values, fewer of them ── all-reduce ──▶ their mean ── expand ──▶ the mean vector, nearly

Since it is linear, the image of the mean is the mean of the images, so rounds, codecs, repairs and weights are those of
any other vector. What a sketch leaves out of one peer's vector is kept for that peer's next rounds (`projection.py`).
A sketch may have a *basis* that changes with each mean, as PowerSGD has. The basis is part of the shared state: the
digest covers it, checkpoints hold it and newcomers fetch it.

`minga.testing` has the suite that each sketch must pass, and entry points "minga.sketches" of installed packages bring
further ones (`SKETCHES`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import torch

from minga.averaging.codecs.layout import Shape, VectorLayout
from minga.core.errors import ConfigurationError
from minga.core.spec.choices import canonical, resolved, spelled
from minga.core.spec.fields import Section
from minga.core.spec.plugins import Registry
from minga.core.spec.sections import DEFAULT_SKETCH

# ---- Which sketches a run can choose from: those that come with minga and those of other packages.
#
# Only their names are here: the module of a sketch is imported when a run chooses it.


SKETCHES: Final[Registry[Any]] = Registry(
    "minga.sketches",
    "sketch",
    {
        DEFAULT_SKETCH: "minga.averaging.sketches.interface:IdentitySketch",
        "powersgd": "minga.averaging.sketches.powersgd:PowerSGD",
        "dct64": "minga.averaging.sketches.dct64:DCT64",
    },
)
"""What makes a `Sketch` of vectors of a layout: a class, or a function of the `VectorLayout`. A class with settings
takes them as its second argument."""


def canonical_sketch(choice: object) -> str:
    """The canonical spelling of what a run names as its sketch.

    Raises `ConfigurationError` unless it can be made on this machine.
    """
    return canonical(SKETCHES, choice)


# ---- What a sketch does, and `identity`, which changes nothing.


class Sketch(ABC):
    """A linear map of vectors of the layout `whole`, and back. One instance belongs to one peer.

    For each step, `expand` after `project` has to be an orthogonal projection: twice is as once, and nothing gets
    longer. All of it is a function of the basis, the step and the layout alone, bit for bit equal on all machines.
    Vectors are flat float32 CPU tensors. `project` may run on any thread, but not at the same time as `absorb`.
    """

    Settings: ClassVar[type[Section]] = Section
    """What a run may write in the parentheses of its choice, all with defaults; none here."""
    name: str
    version: int = 1
    """Raised when the same name begins to stand for other numbers: peers with another version are refused."""
    is_identity: bool = False
    """Whether the values are the vector itself."""
    needs_residual: bool = True
    """Whether what it leaves out has to be kept for later rounds. False where `expand` after `project` gives the vector
    again, up to rounding: then any codec may be used for the values."""

    def __init__(self, whole: VectorLayout, settings: Section | None = None) -> None:
        self.whole = whole
        self.settings = self.Settings() if settings is None else settings
        self._layouts: dict[tuple[tuple[int | Shape, ...], str], VectorLayout] = {}

    @property
    def choice(self) -> str:
        """The canonical spelling of this sketch with its settings."""
        return spelled(self.name, self.settings)

    @abstractmethod
    def shapes(self, step: int) -> tuple[int | Shape, ...]:
        """The values of the round of `step`, as tensors with these shapes or numbers of elements, in their order."""

    def part(self, step: int) -> str:  # noqa: ARG002
        """Which of several vectors that take turns the round of `step` averages; empty if there is one."""
        return ""

    def layout(self, step: int) -> VectorLayout:
        """The layout of the values of the round of `step`: no peer with another sketch or other shapes has the same."""
        key = self.shapes(step), self.part(step)
        if key not in self._layouts:
            words = (self.choice, str(self.version), "of", self.whole.shapes_digest, key[1], self.whole.label)
            label = " ".join(word for word in words if word)
            self._layouts[key] = VectorLayout(key[0], self.whole.codec_choice, self.whole.download_choice, label)
        return self._layouts[key]

    def part_of(self, fragment: VectorLayout, tensors: Sequence[int]) -> Sketch:  # noqa: ARG002
        """The same map of vectors of the layout `fragment`, which have some `tensors` of the whole, by their places.

        It has what of the basis belongs to these, in the same memory. Its steps are the rounds of this fragment alone.
        Raises `ConfigurationError` for a sketch with a basis that does not say how.
        """
        if self.basis():
            raise ConfigurationError(
                f'sketch: "{self.name}" has a basis of the whole vector, and this run averages fragments in turn; '
                f'set averaging.sketch = "{DEFAULT_SKETCH}"'
            )
        kind = type(self)
        return kind(fragment, self.settings) if kind.Settings.model_fields else kind(fragment)

    @abstractmethod
    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:
        """The values of `vector`, which stays as it is."""

    @abstractmethod
    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """The vector that has these values; they stay as they are."""

    def basis(self) -> Mapping[str, torch.Tensor]:
        """What the map depends on and `absorb` changes, in place: always the same tensors. Empty if nothing does."""
        return {}

    def absorb(self, mean: torch.Tensor, step: int) -> None:  # noqa: B027
        """Change the basis, if there is any, by the mean values of the round of `step`, which were expanded before."""


class IdentitySketch(Sketch):
    """No sketch: the vector is averaged as it is."""

    name = "identity"
    is_identity = True
    needs_residual = False

    def shapes(self, step: int) -> tuple[int | Shape, ...]:  # noqa: ARG002
        """Those of the vector."""
        return self.whole.tensors

    def layout(self, step: int) -> VectorLayout:  # noqa: ARG002
        """That of the vector."""
        return self.whole

    def project(self, vector: torch.Tensor, step: int) -> torch.Tensor:  # noqa: ARG002
        """The vector."""
        return vector

    def expand(self, values: torch.Tensor, step: int) -> torch.Tensor:  # noqa: ARG002
        """The vector."""
        return values


def make_sketch(choice: str, whole: VectorLayout) -> Sketch:
    """The sketch of a choice such as "identity" or "powersgd(rank=4)", of vectors of the layout `whole`.

    Raises `ConfigurationError` if no installed package brings it, if what it brings goes by another name, if it cannot
    have these settings, or if it cannot be used with the codec of the layout.
    """
    found = resolved(SKETCHES, choice)
    sketch = found.maker(whole, found.settings) if found.has_settings else found.maker(whole)
    if not isinstance(sketch, Sketch) or sketch.choice != found.spelling:
        raise ConfigurationError(f"sketch: what an installed package brings as {found.spelling!r} is {sketch!r}")
    if whole.needs_residual and sketch.needs_residual:
        raise ConfigurationError(
            f'the codec "{whole.codec_choice}" and the sketch "{found.spelling}" both leave something out: one of '
            "them can be made up for"
        )
    return sketch
