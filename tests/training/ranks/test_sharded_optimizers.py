"""Optimizers of `minga.optim` come to equal bits on shards and on whole tensors; rank 0 alone holds anything whole."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.worlds.rank_processes import results_of_ranks
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)

OPTIMIZERS = """
from torch.distributed.fsdp import fully_shard
from minga.optim import LAMB, LARC, LARS, SGD, AdamW, clip_by_global_norm

kinds = {
    "sgd": lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adamw": lambda p: AdamW(p, lr=0.1),
    "lamb": lambda p: LAMB(p, lr=0.1, weight_decay=0.1),
    "lars": lambda p: LARS(p, lr=0.1, weight_decay=0.1),
    "larc": lambda p: LARC(p, lr=0.1, weight_decay=0.1),
}
found = {}
for name, make in kinds.items():
    for dtype in (torch.float32, torch.bfloat16) if name in ("lamb", "larc") else (torch.float32,):
        models = []
        for _ in range(2):
            torch.manual_seed(3)
            models.append(torch.nn.Sequential(torch.nn.Linear(40, 33), torch.nn.Linear(33, 2)).to(dtype))
        whole, sharded = models
        fully_shard(sharded)
        optimizers = [make(model.parameters()) for model in models]
        for step in range(2):
            for one, other in zip(whole.parameters(), sharded.parameters()):
                one.grad = torch.randn(one.shape).to(dtype)
                other.grad = torch.distributed.tensor.distribute_tensor(one.grad, other.device_mesh, other.placements)
            norms = [clip_by_global_norm(model.parameters(), 0.1) for model in models]
            for optimizer in optimizers:
                optimizer.step()
        pairs = zip(whole.parameters(), sharded.parameters())
        same = all(torch.equal(one, other.full_tensor()) for one, other in pairs)
        found[f"{name} {dtype}"] = same and norms[0] == norms[1]
say(**found)
dist.destroy_process_group()
"""

MEMORY = """
import weakref
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from minga.training.ranks import process_group, shard_map
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.sharded_replicas import ShardedReplica
from minga.training.replica.replica import Replica
from torch.utils._python_dispatch import TorchDispatchMode

RANGE_BYTES = shard_map.RANGE_BYTES = 2048
process_group.SHARED_MEMORY = "/nowhere"  # as on several machines: all of it travels in messages

class Allocations(TorchDispatchMode):
    '''The most bytes that tensors made inside had at a time, and those of the largest.'''
    def __init__(self):
        super().__init__()
        self.sizes, self.most, self.largest = {}, 0, 0
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            tensor = getattr(tensor, "_local_tensor", tensor)
            if type(tensor) is torch.Tensor:
                storage = tensor.untyped_storage()
                place, size = storage.data_ptr(), storage.nbytes()
                self.sizes[place] = size, [*self.sizes.get(place, (0, []))[1], weakref.ref(tensor)]
                self.largest = max(self.largest, size)
        self.sizes = {p: (s, [r for r in refs if r() is not None]) for p, (s, refs) in self.sizes.items()}
        self.sizes = {p: each for p, each in self.sizes.items() if each[1]}
        self.most = max(self.most, sum(size for size, _ in self.sizes.values()))
        return result

def build():
    torch.manual_seed(0)
    return torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(6)))

def inputs_of(rank):
    return torch.randn(4, 32, generator=torch.Generator().manual_seed(rank))

replicas = int(words[0])
mesh = None
if replicas > 1:
    mesh = init_device_mesh("cpu", (replicas, size // replicas), mesh_dim_names=("replicas", "shards"))
model = build()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
spec = minga.RunSpec.from_mapping({"name": "memory", "model": {"recipe": "custom"}})
ranks = ProcessGroup.of_this_process(has_peer=rank == 0, is_sharded=True)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
replica = ShardedReplica(ranks, spec, optimizer, model=model)
whole = replica.vector.numel * 4
model(inputs_of(rank)).square().mean().backward()
total = replica.collect(4)
with Allocations() as allocated:
    if rank == 0:
        vector = replica.vector.new()
        taken = replica.accumulate(vector, 1.0)
        plain_model = build()
        for each in range(size):
            (plain_model(inputs_of(each)).square().mean() / size).backward()
        plain = Replica(spec, torch.optim.AdamW(plain_model.parameters(), lr=0.1), model=plain_model)
        expected = plain.vector.new()
        plain.accumulate(expected, 1.0)
        torch.testing.assert_close(vector, expected)
        replica.apply(vector, 1)
        snapshot = replica.capture()
        replica.restore(snapshot)
        values = replica.read_values()
        replica.write_values(values)
        digest, sketch = replica.digest(), replica.sketch()
        replica.release(finished=False)
        plain.restore(snapshot)
        same = (plain.digest(), plain.sketch()) == (digest, sketch) and torch.equal(plain.read_values(), values)
        assert same and taken
    else:
        replica.obey()
        digest = replica.known_digest
values = [float(parameter.full_tensor().double().sum()) for parameter in model.parameters()]
say(whole=whole, most=allocated.most, largest=allocated.largest, total=total, digest=digest, values=values)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("size", [soaked(2), 3])
def test_shards_come_to_the_bits_of_whole_tensors(tmp_path: Path, size: int) -> None:
    for found in results_of_ranks(OPTIMIZERS, tmp_path, size=size):
        assert len(found) == 7
        assert [name for name, same in found.items() if not same] == []


@pytest.mark.parametrize("replicas", [soaked(1), 2])
def test_a_rank_other_than_0_holds_no_vector_and_no_state(tmp_path: Path, replicas: int) -> None:
    leader, *followers = results_of_ranks(MEMORY, tmp_path, str(replicas), size=4)
    assert leader["largest"] >= 3 * leader["whole"]  # the state: the parameters and both moments
    for found in followers:
        assert (found["total"], found["digest"]) == (16, leader["digest"])
        shard = found["whole"] * replicas / 4
        assert found["largest"] < 1.1 * shard
        assert found["values"] == leader["values"]
        # Of gradients, of their sum, of both moments, of what the optimizer computes, and some messages.
        assert found["most"] < 5.5 * shard
