"""The pictures of a dashboard in the documentation, with Chromium.

    python -m benchmarks.dashboard --pictures docs

They are of a real run of four peers on this machine, in which one dies and another comes late.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks import _chromium
from benchmarks._processes import PACKAGES

SPEC = """
name = "{name}"
[recipe.albert]
max_length = 64
overrides = {{ hidden_size = 32, num_hidden_layers = 1, intermediate_size = 64, embedding_size = 32 }}
[optimizer]
name = "adamw"
warmup_steps = 20
[training]
target_batch_size = 512
stop_after_steps = 2000
[network]
relay = "none"
"""
OWN = ("--bind", "127.0.0.1", "--device", "cpu", "--threads", "1", "--ephemeral", "--json")
PATIENCE_MS = 60_000.0


class LiveRun:
    """A host with a dashboard, and peers that come and go."""

    def __init__(self, folder: Path, name: str) -> None:
        (folder / "run.toml").write_text(SPEC.format(name=name))
        self._folder = folder
        self.processes: list[subprocess.Popen[str]] = []
        host = self._start("host", str(folder / "run.toml"), "--dashboard", "--dashboard-listen", "127.0.0.1:0")
        self.url = self.link = ""
        for line in host.stdout or ():
            event = json.loads(line)
            self.url = event["url"] if event.get("event") == "dashboard" else self.url
            if event.get("event") == "link":
                self.link = event["link"]
                break
        threading.Thread(target=lambda: [None for _ in host.stdout or ()], daemon=True).start()

    def join(self, *words: str) -> subprocess.Popen[str]:
        """One more trainer."""
        process = self._start("join", self.link, "--yes", *words)
        threading.Thread(target=lambda: [None for _ in process.stdout or ()], daemon=True).start()
        return process

    def close(self) -> None:
        """End all processes."""
        for process in self.processes:
            process.kill()
            process.wait()

    def _start(self, *words: str) -> subprocess.Popen[str]:
        path = os.pathsep.join([str(PACKAGES), os.environ.get("PYTHONPATH", "")])
        directory = self._folder / str(len(self.processes))
        process = subprocess.Popen(
            [sys.executable, "-m", "minga", *words, *OWN, "--directory", str(directory)],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self.processes.append(process)
        return process


@contextlib.contextmanager
def live_run(name: str) -> Iterator[LiveRun]:
    """A run that ends with the block."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        run = LiveRun(Path(folder), name)
        try:
            yield run
        finally:
            run.close()


def _wait_for_peers(opened: Any, count: int) -> None:
    opened.locator("[data-tile=peers] dd > span").filter(has_text=str(count)).wait_for(timeout=PATIENCE_MS)


def take_pictures(folder: Path, seconds: float) -> None:
    """Pictures for the documentation: a run in which one peer dies and another comes late."""
    folder.mkdir(parents=True, exist_ok=True)
    with live_run("bible-albert") as run, _chromium.browser() as launched:
        trainers = [run.join("--max-upload", "20Mbit") for _ in range(3)]
        with _chromium.page(launched) as opened:
            opened.goto(run.url)
            _wait_for_peers(opened, 4)
            time.sleep(seconds * 0.5)
            trainers[0].kill()
            time.sleep(seconds * 0.1)
            run.join("--max-upload", "20Mbit")
            time.sleep(seconds * 0.4)
            _picture(opened, folder / "dashboard.png", (1280, 1130))
        with _chromium.page(launched, _chromium.PHONE, "dark") as opened:
            opened.goto(run.url)
            opened.locator(".plot[aria-label^='Loss. Latest']").wait_for(timeout=PATIENCE_MS)
            time.sleep(1.0)
            _picture(opened, folder / "dashboard-phone.png", (390, 1060))
        assert opened.problems == []


def _picture(opened: Any, path: Path, size: tuple[int, int]) -> None:
    opened.set_viewport_size({"width": size[0], "height": size[1]})
    time.sleep(1.0)
    opened.screenshot(path=str(path))


def main() -> None:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--pictures", metavar="FOLDER", required=True, help="where to write them")
    made.add_argument("--seconds", type=float, default=90.0, help="how long the run lasts")
    options = made.parse_args()
    take_pictures(Path(options.pictures), options.seconds)


if __name__ == "__main__":
    main()
