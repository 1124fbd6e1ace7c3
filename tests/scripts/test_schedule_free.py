"""Schedule-free optimizers: the gradients are taken at one point, and another one is evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import minga
from minga.training.replica.replica import Replica
from tests.worlds.framework_peers import results_of
from tests.worlds.script_peers import Machine, batches_of, network, run_scripts, spec_of, values

STEPS = 6


class ScheduleFree(torch.optim.Optimizer):
    """Gradient descent without a schedule (Defazio et al. 2024), with the interface of the package `schedulefree`."""

    def __init__(self, params: Iterable[torch.Tensor], lr: float = 0.5, beta: float = 0.9) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "k": 0, "train_mode": False})

    def eval(self) -> None:
        self._move(to_train=False)

    def train(self) -> None:
        self._move(to_train=True)

    @torch.no_grad()
    def _move(self, *, to_train: bool) -> None:
        for group in self.param_groups:
            if group["train_mode"] != to_train:
                weight = 1 - group["beta"] if to_train else 1 - 1 / group["beta"]
                for p in group["params"]:
                    if "z" in self.state[p]:
                        p.lerp_(self.state[p]["z"], weight)
                group["train_mode"] = to_train

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("Optimizer was not in train mode when step is called.")
            group["k"] += 1
            share = 1 / group["k"]
            for p in (p for p in group["params"] if p.grad is not None):
                z = self.state[p].setdefault("z", p.detach().clone())
                p.lerp_(z, share).sub_(p.grad, alpha=group["lr"] * (1 - group["beta"] * (1 - share)))
                z.sub_(p.grad, alpha=group["lr"])


@pytest.mark.parametrize("count", [1, 2])
def test_peers_evaluate_when_they_like_and_train_at_one_point(tmp_path: Path, count: int) -> None:
    def train(machine: Machine) -> Any:
        model = network()
        optimizer = minga.Optimizer(ScheduleFree(model.parameters()), machine.peer, model=model)
        machine.meet(optimizer)
        for number, batch in enumerate(machine.batches(4)):
            optimizer.train()
            model(batch).square().mean().backward()
            optimizer.step(samples=4)
            if number % 2 == machine.number:
                optimizer.eval()
                optimizer.follow(0.01)
            if optimizer.finished:
                optimizer.eval()
                return values(model), optimizer.digest()
        raise AssertionError

    found = run_scripts(spec_of(4 * count, STEPS), [train] * count, tmp_path)
    assert len({digest for _, digest in found}) == 1
    assert all(each == found[0][0] for each, _ in found)
    if count == 1:
        model = network()
        plain = ScheduleFree(model.parameters())
        plain.train()
        for _, batch in zip(range(STEPS), batches_of(0, 4), strict=False):
            model(batch).square().mean().backward()
            plain.step()
            plain.zero_grad()
        plain.eval()
        assert found[0][0] == values(model)


def test_gradients_of_the_point_that_is_evaluated_are_refused() -> None:
    model = network()
    replica = Replica(spec_of(4, STEPS), ScheduleFree(model.parameters()), model=model)
    for step in (1, 2):
        model(torch.ones(4, 6)).square().mean().backward()
        replica.collect(4)
        replica.apply(torch.ones(replica.vector.numel), step)
    replica.point.leave()
    model(torch.ones(4, 6)).square().mean().backward()
    with pytest.raises(minga.ConfigurationError, match=r"Call optimizer\.train\(\) before"):
        replica.collect(4)
    replica.point.come_back()
    replica.collect(4)


def test_what_follows_an_update_finds_the_training_point_whatever_the_program_evaluates() -> None:
    followed = []
    for evaluates in (False, True):
        model, seen = network(), list[list[float]]()
        replica = Replica(
            spec_of(4, STEPS),
            ScheduleFree(model.parameters()),
            model=model,
            after_update=partial(lambda one, into: into.append(values(one)), model, seen),
        )
        for step in (1, 2, 3):
            if evaluates:
                replica.point.leave()
            replica.apply(torch.ones(replica.vector.numel), step)
            replica.point.come_back()
        followed.append(seen)
    assert followed[0] == followed[1]


TRAINER = """
sys.path.insert(0, REPOSITORY)
from transformers import Trainer, TrainerCallback, TrainingArguments
from minga.integrations.transformers import join
from tests.scripts.test_schedule_free import ScheduleFree


class Mean(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x, return_loss=True):
        return {"loss": self.layers(x).square().mean()}


class Meeting(TrainerCallback):
    # Neither takes a step before both have the state.
    def on_step_begin(self, args, state, control, optimizer, **_):
        (folder / ("here" + role)).touch()
        while not all((folder / ("here" + each)).exists() for each in "01"):
            optimizer.optimizer.joined.follow(0.02)


model = Mean()
arguments = TrainingArguments(
    output_dir=str(folder / ("out" + role)), max_steps=1000, per_device_train_batch_size=3, save_strategy="no",
    eval_strategy="steps", eval_steps=2, report_to="none", disable_tqdm=True, use_cpu=True)
data = [{"x": row} for row in rows(6, int(role))]
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=data,
                  optimizers=(ScheduleFree(model.parameters()), None))
peer = enter(spec_of(12, 4))
join(trainer, peer)
trainer.add_callback(Meeting)
trainer.train()
joined = trainer.optimizer.optimizer.joined
say(digest=joined.digest(), step=joined.global_step, evaluated=values(model))
peer.close()
"""


def test_a_trainer_with_a_schedule_free_optimizer(tmp_path: Path) -> None:
    script = TRAINER.replace("REPOSITORY", repr(str(Path(__file__).parents[2])))
    first, second = results_of(tmp_path, [script] * 2)
    assert (first["step"], second["step"]) == (4, 4)
    assert first["digest"] == second["digest"]
    assert first["evaluated"] == second["evaluated"]
