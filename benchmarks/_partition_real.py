"""One seeded partition of real processes in network namespaces."""

from __future__ import annotations

import time

from benchmarks._partition_play import CUT_S, HEALED_S, Partition, Verdict, spec_of, stall_s
from benchmarks._processes import Workers
from benchmarks._recovery_peer import SAMPLES
from benchmarks._recovery_swarm import Swarm
from tests.netlab import Host, Lab

PEERS = 4
SETTINGS = {"numel": 10_000, "micro_batch_s": 0.1}
BEFORE = 5
"""Steps that all have taken before anything happens."""
START_S = 90.0


def play_real(seed: int) -> Verdict:
    """Play the partition of a seed with four processes; newcomers and kills are left to the simulated ones."""
    partition = Partition.drawn(seed, PEERS)
    hosts = [f"p{index}" for index in range(PEERS)]
    with Lab([Host(name) for name in hosts]) as lab, Workers() as workers:
        places = [{"namespace": lab.namespace(name), "host": lab.address(name)} for name in hosts]
        spec, roles = spec_of(2 * SAMPLES * PEERS), ["trainer"] * PEERS
        swarm = Swarm(workers, spec, SETTINGS, roles, "benchmarks._recovery_peer:peer", places)
        swarm.wait(lambda: all(swarm.step(name) >= BEFORE for name in swarm.peers), START_S)
        _divide(lab, hosts, partition)
        time.sleep(CUT_S)
        for a, b, _ in partition.cut_at_s:
            lab.restore(hosts[a], hosts[b], one_way=partition.shape == "one-way")
        healed_s = time.monotonic()
        time.sleep(HEALED_S)
        end_s = time.monotonic()
    applied = [(told.t, told.name) for told in swarm.of("standing")]
    apart = swarm.digests_differ(0.0, "", 0)
    moved = {name for at_s, name in applied if at_s >= healed_s + HEALED_S * 2 / 3}
    return Verdict(
        partition,
        forked_at=apart[0] if apart else None,
        steps_apart=len(apart),
        stall_s=stall_s(applied, healed_s, end_s),
        stood_still=tuple(sorted(swarm.peers.keys() - moved)),
    )


def _divide(lab: Lab, hosts: list[str], partition: Partition) -> None:
    begun_s = time.monotonic()
    for a, b, at_s in sorted(partition.cut_at_s, key=lambda cut: cut[2]):
        time.sleep(max(0.0, begun_s + at_s - time.monotonic()))
        lab.cut(hosts[a], hosts[b], one_way=partition.shape == "one-way")
