"""The tasks of `benchmarks.strategies` by hivemind's optimizer: one process for each peer, in real time.

Its peers begin with the same parameters as minga's and have the same batches, so losses at equal samples can be
compared, and bytes. Seconds cannot: hivemind's are those of this machine, minga's those of a clock.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from benchmarks._processes import Message, Workers
from benchmarks._report import note
from benchmarks._strategy_methods import REFERENCE
from benchmarks._strategy_run import Cell, Record

METHODS: Final = (REFERENCE, "local-5-r1-m0")
"""Those of minga that hivemind has, too: gradients averaged as float16, and parameters averaged after local steps."""
START_S, RUN_S = 300.0, 3600.0
MEGA: Final = 1e6

Row = dict[str, Any]


def has_hivemind(python: str) -> bool:
    """Whether this interpreter can import it."""
    return subprocess.run([python, "-c", "import hivemind"], capture_output=True, check=False).returncode == 0


def run_hivemind(cell: Cell, folder: Path, python: str) -> list[Message]:
    """What each peer says at the end of a run by hivemind, whose peers are processes of `python`."""
    peers = len(cell.speeds)
    settings = {"task": cell.task, "method": cell.method.name, "seed": cell.seed, "samples": cell.samples}
    settings |= {"peers": peers, "folder": str(folder)}
    with Workers() as workers:

        def start(index: int, known: Sequence[str]) -> None:
            own = {**settings, "index": index, "initial_peers": known}
            workers.start(f"peer {index}", "benchmarks._hivemind_peer:run", own, python=python)

        start(0, [])
        (first,) = workers.gather(START_S)
        for index in range(1, peers):
            start(index, first["addresses"])
        workers.gather(START_S, workers.all[1:])
        workers.gather(START_S)
        found = workers.ask("train", RUN_S)
    note(f"hivemind {cell.task} {cell.method.name} seed {cell.seed}: {found[0]['seconds']:.0f} s")
    return found


def hivemind_row(cell: Cell, said: Sequence[Message], ours: Record, reference: Record) -> Row:
    """Both beside each other, of the small model. Pairs are hivemind's figure and minga's; `gap_percent` is to minga's
    synchronous float16, `loss` the mean, least and most of hivemind's peers, and `whole` the share of its averagings in
    which all of them took part.
    """
    counts = sum((Counter(each["said"]) for each in said), Counter[str]())
    whole = sum(count for what, count in counts.items() if what.endswith(f" {len(cell.speeds)}"))
    losses, last = [each["loss"] for each in said], ours["curve"][-1]
    pair, samples = (fmean(losses), last["loss"]), [sum(each["samples"] for each in said), last["samples"]]
    return {
        "task": cell.task,
        "method": cell.method.name,
        "seed": cell.seed,
        "peers": len(cell.speeds),
        "samples": samples,
        "rounds": [round(fmean(each["rounds"] for each in said), 1), len(ours["rounds"])],
        "loss": [round(each, 4) for each in (pair[0], min(losses), max(losses))],
        "gap_percent": [round(100 * (each / reference["curve"][-1]["loss"] - 1), 2) for each in pair],
        # A daemon writes each byte to others that its peer gave it, and to its peer what came from others.
        "sent_mb": [
            round(fmean(each["passed_on"] for each in said) / 2 / MEGA, 2),
            round(sum(fmean(each["up"]) for each in ours["rounds"]) / MEGA, 2),
        ],
        "whole": round(whole / max(1, counts.total()), 3),
        "seconds": round(max(each["seconds"] for each in said), 1),
        "ok": samples[0] == samples[1],
    }
