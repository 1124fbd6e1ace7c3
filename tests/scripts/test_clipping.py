"""Scripts that clip gradients before the step, which is not what they mean in a run."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from tests.worlds.framework_peers import results_of
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS = 4


def script(clip: Callable[[nn.Module], Any] = lambda _: None, **settings: Any) -> Callable[[Machine], Any]:
    def train(machine: Machine) -> Any:
        model = network()
        inner = torch.optim.SGD(model.parameters(), lr=0.5)
        optimizer = minga.Optimizer(inner, machine.peer, model=model, **settings)
        machine.meet(optimizer)
        for batch in machine.batches(4):
            for half in batch.split(2):  # gradients are accumulated in place
                (0.5 * model(half).square().mean()).backward()
            clip(model)
            optimizer.step(samples=4)
            if optimizer.finished:
                return values(model)
        raise AssertionError

    return train


@pytest.mark.parametrize(
    ("clip", "said"),
    [
        (lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.01), "clip_grad_value_ to 0.01"),
        (lambda _: None, ""),
    ],
    ids=["value", "nothing"],
)
def test_clipping_before_the_step_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, clip: Callable[[nn.Module], Any], said: str
) -> None:
    with caplog.at_level(logging.WARNING, "minga"):
        first, second = run_scripts(spec_of(8, STEPS), [script(clip)] * 2, tmp_path)
    assert first == second
    words = [each.getMessage() for each in caplog.records if "clips gradients before step()" in each.getMessage()]
    assert all(said in each and "max_grad_value=NUMBER" in each for each in words)
    assert bool(words) == bool(said)
    assert len(words) <= 2  # one from each peer


@pytest.mark.parametrize("count", [1, 2])
def test_the_elements_of_the_averaged_gradient_are_clipped(tmp_path: Path, count: int) -> None:
    """Gradients are accumulated in place, too, and alone the program equals torch."""
    scripts = [script(max_grad_value=0.02, max_grad_norm=0.05)] * count
    found = run_scripts(spec_of(4 * count, STEPS), scripts, tmp_path)
    assert all(each == found[0] for each in found)
    if count == 1:
        model = network()
        plain = torch.optim.SGD(model.parameters(), lr=0.5)
        for _, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
            for half in batch.split(2):
                (0.5 * model(half).square().mean()).backward()
            nn.utils.clip_grad_value_(model.parameters(), 0.02)
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            plain.step()
            plain.zero_grad()
        assert found[0] == pytest.approx(values(model), abs=1e-7)


ACCELERATE = """
import logging
from accelerate import Accelerator
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare

words, found = [], []
handler = logging.Handler()
handler.emit = lambda record: words.append(record.getMessage())
logging.getLogger("minga").addHandler(handler)
for number, most in enumerate((None, 0.001)):
    with enter(spec_of(4, 3, optimizer={"max_grad_norm": "off"}), number) as peer:
        accelerator, model = Accelerator(cpu=True), network()
        inner, data = torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(rows(24, 1), batch_size=4)
        model, optimizer, loader = prepare(accelerator, peer, model, inner, data)
        for batch in loader:
            accelerator.backward(model(batch).square().mean())
            if most is not None:
                accelerator.clip_grad_value_(model.parameters(), most)
            optimizer.step()
            optimizer.zero_grad()
        found.append(values(model))
say(found=found, words=[each for each in words if "this script" in each])
"""


def test_accelerate_clips_no_values_of_one_peer(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [ACCELERATE])
    assert told["found"][0] == told["found"][1]
    (said,) = told["words"]
    assert "clips each value to 0.001, which is left out" in said
