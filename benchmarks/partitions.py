"""Seeded partitions of simulated swarms: do two histories ever both go on?

    python -m benchmarks.partitions --json

Each seed draws four to nine peers on virtual links in virtual time, and how they are divided: halves, thirds, one way
only, or link by link in random order within a second; at which phase of a round; and whether a peer is killed or a
newcomer comes meanwhile. The links are cut for 10 s, then restored, and the swarm is watched for 15 s more.

    forks            partitions after which one step had two states, but for the exceptions of `docs/guarantees.md`
    excepted         the same after a round of two members, the exception that `docs/guarantees.md` names
    steps_apart      steps that had two states, in the worst of the forks
    longest_stall_s  longest time after healing in which nobody applied a step; median, minimum and maximum
    stood_still      partitions after which a living peer applied no step in the last third of the watch

ok: no forks, nobody stands still, and no error. Each seed that forked is printed; `--seeds A:B` plays some only.
"""

from __future__ import annotations

import argparse
from collections import Counter

from benchmarks._partition_play import Verdict, play
from benchmarks._report import emit, finish, note, parser, spread

SEEDS = "0:200"


def main(argv: list[str] | None = None) -> int:
    """Run the benchmark."""
    arguments = parser(__doc__)
    arguments.add_argument(
        "--seeds", type=_seeds, default=_seeds(SEEDS), metavar="A:B", help=f"which (default {SEEDS})"
    )
    options = arguments.parse_args(argv)
    verdicts = [_played(seed) for seed in options.seeds]
    forks = [verdict for verdict in verdicts if verdict.forked_at is not None and not verdict.excepted]
    still = [verdict for verdict in verdicts if verdict.stood_still]
    errors = [error for verdict in verdicts for error in verdict.errors]
    return finish(
        "partitions",
        not (forks or still or errors),
        options.json,
        partitions=len(verdicts),
        forks=len(forks),
        forks_by_shape=dict(Counter(verdict.partition.shape for verdict in forks)),
        excepted=sum(verdict.excepted for verdict in verdicts),
        steps_apart=max((verdict.steps_apart for verdict in forks), default=0),
        longest_stall_s=spread(verdict.stall_s for verdict in verdicts),
        stood_still=len(still),
        errors=errors[:5],
    )


def _played(seed: int) -> Verdict:
    verdict = play(seed)
    note(f"seed {seed}: {verdict.partition.shape}, {verdict.partition.peers} peers, stall {verdict.stall_s:.1f} s")
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


if __name__ == "__main__":
    raise SystemExit(main())
