"""What a sharded model can be and cannot; with a group of this process alone, which holds the only shard."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import minga
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB, AdamW, MomentStorage
from minga.training.optimizer import _check_public
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.sharded_replicas import ShardedReplica, trains_shards
from minga.training.replica.replica import Replica
from minga.training.strategy.local import Local

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")


def spec(**sections: Any) -> RunSpec:
    return RunSpec.from_mapping({"name": "shards", "model": {"recipe": "custom"}, **sections})


def model_of(dtype: torch.dtype = torch.float32) -> torch.nn.Sequential:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2)).to(dtype)


def leader(
    ranks: ProcessGroup, trained: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None, **settings: Any
) -> ShardedReplica:
    settings = {"model": trained, **settings}
    return ShardedReplica(ranks, spec(), optimizer or AdamW(trained.parameters(), lr=0.1), **settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sharded_replica_has_the_state_of_a_plain_one(ranks: ProcessGroup, dtype: torch.dtype) -> None:
    plain_model, model = model_of(dtype), fully_shard(model_of(dtype))
    plain = Replica(spec(), LAMB(plain_model.parameters(), lr=0.1), model=plain_model, max_grad_norm=0.5)
    sharded = leader(ranks, model, LAMB(model.parameters(), lr=0.1), max_grad_norm=0.5)
    assert sharded.vector.layout.fingerprint == plain.vector.layout.fingerprint
    for step in (1, 2):
        mean = torch.randn(plain.vector.numel)
        for replica in (plain, sharded):
            replica.apply(mean, step)
    assert sharded.digest() == plain.digest()
    assert sharded.sketch() == plain.sketch()
    assert torch.equal(sharded.read_values(), plain.read_values())
    assert sharded.capture().has_bytes_of(plain.capture())

    other = fully_shard(model_of(dtype))
    newcomer = leader(ranks, other, LAMB(other.parameters(), lr=0.1), max_grad_norm=0.5)
    newcomer.restore(plain.capture())
    assert newcomer.digest() == plain.digest()
    newcomer.write_values(torch.ones(plain.vector.numel))
    assert all((parameter.full_tensor() == 1).all() for parameter in other.parameters())  # type: ignore[attr-defined]


def test_gradients_and_buffers_of_a_sharded_model_add_up_as_those_of_a_plain_one(ranks: ProcessGroup) -> None:
    plain_model, model = model_of(), fully_shard(model_of())
    plain = Replica(spec(), AdamW(plain_model.parameters(), lr=0.1), model=plain_model)
    sharded = leader(ranks, model)
    inputs, sums = torch.randn(8, 3), []
    for each, replica in ((plain_model, plain), (model, sharded)):
        each(inputs).square().mean().backward()
        assert replica.collect(8) == 8
        if replica is sharded:
            replica.zero_grad()  # as the program may; what was collected is kept
        sums.append(replica.vector.new())
        assert replica.accumulate(sums[-1], 8.0)
    assert sums[0][plain.vector.parameters_numel :].all()  # the buffers have moved
    torch.testing.assert_close(*sums)


def test_gradients_that_fsdp_has_not_combined_are_missed(ranks: ProcessGroup) -> None:
    plain_model, model = model_of().eval(), fully_shard(model_of().eval())
    sharded, batches = leader(ranks, model), torch.randn(2, 4, 3)
    model.set_requires_gradient_sync(False)
    (model(batches[0]).square().mean() / 2).backward()
    with pytest.raises(minga.ConfigurationError, match="no parameter of the sharded model has a gradient"):
        sharded.collect(4)
    model.set_requires_gradient_sync(True)
    (model(batches[1]).square().mean() / 2).backward()
    assert sharded.collect(8) == 8
    vector = sharded.vector.new()
    assert sharded.accumulate(vector, 1.0)

    plain = Replica(spec(), AdamW(plain_model.parameters()), model=plain_model)
    plain_model(batches.flatten(0, 1)).square().mean().backward()
    expected = plain.vector.new()
    assert plain.accumulate(expected, 1.0)
    torch.testing.assert_close(vector, expected)


def test_what_a_sharded_model_cannot_have_is_refused_with_words(ranks: ProcessGroup) -> None:
    half = model_of()
    fully_shard(half[0])
    with pytest.raises(minga.ConfigurationError, match="is not sharded while others are"):
        leader(ranks, half)

    across = fully_shard(model_of(), shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 else None)
    with pytest.raises(minga.ConfigurationError, match="along dimension 0"):
        leader(ranks, across)

    by_hand = torch.nn.Linear(2, 2)
    by_hand.weight = torch.nn.Parameter(distribute_tensor(by_hand.weight.data, init_device_mesh("cpu", (1,))))
    with pytest.raises(minga.ConfigurationError, match="tensor parallelism"):
        leader(ranks, by_hand)
    with pytest.raises(minga.ConfigurationError, match="pass the model that was"):
        leader(ranks, fully_shard(model_of()), model=None)
    with pytest.raises(minga.ConfigurationError, match="rules= and after_update="):
        leader(ranks, fully_shard(model_of()), rules=object())
    with pytest.raises(ValueError, match="moments of 8 bits"):
        AdamW(fully_shard(model_of()).parameters(), storage=MomentStorage(bits=8))


def test_sharding_that_parameters_do_not_show_is_refused() -> None:
    model = model_of()
    before = AdamW(model.parameters())
    assert not trains_shards(before, model)
    wrapper = type("FullyShardedDataParallel", (torch.nn.Sequential,), {})
    with pytest.raises(minga.ConfigurationError, match=r"use torch.*fully_shard"):
        trains_shards(before, wrapper(model))


def test_an_optimizer_from_before_the_sharding_is_refused(ranks: ProcessGroup) -> None:
    model = model_of()
    before = AdamW(model.parameters())
    with pytest.raises(minga.ConfigurationError, match="make the optimizer after"):
        trains_shards(before, fully_shard(model))


def test_a_byzantine_run_is_refused(ranks: ProcessGroup) -> None:
    with pytest.raises(minga.ConfigurationError, match="each process is a peer of its own"):
        _check_public(ranks, AdamW(model_of().parameters()), None)


def test_an_optimizer_that_keeps_plain_tensors_is_refused(ranks: ProcessGroup) -> None:
    class Stubborn(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    self.state[parameter]["rows"] = torch.zeros(3)

    sharded = leader(ranks, model := fully_shard(model_of()), Stubborn(model.parameters(), lr=0.1))
    sharded.apply(sharded.vector.new(), 1)
    with pytest.raises(minga.ConfigurationError, match="Stubborn keeps rows as a tensor of one process"):
        sharded.capture()


def test_replicated_state_of_an_optimizer_is_that_of_every_rank(ranks: ProcessGroup) -> None:
    class Factored(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    rows = distribute_tensor(torch.arange(3.0), parameter.device_mesh, [Replicate()])
                    self.state[parameter]["rows"] = rows

    sharded = leader(ranks, model := fully_shard(model_of()), Factored(model.parameters(), lr=0.1))
    sharded.apply(sharded.vector.new(), 1)
    snapshot = sharded.capture()
    assert [t.tolist() for e, t in snapshot.named_tensors() if e.name == "optimizer/0.weight/rows"] == [[0.0, 1.0, 2.0]]


def test_a_strategy_with_a_state_of_its_own_is_refused(ranks: ProcessGroup) -> None:
    sharded = leader(ranks, fully_shard(model_of()))
    with pytest.raises(minga.ConfigurationError, match="the strategy of this run keeps another state"):
        sharded.define_shared(lambda: {"strategy/momentum": torch.zeros(3)}, optimizer=True)
    with pytest.raises(minga.ConfigurationError, match="the strategy of this run keeps another state"):
        sharded.define_shared(sharded.tensors, optimizer=False)
    with pytest.raises(minga.ConfigurationError, match="the strategy of this run keeps another state"):
        Local(threading.Condition(), unit=1).begin(sharded)
    sharded.define_shared(sharded.tensors, optimizer=True)
