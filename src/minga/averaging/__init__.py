"""Who reduces what, with whom, and how: groups, plans, codecs and the all-reduce of ordinary steps.

    matchmaking/ ── a full step ──▶ planning/ (solver/) ── signed plan ──▶ allreduce/ (codecs/) ──▶ the mean
        clocking/: how many samples each member stops at, who stands by

Read: messages (what peers say to form a group, up to the plan), election (who leads), apportionment (fractions to whole
elements), strategy_choice (what strategies promise, and which are installed), links (what peers tell each other of
their lines), group (the seams to the rest of a peer, and what group formation is told). Then codecs, quantizers,
compressors, sketches, solver, clocking, planning, allreduce, matchmaking: each uses only those before it.

Called by training/life. It knows vectors and samples, but no models, data or optimizers.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.averaging.codecs.interface import (
        FLOAT32_MAX,
        Codec,
        CodecPair,
        InvalidEncodingError,
        largest_magnitude,
        require_magnitude,
    )
    from minga.averaging.codecs.layout import VectorLayout
    from minga.averaging.codecs.registry import CODECS
    from minga.averaging.sketches.interface import SKETCHES, Sketch

__all__ = [
    "CODECS",
    "FLOAT32_MAX",
    "SKETCHES",
    "Codec",
    "CodecPair",
    "InvalidEncodingError",
    "Sketch",
    "VectorLayout",
    "largest_magnitude",
    "require_magnitude",
]

_LATE = {  # imported when they are first asked for
    "CODECS": "minga.averaging.codecs.registry",
    "Codec": "minga.averaging.codecs.interface",
    "CodecPair": "minga.averaging.codecs.interface",
    "FLOAT32_MAX": "minga.averaging.codecs.interface",
    "InvalidEncodingError": "minga.averaging.codecs.interface",
    "SKETCHES": "minga.averaging.sketches.interface",
    "Sketch": "minga.averaging.sketches.interface",
    "VectorLayout": "minga.averaging.codecs.layout",
    "largest_magnitude": "minga.averaging.codecs.interface",
    "require_magnitude": "minga.averaging.codecs.interface",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
