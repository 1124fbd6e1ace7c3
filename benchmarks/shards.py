"""How fast a peer whose model is sharded over its ranks gathers and hands out shards, and in how much memory.

    python -m benchmarks.shards --json

`--ranks` processes hold a model of `--layers` matrices of 1024 x 1024 in shards, over gloo on this machine. Rank 0 does
once what the swarm asks of a peer:

    add       the gradient of a micro-batch, to the share of a sum in each rank
    bring     such a sum, from all ranks to rank 0
    apply     a mean from rank 0 to all ranks, clipped; a step of minga.optim.AdamW on shards
    capture   a copy of the state (parameters and both moments) of all ranks, in rank 0's memory
    restore   such a state back into all ranks
    digest    the hash of the state of all ranks

`mb_s`: MB (1e6 bytes) of the vector or state a second. `extra_shards`: the largest resident memory of a rank other than
0 in all this, less what it had after a backward pass, in shards of the vector, beyond `ALLOWED_MB` for messages.

ok: extra_shards is at most 7: the gradient, its sum, both moments, what the optimizer computes, and this rank's part of
what all ranks map: the sum, and the mean.
"""

from __future__ import annotations

from benchmarks._processes import Workers
from benchmarks._report import finish, parser

MOST_SHARDS, ALLOWED_MB = 7.0, 100.0
STATE = ("capture", "restore", "digest")
PATIENCE_S = 300.0


def main() -> int:
    """Measure once."""
    options = parser(__doc__)
    options.add_argument("--ranks", type=int, default=2)
    options.add_argument("--layers", type=int, default=120)
    arguments = options.parse_args()
    with Workers() as workers:
        settings = {
            "ranks": arguments.ranks,
            "layers": arguments.layers,
            "store": str(workers.directory / "store"),
        }
        ranks = [
            workers.start(f"rank-{rank}", "benchmarks._shards_rank:rank", {**settings, "rank": rank})
            for rank in range(arguments.ranks)
        ]
        leader, *others = [rank.receive(PATIENCE_S) for rank in ranks]
    vector_mb = leader["vector_bytes"] / 1e6
    megabytes = {name: vector_mb * (3 if name in STATE else 1) for name in leader["seconds"]}
    extra_mb = max(other["extra_bytes"] for other in others) / 1e6
    extra_shards = max(0.0, extra_mb - ALLOWED_MB) / (vector_mb / arguments.ranks)
    return finish(
        "shards",
        extra_shards <= MOST_SHARDS,
        arguments.json,
        ranks=arguments.ranks,
        vector_mb=round(vector_mb, 1),
        seconds={name: round(each, 3) for name, each in leader["seconds"].items()},
        mb_s={name: round(megabytes[name] / each) for name, each in leader["seconds"].items()},
        extra_mb=round(extra_mb, 1),
        extra_shards=round(extra_shards, 2),
    )


if __name__ == "__main__":
    raise SystemExit(main())
