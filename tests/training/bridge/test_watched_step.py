"""Hooks and profilers see the steps of a `minga.Optimizer` as those of any torch optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

import minga
from minga.training.bridge.thread_bridge import is_watched


@pytest.fixture
def optimizer(tmp_path: Path) -> Iterator[minga.Optimizer]:
    spec = minga.RunSpec.from_mapping(
        {"name": "test", "model": {"recipe": "custom"}, "training": {"target_batch_size": 1000}}
    )
    peer = minga.host(spec, minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1"))
    yield minga.Optimizer(torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1), peer)
    peer.close()


def test_hooks_are_called_around_each_step(optimizer: minga.Optimizer) -> None:
    calls: list[tuple[str, Any]] = []

    def note(name: str) -> Any:
        return lambda one, _, named: calls.append((name, (one is optimizer, named["samples"], optimizer.last_samples)))

    optimizer.step(samples=2)
    handles = [
        register_optimizer_step_pre_hook(note("of all")),
        optimizer.register_step_pre_hook(note("before")),
        optimizer.register_step_post_hook(note("after")),
    ]
    optimizer.step(samples=3)
    assert calls == [("of all", (True, 3, 2)), ("before", (True, 3, 2)), ("after", (True, 3, 3))]
    for handle in handles:
        handle.remove()
    assert not is_watched(optimizer)
    optimizer.step(samples=4)
    assert len(calls) == 3


def test_a_hook_may_change_what_a_step_is_given(optimizer: minga.Optimizer) -> None:
    optimizer.register_step_pre_hook(lambda _, args, named: (args, {**named, "samples": 5}))
    optimizer.step(samples=2)
    assert optimizer.last_samples == 5


def test_a_profile_has_the_step_in_it(optimizer: minga.Optimizer) -> None:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert optimizer.step(lambda: 7, samples=1) == 7
    assert "Optimizer.step#Optimizer.step" in {event.key for event in profile.key_averages()}
