"""Muon against its formula, with equal bits where it promises them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import minga
from minga.optim import AdamW, Muon, muon_groups
from minga.optim.muon import multiplies_exactly, orthogonal
from tests.worlds.framework_peers import results_of
from tests.worlds.script_peers import Machine, run_scripts, spec_of

Matrix = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


def newton_schulz(matrix: Matrix) -> Matrix:
    """Five rounds of Jordan's iteration in float64."""
    x = matrix / np.linalg.norm(matrix)
    x = x.T if matrix.shape[0] > matrix.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("match_adamw", [True, False])
@pytest.mark.parametrize("nesterov", [True, False])
def test_muon_equals_the_formula(nesterov: bool, match_adamw: bool, exact: bool) -> None:
    generator = np.random.default_rng(7)
    shapes, lr, momentum, decay = [(12, 30), (30, 12), (8, 3, 2, 2)], 0.03, 0.9, 0.1
    values = [generator.standard_normal(shape) for shape in shapes]
    trained = [nn.Parameter(torch.from_numpy(value.astype(np.float32))) for value in values]
    vector, alone = (nn.Parameter(torch.ones(5)) for _ in range(2))
    optimizer = Muon(
        [{"params": trained}, {"params": [vector], "use_muon": False}],
        lr=lr,
        momentum=momentum,
        weight_decay=decay,
        nesterov=nesterov,
        match_adamw=match_adamw,
        exact=exact,
    )
    adamw = AdamW([alone], lr=lr, weight_decay=decay)
    buffers = [np.zeros(shape) for shape in shapes]
    for _ in range(5):
        vector.grad = alone.grad = torch.from_numpy(generator.standard_normal(5).astype(np.float32))
        for index, parameter in enumerate(trained):
            gradient = generator.standard_normal(shapes[index]).astype(np.float32)
            parameter.grad = torch.from_numpy(gradient)
            buffers[index] = momentum * buffers[index] + gradient
            update = gradient + momentum * buffers[index] if nesterov else buffers[index]
            direction = newton_schulz(update.reshape(shapes[index][0], -1))
            rows, columns = direction.shape
            scale = 0.2 * max(rows, columns) ** 0.5 if match_adamw else max(1.0, rows / columns) ** 0.5
            values[index] = (1 - lr * decay) * values[index] - lr * scale * direction.reshape(shapes[index])
        optimizer.step()
        adamw.step()
    for parameter, value in zip(trained, values, strict=True):
        np.testing.assert_allclose(parameter.detach().numpy(), value, rtol=1e-4, atol=1e-4)
    assert torch.equal(vector, alone)
    assert set(optimizer.state[trained[0]]) == {"step", "momentum_buffer"}
    assert set(optimizer.state[vector]) == {"step", "exp_avg", "exp_avg_sq"}


def test_muon_has_equal_bits_whatever_the_order_of_sums() -> None:
    """A permutation of the columns is another order of each sum along them; plain products round otherwise then."""
    generator = torch.Generator().manual_seed(3)
    order = torch.randperm(700, generator=generator)
    for matrix in (
        torch.randn(300, 700, generator=generator),
        torch.randn(300, 1, generator=generator) @ torch.randn(1, 700, generator=generator),  # a single large value
        torch.randn(300, 700, generator=generator) * 1e-30,
    ):
        norm = float(matrix.double().norm())
        straight, permuted = orthogonal(matrix, norm, exact=True), orthogonal(matrix[:, order], norm, exact=True)
        assert torch.equal(straight[:, order], permuted)
        assert float(torch.linalg.svdvals(straight)[0]) <= 1.21
        plain, other = orthogonal(matrix, norm, exact=False), orthogonal(matrix[:, order], norm, exact=False)
        assert not torch.equal(plain[:, order], other)
    assert multiplies_exactly(torch.device("cpu"))


def test_a_trial_without_memory_is_made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def lack(_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError

    device = torch.device("cpu", 0)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "from_numpy", lack)
        assert not multiplies_exactly(device)
    assert multiplies_exactly(device)


def test_muon_groups_leave_embeddings_and_the_output_layer_to_adamw() -> None:
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8), nn.Linear(8, 50))
    groups = muon_groups(model, 0.3)
    assert [(len(group["params"]), group["use_muon"], group["weight_decay"]) for group in groups] == [
        (2, True, 0.3),
        (2, False, 0.3),
        (5, False, 0.0),
    ]
    assert {id(each) for each in groups[0]["params"]} == {id(model[1].weight), id(model[3].weight)}
    with pytest.raises(ValueError, match="use_muon=False"):
        Muon(model.parameters())


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_muon_is_one_optimizer_for_both_kinds_in_own_loops(strategy: str, tmp_path: Path) -> None:
    """With equal bits where all take the same steps: then peers need no sketch to tell rounding from a fault."""

    def train(machine: Machine) -> Any:
        torch.manual_seed(machine.number)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 3))
        inner = Muon(muon_groups(model), lr=0.02, exact=strategy == "synchronous")
        optimizer = minga.Optimizer(inner, machine.peer, model=model)
        machine.meet(optimizer)
        for batch in machine.batches(4):
            (model(batch) - 1.0).square().mean().backward()
            optimizer.step(samples=4)
            if optimizer.finished:
                return optimizer.digest(), inner.rounds_alike
        raise AssertionError

    found = run_scripts(spec_of(16, 3, training={"strategy": strategy}), [train] * 2, tmp_path)
    assert len({digest for digest, _ in found}) == 1
    assert {exact for _, exact in found} == {strategy == "synchronous"}


TRAINER = """
from transformers import Trainer, TrainingArguments
from minga.integrations.transformers import join
from minga.optim import AdamW, Muon, Together, muon_groups


class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(7)
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))

    def forward(self, x, return_loss=True):
        return {"loss": self.layers(x).square().mean()}


def trained():
    model = Mean()
    first, *rest = muon_groups(model)
    both = Together([Muon([first], lr=0.05), AdamW([{**group, "use_muon": None} for group in rest], lr=0.05)])
    arguments = TrainingArguments(output_dir=str(folder / "out"), max_steps=1000, per_device_train_batch_size=6,
                                  lr_scheduler_type="linear", save_strategy="no", report_to="none", disable_tqdm=True,
                                  use_cpu=True)
    data = [{"x": row} for row in rows(6, 0)]
    trainer = Trainer(model, arguments, train_dataset=data, optimizers=(both, None))
    with enter(spec_of(6, 4, optimizer={"max_grad_norm": "off"})) as peer:
        join(trainer, peer)
        trainer.train()
    return values(model)


model = Mean()
plain = Muon(muon_groups(model), lr=0.05)
schedule = torch.optim.lr_scheduler.LambdaLR(plain, lambda step: 1.0 - step / 4)
for _ in range(4):
    model(rows(6, 0))["loss"].backward()
    plain.step()
    schedule.step()
    plain.zero_grad()
say(plain=values(model), both=trained())
"""


def test_muon_and_an_optimizer_for_the_rest_are_one_for_a_trainer(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [TRAINER])
    assert told["both"] == pytest.approx(told["plain"], abs=1e-6)


def test_muon_without_exact_products_is_refused_where_peers_check_each_other(tmp_path: Path) -> None:
    def train(machine: Machine) -> Any:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Linear(7, 3))
        minga.Optimizer(Muon(muon_groups(model), exact=False), machine.peer, model=model)

    (error,) = run_scripts(spec_of(16, 6, security={"verification": "byzantine"}), [train], tmp_path)
    assert isinstance(error, minga.ConfigurationError)
    assert "pass Muon(..., exact=True)" in str(error)
