"""Seeded partitions of simulated swarms, and seeded lives of their peers: does one history go on, and the right one?

    python -m benchmarks.partitions --json

Each seed draws four to nine peers on virtual links in virtual time, and how they are divided: halves, thirds, one way
only, or link by link in random order within a second; at which phase of a round; and whether a peer is killed or a
newcomer comes meanwhile. The links are cut for 10 s, then restored, and the swarm is watched for 15 s more. Then as
many partitions as `--real` says (seeds as before) of four real processes in network namespaces.

Each story draws two to six peers with weights of their own: when they join, for how long they load then, by how much
their clocks are wrong, in which phase the organiser or another leaves or is killed, to come back from its checkpoint,
or not, and whether a machine comes that has a copy of one of their keys. Also which links are cut and when, whether
organisers regroup the run, whether it ends, and whether the first peer that trains founds it.

    forks            partitions after which one step had two states, but for the exceptions of `docs/guarantees.md`
    excepted         the same after a round of two members, the exception that `docs/guarantees.md` names
    steps_apart      steps that had two states, in the worst of the forks
    stall_s          by how much longer than usual the side that went on took for a step after healing; median, minimum
                     and maximum, `real_stall_s` in namespaces
    stood_still      partitions after which a living peer applied no step in the last third of the watch
    foreign_lineages stories in which a peer trained with weights that do not come from the founder's
    stories_apart    stories that end with two groups that train side by side, or whose run ended in two states though
                     no peer had taken rounds alone
    stories_idle     stories that end with a peer that neither trains nor has the last state though another has a state,
                     and nobody was told why
    played           how often each thing happened in all stories

ok: no forks (`real_forks` in namespaces), no foreign lineage, no story that ends apart or idle, nobody stands still,
and no error. Each seed with a fault is printed; `--seeds A:B` and `--stories A:B` play some only.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable

from benchmarks._processes import Workers
from benchmarks._recovery_swarm import SAMPLES, Swarm
from benchmarks._report import emit, finish, note, parser, spread
from tests.netlab import Host, Lab, why_unavailable
from tests.worlds.lineage_play import Ending, play_story
from tests.worlds.partition_play import CUT_S, HEALED_S, Partition, Verdict, play, spec_of, stall_s

SEEDS = "0:200"


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--seeds", type=_seeds, default=_seeds(SEEDS), metavar="A:B", help=f"which (default {SEEDS})"
    )
    arguments.add_argument(
        "--stories", type=_seeds, default=_seeds(SEEDS), metavar="A:B", help=f"lives of peers (default {SEEDS})"
    )
    arguments.add_argument("--real", type=int, default=10, metavar="N", help="partitions in namespaces (default 10)")
    options = arguments.parse_args(argv)
    verdicts = [_played(seed, play) for seed in options.seeds]
    real = [_played(seed, play_real) for seed in range(options.real)] if options.real and not why_unavailable() else []
    endings = [_told(seed) for seed in options.stories]
    foreign, apart, idle = ([e for e in endings if getattr(e, name)] for name in ("foreign", "apart", "idle"))
    forks = [verdict for verdict in verdicts if verdict.forked_at is not None and not verdict.excepted]
    still = [verdict for verdict in [*verdicts, *real] if verdict.stood_still]
    errors = [error for verdict in [*verdicts, *real] for error in verdict.errors]
    errors += [error for ending in endings for error in ending.errors]
    real_forks = [verdict for verdict in real if verdict.forked_at is not None]
    return finish(
        "partitions",
        not (forks or real_forks or foreign or apart or idle or still or errors),
        options.json,
        partitions=len(verdicts),
        forks=len(forks),
        forks_by_shape=dict(Counter(verdict.partition.shape for verdict in forks)),
        excepted=sum(verdict.excepted for verdict in verdicts),
        steps_apart=max((verdict.steps_apart for verdict in forks), default=0),
        stall_s=spread(verdict.stall_s for verdict in verdicts if verdict.stall_s is not None),
        stood_still=len(still),
        stories=len(endings),
        foreign_lineages=len(foreign),
        stories_apart=len(apart),
        stories_idle=len(idle),
        played=dict(sorted(sum((ending.played for ending in endings), Counter[str]()).items())),
        real=len(real) if real or not options.real else why_unavailable(),
        real_forks=len(real_forks),
        real_stall_s=spread(verdict.stall_s for verdict in real if verdict.stall_s is not None),
        errors=errors[:5],
    )


def _told(seed: int) -> Ending:
    ending = play_story(seed)
    note(f"story {seed}: {len(ending.story.joins_s)} peers, {len(ending.story.losses)} losses")
    if ending.foreign or ending.apart or ending.idle or ending.errors:
        emit(story=seed, foreign=ending.foreign, apart=ending.apart, idle=ending.idle, errors=ending.errors)
    return ending


def _played(seed: int, play: Callable[[int], Verdict]) -> Verdict:
    verdict = play(seed)
    stall = "none went on" if verdict.stall_s is None else f"stall {verdict.stall_s:.1f} s"
    note(f"seed {seed}: {verdict.partition.shape}, {verdict.partition.peers} peers, {stall}")
    if verdict.forked_at is not None or verdict.stood_still or verdict.errors:
        emit(
            seed=seed,
            shape=verdict.partition.shape,
            peers=verdict.partition.peers,
            forked_at=verdict.forked_at,
            steps_apart=verdict.steps_apart,
            excepted=verdict.excepted,
            stood_still=verdict.stood_still,
            errors=verdict.errors,
        )
    return verdict


def _seeds(text: str) -> range:
    first, colon, end = text.partition(":")
    if not (colon and first.isdigit() and end.isdigit() and int(first) < int(end)):
        raise argparse.ArgumentTypeError(f"{text!r} is no range such as {SEEDS}")
    return range(int(first), int(end))


# ---- four processes in network namespaces


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
        swarm = Swarm(workers, spec, SETTINGS, roles, places)
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


if __name__ == "__main__":
    raise SystemExit(main())
