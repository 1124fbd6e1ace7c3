"""One rank of the benchmark of sharded models: layers of one size, with gradients that cost little."""

from __future__ import annotations

import ctypes
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from benchmarks._memory_peer import reset_peak, resident_bytes
from benchmarks._worker import Channel

WIDTH = 1024


def rank(channel: Channel, settings: dict[str, Any]) -> None:
    """Do once what a sharded peer does in a step and with a state; tell how long it took, and the memory."""
    torch.set_num_threads(1)
    from torch.distributed.fsdp import fully_shard

    from minga import RunSpec
    from minga.optim import AdamW
    from minga.recipes.running.local_ranks import meet
    from minga.training.ranks.process_group import ProcessGroup
    from minga.training.ranks.sharded_replicas import ShardedReplica

    meet(settings["rank"], settings["ranks"], Path(settings["store"]))
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(settings["layers"])))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    ranks = ProcessGroup.of_this_process(has_peer=settings["rank"] == 0, is_sharded=True)
    assert ranks is not None
    spec = RunSpec.from_mapping({"name": "shards", "model": {"recipe": "custom"}})
    replica = ShardedReplica(ranks, spec, AdamW(model.parameters(), lr=1e-3), model=model, max_grad_norm=1.0)
    model(torch.randn(2, WIDTH)).square().mean().backward()
    ctypes.CDLL(None).malloc_trim(0)  # the whole model was here before it was sharded
    base = resident_bytes()
    reset_peak()
    replica.collect(2)
    seconds: dict[str, float] = {}
    if replica.leads:

        def timed(name: str, work: Any, *words: Any) -> Any:
            began_s = time.monotonic()
            result = work(*words)
            seconds[name] = time.monotonic() - began_s
            return result

        total = replica.new_sum()
        timed("add", total.add, 1.0)
        vector = timed("bring", total.vector)
        replica.apply(vector, 1)  # the optimizer makes its state
        timed("apply", replica.apply, vector, 2)
        snapshot = timed("capture", replica.capture)
        timed("restore", replica.restore, snapshot)
        timed("digest", replica.digest)
        replica.release(finished=False)
    else:
        replica.obey()
    numel = sum(parameter.numel() for parameter in model.parameters())
    channel.send(seconds=seconds, extra_bytes=resident_bytes("VmHWM:") - base, vector_bytes=4 * numel)
    channel.receive()
    dist.destroy_process_group()
