"""Runs a scenario: peers come and go, faults happen, until one of the stop conditions holds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from minga.averaging.solver.flat import divide_equally
from minga.averaging.solver.planner import divide
from minga.core.spec.sections import CheckpointsSection
from minga.identity.keys.keys import Identity
from minga.simulation.event_log import LogWriter
from minga.simulation.lifecycle import AttackLab, World
from minga.simulation.models import classify_publicly, gradient_of, replica_maker
from minga.simulation.outcome import Agreement, Outcome
from minga.simulation.recorder import Recorder
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.split.life import SplitWorld
from minga.simulation.swarm.organiser import SwarmOrganiser
from minga.simulation.swarm.swarm import Swarm
from minga.simulation.timeline import Timeline
from minga.simulation.virtual_time import run_virtual

SETTLE_S: Final = 60.0
"""Longest virtual time that slow lines have for the result of the last round."""

SETTLE_POLL_S: Final = 0.02
ORGANISER: Final = Identity.from_seed(bytes(32))
LIMIT_S: Final = 3600.0
"""Virtual seconds beyond the scenario's own limit, after which something must be wrong."""


class Simulation:
    """One scenario, to be run once. `log` names the file for the event log, if there is to be one."""

    def __init__(self, scenario: Scenario, log: Path | None = None) -> None:
        self.scenario, self._log = scenario, log
        self.timeline = Timeline()
        """What happened so far; another thread may look at it while the simulation runs."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._organiser: SwarmOrganiser | None = None
        self._is_interrupted = False
        self._stopped = asyncio.Event()
        self._ended_by = ""

    def run(self, on_end: Callable[[Outcome], None] | None = None) -> Outcome:
        """Run it to its end. `on_end` is told the outcome before everything is taken down, which may take a while.

        Raises `StorageError` if the log cannot be written, and whatever else keeps a simulation from going on.
        """
        head = {"scenario": self.scenario.model_dump(mode="json")}
        with LogWriter(head, self._log) as writer:
            limit_s = self.scenario.stop.time.values[0] + LIMIT_S
            return run_virtual(self._run(writer, on_end), limit_s=limit_s)

    def interrupt(self) -> None:
        """End it now, with the outcome so far; from any thread or signal handler."""
        self._is_interrupted = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # it has just ended
                self._loop.call_soon_threadsafe(self._end, "interrupt")

    @property
    def virtual_s(self) -> float:
        """Virtual seconds so far; any thread."""
        return 0.0 if self._loop is None else self._loop.time()

    # ---- on the loop

    async def _run(self, writer: LogWriter, on_end: Callable[[Outcome], None] | None) -> Outcome:
        began_s, self._loop = time.monotonic(), asyncio.get_running_loop()
        errors: list[Exception] = []

        def fail(error: Exception) -> None:
            errors.append(error)
            self._end("error")

        recorder = Recorder(writer, self.timeline, self._after_step, fail)
        swarm = self._make_swarm(recorder)
        if self._is_interrupted:
            self._end("interrupt")
        organiser = self._organiser = SwarmOrganiser(swarm, ORGANISER) if self.scenario.orders else None
        world = World(self.scenario, swarm, recorder, organiser)
        living, stopped = self._loop.create_task(world.live()), self._loop.create_task(self._stopped.wait())
        limit_s = self.scenario.stop.time.values[0]
        await asyncio.wait([living, stopped], timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if self._ended_by in ("steps", "loss", "stopped"):
            await self._settle(swarm)
        agreement = None if organiser is None else agreement_of(swarm, organiser, self.timeline)
        if errors:
            raise errors[0]
        is_empty = living.done()
        if is_empty:
            living.result()  # or its error
        living.cancel()
        for peer in swarm.alive():
            recorder.stayed(peer)
        recorder.close()
        writer.close()  # so that nothing is said of a log that the disk refuses, or that there is no time left to write
        outcome = Outcome(
            scenario=self.scenario,
            timeline=self.timeline,
            ended_by=self._ended_by or ("nobody is left" if is_empty else "time"),
            virtual_s=self._loop.time(),
            wall_s=time.monotonic() - began_s,
            log_digest=writer.digest,
            entries=writer.entries,
            agreement=agreement,
            pending=world.pending,
        )
        if on_end is not None:
            on_end(outcome)
        for peer in swarm.alive():
            swarm.internet.kill(peer.name)
        return outcome

    async def _settle(self, swarm: Swarm) -> None:
        """Let the other members apply the last step, too, which one member has applied."""
        last, until_s = self.timeline.last_step, asyncio.get_running_loop().time() + SETTLE_S
        members = [peer for peer in swarm.alive() if peer.replica.step == last - 1 and not peer.network.state.stalled]
        while self.timeline.last_step == last and asyncio.get_running_loop().time() < until_s:
            if all(peer.is_gone or peer.replica.step >= last for peer in members):
                return
            await asyncio.sleep(SETTLE_POLL_S)

    def _make_swarm(self, recorder: Recorder) -> Swarm:
        scenario = self.scenario
        spec = scenario.run_spec()
        swarm = Swarm(
            spec,
            seed=scenario.seed,
            make_replica=replica_maker(scenario),
            gradient=gradient_of(scenario),
            public_gradient=classify_publicly,
            checkpoint_every=CheckpointsSection().every_steps,
            listener=recorder,
            divide=divide_equally if scenario.parts == "equal" else divide,
            organiser=ORGANISER if scenario.orders else None,
            life=SplitWorld(spec, recorder.note, self._after_step).live if spec.split.is_on else None,
        )
        recorder.swarm, lab = swarm, AttackLab(scenario)
        swarm.conduct_of = lab.conduct_of
        for table, names in lab.groups:
            recorder.note("attack", peers=names, behaviour=table.behaviour, from_step=table.from_step)
        for relay in scenario.relays:
            rate = None if relay.rate is None else relay.rate.values[0]
            swarm.add_relay(relay.name, rate, latency_s=relay.latency.values[0], region=relay.region or "")
        for path in scenario.paths:
            swarm.internet.set_region_latency(path.between[0], path.between[-1], path.latency.values[0])
            if path.rate is not None:
                swarm.internet.set_region_rate(path.between[0], path.between[-1], path.rate.values[0])
        return swarm

    def _after_step(self, step: int) -> None:
        """A member applied a step for the first time."""
        stop, loss = self.scenario.stop, self.timeline.steps[step].loss
        if stop.steps is not None and step >= stop.steps:
            self._end("steps")
        if self._organiser is not None and step == self._organiser.last_step:
            self._end("stopped")
        if stop.loss is not None and loss is not None and loss <= stop.loss:
            self._end("loss")

    def _end(self, why: str) -> None:
        self._ended_by = self._ended_by or why
        self._stopped.set()


def agreement_of(swarm: Swarm, organiser: SwarmOrganiser, timeline: Timeline) -> Agreement:
    """What the peers that are there at the end agree on; those that still fetch the state are left out."""
    last = timeline.last_step
    there = [peer for peer in swarm.alive() if peer.replica.step == last and not peer.network.state.stalled]
    numbers = [step.number for step in timeline.finished()]
    return Agreement(
        peers=len(there),
        states=len(set(swarm.digests([peer.name for peer in there]).values())),
        has_same_orders=organiser.agree(there),
        has_all_steps=numbers == list(range(1, last + 1)) and all(len(s.reduced) == 1 for s in timeline.finished()),
    )
