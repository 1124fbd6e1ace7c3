"""Optimizer calls of several micro-batches, as scripts put them together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.worlds.framework_peers import results_of

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare

peer = enter(spec_of(12, 2, optimizer={"max_grad_norm": "off"}))
accelerator = Accelerator(cpu=True)
model = network()
model, optimizer, loader = prepare(
    accelerator, peer, model, torch.optim.SGD(model.parameters(), lr=0.5), DataLoader(rows(24, 1), batch_size=3))
for number, batch in enumerate(loader):
    loss = model(batch).square().mean() / 4  # without accelerator.accumulate
    accelerator.backward(loss)
    if number % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
say(step=optimizer.optimizer.global_step, values=values(model))
peer.close()
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

peer = enter(spec_of(12, 2, optimizer={"max_grad_norm": "off"}))
schedule = pl.callbacks.GradientAccumulationScheduler({0: FIRST, 1: SECOND})
module = Module()
trainer = pl.Trainer(max_epochs=5, accelerator="cpu", strategy=MingaStrategy(peer), callbacks=[schedule], logger=False,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
trainer.fit(module, DataLoader(rows(24, 1)[:12], batch_size=3))
say(values=values(module))
peer.close()
"""


def plain(batches: list[torch.Tensor]) -> list[float]:
    """The parameters after a step by the mean gradient of each of these."""
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for batch in batches:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
    return [value for parameter in model.parameters() for value in parameter.detach().flatten().tolist()]


ROWS = torch.randn(24, 6, generator=torch.Generator().manual_seed(1))


def test_a_loop_with_accelerate_may_divide_its_loss_itself(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [ACCELERATE])
    assert told["step"] == 2
    assert told["values"] == pytest.approx(plain([ROWS[:12], ROWS[12:]]), abs=1e-6)


@pytest.mark.parametrize(("first", "second"), [(1, 4), (4, 2)])
def test_lightning_may_change_how_many_micro_batches_a_call_has(first: int, second: int, tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [LIGHTNING.replace("FIRST", str(first)).replace("SECOND", str(second))])
    assert told["values"] == pytest.approx(plain([ROWS[:12]] * 2), abs=1e-6)
