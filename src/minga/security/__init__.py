"""Secure training: members check each other's work and ban cheaters, by proofs that any peer can verify.

    parts, randomness, robust ─▶ verification ─▶ protocol ─▶ messaging ─▶ accountability ─▶ rechecking ─▶ step
    bytes, chance, aggregation   checks          state       statements   bans              doubts        one step

Read the folders in that order, or step first and the others as they come up. There are no files in this room but
theirs: parts, randomness, robust, verification, protocol, messaging, accountability, rechecking, step.

Called by training/life/verified_member. It knows vectors and public batches; what they mean for a model is behind
the training backend that protocol/behaviour declares.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.security.robust.centered_clip import CenteredClip
    from minga.security.robust.interface import AGGREGATORS, Aggregate, Aggregator
    from minga.security.robust.rows import Rows

__all__ = [
    "AGGREGATORS",
    "Aggregate",
    "Aggregator",
    "CenteredClip",
    "Rows",
]

_LATE = {  # imported when they are first asked for
    "AGGREGATORS": "minga.security.robust.interface",
    "Aggregate": "minga.security.robust.interface",
    "Aggregator": "minga.security.robust.interface",
    "CenteredClip": "minga.security.robust.centered_clip",
    "Rows": "minga.security.robust.rows",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
