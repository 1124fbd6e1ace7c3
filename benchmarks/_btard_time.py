"""What a secure step takes beside an ordinary all-reduce of the same vector by the same processes.

Each peer is a process that averages its vector plainly or by secure steps, as it is told.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
from blake3 import blake3

from benchmarks import _machine
from benchmarks._allreduce_peer import AveragingPeer, vector_of
from benchmarks._entering import RUN_ID, enter, tell_address
from benchmarks._processes import Worker, Workers
from benchmarks._report import emit, spread
from benchmarks._worker import Channel
from minga.averaging.codecs.layout import VectorLayout
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.iroh.network import NetworkSettings
from minga.security.protocol.behaviour import KEPT_STEPS
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.step.member import MemberSetup, SecureMember
from minga.training.session import Session, SessionSettings


class FixedWork:
    """Work whose gradient is there from the start; `mean` is the last aggregate."""

    def __init__(self, vector: torch.Tensor) -> None:
        self.layout, self._vector = VectorLayout((vector.numel(),), "float32"), vector
        self.mean = torch.zeros_like(vector)
        self._step = 0

    async def gradient(self, step: int, seed: bytes) -> torch.Tensor:  # noqa: ARG002
        """See `TrainingBackend`."""
        return self._vector

    async def apply(self, step: int, mean: torch.Tensor) -> None:
        """See `TrainingBackend`."""
        self.mean, self._step = mean, step + 1

    async def digest(self) -> bytes:
        """See `TrainingBackend`."""
        return blake3(str(self._step).encode()).digest()

    async def adopt(self, step: int, digest: bytes, donors: Sequence[PeerId]) -> None:
        """See `TrainingBackend`; nobody comes late."""


class Peer:
    """What the commands of the coordinator act on."""

    def __init__(self, channel: Channel, session: Session, identity: Identity, settings: dict[str, Any]) -> None:
        self._channel, self._session, self._identity, self._settings = channel, session, identity, settings
        self._vector = torch.from_numpy(vector_of(1, settings["index"], settings["numel"]))
        self._plain = AveragingPeer(session, identity, self._vector, {**settings, "codec": "float32"})
        self._work = FixedWork(self._vector)
        self._member: SecureMember | None = None

    async def meet(self, members: list[str]) -> None:
        """Be a member with these others, and connected with all of them."""
        standing = ProtocolState.first(RUN_ID, map(PeerId, members))
        self._member = SecureMember(MemberSetup(self._session.node, self._identity, self._work), standing)
        self._member._register.draw = dict  # type: ignore[method-assign]  # what validators compute is not measured
        await self._see_all()
        others = [PeerId(member) for member in members if member != self._session.peer_id]
        await asyncio.gather(*map(self._session.node.connection, others))
        self._channel.send(met=True)

    async def plain(self) -> None:
        """One ordinary round: the group is formed, and the all-reduce begins when told to."""
        await self._see_all()
        await self._plain.round(self._channel)

    async def _see_all(self) -> None:
        """Until the board shows all others at the step at which this peer is."""
        self._plain.publish()
        while len(self._plain.formation._swarm_view.at(self._plain.step)) < self._settings["peers"] - 1:
            await asyncio.sleep(0.01)

    async def secure(self) -> None:
        """One secure step."""
        if self._member is None:
            raise RuntimeError("it has to meet the others first")
        await self._member.take_step()
        self._channel.send(
            done_s=time.monotonic(), members=len(self._member.membership.members), digest=digest_of(self._work.mean)
        )


def digest_of(vector: torch.Tensor) -> str:
    """Equal for equal vectors; of every thousandth element, so that it takes no time that others need."""
    return blake3(vector[::1000].contiguous().numpy().tobytes()).hexdigest()


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """The process of one peer."""
    torch.set_num_threads(1)
    asyncio.run(_peer(channel, settings))


async def _peer(channel: Channel, settings: dict[str, Any]) -> None:
    session, identity = await enter(settings["entries"], NetworkSettings(host="127.0.0.1"), SessionSettings())
    me = Peer(channel, session, identity, settings)
    tell_address(channel, session)
    while (command := await channel.receive_on_loop())["do"] != "exit":
        if command["do"] == "meet":
            await me.meet(command["members"])
        elif command["do"] == "plain":
            await me.plain()
        elif command["do"] == "secure":
            await me.secure()
    await session.close()


# ---- the coordinator


WARMUP = KEPT_STEPS + 2
"""Rounds until the memory that a run uses again and again is there."""
TICK_S = 0.01
"""The system counts no finer: a short step may have taken no CPU time at all."""


def measure_steps(arguments: Any) -> dict[str, Any]:
    """Let all peers average and take secure steps in turn; the figures of the module's documentation."""
    with Workers() as workers:
        start_peers(workers, arguments)
        pairs = []
        for turn in range(WARMUP + arguments.rounds):
            plain, secure = measure_plain(workers), measure_secure(workers, arguments.peers)
            emit(turn=turn, warmup=turn < WARMUP, plain=plain, secure=secure)
            pairs.append((plain, secure))
    counted = pairs[WARMUP:]
    return {
        "step_ratio": round(_median(counted, 1, "step_s") / _median(counted, 0, "step_s"), 3),
        "cpu_ratio": round(_median(counted, 1, "cpu_s") / max(TICK_S, _median(counted, 0, "cpu_s")), 3),
        "plain_s": spread(plain["step_s"] for plain, _ in counted),
        "secure_s": spread(secure["step_s"] for _, secure in counted),
        "plain_cpu_s": spread(plain["cpu_s"] for plain, _ in counted),
        "secure_cpu_s": spread(secure["cpu_s"] for _, secure in counted),
        "others_share": round(statistics.median(each["others_share"] for pair in counted for each in pair), 3),
        "steps_correct": sum(secure["correct"] for _, secure in counted),
        "steps": len(counted),
    }


def start_peers(workers: Workers, arguments: Any) -> None:
    """Start the processes, which connect with each other."""
    entries: list[Any] = []
    shared = {"peers": arguments.peers, "numel": arguments.mib << 18}

    def start(index: int) -> Worker:
        settings = {**shared, "index": index, "entries": entries}
        return workers.start(f"peer-{index}", "benchmarks._btard_time:peer", settings)

    first = start(0).receive(60)["address"]
    entries.append(first)
    others = workers.gather(120, [start(index) for index in range(1, arguments.peers)])
    members = [first[0], *(other["address"][0] for other in others)]
    workers.ask("meet", 60, members=members)


def measure_plain(workers: Workers) -> dict[str, Any]:
    """An ordinary round: seconds from the moment in which all hold the plan until the last has the result."""
    workers.ask("plain", 120)
    return _timed(workers, "go")


def measure_secure(workers: Workers, count: int) -> dict[str, Any]:
    """A secure step, from the gradients to the applied aggregate and the check of all claims about the own part."""
    figures = _timed(workers, "secure")
    done = figures.pop("done")
    correct = {each["members"] for each in done} == {count} and len({each["digest"] for each in done}) == 1
    return {**figures, "correct": correct}


def _timed(workers: Workers, command: str) -> dict[str, Any]:
    machine, cpu_s, started_s = _machine.machine_time(), workers.cpu_s(), time.monotonic()
    done = workers.ask(command, 300)
    used_s = workers.cpu_s() - cpu_s
    figures = {
        "step_s": round(max(each["done_s"] for each in done) - started_s, 4),
        "cpu_s": round(used_s, 2),
        "others_share": round(_machine.others_share(machine, _machine.machine_time(), used_s), 3),
    }
    return figures if command == "go" else {**figures, "done": done}


def _median(pairs: list[tuple[dict[str, Any], dict[str, Any]]], place: int, name: str) -> float:
    return statistics.median(pair[place][name] for pair in pairs)
