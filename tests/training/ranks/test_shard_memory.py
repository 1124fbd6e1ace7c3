"""Ranks of a sharded model have their shards, and never the whole of it; rank 0 alone has whole vectors."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch.distributed as dist
import torch.distributed.fsdp  # noqa: F401  (so that forked processes have it already)

from tests.worlds import forked
from tests.worlds.resident_memory import CAN_BE_MEASURED
from tests.worlds.seeds import soaked

pytestmark = pytest.mark.skipif(not (dist.is_gloo_available() and CAN_BE_MEASURED), reason="needs gloo, and Linux")

RANKS = 2
MOST_SHARDS, ALLOWED_BYTES = 7, 100e6
"""The gradient, its sum, both moments, what the optimizer computes, and this rank's part of what all ranks map: the
sum, and the mean. The bytes are for messages.
"""

RANK = """
import ctypes, json, sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from minga import RunSpec
from minga.optim import AdamW
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.sharded_replicas import ShardedReplica
from tests.worlds.resident_memory import reset_peak, resident_bytes

rank, size, layers, store = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
torch.manual_seed(0)
model = torch.nn.Sequential(*(torch.nn.Linear(1024, 1024) for _ in range(layers)))
for layer in model:
    fully_shard(layer)
fully_shard(model)
ranks = ProcessGroup.of_this_process(has_peer=rank == 0, is_sharded=True)
spec = RunSpec.from_mapping({"name": "shards", "model": {"recipe": "custom"}})
replica = ShardedReplica(ranks, spec, AdamW(model.parameters(), lr=1e-3), model=model, max_grad_norm=1.0)
model(torch.randn(2, 1024)).square().mean().backward()
ctypes.CDLL(None).malloc_trim(0)  # the whole model was here before it was sharded
base = resident_bytes()
reset_peak()
replica.collect(2)
if replica.leads:
    total = replica.new_sum()
    total.add(1.0)
    vector = total.vector()
    replica.apply(vector, 1)
    replica.apply(vector, 2)
    replica.restore(replica.capture())
    replica.digest()
    replica.release(finished=False)
else:
    replica.obey()
vector_bytes = 4 * sum(parameter.numel() for parameter in model.parameters())
print(json.dumps({"extra": resident_bytes("VmHWM:") - base, "vector": vector_bytes}))
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.parametrize("layers", [12, soaked(60)])
def test_ranks_without_the_peer_have_no_more_than_seven_shards(layers: int, tmp_path: Path) -> None:
    """In all that the swarm asks of a peer: sums, means, steps, states, digests."""
    pipe = subprocess.PIPE
    words = (str(RANKS), str(layers), str(tmp_path / "store"))
    ranks = [forked.start("-c", RANK, str(rank), *words, stdout=pipe, stderr=pipe) for rank in range(RANKS)]
    for told in forked.results_of(ranks, 100.0)[1:]:
        assert told["extra"] - ALLOWED_BYTES <= MOST_SHARDS * told["vector"] / RANKS
