"""Runs of `benchmarks.strategies` that are kept in a folder, so that a long series can be cut into pieces."""

from __future__ import annotations

import json
import multiprocessing
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path
from typing import Final

from blake3 import blake3

from benchmarks._report import note
from benchmarks._strategy_run import Cell, Record, Run, run_cell
from benchmarks._strategy_tasks import TASKS
from minga.core.files import write_atomically

VERSION: Final = 1
"""Raised when records of the same cell become others."""


class Results:
    """Records by cell, one file each, and the data that the recipes made. What is missing is run by so many
    `processes`; with 0 it stays missing.
    """

    def __init__(self, folder: Path, *, processes: int = 1) -> None:
        self.folder, self.processes = folder, processes

    def get(self, cell: Cell) -> Record | None:
        """What a run of the cell left; None if there was none."""
        path = self._path(cell)
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def fill(self, cells: Sequence[Cell]) -> None:
        """Run those cells that have no record yet."""
        if not self.processes:
            return
        missing = [cell for cell in dict.fromkeys(cells) if not self._path(cell).exists()]
        for task in {cell.task: cell for cell in missing}.values():
            Run.prepare(task, self.folder)
        if self.processes == 1:
            for cell in missing:
                self.keep(cell, *_timed(cell, self.folder))
            return
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(self.processes, mp_context=context) as pool:
            running = {pool.submit(_timed, cell, self.folder): cell for cell in missing}
            for done in as_completed(running):
                self.keep(running[done], *done.result())

    def keep(self, cell: Cell, record: Record, seconds: float) -> None:
        """Keep the record of a run that took so many seconds of computing."""
        write_atomically(self._path(cell), json.dumps({**record, "cell": asdict(cell), "took_s": seconds}).encode())
        note(f"{cell.task} {cell.method.name} seed {cell.seed} kappa {cell.kappa}: {seconds:.0f} s of computing")

    def _path(self, cell: Cell) -> Path:
        method = {"spec": cell.method.spec, "batches": cell.method.batches}
        said = json.dumps([VERSION, {**asdict(cell), "method": method}, asdict(TASKS[cell.task])], sort_keys=True)
        known = blake3(said.encode()).hexdigest(length=6)
        return self.folder / f"{cell.task}-{cell.method.name}-{cell.samples}-seed{cell.seed}-{known}.json"


def _timed(cell: Cell, folder: Path) -> tuple[Record, float]:
    begun = time.process_time()
    return run_cell(cell, folder), round(time.process_time() - begun, 1)
