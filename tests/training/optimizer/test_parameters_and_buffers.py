"""Parameters and buffers of all kinds, and gradients that are elsewhere than on the CPU."""

from __future__ import annotations

import copy
import itertools
import logging
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import minga
from minga.training.replica.buffers import SharedBuffers
from minga.training.replica.flat_vector import ParameterVector
from tests.worlds.optimizer_loops import BATCH, STEPS, MakePeer, Normed, batches, mean_loss, same, small_model, train

# ---- parameters of all kinds


class Odd(nn.Module):
    """A frozen layer, an unused one, a tied weight and an embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.unused = nn.Linear(6, 2)
        self.first = nn.Linear(6, 6)
        self.tied = nn.Linear(6, 6)
        self.tied.weight = self.first.weight
        self.table = nn.Embedding(5, 6, sparse=True)
        self.empty = nn.Parameter(torch.empty(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = self.table(torch.arange(len(x)) % 3)
        return torch.as_tensor(self.tied(torch.tanh(self.first(self.frozen(x)))) + rows)


def test_frozen_unused_tied_and_sparse_parameters(host: MakePeer) -> None:
    ours, bare = Odd(), Odd()
    bare.load_state_dict(ours.state_dict())
    start = copy.deepcopy(ours.state_dict())
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    plain = torch.optim.SGD(bare.parameters(), lr=0.1)
    train(opt, ours)
    for batch in itertools.islice(batches(BATCH), STEPS):
        mean_loss(bare, batch).backward()
        plain.step()
        plain.zero_grad()
    assert opt.finished
    assert same(ours, bare, 1e-6)
    assert torch.equal(ours.frozen.weight, start["frozen.weight"])
    assert torch.equal(ours.unused.weight, start["unused.weight"])
    assert torch.equal(ours.table.weight[3:], start["table.weight"][3:])
    assert ours.tied.weight is ours.first.weight


def test_a_parameter_used_in_some_micro_batches_only(host: MakePeer) -> None:
    parts = nn.ModuleList([nn.Linear(6, 1), nn.Linear(6, 1)])
    bare = copy.deepcopy(parts)
    opt = minga.Optimizer(torch.optim.SGD(parts.parameters(), lr=0.1), host(stop_after_steps=1), model=parts)
    batch = next(batches(BATCH))
    for part, rows in zip(parts, batch.split(6), strict=True):
        part(rows).mean().backward()
        opt.step(samples=6)
    (0.5 * bare[0](batch[:6]).mean() + 0.5 * bare[1](batch[6:]).mean()).backward()
    torch.optim.SGD(bare.parameters(), lr=0.1).step()
    assert opt.global_step == 1
    assert same(parts, bare, 1e-6)


def test_parameters_thawed_later_are_not_trained_on_local_gradients(host: MakePeer) -> None:
    model = small_model()
    model[2].requires_grad_(False)  # type: ignore[index]
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    model[2].requires_grad_(True)  # type: ignore[index]
    before = model[2].weight.clone()  # type: ignore[index]
    train(opt, model)
    assert torch.equal(model[2].weight, before)  # type: ignore[index]


# ---- buffers


def test_tables_that_each_peer_builds_itself_are_no_averaged_buffers() -> None:
    model = Normed()
    expected = [model.mask, model.norm.running_mean, model.norm.running_var]
    found = SharedBuffers(model).averaged
    assert len(found) == 3
    assert all(any(one is other for other in expected) for one in found)


def test_averaged_buffers(host: MakePeer) -> None:
    model = Normed()
    mask = model.mask.clone()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(codec="int8"), model=model)
    train(opt, model, 4, steps=2)
    assert opt.dropped_micro_batches == 0
    assert model.norm.num_batches_tracked.item() == 2
    assert model.calls.item() == 0
    assert torch.equal(model.mask, mask)
    assert model.norm.running_var.isfinite().all()
    assert model.norm.running_mean.any()


def test_averaged_buffers_of_one_micro_batch_are_those_of_torch(host: MakePeer) -> None:
    ours = Normed()
    bare = copy.deepcopy(ours)
    opt = minga.Optimizer(torch.optim.SGD(ours.parameters(), lr=0.1), host(), model=ours)
    train(opt, ours, steps=1)
    mean_loss(bare, next(batches(BATCH)))
    assert torch.allclose(ours.norm.running_mean, bare.norm.running_mean, atol=1e-7)
    assert torch.allclose(ours.norm.running_var, bare.norm.running_var, atol=1e-7)
    assert torch.equal(ours.norm.num_batches_tracked, bare.norm.num_batches_tracked)


def test_a_bad_batch_does_not_spoil_the_statistics(host: MakePeer) -> None:
    model = Normed()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(), model=model)
    mean_loss(model, next(batches(BATCH)) * torch.nan).backward()
    opt.step(samples=BATCH)
    assert opt.dropped_micro_batches == 1
    assert model.norm.running_mean.isfinite().all()
    train(opt, model)
    assert opt.finished
    assert opt.dropped_micro_batches == 1


def test_local_buffers_stay_what_the_program_makes_them(host: MakePeer) -> None:
    model = Normed()
    opt = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), host(buffers="local"), model=model)
    train(opt, model, 4, steps=2)
    assert model.calls.item() == model.norm.num_batches_tracked.item() == 2 * BATCH // 4
    assert not any("norm.running" in entry.name for entry in opt._replica.capture().tensors)


def test_local_buffers_come_back_with_a_checkpoint(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    training = {"target_batch_size": BATCH, "buffers": "local"}
    spec = minga.RunSpec.from_mapping({"name": "t", "model": {"recipe": "custom"}, "training": training})
    options = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    before, after = Normed(), Normed()
    with minga.host(spec, options) as peer:
        opt = minga.Optimizer(torch.optim.SGD(before.parameters(), lr=0.1), peer, model=before)
        train(opt, before, 4, steps=2)
        opt.save_checkpoint()
    with minga.host(spec, options, resume=peer.directory) as peer, caplog.at_level(logging.WARNING, "minga"):
        minga.Optimizer(torch.optim.SGD(after.parameters(), lr=0.1), peer, model=after)
    assert not caplog.records
    assert all(torch.equal(each, before.state_dict()[name]) for name, each in after.state_dict().items())


def test_what_follows_the_weights_needs_buffers_that_all_share(host: MakePeer) -> None:
    """A newcomer, or a peer that was started again, counted its updates anew and overwrote the average."""
    net = small_model()
    both = nn.ModuleDict({"net": net, "ema": AveragedModel(net)})
    with pytest.raises(minga.ConfigurationError, match=r"such as ema\.n_averaged"):
        minga.Optimizer(
            torch.optim.SGD(net.parameters(), lr=0.1),
            host(buffers="local"),
            model=both,
            after_update=lambda: both["ema"].update_parameters(net),
        )


def test_movements_of_buffers_in_half_precision() -> None:
    model = nn.BatchNorm1d(3).to(torch.bfloat16)
    buffers = SharedBuffers(model)
    model.running_mean.fill_(0.5)
    mean, var = buffers.movements()
    assert mean.dtype is torch.float32
    assert mean.tolist() == [0.5] * 3
    assert not var.any()
    buffers.advance([torch.full((3,), 0.25), torch.zeros(3)])
    assert model.running_mean.tolist() == [0.25] * 3
    assert model.num_batches_tracked.item() == 1


# ---- gradients elsewhere than on the CPU


def test_gradients_are_fetched_in_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model()
    vector = ParameterVector(torch.optim.SGD(model.parameters(), lr=0.1), SharedBuffers(None), "float32")
    values = [torch.arange(float(n)) for n in (5, 4, 7, 2)]
    monkeypatch.setattr("minga.training.replica.flat_vector.COPIED_ELEMENTS", 9)
    pieces = [(start, piece.clone()) for start, piece in vector._fetch(list(zip([0, 5, 20, 27], values, strict=True)))]
    assert [start for start, _ in pieces] == [0, 20]
    assert torch.equal(pieces[0][1], torch.cat(values[:2]))
    assert torch.equal(pieces[1][1], torch.cat(values[2:]))
