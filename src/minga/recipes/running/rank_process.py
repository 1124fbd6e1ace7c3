"""The process of a further device of one peer: does what rank 0 does, see `local_ranks.py`."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

from minga.core.decoding import decode_json
from minga.core.errors import MingaError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.running.local_ranks import READY, Job, meet
from minga.recipes.running.run import FurtherRank, RecipeRun

FAILED = 1


def main() -> int:
    """Compute beside rank 0 until the run is finished or standard input ends; the exit code."""
    job = decode_json(_first_line(), Job)
    threading.Thread(target=_end_with_input, name="minga-rank-leash", daemon=True).start()
    try:
        _compute(job)
    except MingaError as error:
        print(error, file=sys.stderr, flush=True)
        return FAILED
    return 0


def _compute(job: Job) -> None:
    if job.work.threads is not None:
        torch.set_num_threads(job.work.threads)
    rank = FurtherRank(
        spec=RunSpec.from_canonical(job.spec),
        files={name: Path(path) for name, path in job.files.items()},
        directory=Path(job.directory),
        peer_id=job.peer_id,
        role=job.role,
        rank=job.rank,
    )

    def tell_and_meet() -> None:
        print(READY, flush=True)
        meet(job.rank, job.ranks, Path(job.store))

    run = RecipeRun(rank, job.work, ranks=job.ranks, meet=tell_and_meet)
    run.train(lambda _: False, lambda *_: None)
    dist.destroy_process_group()


def _first_line() -> bytes:
    """Read past Python's buffered stdin: a thread inside it would hold its lock while the interpreter ends."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data:
            os._exit(FAILED)
        line += data
    return line


def _end_with_input() -> None:
    """Rank 0 has gone, or wants this rank to: a collective operation may never end by itself."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
