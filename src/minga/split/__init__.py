"""Split learning: a model cut between those who hold data and those who compute.

Read: examples (samples and cut networks), leakage (distance correlation, NoPeek, the leakage report).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minga.split.examples.subject import LeakageSubject
    from minga.split.leakage.comparison import compare_leakage
    from minga.split.leakage.distance_correlation import distance_correlation
    from minga.split.leakage.no_peek import NoPeek
    from minga.split.leakage.report import LeakageReport
    from minga.split.leakage.settings import LeakageSettings

__all__ = [
    "LeakageReport",
    "LeakageSettings",
    "LeakageSubject",
    "NoPeek",
    "compare_leakage",
    "distance_correlation",
]

_PLACES = {
    "LeakageReport": "leakage.report",
    "LeakageSettings": "leakage.settings",
    "LeakageSubject": "examples.subject",
    "NoPeek": "leakage.no_peek",
    "compare_leakage": "leakage.comparison",
    "distance_correlation": "leakage.distance_correlation",
}


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"minga.split.{_PLACES[name]}"), name)
