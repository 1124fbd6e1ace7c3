"""Which replica a process has: its own, or one of a peer of several processes that hold copies or shards."""

from __future__ import annotations

from typing import Any

import torch

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim.shards import is_sharded as is_shard
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_replicas import FollowerReplica, LeaderReplica, RankReplica
from minga.training.ranks.sharded_replicas import ShardedFollower, ShardedLeader
from minga.training.replica.replica import Replica


def trains_shards(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> bool:
    """Whether some parameter of `optimizer` is a DTensor.

    Raises `ConfigurationError` if `model` is sharded in a way that would not show in the parameters.
    """
    if any(is_shard(parameter) for group in optimizer.param_groups for parameter in group["params"]):
        return True
    for module in model.modules() if model is not None else ():
        if type(module).__name__ == "FullyShardedDataParallel":
            raise ConfigurationError(
                "the model is wrapped by FullyShardedDataParallel, whose flat parameters other peers do not have; use "
                "torch.distributed.fsdp.fully_shard (FSDP2)"
            )
        if any(map(is_shard, module.parameters(recurse=False))):
            raise ConfigurationError(
                "the model is sharded and the optimizer has its parameters from before; make the optimizer after "
                "fully_shard(model)"
            )
    return False


def make_replica(
    ranks: ProcessGroup | None,
    spec: RunSpec,
    optimizer: torch.optim.Optimizer,
    *,
    is_sharded: bool,
    **settings: Any,
) -> Replica:
    """The replica of this process. `settings` are those of `Replica`.

    Raises `ConfigurationError`, in all ranks, if these have different models or optimizers.
    """
    if ranks is None:
        return Replica(spec, optimizer, **settings)
    kind: type[RankReplica]
    if is_sharded:
        kind = ShardedLeader if ranks.leads else ShardedFollower
    else:
        kind = LeaderReplica if ranks.leads else FollowerReplica
    replica = kind(ranks, spec, optimizer, **settings)
    trained = f"{replica.vector.layout.fingerprint} {replica.trains}".encode()
    if not ranks.agree(ranks.share_bytes(trained) == trained):
        raise ConfigurationError("the processes of this peer have different models or optimizers")
    return replica
