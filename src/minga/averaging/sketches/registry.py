"""Which sketches a run can choose from: those that come with minga and those of other packages.

Only names are here, so that reading a run spec needs no torch.
"""

from __future__ import annotations

from typing import Any, Final

from minga.core.spec.choices import canonical
from minga.core.spec.plugins import Registry
from minga.core.spec.sections import DEFAULT_SKETCH

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
