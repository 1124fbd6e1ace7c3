"""The aggregators by their names: minga's own, and those of other packages (entry points `minga.aggregators`)."""

from __future__ import annotations

from typing import Any, Final

from minga.core._errors import ConfigurationError
from minga.core._plugins import Registry
from minga.security._aggregator_interface import Aggregator, VerifiableAggregator

AGGREGATORS: Final[Registry[type[Aggregator[Any]]]] = Registry(
    "minga.aggregators",
    "aggregator",
    {
        "mean": "minga.security._mean:Mean",
        "coordinate_median": "minga.security._coordinate_wise:CoordinateMedian",
        "trimmed_mean": "minga.security._coordinate_wise:TrimmedMean",
        "geometric_median": "minga.security._geometric_median:GeometricMedian",
        "krum": "minga.security._krum:Krum",
        "multi_krum": "minga.security._krum:MultiKrum",
        "centered_clip": "minga.security._centered_clip:CenteredClip",
    },
    base="minga.security._aggregator_interface:Aggregator",
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
