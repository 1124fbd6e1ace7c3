"""Who reduces what, with whom, and how: groups, parts, codecs and the all-reduce.

    class Int4(Codec): ...                          a package's module

    [project.entry-points."minga.codecs"]           its pyproject.toml
    int4 = "my_codecs:Int4"

What is listed here is public: the interface of codecs, and what they may use. `minga.testing.check_codec` says whether
a codec keeps what the interface promises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.averaging._codec_choice import CODECS
    from minga.averaging._codec_interface import (
        FLOAT32_MAX,
        Codec,
        InvalidEncodingError,
        largest_magnitude,
        require_magnitude,
    )

__all__ = [
    "CODECS",
    "FLOAT32_MAX",
    "Codec",
    "InvalidEncodingError",
    "largest_magnitude",
    "require_magnitude",
]

_LATE = {  # imported when they are first asked for
    "CODECS": "minga.averaging._codec_choice",
    "Codec": "minga.averaging._codec_interface",
    "FLOAT32_MAX": "minga.averaging._codec_interface",
    "InvalidEncodingError": "minga.averaging._codec_interface",
    "largest_magnitude": "minga.averaging._codec_interface",
    "require_magnitude": "minga.averaging._codec_interface",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
