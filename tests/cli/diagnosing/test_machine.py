"""What the doctor says of this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from minga.cli.diagnosing.doctor import _machine
from minga.cli.diagnosing.machine import (
    PYTORCH_BYTES,
    Accelerators,
    Needs,
    accelerator,
    from_outside,
    model_of,
    room,
    room_for,
)
from minga.core.spec.run_spec import RunSpec
from minga.recipes.registry import published


@pytest.mark.parametrize(
    ("found", "detail", "advice"),
    [
        (Accelerators(("RTX 3060",), True, True, 4), "RTX 3060; `minga join` uses it", ""),
        (Accelerators(("RTX 3060", "RTX 4090"), True, True, 4), "uses all of them", ""),
        (Accelerators((), False, True, 4), "built for the CPU only", f'"{sys.executable}" -m pip install'),
        (Accelerators((), True, True, 4), "cannot use", "update the NVIDIA driver"),
        (Accelerators((), True, False, 4), "4 threads", ""),
        (Accelerators((), True, False, 1), "1 thread of", ""),
    ],
)
def test_the_accelerator_is_named_or_why_there_is_none(found: Accelerators, detail: str, advice: str) -> None:
    ok, said, todo = accelerator(found)
    assert ok
    assert detail in said
    assert advice in todo
    assert bool(todo) == bool(advice)


def test_what_leads_here_from_outside() -> None:
    assert "93.184.216.34" in from_outside(["192.168.1.5:4", "93.184.216.34:4"])[1]
    assert "--announce" in from_outside(["192.168.1.5:4", "127.0.0.1:4"])[2]


def test_a_model_that_does_not_fit_is_told_with_the_figures() -> None:
    gib = 1 << 30
    assert room(Needs(2 * gib, 0, gib), 4 * gib, 4 * gib)[0]
    assert room(Needs(2 * gib, 0, gib), None, 4 * gib)[0]
    assert "memory" in room(Needs(8 * gib, 0, gib), 4 * gib, 4 * gib)[2]
    assert "--directory" in room(Needs(2 * gib, 0, 8 * gib), 4 * gib, 4 * gib)[2]
    assert not room(Needs(8 * gib, 0, gib), 4 * gib, 4 * gib)[0]
    assert not room(Needs(2 * gib, 0, 8 * gib), 4 * gib, 4 * gib)[0]


def test_what_a_run_needs_is_counted_on_its_recipe() -> None:
    spec = RunSpec.from_mapping({"name": "x", "recipe": {"albert": {"size": "tiny"}}})
    model = model_of(published(spec))
    assert model is not None
    needs = Needs.of(spec, model)
    vectors = needs.memory - PYTORCH_BYTES  # what the process takes without a model is counted, too
    assert vectors > needs.state > 4 * 100_000  # more vectors than in one checkpoint
    assert needs.disk == needs.state * (spec.checkpoints.keep + 1)
    assert model_of(RunSpec.from_mapping({"name": "x", "model": {"recipe": "custom"}})) is None


def test_what_a_run_needs_is_that_of_its_largest_strategy_and_of_moments_as_they_are_kept() -> None:
    model = {"name": "x", "recipe": {"albert": {"size": "tiny"}}}
    changing = {"training": {"strategy_changes": [{"from_step": 9, "strategy": "delayed"}]}}
    specs = [RunSpec.from_mapping({**model, **more}) for more in ({}, changing, {"optimizer": {"state_bits": 8}})]
    counted = model_of(published(specs[0]))  # which is the same in all of them
    assert counted is not None
    plain, later, coded = (Needs.of(each, counted) for each in specs)
    assert later.memory > plain.memory > coded.memory
    assert later.state == plain.state > coded.state


def test_the_disk_that_is_looked_at_is_that_of_the_folder_which_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=1000 if folder == tmp_path else 1e12))
    disk = {check.name: check for check in _machine(None, tmp_path / "runs")}["disk"]
    assert disk.detail.endswith(f"free in {tmp_path}")
    assert disk.advice
    spec = published(RunSpec.from_mapping({"name": "x", "model": {"recipe": "albert"}}))
    short = room_for(spec, tmp_path / "runs")
    assert short is not None
    assert not short[0]
