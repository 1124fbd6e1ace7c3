"""Settings of run specs that choose something by name: all values that come with minga, and pairs of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from minga.averaging.codecs.registry import ADAPTIVE, CODECS
from minga.averaging.sketches.registry import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES
from minga.core.spec.plugins import Registry
from minga.core.spec.run_spec import RunSpec

Settings = dict[str, Any]
"""By their keys in the run spec."""


def own_names(registry: Registry[Any]) -> tuple[str, ...]:
    """What comes with minga."""
    return tuple(name for name in registry.names() if registry.origin(name) is None)


CODEC_CHOICES = (*own_names(CODECS), ADAPTIVE)
CHOICES: dict[str, tuple[Any, ...]] = {
    "training.strategy": own_names(STRATEGIES),
    "averaging.codec": CODEC_CHOICES,
    "averaging.download_codec": CODEC_CHOICES,
    "averaging.sketch": own_names(SKETCHES),
    "averaging.average_parameters_every": (0, 4),
    "security.verification": ("none", "byzantine"),
    "training.target_batch_size": (4096, "auto"),
    "optimizer.name": ("sgd", "adamw", "lamb"),
}


def pairs() -> Iterator[Settings]:
    """Each value of one setting with each value of another one."""
    for (first, ones), (second, others) in itertools.combinations(CHOICES.items(), 2):
        for one, other in itertools.product(ones, others):
            yield {first: one, second: other}


def words(settings: Settings) -> str:
    """The settings as the id of a test."""
    return ",".join(f"{key.rpartition('.')[2]}={value}" for key, value in settings.items())


def run(settings: Settings, **sections: Settings) -> RunSpec:
    """A run with these settings, and otherwise the usual ones."""
    return RunSpec.from_mapping({"name": "combined", **sections}).amended(settings)
