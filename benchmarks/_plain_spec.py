"""The run spec that most benchmarks share: a custom loop over direct paths, with neither clipping nor checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minga.core.spec.run_spec import RunSpec


def plain_spec(name: str, target_batch_size: int, **sections: Mapping[str, Any]) -> RunSpec:
    """A run of `target_batch_size` samples a step; `sections` add to those that it has, or replace their settings."""
    plain: dict[str, dict[str, Any]] = {
        "model": {"recipe": "custom"},
        "network": {"relay": "none"},
        "optimizer": {"max_grad_norm": "off"},
        "training": {"target_batch_size": target_batch_size},
        "checkpoints": {"every_steps": 0},
    }
    changed = {section: {**plain.get(section, {}), **settings} for section, settings in sections.items()}
    return RunSpec.from_mapping({"name": name, **plain, **changed})
