"""A peer of several processes: the ranks of one `torch.distributed` group, as `torchrun` starts them.

    every rank: gradients ─▶ rank_sums ─▶ rank 0: the swarm ─▶ rank_replicas ─▶ every rank: the same step
    a model in shards:  shard_map ─▶ sharded_replicas

Read: process_group (what ranks tell each other), rank_sums (each adds up a share of the gradients, and brings it to
rank 0), rank_replicas (ranks that each hold the model), then a model that is sharded by `fully_shard`: shard_map (which
rank holds which bytes, and how they get to rank 0 and back), sharded_replicas (the averaged vector, the state, and who
does what; and which of all these a process has).

Called by training/optimizer, on the training thread of each rank. It knows no peers.
"""
