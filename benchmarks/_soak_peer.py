"""The process of one peer in the soak: trains a small classifier for ever and tells how it is."""

from __future__ import annotations

import asyncio
import os
import random
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks._worker import Channel
from minga import Event, Optimizer, Peer, PeerOptions, RunSpec, host, join
from minga.simulation.swarm.classification import SAMPLES, Classification

MICRO_BATCH = 32
VITALS_EVERY_S = 0.25
TOLD = ("step.applied", "round.aborted", "member.failed", "peer.offence", "round.begun", "sync.finished")
"""Events of interest."""


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Wait for the command to enter, then train until told to end."""
    torch.set_num_threads(1)
    channel.send(event="waiting", t=time.monotonic(), fields={})
    enter = channel.receive()
    options = PeerOptions(role="trainer", ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    entered = join(enter["link"], options) if enter.get("link") else host(RunSpec.from_toml(settings["spec"]), options)

    def tell(event: Event) -> None:
        if event.kind in TOLD:
            channel.send(event=event.kind, t=event.time, fields=event.fields)

    about = {"peer_id": entered.peer_id, "run_id": entered.run_id, "link": str(entered.link)}
    channel.send(event="entered", t=time.monotonic(), fields=about)
    entered.subscribe(tell)
    train(channel, entered, settings)
    entered.close()


def train(channel: Channel, entered: Peer, settings: dict[str, Any]) -> None:
    """Train, and tell after each step how well the model does, and several times a second what this process uses."""
    task = Classification(entered.spec)
    optimizer = Optimizer(task.optimizer, entered, scheduler=task.scheduler, model=task.model)
    rng = random.Random(settings["index"])
    seen, due_s = optimizer.global_step, 0.0
    while channel.poll() is None:
        time.sleep(settings["micro_batch_s"])
        task.backward(rng.sample(range(SAMPLES), MICRO_BATCH))
        optimizer.step(samples=MICRO_BATCH)
        optimizer.zero_grad()
        if optimizer.global_step != seen:
            seen = optimizer.global_step
            standing = {"step": seen, "digest": optimizer.digest(), "loss": task.held_out_loss()}
            channel.send(event="standing", t=time.monotonic(), fields=standing | {"link": str(entered.link)})
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + VITALS_EVERY_S
            channel.send(event="vitals", t=time.monotonic(), fields=vitals(entered))


def vitals(entered: Peer) -> dict[str, int]:
    """What this process holds at present; `tasks` are those of the event loop, `threads` those of the system."""

    def of_loop() -> dict[str, int]:
        return {"tasks": len(asyncio.all_tasks()), "neighbours": len(entered.session.node.connected())}

    return entered.on_loop(of_loop) | {
        "rss_bytes": int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
    }
