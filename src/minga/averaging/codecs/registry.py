"""Which codecs a run can choose from: those that come with minga and those of other packages.

Only names are here, so that reading a run spec or a file of peers needs no torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry

if TYPE_CHECKING:
    from minga.averaging.codecs.interface import Codec

ADAPTIVE: Final = "adaptive"
"""int8 for large tensors, float16 for small ones; see `layout.py`."""

CODECS: Final[Registry[Callable[[], Codec]]] = Registry(
    "minga.codecs",
    "codec",
    {
        "float32": "minga.averaging.codecs.dense:float32",
        "float16": "minga.averaging.codecs.dense:float16",
        "bfloat16": "minga.averaging.codecs.dense:bfloat16",
        "int8": "minga.averaging.codecs.dense:BlockwiseInt8Codec",
    },
)
"""What makes a codec: a class or a function without arguments."""


def codec_choices() -> tuple[str, ...]:
    """What a run may name as its codec on this machine."""
    return (*CODECS.names(), ADAPTIVE)


def check_codec_choice(choice: object) -> None:
    """Raise `ConfigurationError` unless a run can name `choice` as its codec on this machine."""
    choices = codec_choices()
    if choice not in choices:
        raise ConfigurationError(
            f"codec: {choice!r} is none of {', '.join(choices)}, and no installed package brings it"
        )
