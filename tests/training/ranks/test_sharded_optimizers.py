"""Optimizers of `minga.optim` come to equal bits on shards and on whole tensors; rank 0 alone holds anything whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.worlds import forked
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(
    not (dist.is_gloo_available() and sys.platform == "linux"), reason="needs gloo, on the interface of Linux"
)

BEGIN = """
import json, os, sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

torch.set_num_threads(1)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="file://" + sys.argv[1] + "/store", rank=rank, world_size=size)
"""

OPTIMIZERS = (
    BEGIN
    + """
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
    for dtype in (torch.float32, torch.bfloat16):
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
print(json.dumps(found))
dist.destroy_process_group()
"""
)

MEMORY = (
    BEGIN
    + """
import weakref
import minga
from torch.distributed.device_mesh import init_device_mesh
from minga.optim import LAMB
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

replicas = int(sys.argv[2])
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
print(json.dumps({"whole": whole, "most": allocated.most, "largest": allocated.largest, "total": total,
                  "digest": digest, "values": values}))
dist.destroy_process_group()
"""
)


def run(script: str, folder: Path, size: int, *words: str) -> list[dict[str, Any]]:
    processes = []
    for rank in range(size):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(size), "GLOO_SOCKET_IFNAME": "lo"}
        pipe = subprocess.PIPE
        processes.append(forked.start("-c", script, str(folder), *words, env=environment, stdout=pipe, stderr=pipe))
    found = []
    for process in processes:
        output, errors = process.communicate(timeout=100)
        assert process.returncode == 0, errors
        found.append(json.loads(output.splitlines()[-1]))
    return found


@pytest.mark.parametrize("size", [soaked(2), 3])
def test_shards_come_to_the_bits_of_whole_tensors(tmp_path: Path, size: int) -> None:
    for found in run(OPTIMIZERS, tmp_path, size):
        assert len(found) == 10
        assert [name for name, same in found.items() if not same] == []


@pytest.mark.parametrize("replicas", [soaked(1), 2])
def test_a_rank_other_than_0_holds_no_vector_and_no_state(tmp_path: Path, replicas: int) -> None:
    leader, *followers = run(MEMORY, tmp_path, 4, str(replicas))
    assert leader["largest"] >= 3 * leader["whole"]  # the state: the parameters and both moments
    for found in followers:
        assert (found["total"], found["digest"]) == (16, leader["digest"])
        shard = found["whole"] * replicas / 4
        assert found["largest"] < 1.1 * shard
        assert found["values"] == leader["values"]
        # Of gradients, of their sum, of both moments, of what the optimizer computes, and some messages.
        assert found["most"] < 5.5 * shard
