"""Processes that average step after step, come and go, and tell the coordinator all they do: a swarm to disturb."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from blake3 import blake3

from benchmarks._processes import Message, Worker, WorkerError, Workers
from benchmarks._worker import Channel
from minga import Event, Optimizer, PeerOptions, RunSpec, host, join
from minga.averaging.election import ranking
from tests.netlab import enter as enter_namespace

REMOVALS = ("round.member_lost", "round.sender_dropped", "group.leader_lost", "member.lost")
"""Events by which a peer says that it gave up another one, named in the field `peer`."""


class Told(NamedTuple):
    """An event of one peer: when, who, what."""

    t: float
    name: str
    event: str
    fields: dict[str, Any]


class Swarm:
    """One peer for each of `roles` at first ("trainer", or "client", which only sends), and whoever enters later.

    Each is a process that runs `peer` with `settings`, its number and a folder of its own, and with those of its place,
    if `places` are given: an address and a network namespace.
    """

    def __init__(
        self,
        workers: Workers,
        spec: RunSpec,
        settings: dict[str, Any],
        roles: Sequence[str],
        places: Sequence[dict[str, str]] = (),
    ) -> None:
        self.log: list[Told] = []
        self.peers: dict[str, Worker] = {}
        self.roles: dict[str, str] = {}
        self.ids: dict[str, str] = {}
        self.run_id, self.link = "", ""
        self.watcher: Callable[[Told], None] | None = None
        """Called with each event at once, on the thread that reads it."""
        self._workers, self._settings = workers, {**settings, "spec": spec.to_toml()}
        self._places = places
        self._changed = threading.Condition()
        self._count = 0
        waiting = [self.spawn() for _ in roles]
        for worker, role in zip(waiting, roles, strict=True):
            self.enter(worker, role)
            self.wait(lambda: bool(self.link), 60)

    def spawn(self) -> Worker:
        """A process that does nothing yet."""
        self._count += 1
        name = f"peer-{self._count}"
        place = self._places[self._count - 1] if self._places else {"host": "127.0.0.1"}
        directory = str(self._workers.directory / name)
        settings = {**self._settings, **place, "index": self._count, "directory": directory}
        return self._workers.start(name, "benchmarks._recovery_swarm:peer", settings, self._hear)

    def enter(self, worker: Worker, role: str) -> None:
        """Let a waiting process join the run (or, the very first, start it)."""
        self.roles[worker.name] = role
        self.peers[worker.name] = worker
        worker.send("enter", link=self.link, role=role)
        self.wait(lambda: worker.name in self.ids, 60)

    def name_of(self, peer_id: str) -> str:
        """The process with this id."""
        return next((name for name, known in self.ids.items() if known == peer_id), "?")

    def leader(self, step: int) -> str:
        """Who will lead `step`, unless something happens to it."""
        able = [self.ids[name] for name in self.peers if self.roles[name] == "trainer"]
        return self.name_of(ranking(self.run_id, step, able)[0])  # type: ignore[arg-type]

    def of(self, event: str, since: float = 0.0) -> list[Told]:
        """Events of one kind from a moment on."""
        return [told for told in list(self.log) if told.event == event and told.t >= since]

    def applied(self, name: str) -> list[Told]:
        """The steps that a peer applied."""
        return [told for told in self.of("step.applied") if told.name == name]

    def step(self, name: str) -> int:
        """The last step that a peer applied; 0 before."""
        steps = self.applied(name)
        return int(steps[-1].fields["step"]) if steps else 0

    def wait(self, condition: Callable[[], bool], limit_s: float) -> None:
        """Wait for something. Raises `WorkerError` if it takes too long."""
        deadline = time.monotonic() + limit_s
        with self._changed:
            while not condition():
                if time.monotonic() >= deadline:
                    raise WorkerError(f"waited in vain for {limit_s:.0f} s")
                self._changed.wait(0.2)

    def digests_differ(self, since: float, victim: str, back_at_step: int) -> list[int]:
        """Steps after which not all peers had the same parameters; those of the victim count when it is back."""
        digests: dict[int, set[str]] = {}
        for told in self.of("standing", since):
            if told.name != victim or told.fields["step"] >= back_at_step:
                digests.setdefault(told.fields["step"], set()).add(told.fields["digest"])
        return [step for step, different in sorted(digests.items()) if len(different) > 1]

    def _hear(self, worker: Worker, message: Message) -> None:
        told = Told(message["t"], worker.name, message["event"], message["fields"])
        if told.event == "entered":
            self.ids[worker.name], self.run_id = told.fields["peer_id"], told.fields["run_id"]
        if told.event == "standing" and worker.name in self.peers:
            self.link = told.fields["link"]
        if told.event == "entered" and not self.link:
            self.link = told.fields.get("link", "")
        with self._changed:
            self.log.append(told)
            self._changed.notify_all()
        if self.watcher is not None:
            self.watcher(told)


# ---- the process of one peer: it averages a vector step after step and tells all it does


SAMPLES = 8
QUIET = ("peer.", "sync.progress", "member.status", "state.", "board.")
"""Events of no interest."""


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Wait for the command to enter, then train until told to end."""
    if settings.get("namespace"):
        enter_namespace(settings["namespace"])  # before anything opens a socket or starts a thread that does
    torch.set_num_threads(1)
    channel.send(event="waiting", t=time.monotonic(), fields={})
    enter = channel.receive()
    options = PeerOptions(
        role=enter["role"], ephemeral=True, directory=Path(settings["directory"]), host=settings["host"]
    )
    entered = join(enter["link"], options) if enter.get("link") else host(RunSpec.from_toml(settings["spec"]), options)

    def tell(event: Event) -> None:
        if not event.kind.startswith(QUIET):
            channel.send(event=event.kind, t=event.time, fields=event.fields)

    about = {"peer_id": entered.peer_id, "run_id": entered.run_id, "link": str(entered.link)}
    channel.send(event="entered", t=time.monotonic(), fields=about)
    entered.subscribe(tell)
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(settings["numel"]))
    gradient = torch.randn(settings["numel"], generator=torch.Generator().manual_seed(settings["index"]))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    seen = 0
    while channel.poll() is None:
        time.sleep(settings["micro_batch_s"])
        parameter.grad = gradient
        optimizer.step(samples=SAMPLES)
        if optimizer.global_step != seen:
            seen = optimizer.global_step
            digest = blake3(parameter.detach().numpy().data.cast("B")).hexdigest()
            standing = {"step": seen, "digest": digest, "link": str(entered.link)}
            channel.send(event="standing", t=time.monotonic(), fields=standing)
        optimizer.zero_grad()
    entered.close()
