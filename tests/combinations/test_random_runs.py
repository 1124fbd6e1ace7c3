"""Whatever is set in a run spec, what a refusal says to set instead is allowed."""

from __future__ import annotations

import random

import pytest

from documentation.combinations import choices, run_with
from minga.combinations import check_combinations, nearest_allowed, with_changes
from minga.core.errors import ConfigurationError

MORE = {
    "averaging.codec": ("adaptive(large=topk, small=sign)", "adaptive(large=gtopk)", "topk(k=41, values=2bit)"),
    "averaging.download_codec": (None, "adaptive(large=gtopk, small=union)", "adaptive(large=topk)"),
    "averaging.sketch": ("powersgd(rank=64)",),
    "averaging.residual_decay": (1.0, 0.95),
    "training.target_batch_size": (4095, 3, 1),
    "training.strategy_changes": (
        (),
        ({"from_step": 5, "strategy": "delayed"},),
        ({"from_step": 5, "strategy": "demo"}, {"from_step": 9, "strategy": "local"}),
    ),
    "optimizer.momentum": (0.0, 0.9),
    "model.recipe": ("albert", "custom"),
}


def test_many_settings_at_once_have_a_nearest_choice() -> None:
    draw, values = random.Random(5), choices()
    every = {key: (*values.get(key, ()), *MORE.get(key, ())) for key in sorted(values.keys() | MORE)}
    refused = 0
    for _ in range(300):
        spec = run_with({key: draw.choice(found) for key, found in every.items()})
        try:
            check_combinations(spec)
        except ConfigurationError:
            refused += 1
            check_combinations(with_changes(spec, nearest_allowed(spec)))
    assert 150 < refused < 300


@pytest.mark.parametrize("name", ["codec", "download_codec", "sketch"])
def test_what_is_not_installed_is_said_and_not_judged(name: str) -> None:
    with pytest.raises(ConfigurationError, match="'unheard_of' is none of"):
        check_combinations(run_with({f"averaging.{name}": "unheard_of"}))
