"""The aggregators by their names: minga's own, and those of other packages (entry points `minga.aggregators`)."""

from __future__ import annotations

from typing import Any, Final

from minga.core.errors import ConfigurationError
from minga.core.spec.plugins import Registry
from minga.security.robust.interface import Aggregator, VerifiableAggregator

AGGREGATORS: Final[Registry[type[Aggregator[Any]]]] = Registry(
    "minga.aggregators",
    "aggregator",
    {
        "mean": "minga.security.robust.mean:Mean",
        "coordinate_median": "minga.security.robust.coordinate_wise:CoordinateMedian",
        "trimmed_mean": "minga.security.robust.coordinate_wise:TrimmedMean",
        "geometric_median": "minga.security.robust.geometric_median:GeometricMedian",
        "krum": "minga.security.robust.krum:Krum",
        "multi_krum": "minga.security.robust.krum:MultiKrum",
        "centered_clip": "minga.security.robust.centered_clip:CenteredClip",
    },
    base="minga.security.robust.interface:Aggregator",
)


def verifiable_aggregator(name: str) -> type[VerifiableAggregator[Any]]:
    """The aggregator of a secure run. Raises `ConfigurationError` if there is none, or none that members can verify."""
    found = AGGREGATORS.get(name)
    if not (isinstance(found, type) and issubclass(found, VerifiableAggregator)):
        raise ConfigurationError(
            f"security.aggregator = {name!r}: members of a secure run could not verify its results, since these do not "
            "solve the equation of which each sender publishes its own term; take centered_clip, or another "
            "VerifiableAggregator"
        )
    return found
