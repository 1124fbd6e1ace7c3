"""A real process that is stopped for longer than the others wait for it, as a laptop that sleeps."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.worlds import forked

SCRIPT = """
import json, pathlib, sys, time, torch, minga

torch.set_num_threads(1)
folder, name = pathlib.Path(sys.argv[1]), sys.argv[2]
options = minga.PeerOptions(ephemeral=True, directory=folder / name, host="127.0.0.1")
spec = {
    "name": "sleepy", "model": {"recipe": "custom"}, "training": {"target_batch_size": 24},
    "averaging": {"codec": "float32"}, "network": {"relay": "none"}, "state": {"digest_every": 1},
}
peer = minga.host(spec, options) if name == "host" else minga.join((folder / "link").read_text(), options)

def tell(event):
    print(json.dumps({"event": event.kind, "me": peer.peer_id, **event.fields}, default=str), flush=True)

peer.subscribe(tell)
print(json.dumps({"event": "link", "link": str(peer.link), "me": peer.peer_id}), flush=True)
torch.manual_seed(3)
model = torch.nn.Linear(6, 5)
optimizer = minga.Optimizer(minga.optim.AdamW(model.parameters(), lr=0.05), peer, model=model)
while not (folder / "end").exists():
    time.sleep(0.05)
    model(torch.randn(2, 6)).square().mean().backward()
    optimizer.step(samples=2)
    optimizer.zero_grad()
peer.close()
"""


class Process:
    """One peer as a process, and what it tells."""

    def __init__(self, folder: Path, name: str) -> None:
        pipe = subprocess.PIPE
        self.process = forked.start("-c", SCRIPT, str(folder), name, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe)
        self._told: queue.Queue[dict[str, Any] | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def wait_for(self, kind: str, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The next event of this kind that fits."""
        while (event := self._told.get(timeout=100.0)) is not None:
            if event["event"] == kind and fits(event):
                return event
        raise AssertionError(self.process.communicate()[1])

    def _read(self) -> None:
        assert self.process.stdout is not None
        with contextlib.suppress(ValueError):  # the test closed the pipe
            for line in self.process.stdout:
                self._told.put(json.loads(line))
        self._told.put(None)


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Process]]:
    processes: list[Process] = []

    def begin(name: str) -> Process:
        processes.append(Process(tmp_path, name))
        return processes[-1]

    yield begin
    for each in processes:
        each.process.kill()
        each.process.communicate()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no signal that stops a process")
def test_a_process_that_was_stopped_comes_back_as_one_that_was_away(
    tmp_path: Path, start: Callable[[str], Process]
) -> None:
    host = start("host")
    (tmp_path / "link").write_text(host.wait_for("link")["link"])
    others, sleeper = [host, start("awake")], start("sleeper")
    me = sleeper.wait_for("link")["me"]
    all_three = sleeper.wait_for("step.applied", lambda event: event["members"] == 3)["step"]

    sleeper.process.send_signal(signal.SIGSTOP)
    for each in others:
        each.wait_for("member.lost", lambda event: event["peer"] == me)
    gone_on = host.wait_for("step.applied", lambda event: event["members"] == 2 and event["step"] > all_three)["step"]
    host.wait_for("step.applied", lambda event: event["step"] > gone_on)

    sleeper.process.send_signal(signal.SIGCONT)
    stalled = sleeper.wait_for("board.stalled")
    assert stalled["seconds"] > 0
    synced = sleeper.wait_for("sync.finished")
    back = sleeper.wait_for("step.applied", lambda event: event["members"] == 3)
    assert back["step"] > gone_on
    assert synced["step"] >= gone_on, "it has the state of those that went on, not its own"
    for each in others:
        each.wait_for("step.applied", lambda event: event["members"] == 3 and event["step"] >= back["step"])
    (tmp_path / "end").touch()
