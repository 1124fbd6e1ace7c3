"""Processes of one run with vector widths of their own, each of which runs a script and prints its result as JSON."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tests.worlds import forked


def results_of(script: str, folder: Path, members: Sequence[tuple[str, str, tuple[str, ...]]]) -> list[dict[str, Any]]:
    """What the members say at last, given as (name, vector width, further arguments).

    The first one writes its link to `folder / "link"`; the others start when it is there. A process whose output is
    waited for must not fail, and none is left behind.
    """
    processes: list[subprocess.Popen[str]] = []
    results: list[dict[str, Any]] = []
    pipe = subprocess.PIPE
    try:
        for name, width, arguments in members:
            here = torch.backends.cpu.get_cpu_capability().lower()  # which a process has from its begin on
            assert width in (here, "default")
            begin = forked.start if width == here else forked.start_otherwise
            processes.append(begin("-c", script, str(folder), name, *arguments, stdout=pipe, stderr=pipe))
            while not (folder / "link").exists():
                assert processes[0].poll() is None, processes[0].communicate()[1]
                time.sleep(0.05)
        for process in processes:
            output, errors = process.communicate(timeout=150)
            assert process.returncode == 0, errors
            results.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return results
