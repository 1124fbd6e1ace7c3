"""Five peers train a small ALBERT, four of them behind routers: a cloud with 1:1 NAT, three homes that let nobody in.

All run `minga host` and `minga join` as a person would, by the one link that was printed. The organiser is the cloud
machine, which announces its public address, for its own interface has a private one. Once all have contributed to
several steps, it is cut dead with SIGKILL; the others, of which one can still be dialled, have to go on.

    peers                       for each: its NAT, its role, its paths to others by kind, the steps with its samples
    peers_trained               peers whose samples were counted in at least `STEPS` steps
    clients                     peers that `minga status` shows as clients, which nobody told them to be
    survived_public_peer_death  whether all others contributed to as many steps again after it
    gap_s                       the longest time without a step that any of them saw around the death

There is no relay here: `tests/simulation/test_relays.py` has one, in the virtual world.
"""

from __future__ import annotations

import json
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import Any, Final

from benchmarks._report import emit, note
from minga.identity.links.links import Link
from tests.netlab import Host, Lab, RouterKind
from tests.worlds.cli_run import SPEC

STEPS = 5
PATIENCE_S = 120.0
FAST, SLOW = 20e6, 8e6
ORGANISER, PUBLIC = "cloud", "public"
PORT = 4433
NATS: Final = {
    ORGANISER: "one-to-one",
    PUBLIC: "none",
    "home0": "port-restricted",
    "home1": "port-restricted",
    "home2": "symmetric",
}


class Trainer:
    """One `minga` command in a namespace, and the events that it printed, with the times at which they came."""

    def __init__(self, lab: Lab, name: str, arguments: Sequence[str], folder: Path) -> None:
        self.name = name
        own = ["--bind", lab.address(name), "--ephemeral", "--directory", str(folder / name), "--json"]
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

    def peer_id(self) -> str:
        """Its id, which a peer that joins prints; the organiser's is in the link."""
        told = {e["event"]: e for _, e in self._events if e.get("event") in ("joined", "link")}
        if "link" in told:
            return Link.parse(told["link"]["link"]).organiser
        return str(told["joined"]["peer"]) if "joined" in told else ""

    def paths(self) -> dict[frozenset[str], str]:
        """The kinds of path of the connections that it told of, by the two peers."""
        met = [e for _, e in self._events if e.get("event") == "peer.connected"]
        return {frozenset((self.peer_id(), e["peer"])): e["path"] for e in met}

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
    hosts = [
        Host(ORGANISER, FAST, FAST, nat=ORGANISER, forwarded=0),
        Host(PUBLIC, FAST, FAST),
        *(Host(name, SLOW, FAST, nat=name) for name in NATS if name not in (ORGANISER, PUBLIC)),
    ]
    symmetric: dict[str, RouterKind] = {name: "symmetric" for name, nat in NATS.items() if nat == "symmetric"}
    figures: dict[str, Any] = {"peers_trained": 0, "clients": 0, "survived_public_peer_death": False, "gap_s": None}
    with tempfile.TemporaryDirectory(prefix="minga-bench-") as temporary, Lab(hosts, kinds=symmetric) as lab:
        folder = Path(temporary)
        spec = folder / "run.toml"
        spec.write_text(SPEC)
        work = ["--device", "cpu", "--threads", "1", "--micro-batch", "8"]
        announced = ["--port", str(PORT), "--announce", f"{lab.public_address(ORGANISER)}:{PORT}"]
        peers = [Trainer(lab, ORGANISER, ["host", str(spec), "--role", "trainer", *work, *announced], folder)]
        roles: dict[str, str] = {}
        try:
            link = peers[0].wait_for("link")["link"]
            peers += [Trainer(lab, name, ["join", link, *work], folder) for name in list(NATS)[1:]]
            for peer in peers:
                peer.wait_for_steps(0.0)
            roles = seen_roles(lab, link, folder)
            figures["clients"] = list(roles.values()).count("client")
            killed_s = time.monotonic()
            peers[0].process.kill()
            for peer in peers[1:]:
                peer.wait_for_steps(killed_s)
            figures["survived_public_peer_death"] = True
            figures["gap_s"] = round(max(longest_gap_s(peer.contributed(), killed_s) for peer in peers[1:]), 2)
        except RuntimeError as error:
            note(str(error))
        figures["peers_trained"] = sum(len(peer.contributed()) >= STEPS for peer in peers)
        paths = {pair: kind for peer in peers for pair, kind in peer.paths().items()}
        known = {peer.peer_id() for peer in peers}
        figures["peers"] = {
            peer.name: {
                "nat": NATS[peer.name],
                "role": roles.get(peer.peer_id()),
                "paths": Counter(kind for pair, kind in paths.items() if peer.peer_id() in pair and pair <= known),
                "steps_contributed": len(peer.contributed()),
            }
            for peer in peers
        }
        for name, each in figures["peers"].items():
            emit(setup="nat", peer=name, **each)
    return figures


def longest_gap_s(moments: Sequence[float], around_s: float) -> float:
    """The time between the last moment before `around_s` and the first one after it."""
    return min(m for m in moments if m > around_s) - max((m for m in moments if m <= around_s), default=around_s)


def seen_roles(lab: Lab, link: str, folder: Path) -> dict[str, str]:
    """The roles of all peers, by their ids, as a person sees them who looks at the run from outside."""
    arguments = [sys.executable, "-m", "minga", "status", link, "--json", "--bind", lab.address(PUBLIC)]
    with (folder / "status.log").open("w") as log:
        process = lab.start(PUBLIC, [*arguments, "--directory", str(folder)], stdout=PIPE, stderr=log, text=True)
        output, _ = process.communicate(timeout=PATIENCE_S)
    lines = output.strip().splitlines()
    if not lines:
        raise RuntimeError(f"status says nothing\n{(folder / 'status.log').read_text()[-1500:]}")
    return {peer["peer_id"]: peer["role"] for peer in json.loads(lines[-1])["peers"]}
