"""What a step costs each peer, where the model is tiny and everything around the bytes counts.

    python -m benchmarks.crowd --json

`real`: 4, 8, 12 and 16 processes train a model of 2,000 numbers over iroh on this machine. A step has 32 micro-batches,
which are pauses of 0.16 s in all, so what the processes compute they compute for each other. One line for each number
of peers has

    cpu_ms_a_peer   processor time of a peer and step in milliseconds (`cpu_ms`: of an ordered pair and step)
    bare_ms_a_peer  what a step of the same loop takes without minga, which is part of that
    steps_per_s     steps a second

`messages`: in one process, the processor time in microseconds of a call into the iroh library, and of a request and its
answer, for both ends and all threads, over a new stream, over one that is open, and over an open TCP connection.

ok: at most 25 ms a peer and step, and at least 2 steps a second. Processor time is what is compared, but steps a second
need the machine for themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Message, Worker, WorkerError, Workers
from benchmarks._report import emit, finish, parser
from benchmarks._worker import Channel
from minga import Event, Optimizer, PeerOptions, RunSpec, host, join
from minga.core.errors import RemoteError
from minga.network.interface import Connection, Stream
from minga.network.iroh.connection import IrohConnection
from minga.network.iroh.network import IrohNetwork, NetworkSettings

PEERS = (4, 8, 12, 16)
MOST_MS_A_PEER, LEAST_STEPS_PER_S = 25.0, 2.0
MICRO_BATCHES, STEP_S = 32, 0.16
"""Micro-batches of a step, and the seconds that it would take if nothing but they took any time."""
NUMEL = 2000
BARE_STEPS, WARM_UP_STEPS, PATIENCE_S = 5, 5, 90.0


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--peers", type=int, nargs="+", default=list(PEERS), help="sizes of the crowds")
    options.add_argument("--seconds", type=float, default=8.0, help="how long each crowd is measured")
    options.add_argument("--worlds", nargs="+", choices=["messages", "real"], help="measure just these")
    arguments = options.parse_args()
    worlds = arguments.worlds or ["messages", "real"]
    ok, figures = True, dict[str, Any]()
    if "messages" in worlds:
        figures["messages"] = message_costs()
    try:
        if "real" in worlds:
            figures["real"] = [measure(peers, arguments.seconds) for peers in arguments.peers]
            ok = all(row["cpu_ms_a_peer"] <= MOST_MS_A_PEER for row in figures["real"])
            ok = ok and all(row["steps_per_s"] >= LEAST_STEPS_PER_S for row in figures["real"])
    except WorkerError as error:
        ok, figures["error"] = False, str(error)
    return finish("crowd", ok, arguments.json, **figures)


def measure(peers: int, seconds: float) -> dict[str, Any]:
    """The row of a crowd of so many processes. Raises `WorkerError` if they take no steps."""
    with Workers() as workers:
        bare = start(workers, peers)
        enter(workers.all)
        reach(workers.all, WARM_UP_STEPS)
        before = workers.ask("mark", PATIENCE_S)
        time.sleep(seconds)
        after = workers.ask("mark", PATIENCE_S)
    steps = sum(b["step"] - a["step"] for a, b in zip(before, after, strict=True)) / peers
    if steps < 1:
        raise WorkerError("the crowd takes no steps")
    cpu_s = sum(b["cpu_s"] - a["cpu_s"] for a, b in zip(before, after, strict=True))
    row = {
        "peers": peers,
        "steps": round(steps, 1),
        "steps_per_s": round(steps / (after[0]["at_s"] - before[0]["at_s"]), 2),
        "cpu_ms": round(1e3 * cpu_s / (steps * peers * (peers - 1)), 3),
        "cpu_ms_a_peer": round(1e3 * cpu_s / (steps * peers), 2),
        "bare_ms_a_peer": round(1e3 * sum(told["bare_s"] for told in bare) / peers, 2),
    }
    emit(world="real", **row)
    return row


def start(workers: Workers, peers: int) -> list[Message]:
    """Start so many processes, and wait until all have imported what they need; returns what each says of itself."""
    about = {
        "spec": plain_spec("crowd", MICRO_BATCHES, averaging={"codec": "float16"}).to_toml(),
        "micro_batch_s": STEP_S * peers / MICRO_BATCHES,
        "micro_batches": max(1, MICRO_BATCHES // peers),
    }
    for index in range(peers):
        settings = about | {"directory": str(workers.directory / f"peer-{index}")}
        workers.start(f"peer-{index}", "benchmarks.crowd:peer", settings)
    return workers.gather(PATIENCE_S)


def enter(workers: Sequence[Worker]) -> None:
    """Let them enter, the first alone."""
    link = workers[0].ask("enter", PATIENCE_S, link="")["link"]
    for worker in workers[1:]:
        worker.send("enter", link=link)
    for worker in workers[1:]:
        worker.receive(PATIENCE_S)


def reach(workers: Sequence[Worker], steps: int) -> None:
    """Wait until each has taken so many steps with the others. Raises `WorkerError` if they do not."""
    deadline = time.monotonic() + PATIENCE_S
    while min(worker.ask("mark", PATIENCE_S)["applied"] for worker in workers) < steps:
        if time.monotonic() > deadline:
            raise WorkerError(f"the crowd took no {steps} steps within {PATIENCE_S:.0f} s")
        time.sleep(0.5)


# ---- the process of one peer


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Wait for the command to enter, then train until told to end, and answer what was used and done so far."""
    torch.set_num_threads(1)
    channel.send(bare_s=bare_s(settings))
    link = channel.receive()["link"]
    options = PeerOptions("trainer", ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    entered = join(link, options) if link else host(RunSpec.from_toml(settings["spec"]), options)
    applied = 0

    def note(event: Event) -> None:
        nonlocal applied
        applied += event.kind == "step.applied"

    entered.subscribe(note)
    channel.send(link=str(entered.link))
    torch.manual_seed(0)
    parameter = torch.nn.Parameter(torch.randn(NUMEL))
    optimizer = Optimizer(torch.optim.SGD([parameter], lr=0.01), entered)
    while True:
        while (command := channel.poll()) is None:
            time.sleep(settings["micro_batch_s"])
            parameter.grad = parameter.detach().clone()
            optimizer.step(samples=1)
            optimizer.zero_grad()
        if command["do"] == "exit":
            break
        used = os.times()
        told = {"cpu_s": used.user + used.system, "step": optimizer.global_step, "at_s": time.monotonic()}
        channel.send(**told, applied=applied)
    entered.close()


def bare_s(settings: dict[str, Any]) -> float:
    """Processor seconds of a step of the same loop without minga: pauses, gradients, their sum, the optimizer."""
    parameter = torch.nn.Parameter(torch.randn(NUMEL))
    optimizer = torch.optim.SGD([parameter], lr=0.01)
    total, begun_s = torch.zeros(NUMEL), 0.0
    for step in range(BARE_STEPS + 1):
        if step == 1:  # the first has more to do
            begun_s = time.thread_time()
        for _ in range(settings["micro_batches"]):
            time.sleep(settings["micro_batch_s"])
            total += parameter.detach().clone()
        parameter.grad = total / settings["micro_batches"]
        optimizer.step()
        optimizer.zero_grad()
        total.zero_()
    return (time.thread_time() - begun_s) / BARE_STEPS


# ---- calls and requests


CALLS, REQUESTS, STREAMS = 10_000, 2_000, 500
MESSAGE = bytes(100)


def message_costs() -> dict[str, float]:
    """Processor time in microseconds, of all threads of one process that has both ends."""
    return asyncio.run(_costs())


async def _costs() -> dict[str, float]:
    here, there = [await IrohNetwork.open(secrets.token_bytes(32), NetworkSettings(host="127.0.0.1")) for _ in "ab"]
    near, far = await asyncio.gather(here.connect(there.address), there.accept())
    assert isinstance(near, IrohConnection)
    serving = asyncio.ensure_future(_serve(far))
    try:
        begun_s = _used_s()
        for _ in range(CALLS):
            near._outgoing.close_reason()
        figures = {"foreign_call_us": 1e6 * (_used_s() - begun_s) / (2 * CALLS)}
        figures["new_stream_us"] = await _cost(STREAMS, lambda: _ask_anew(near))
        for name, bulk in (("open_stream_us", False), ("tcp_us", True)):
            stream = await near.open_stream(bulk=bulk)
            await _ask(stream)
            figures[name] = await _cost(REQUESTS, lambda: _ask(stream))  # noqa: B023  (called within the turn)
    finally:
        serving.cancel()
        await asyncio.gather(here.close(), there.close())
    return {name: round(value, 1) for name, value in figures.items()}


async def _cost(times: int, work: Callable[[], Awaitable[None]]) -> float:
    begun_s = _used_s()
    for _ in range(times):
        await work()
    return 1e6 * (_used_s() - begun_s) / times


async def _ask(stream: Stream) -> None:
    await stream.write(MESSAGE)
    await stream.read_into(memoryview(bytearray(len(MESSAGE))))


async def _ask_anew(connection: Connection) -> None:
    stream = await connection.open_stream()
    await stream.write(MESSAGE)
    await stream.finish()
    await stream.read_into(memoryview(bytearray(len(MESSAGE))))
    await stream.read(1)


async def _serve(connection: Connection) -> None:
    async with asyncio.TaskGroup() as tasks:
        while True:
            tasks.create_task(_answer(await connection.accept_stream()))


async def _answer(stream: Stream) -> None:
    with contextlib.suppress(RemoteError):
        while said := await stream.read(len(MESSAGE)):
            await stream.write(said)
        await stream.finish()


def _used_s() -> float:
    used = os.times()
    return used.user + used.system


if __name__ == "__main__":
    raise SystemExit(main())
