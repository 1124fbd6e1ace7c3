"""What the doctor says of this machine."""

from __future__ import annotations

import sys

import pytest

from minga.cli.diagnosing.machine import PYTORCH_BYTES, Accelerators, accelerator, from_outside, needed_bytes, room
from minga.core.spec.run_spec import RunSpec


@pytest.mark.parametrize(
    ("found", "detail", "advice"),
    [
        (Accelerators(("RTX 3060",), True, True, 4), "RTX 3060", ""),
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
    assert room(2 * gib, gib, 4 * gib, 4 * gib)[0]
    assert room(2 * gib, gib, None, 4 * gib)[0]
    assert "memory" in room(8 * gib, gib, 4 * gib, 4 * gib)[2]
    assert "--directory" in room(2 * gib, 8 * gib, 4 * gib, 4 * gib)[2]
    assert not room(8 * gib, gib, 4 * gib, 4 * gib)[0]
    assert not room(2 * gib, 8 * gib, 4 * gib, 4 * gib)[0]


def test_what_a_run_needs_is_counted_on_its_recipe() -> None:
    spec = RunSpec.from_mapping({"name": "x", "recipe": {"albert": {"size": "tiny"}}})
    needed = needed_bytes(spec)
    assert needed is not None
    memory, disk = needed
    vectors = memory - PYTORCH_BYTES  # what the process takes without a model is counted, too
    assert vectors > disk // (spec.checkpoints.keep + 1) > 4 * 100_000  # more vectors than in one checkpoint
    assert needed_bytes(RunSpec.from_mapping({"name": "x", "model": {"recipe": "custom"}})) is None


def test_what_a_run_needs_is_that_of_its_largest_strategy_and_of_moments_as_they_are_kept() -> None:
    model = {"name": "x", "recipe": {"albert": {"size": "tiny"}}}
    plain = needed_bytes(RunSpec.from_mapping(model))
    changing = {"training": {"strategy_changes": [{"from_step": 9, "strategy": "delayed"}]}}
    later = needed_bytes(RunSpec.from_mapping({**model, **changing}))
    coded = needed_bytes(RunSpec.from_mapping({**model, "optimizer": {"state_bits": 8}}))
    assert plain is not None
    assert later is not None
    assert coded is not None
    assert later[0] > plain[0] > coded[0]
    assert later[1] == plain[1] > coded[1]
