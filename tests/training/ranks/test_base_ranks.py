"""A base in a peer of several processes: whole in each, or in shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from minga.core.errors import UnfitError
from minga.optim import AdamW
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.sharded_replicas import ShardedReplica
from minga.training.replica.replica import Replica
from tests.worlds.rank_processes import results_of_ranks, write_spec
from tests.worlds.swarm_tools import make_spec

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")

PROCESS = """
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

(kind,), peer = words, enter()
torch.manual_seed(rank if "other" in kind else 0)
base = torch.nn.Linear(6, 50).requires_grad_(False)
torch.manual_seed(rank)  # what is trained comes from rank 0
model = torch.nn.Sequential(base, torch.nn.Linear(50, 2))
if "shards" in kind:
    fully_shard(model, ignored_params=set(base.parameters()))
elif "replicas" in kind:
    fully_shard(model, mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("replicas", "shards")))
try:
    optimizer = minga.Optimizer(torch.optim.AdamW(model[1].parameters(), lr=0.1), peer, model=model)
    while not optimizer.finished:
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step(samples=4)
    say(digest=optimizer.digest())
except minga.UnfitError as error:
    say(error=str(error))
if peer is not None:
    peer.close()
"""


@pytest.mark.parametrize(
    "base", ["same", "other", "same, beside what is in shards", "other, beside what is in shards", "other, in replicas"]
)
def test_processes_of_one_peer_need_one_base(base: str, tmp_path: Path) -> None:
    write_spec(tmp_path, target_batch_size=8, stop_after_steps=1)
    said, same = results_of_ranks(PROCESS, tmp_path, base)
    assert said == same
    if base.startswith("other"):
        assert "`0.weight` is frozen and has other values in some processes of this peer (and 1 other)" in said["error"]
    else:
        assert len(said["digest"]) == 64


def model_of(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    base = torch.nn.Linear(3, 5).requires_grad_(False)
    torch.manual_seed(7)
    return torch.nn.Sequential(base, torch.nn.Linear(5, 2))


def test_a_frozen_tensor_in_shards_is_the_base_of_a_plain_peer(ranks: ProcessGroup) -> None:
    def made(seed: int, *, is_sharded: bool) -> Replica:
        model: Any = fully_shard(model_of(seed)) if is_sharded else model_of(seed)
        optimizer = AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)
        if is_sharded:
            return ShardedReplica(ranks, make_spec(4), optimizer, model=model)
        return Replica(make_spec(4), optimizer, model=model)

    plain, sharded, other = made(0, is_sharded=False), made(0, is_sharded=True), made(1, is_sharded=True)
    plain.apply(torch.ones(plain.vector.numel), 1)
    assert sharded.trains == plain.trains
    sharded.restore(plain.capture())
    assert sharded.digest() == plain.digest()
    assert not any("0.weight" in entry.name for entry in sharded.capture().tensors)
    with pytest.raises(UnfitError, match=r"`0.weight` is frozen and has other values in the run .* \(and 1 other\)"):
        other.restore(plain.capture())
