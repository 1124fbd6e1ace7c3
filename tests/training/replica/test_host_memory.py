"""Updates in RAM lead to the same bits as those on the device; all through real stepping."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.optim import LAMB, MomentStorage
from minga.training.replica.host_memory import HostMemory
from minga.training.replica.replica import Replica
from tests.worlds.script_peers import Machine, run_scripts, spec_of, values

BATCH, STEPS = 8, 4


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(5)
    yield
    torch.set_num_threads(before)


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 40), nn.BatchNorm1d(40), nn.Linear(40, 3))


def run_spec(**training: Any) -> minga.RunSpec:
    return spec_of(BATCH, STEPS, training={"buffers": "average", **training})


def options(folder: Path) -> minga.PeerOptions:
    return minga.PeerOptions(ephemeral=True, directory=folder, host="127.0.0.1")


def optimizer_of(model: nn.Module, peer: minga.Peer, *, offload: bool) -> minga.Optimizer:
    inner = LAMB(model.parameters(), lr=0.01, storage=MomentStorage(bits=8, block=16, least_numel=100))
    scheduler = torch.optim.lr_scheduler.ExponentialLR(inner, 0.9)
    return minga.Optimizer(inner, peer, scheduler=scheduler, model=model, max_grad_norm=1.0, offload=offload)


def train(opt: minga.Optimizer, model: nn.Module, samples: int = BATCH, steps: int = STEPS) -> None:
    for seed in itertools.count(opt.global_step):
        if opt.finished or opt.global_step >= steps:
            return
        batch = torch.randn(samples, 6, generator=torch.Generator().manual_seed(seed))
        model(batch).square().mean().backward()
        opt.step(samples=samples)


def test_an_update_that_torch_fuses_goes_through_memory_whose_order_is_kept() -> None:
    ends = []
    for offload in (False, True):
        torch.manual_seed(0)
        model = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
        inner = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
        replica = Replica(run_spec(strategy="local"), inner, model=model, offload=offload)
        for seed in range(3):
            batch = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
            model(batch.to(memory_format=torch.channels_last)).square().mean().backward()
            assert replica.inner_step()
            replica.zero_grad()
        ends.append(model.weight.detach().clone())
    assert torch.equal(*ends)


def test_every_way_to_change_a_replica_leads_to_the_same_bits() -> None:
    ends = []
    for offload in (False, True):
        model = model_of()
        inner = LAMB(model.parameters(), lr=0.01, storage=MomentStorage(bits=8, block=16, least_numel=100))
        replica = Replica(run_spec(), inner, model=model, max_grad_norm=1.0, offload=offload)
        noise = torch.randn(replica.vector.numel, generator=torch.Generator().manual_seed(1))
        digests = []
        replica.apply(noise, 1)
        digests.append(replica.digest())
        kept = replica.capture()
        model(torch.ones(4, 6) / 7).square().sum().backward()
        assert replica.inner_step()
        replica.zero_grad()
        assert replica.step_by(noise * 2)
        digests.append(replica.digest())
        replica.write_values(replica.read_values() + noise)
        replica.adopt(replica.read_values() * 0.5, 2)
        digests.append(replica.digest())
        replica.restore(kept)
        digests.append(replica.digest())
        assert digests[0] == digests[3]
        ends.append((digests, replica.sketch(), replica.read_values().tolist()))
    assert ends[0] == ends[1]


def test_a_checkpoint_of_either_kind_is_where_the_other_goes_on(tmp_path: Path) -> None:
    settings = minga.PeerOptions(identity=tmp_path / "key.json", directory=tmp_path, host="127.0.0.1")
    first, second, third = model_of(), model_of(1), model_of(2)
    with minga.host(run_spec(stop_after_steps=9), settings) as peer:
        opt = optimizer_of(first, peer, offload=True)
        train(opt, first, steps=2)
        opt.save_checkpoint()
        written = opt.digest()
    for model, offload in ((second, False), (third, True)):
        with minga.host(None, settings, resume=peer.directory) as peer:
            opt = optimizer_of(model, peer, offload=offload)
            assert (opt.global_step, opt.digest()) == (2, written)
            train(opt, model, steps=3)
            digest = opt.digest()
    assert digest != written
    assert all(map(torch.equal, second.parameters(), third.parameters()))


def test_a_newcomer_that_updates_in_ram_agrees_with_a_host_that_does_not(tmp_path: Path) -> None:
    heard = list[str]()

    def script(machine: Machine) -> tuple[str, list[float]]:
        machine.peer.subscribe(lambda event: heard.append(event.kind))
        model = model_of(machine.number)
        optimizer = optimizer_of(model, machine.peer, offload=machine.number == 1)
        machine.meet(optimizer)
        train(optimizer, model, 4 - machine.number, steps=99)
        return optimizer.digest(), values(model)

    host, newcomer = run_scripts(run_spec(target_batch_size=24), [script] * 2, tmp_path)
    assert host == newcomer
    assert "member.diverged" not in heard


def test_gradients_stay_where_they_are_while_the_state_is_read() -> None:
    model = model_of()
    held = HostMemory(torch.optim.SGD(model.parameters()))
    model(torch.ones(4, 6)).sum().backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    places = [parameter.data_ptr() for parameter in model.parameters()]
    with held.read():
        with held.read():  # such as the digest of a copy of the state
            assert all(parameter.grad is None for parameter in model.parameters())
        assert not {parameter.data_ptr() for parameter in model.parameters()} & set(places)
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert all(parameter.grad is gradient for parameter, gradient in zip(model.parameters(), gradients, strict=True))


def test_a_micro_batch_under_way_keeps_its_gradients_while_parameters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, spec = model_of(), run_spec(strategy="local")
    replica = Replica(spec, torch.optim.SGD(model.parameters(), lr=0.1), model=model, offload=True)
    values = replica.read_values()
    read = replica.vector.read_values

    def read_meanwhile() -> torch.Tensor:
        model(torch.ones(4, 6)).square().sum().backward()  # by the training thread: a round closes whenever it does
        return read()

    monkeypatch.setattr(replica.vector, "read_values", read_meanwhile)
    assert torch.equal(replica.read_values(), values)
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_an_error_in_an_update_leaves_parameters_on_the_device() -> None:
    model = model_of()
    held = HostMemory(torch.optim.SGD(model.parameters()))
    places = [parameter.data_ptr() for parameter in model.parameters()]

    def update() -> None:
        with held.change():
            next(model.parameters()).data.fill_(3.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        update()
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert bool((next(model.parameters()) == 3.0).all())


def test_what_the_optimizer_keeps_is_made_in_ram_and_follows_the_update() -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    held = HostMemory(optimizer)
    before = model.weight.detach().clone()
    model(torch.ones(2, 4)).sum().backward()
    with held.change(with_gradients=True):
        optimizer.step()
    assert not torch.equal(model.weight, before)
    assert model.weight.grad is None
    assert set(optimizer.state) == set(model.parameters())


class Noting(torch.optim.Adam):
    """Notes where its parameters are when a state is loaded, which goes there."""

    places: tuple[int, ...] = ()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.places = tuple(each.data_ptr() for each in self.param_groups[0]["params"])
        super().load_state_dict(state_dict)


def test_a_state_that_is_loaded_goes_where_updates_are_made(tmp_path: Path) -> None:
    model = model_of()
    with minga.host(run_spec(), options(tmp_path)) as peer:
        inner = Noting(model.parameters(), lr=0.01)
        opt = minga.Optimizer(inner, peer, model=model, offload=True)
        train(opt, model, steps=2)
        model(torch.ones(4, 6)).sum().backward()
        opt.load_state_dict(copy.deepcopy(opt.state_dict()))
        assert not set(inner.places) & {each.data_ptr() for each in model.parameters()}
        assert all(each.grad is not None for each in model.parameters())
        opt.zero_grad()
        train(opt, model)
        assert opt.finished
