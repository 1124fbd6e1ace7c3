"""What one optimizer call stands for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

import minga
from minga import ConfigurationError
from minga.integrations.global_schedule import GlobalSchedule
from minga.integrations.joined_optimizer import JoinedOptimizer
from minga.integrations.place import enter
from minga.integrations.tally import Tally


def test_a_call_with_fewer_parts_than_it_is_divided_by_is_scaled() -> None:
    tally = Tally()
    assert (tally.samples, tally.loss, tally.scale) == (0, None, 1.0)
    tally.window = 4
    for losses in ([torch.tensor(0.25), 0.25], [0.25]):  # a batch may have several
        tally.begin(3)
        tally.begin_part()
        for loss in losses:
            tally.add_loss(loss)
    tally.begin(5)  # and this one none
    tally.begin_part()
    assert (tally.samples, tally.parts, tally.scale, tally.loss) == (6, 2, 2.0, 1.5)
    tally.clear()
    assert (tally.samples, tally.loss, tally.scale) == (0, None, 1.0)
    tally.add_loss(1.0)
    tally.clear()
    tally.add_loss(1.0)  # the same batch, for another step
    assert tally.samples == 5


def test_the_loss_of_a_device_is_not_waited_for() -> None:
    tally = Tally()
    for _ in range(2):
        tally.add_loss(torch.zeros((), device="meta"))  # to read it would fail
    assert isinstance(tally.loss, torch.Tensor)


@pytest.mark.parametrize("window", [1, 8])
def test_a_call_that_a_program_puts_together_itself_is_left_as_it_is(window: int) -> None:
    tally = Tally()
    tally.window = window
    for _ in range(2):
        for _ in range(4):
            tally.begin(3)
            tally.add_loss(0.25)
        assert (tally.samples, tally.scale, tally.loss) == (12, 1.0, 1.0)
        tally.clear()


def test_of_batches_that_a_program_gets_before_it_computes_each_loss_counts_one() -> None:
    tally = Tally()
    for losses, samples in ((1, 2), (3, 9), (5, 9)):  # the first two may be left out; each may have several losses
        for batch in (3, 4, 2):
            tally.begin(batch)
        for _ in range(losses):
            tally.add_loss(0.25)
        assert tally.samples == samples
        tally.clear()


@pytest.mark.parametrize(
    ("batches", "losses", "is_told"),
    [(0, 4, False), (1, 4, False), (4, 1, False), (4, 4, False), (2, 4, True), (6, 4, True)],
)
def test_batches_left_out_before_others_are_cut_in_pieces_are_suspected_once(
    batches: int, losses: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    tally = Tally()
    for _ in range(2):
        for _ in range(batches):
            tally.begin(8)
        for _ in range(losses):
            tally.add_loss(0.25)
        tally.clear()
        tally.clear()
    assert [f"{batches} batches came before {losses} losses" in each.message for each in caplog.records] == [
        True
    ] * is_told


def test_a_framework_that_gets_no_batch_ahead_counts_the_one_at_hand_whatever_losses_it_has() -> None:
    tally = Tally()
    for samples in (3, 4):  # the first has no loss
        tally.begin(samples, alone=True)
    for _ in range(2):
        tally.add_loss(0.25)
    assert tally.samples == 4


def test_before_training_begins_the_optimizer_takes_moments_and_keeps_its_settings() -> None:
    model = nn.Linear(2, 1)
    earlier = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(torch.ones(1, 2)).sum().backward()
    earlier.step()
    inner = torch.optim.SGD(model.parameters(), lr=0.25, momentum=0.9)
    optimizer = JoinedOptimizer(inner, Tally())
    optimizer.load_state_dict({**earlier.state_dict(), "global_step": 7})
    assert optimizer.param_groups is inner.param_groups
    assert (inner.param_groups[0]["lr"], optimizer.global_step, optimizer.finished) == (0.25, 0, False)
    assert all(state["momentum_buffer"].any() for state in inner.state.values())
    assert (optimizer.state_dict()["global_step"], optimizer.figures()) == (0, {})
    with pytest.raises(ConfigurationError, match=r"training has not begun"):
        optimizer.step()
    with pytest.raises(ConfigurationError, match=r"takes part in a run already"):
        JoinedOptimizer(optimizer, Tally())
    schedule = GlobalSchedule(optimizer)
    schedule.step()
    schedule.load_state_dict({"last_epoch": 3})
    assert (schedule.get_last_lr(), schedule.state_dict()) == ([0.25], {})


def test_who_runs_backward_itself_is_told_how_and_who_leaves_it_to_the_framework_may_have_no_loss(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model = nn.Linear(2, 1)
    for told_by in (None, "accelerator.backward(loss)"):
        optimizer = JoinedOptimizer(torch.optim.SGD(model.parameters()), Tally())
        optimizer.tally.told_by = told_by
        optimizer.joined = Mock()
        for _ in range(9):
            optimizer.step()
        assert len(caplog.records) == (told_by is not None)
        if told_by is None:
            optimizer.step()
        else:
            with pytest.raises(ConfigurationError, match=r"call accelerator\.backward\(loss\), and not loss\.backward"):
                optimizer.step()
    assert "the last 10 optimizer calls stood for no sample" in caplog.text


def test_a_call_that_a_gradient_scaler_left_out_is_not_counted(tmp_path: Path) -> None:
    model, tally = nn.Linear(2, 1), Tally()
    optimizer = JoinedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), tally)
    spec: dict[str, Any] = {"name": "test", "model": {"recipe": "custom"}, "network": {"relay": "none"}}
    spec["training"] = {"target_batch_size": 8, "stop_after_steps": 1}
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with minga.host(spec, minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")) as peer:
        optimizer.begin(enter(peer), model=model)
        for value in (1.0, torch.inf, 1.0):
            tally.begin(4)
            loss = (model(torch.full((4, 2), value)) - 1).square().mean()
            tally.add_loss(loss)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert optimizer.finished
        tally.begin(0)
        tally.add_loss(float("nan"))
        optimizer.step()  # without a target there is nothing to count
    assert scaler.get_scale() == 512.0
