"""Secure training: robust aggregation, verification and bans.

    class TightClip(VerifiableAggregator): ...      a package's module

    [project.entry-points."minga.aggregators"]      its pyproject.toml
    tight_clip = "my_aggregators:TightClip"

What is listed here is public: the interface of aggregators, and CenteredClip to build upon.
`minga.testing.check_aggregator` says whether an aggregator keeps what the interface promises.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.security._aggregator_interface import (
        Aggregate,
        Aggregator,
        VerifiableAggregate,
        VerifiableAggregator,
    )
    from minga.security._aggregators import AGGREGATORS
    from minga.security._centered_clip import CenteredClip, ClippedAggregate
    from minga.security._rows import Rows

__all__ = [
    "AGGREGATORS",
    "Aggregate",
    "Aggregator",
    "CenteredClip",
    "ClippedAggregate",
    "Rows",
    "VerifiableAggregate",
    "VerifiableAggregator",
]

_LATE = {  # imported when they are first asked for
    "AGGREGATORS": "minga.security._aggregators",
    "Aggregate": "minga.security._aggregator_interface",
    "Aggregator": "minga.security._aggregator_interface",
    "CenteredClip": "minga.security._centered_clip",
    "ClippedAggregate": "minga.security._centered_clip",
    "Rows": "minga.security._rows",
    "VerifiableAggregate": "minga.security._aggregator_interface",
    "VerifiableAggregator": "minga.security._aggregator_interface",
}


def __getattr__(name: str) -> object:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATE[name]), name)
