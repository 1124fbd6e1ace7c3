"""Optimizer calls of several micro-batches, as scripts put them together."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.worlds.framework_peers import reference, results_of, rows

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare

def loss_of(model, batch):
    return model(batch).square().mean()

def divided_by_the_program(accelerator, model, optimizer, loader):
    for number, batch in enumerate(loader):
        with accelerator.no_sync(model):
            accelerator.backward(loss_of(model, batch) / 4)
        if number % 4 == 3:
            yield optimizer

def fetched_before(accelerator, model, optimizer, loader):
    batches = iter(loader)
    for window in (4, 2):  # the last call has fewer, and is a mean already
        for batch in [next(batches) for _ in range(window)]:
            accelerator.backward(loss_of(model, batch) * 4 / window)
        yield optimizer

def in_pieces(accelerator, model, optimizer, loader):
    for piece in next(iter(loader)).chunk(4):
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, piece))
            yield optimizer

def in_a_row(accelerator, model, optimizer, loader):
    for batch in loader:
        with accelerator.accumulate(model):
            accelerator.backward(loss_of(model, batch) / 2)
            accelerator.backward(loss_of(model, batch) / 2)
            yield optimizer

def train(way, steps, size, peer):
    accelerator, model = Accelerator(cpu=True, gradient_accumulation_steps=steps), network()
    given = model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(rows(24, 1)[:18], batch_size=size)
    prepared = accelerator.prepare(*given) if peer is None else prepare(accelerator, peer, *given)
    samples = []
    for optimizer in way(accelerator, *prepared):
        optimizer.step()
        if peer is not None and optimizer.optimizer.global_step > len(samples):
            samples.append(optimizer.optimizer.joined.last_samples)
        optimizer.zero_grad()
    return values(model), samples

told = {}
for number, (way, steps, size) in enumerate([
        (divided_by_the_program, 1, 3), (fetched_before, 4, 3), (in_pieces, 4, 12), (in_a_row, 4, 3)]):
    alone, _ = train(way, steps, size, None)
    with enter(spec_of(6, 4, optimizer={"max_grad_norm": "off"}), number) as peer:
        told[way.__name__] = alone, *train(way, steps, size, peer)
say(**told)
"""

LIGHTNING = """
import pytorch_lightning as pl
from torch.utils.data import DataLoader
from minga.integrations.lightning import MingaStrategy

class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, index):
        return self.network(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)

told = []
for number, (first, second) in enumerate(((1, 4), (4, 2))):
    peer = enter(spec_of(4, 2, optimizer={"max_grad_norm": "off"}), number)
    strategy = MingaStrategy(peer, weigh=lambda batch: len(batch) // 3)
    schedule = pl.callbacks.GradientAccumulationScheduler({0: first, 1: second})
    module = Module()
    trainer = pl.Trainer(max_epochs=5, accelerator="cpu", strategy=strategy, callbacks=[schedule], logger=False,
                         enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(module, DataLoader(rows(24, 1)[:12], batch_size=3))
    told.append(values(module))
    peer.close()
say(told=told)
"""


def test_a_loop_with_accelerate_may_put_its_calls_together_in_any_way(tmp_path: Path) -> None:
    (told,), data = results_of(tmp_path, [ACCELERATE]), rows(24, 1)
    ways = {"divided_by_the_program": [12], "fetched_before": [12, 6], "in_pieces": [12]}
    for way, counted in ways.items():
        alone, joined, samples = told[way]
        assert (way, samples) == (way, counted)
        assert joined == pytest.approx(alone, abs=1e-6), way
    _, joined, samples = told["in_a_row"]  # with Accelerate itself the last call, of two micro-batches, counts half
    assert samples == [12, 6]
    assert joined == pytest.approx(reference([data[:12], data[12:18]], rates=[0.5] * 2, momentum=0.0), abs=1e-6)


def test_lightning_may_change_how_many_micro_batches_a_call_has(tmp_path: Path) -> None:
    (found,) = results_of(tmp_path, [LIGHTNING])
    expected = pytest.approx(reference([rows(24, 1)[:12]] * 2, rates=[0.5] * 2, momentum=0.0), abs=1e-6)
    assert found["told"] == [expected, expected]
