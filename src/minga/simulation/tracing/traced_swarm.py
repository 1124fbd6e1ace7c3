"""Four trainers in virtual time, of whose third step every call from file to file is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm, SwarmLog
from minga.simulation.tracing.call_recorder import CallRecorder, TracedCall
from minga.simulation.virtual_time import run_virtual

PEERS = 4
STEP = 3
"""The first steps also found the run and measure the lines; from the third on they are alike."""

TARGET_BATCH_SIZE = 160
LATENCY_S = 0.02
LIMIT_S = 600.0


@dataclass(frozen=True)
class TracedStep:
    """What the peers did from the end of one step to the end of the next; `start_s` is virtual time."""

    step: int
    start_s: float
    end_s: float
    leader: str
    peers: tuple[str, ...]
    calls: tuple[TracedCall, ...]


def peer_name(number: int) -> str:
    """The name of a peer, by its number from 1 on."""
    return f"peer-{number}"


def trace_step(seed: int = 0) -> TracedStep:
    """Run the swarm of a seed and record one step; equal seeds give equal traces."""
    return run_virtual(_trace(seed), limit_s=LIMIT_S)


async def _trace(seed: int) -> TracedStep:
    mapping = {"name": "trace", "training": {"target_batch_size": TARGET_BATCH_SIZE, "seed": seed}}
    swarm = Swarm(RunSpec.from_mapping(mapping).published({}), seed=seed)
    try:
        for number in range(1, PEERS + 1):
            swarm.add(HostSettings(latency_s=LATENCY_S), TrainerSettings(jitter=0.1), name=peer_name(number))
        await swarm.run_until_step(STEP - 2)
        with CallRecorder(swarm.name_of) as recorder:
            for peer in swarm.peers.values():
                peer.session.events.subscribe(partial(_note_step, recorder, peer.name))
            await swarm.run_until_step(STEP)
        begun = _of_step(swarm.log, "round.begun", STEP - 1)  # the step that its members have taken by then
        leader = swarm.name_of(str(begun[-1].fields["leader"]))
        ends_s = [event.time for event in _of_step(swarm.log, "step.applied", STEP)]
        start_s = min(event.time for event in _of_step(swarm.log, "step.applied", STEP - 1))
        return TracedStep(STEP, start_s, max(ends_s), leader, tuple(swarm.peers), tuple(recorder.calls))
    finally:
        await swarm.close()


def _note_step(recorder: CallRecorder, peer: str, event: Event) -> None:
    """A peer's step is from the end of one to the end of the next."""
    if event.kind == "step.applied" and event.fields["step"] == STEP - 1:
        recorder.recorded.add(peer)
    elif event.kind == "step.applied":
        recorder.recorded.discard(peer)


def _of_step(log: SwarmLog, kind: str, step: int) -> list[Event]:
    return [logged.event for logged in log.of(kind) if logged.event.fields["step"] == step]
