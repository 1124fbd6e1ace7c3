"""Five peers train a small ALBERT, three of them at home behind routers of their own that let nobody in.

All run `minga host` and `minga join` as a person would. Once everybody has contributed to several steps, the machine of
the organiser, one of the two that can be dialled, is cut dead with SIGKILL; the others have to go on.

    peers_trained               peers whose samples were counted in at least `STEPS` steps
    clients                     peers that `minga status` shows as clients, which nobody told them to be
    survived_public_peer_death  whether all others contributed to as many steps again after it
    gap_s                       the longest time without a step that any of them saw around the death
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any

from benchmarks._report import emit, note
from tests.netlab import Host, Lab
from tests.worlds.cli_run import SPEC

STEPS = 5
PATIENCE_S = 120.0
FAST, SLOW = 20e6, 8e6
PUBLIC, HOMES = ("public0", "public1"), ("home0", "home1", "home2")


class Trainer:
    """One `minga` command in a namespace, and the events that it printed, with the times at which they came."""

    def __init__(self, lab: Lab, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        own = ["--host", lab.address(name), "--ephemeral", "--directory", str(folder / name), "--json"]
        self._log = folder / f"{name}.log"
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "minga", *arguments, *own]
            self.process = lab.start(name, command, stdin=PIPE, stdout=PIPE, stderr=log, text=True)
        self._events: list[tuple[float, dict[str, Any]]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, kind: str) -> dict[str, Any]:
        """The first event of this kind. Raises `RuntimeError` if none comes."""
        found: list[dict[str, Any]] = self._wait(lambda: [e for _, e in self._events if e.get("event") == kind], kind)
        return found[0]

    def wait_for_steps(self, since_s: float) -> None:
        """Until its samples were counted in `STEPS` steps after a moment. Raises `RuntimeError` if they are not."""
        self._wait(lambda: len(self.contributed(since_s)) >= STEPS, f"{STEPS} steps")

    def contributed(self, since_s: float = 0.0) -> list[float]:
        """When the steps were applied that have samples of this peer."""
        applied = [(when, e) for when, e in self._events if e.get("event") == "step.applied"]
        return [when for when, event in applied if event["samples"] > 0 and when > since_s]

    def _wait(self, condition: Any, what: str) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        with self._changed:
            while not (found := condition()):
                left = deadline - time.monotonic()
                if left <= 0 or self.process.poll() is not None:
                    raise RuntimeError(f"{self.name}: no {what}\n{self._log.read_text()[-1500:]}")
                self._changed.wait(min(left, 1.0))
        return found

    def _read(self) -> None:
        for line in self.process.stdout or ():
            with self._changed:
                self._events.append((time.monotonic(), json.loads(line)))
                self._changed.notify_all()


def measure_nat() -> dict[str, Any]:
    """The figures of the setup."""
    hosts = [Host(name, FAST, FAST) for name in PUBLIC] + [Host(n, SLOW, FAST, nat=f"router of {n}") for n in HOMES]
    figures: dict[str, Any] = {"peers_trained": 0, "clients": 0, "survived_public_peer_death": False, "gap_s": None}
    with tempfile.TemporaryDirectory(prefix="minga-bench-") as temporary, Lab(hosts) as lab:
        folder = Path(temporary)
        spec = folder / "run.toml"
        spec.write_text(SPEC)
        work = ["--device", "cpu", "--threads", "1", "--micro-batch", "8"]
        peers = [Trainer(lab, PUBLIC[0], ["host", str(spec), "--role", "trainer", *work], folder)]
        try:
            link = peers[0].wait_for("link")["link"]
            peers += [Trainer(lab, name, ["join", link, *work], folder) for name in (*PUBLIC[1:], *HOMES)]
            for peer in peers:
                peer.wait_for_steps(0.0)
            figures["clients"] = count_clients(lab, link, folder)
            killed_s = time.monotonic()
            peers[0].process.kill()
            for peer in peers[1:]:
                peer.wait_for_steps(killed_s)
            figures["survived_public_peer_death"] = True
            figures["gap_s"] = round(max(longest_gap_s(peer.contributed(), killed_s) for peer in peers[1:]), 2)
        except RuntimeError as error:
            note(str(error))
        figures["peers_trained"] = sum(len(peer.contributed()) >= STEPS for peer in peers)
        for peer in peers:
            emit(setup="nat", peer=peer.name, steps_contributed=len(peer.contributed()))
    return figures


def longest_gap_s(moments: Sequence[float], around_s: float) -> float:
    """The time between the last moment before `around_s` and the first one after it."""
    return min(m for m in moments if m > around_s) - max((m for m in moments if m <= around_s), default=around_s)


def count_clients(lab: Lab, link: str, folder: Path) -> int:
    """How many clients somebody who looks at the run from outside sees."""
    arguments = [sys.executable, "-m", "minga", "status", link, "--json", "--host", lab.address(PUBLIC[1])]
    with (folder / "status.log").open("w") as log:
        process = lab.start(PUBLIC[1], [*arguments, "--directory", str(folder)], stdout=PIPE, stderr=log, text=True)
        output, _ = process.communicate(timeout=PATIENCE_S)
    lines = output.strip().splitlines()
    if not lines:
        raise RuntimeError(f"status says nothing\n{(folder / 'status.log').read_text()[-1500:]}")
    return sum(peer["role"] == "client" for peer in json.loads(lines[-1])["peers"])
