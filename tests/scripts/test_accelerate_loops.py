"""Loops with Accelerate in the shapes of examples without a Trainer: epochs, evaluations, a schedule of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.framework_peers import results_of
from tests.worlds.seeds import soaked

LOOP = """
import logging
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import get_scheduler
from minga.integrations.accelerate import prepare

logging.basicConfig(level=logging.WARNING)
EPOCHS, MAX_TRAIN_STEPS = 50, 10**6  # set high, so that the run ends first
peer = enter(spec_of(12, 8))
accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = network()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = get_scheduler("linear", optimizer, num_warmup_steps=2, num_training_steps=MAX_TRAIN_STEPS)
train_loader, eval_loader = DataLoader(rows(30, int(role)), batch_size=3), DataLoader(rows(6, 9), batch_size=3)
model, optimizer, train_loader, eval_loader, scheduler = prepare(
    accelerator, peer, model, optimizer, train_loader, eval_loader, scheduler)
joined = optimizer.optimizer.joined
(folder / ("here" + role)).touch()
while not all((folder / ("here" + each)).exists() for each in PEERS):
    joined.follow(0.02)


def evaluate():
    model.eval()
    with torch.no_grad():
        losses.append(sum(model(batch).square().mean().item() for batch in eval_loader))


evaluations, losses, ended, beyond = 0, [], "", 0
evaluate()
try:
    for epoch in range(EPOCHS):
        model.train()
        for batch in train_loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        evaluate()
        evaluations += 1
        beyond += joined.finished
except minga.RunFinishedError as error:
    ended = str(error)
say(digest=joined.digest(), step=joined.global_step, rate=scheduler.get_last_lr(), beyond=beyond, ended=ended,
    evaluations=evaluations, losses=losses)
peer.close()
"""

WRONG = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare

said = []
for number in range(2):
    with enter(spec_of(12, 4), number) as peer:
        accelerator = Accelerator(cpu=True)
        model = network()
        given = [model, torch.optim.AdamW(model.parameters()), DataLoader(rows(60, 1), batch_size=3)]
        try:
            if number == 0:
                prepare(accelerator, peer, *given[:2])
            model, optimizer, loader = prepare(accelerator, peer, *given)
            for batch in loader:
                model(batch).square().mean().backward()  # and not accelerator.backward
                optimizer.step()
                optimizer.zero_grad()
        except minga.ConfigurationError as error:
            said.append(str(error))
say(said=said)
"""


@pytest.mark.parametrize("count", [2, soaked(3)])
def test_a_loop_with_epochs_and_evaluations_ends_with_the_run(count: int, tmp_path: Path) -> None:
    found = results_of(tmp_path, [f"PEERS = {'012'[:count]!r}\n{LOOP}"] * count)
    assert {(told["step"], told["digest"]) for told in found} == {(8, found[0]["digest"])}
    for told in found:
        assert told["rate"] == [0.0]  # the schedule went over the steps of the run
        assert told["losses"][0] > told["losses"][-1]
        assert told["beyond"] == 2  # the last evaluation, and one of an epoch in which nothing came
        assert "the run is complete after 8 steps" in told["ended"]
        assert "if loader.finished: break" in told["ended"]


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [WRONG])
    assert "one model, its optimizer, the loader to train on" in told["said"][0]
    assert "accelerator.backward(loss), and not loss.backward()" in told["said"][1]
