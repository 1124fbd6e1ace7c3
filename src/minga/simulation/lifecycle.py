"""The peers of a scenario: who takes part, who attacks, and how they join, leave, crash and come back.

Faults strike the peers, and organisers act, as the scenario says.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError
from minga.network.interface import PeerId
from minga.network.virtual.internet import MAX_LATENCY_S, HostSettings, Nat
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.simulation.attacks.gradient_attacks import LabelFlip
from minga.simulation.attacks.interface import attack
from minga.simulation.faults.driver import FaultDriver
from minga.simulation.faults.script import Fault
from minga.simulation.models import ClassifierReplica
from minga.simulation.recorder import Recorder
from minga.simulation.scenario.scenario import Scenario, strike_at_random
from minga.simulation.scenario.sections import Attackers, OrderTable, PeerTable, Quantity
from minga.simulation.swarm.classification import Classification
from minga.simulation.swarm.organiser import SwarmOrganiser
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm

# ---- The population: who takes part, each peer with what it drew from the seed.


APPLY_S_PER_PARAMETER: Final = 1e-8
"""What an optimizer step takes on one core of a desktop: 0.18 s for ALBERT-large with LAMB (an estimate)."""


@dataclass(frozen=True)
class PresencePeriod:
    """One session: it begins `after_s` seconds after the one before ended (or after the start), and lasts `for_s`
    seconds (None: to the end); `crashes` if it ends without a goodbye.
    """

    after_s: float
    for_s: float | None
    crashes: bool


@dataclass(frozen=True)
class ScheduledPeer:
    """One peer of a scenario. `lies` names how, if it does so in a way that is possible in any run; `fits` is False
    where the model is too large for it.
    """

    name: str
    peer_class: PeerTable
    host: HostSettings
    trainer: TrainerSettings | None
    apply_s: float
    arrival_s: float
    lies: str | None
    fits: bool
    seed: str

    def stays(self) -> Iterator[PresencePeriod]:
        """Its sessions, one after the other, as long as it comes back."""
        kind, after_s = self.peer_class, self.arrival_s
        lasts, away, crashes = (random.Random(f"{self.seed} {what}") for what in ("session", "away", "crash"))
        while True:
            for_s = None if kind.session is None else kind.session.draw(lasts)
            yield PresencePeriod(after_s, for_s, for_s is not None and crashes.random() < kind.crash)
            if for_s is None:
                return
            if kind.every is not None:
                after_s = max(0.0, kind.every.draw(away) - for_s)
            elif kind.away is not None:
                after_s = kind.away.draw(away)
            else:
                return


def population(scenario: Scenario) -> list[ScheduledPeer]:
    """All peers, in the order in which they come first.

    A peer to which no newcomer gets through comes no earlier than the first that lets newcomers in.
    """
    residents = [_resident(scenario, kind, number) for kind in scenario.peers for number in range(1, kind.count + 1)]
    open_ones = [each for each in residents if each.host.takes_newcomers and each.fits]
    first_s = min((each.arrival_s for each in open_ones), default=0.0)
    waiting = (
        each if each.host.takes_newcomers else replace(each, arrival_s=max(each.arrival_s, first_s))
        for each in residents
    )
    return sorted(waiting, key=lambda each: (each.arrival_s, not each.host.takes_newcomers))


def _resident(scenario: Scenario, kind: PeerTable, number: int) -> ScheduledPeer:
    name = f"{kind.name}-{number}"
    seed = f"minga scenario {scenario.seed} {name}"
    relay = scenario.relay_of(kind)

    def draw(setting: str) -> float | None:
        """Each from random numbers of its own, so that a change of one setting leaves all others as they were."""
        quantity: Quantity | None = getattr(kind, setting)
        return None if quantity is None else quantity.draw(random.Random(f"{seed} {setting}"))

    speed, memory = draw("samples_per_second"), draw("memory")
    host = HostSettings(
        up_bytes_per_s=draw("up"),
        down_bytes_per_s=draw("down"),
        latency_s=min(draw("latency") or 0.0, MAX_LATENCY_S),
        loss=kind.packet_loss,
        dialable=_is_dialable(kind, number),
        region=kind.region or "",
        nat=Nat(kind.nat),
        relay=None if relay is None else relay.url,
    )
    trainer = TrainerSettings(kind.micro_batch, kind.micro_batch / speed, kind.jitter) if speed else None
    attackers = scenario.attackers_of(kind, number)
    return ScheduledPeer(
        name=name,
        peer_class=kind,
        host=host,
        trainer=trainer,
        apply_s=(draw("processor") or 0.0) * scenario.parameters * APPLY_S_PER_PARAMETER,
        arrival_s=draw("arrival") or 0.0,
        lies=None if attackers is None or attackers.is_attack else attackers.behaviour,
        fits=memory is None or memory >= scenario.memory_bytes,
        seed=seed,
    )


def _is_dialable(kind: PeerTable, number: int) -> bool:
    """Spread evenly over the class, so that the share is as exact as can be; the first one is among them."""
    return math.ceil(number * kind.dialable - 1e-9) > math.ceil((number - 1) * kind.dialable - 1e-9)


# ---- What happens to the peers: they join, leave, crash and come back.


RETRY_S: Final = 30.0
"""After so many virtual seconds a volunteer whose peer ended with an error tries again."""

ENTRY_POLL_S: Final = 1.0
LAST_STEP_S: Final = 120.0
"""Whose step takes longer than that when it is about to leave does not wait for its end."""
GOODBYE_S: Final = 5.0
"""A goodbye that takes longer, because a fault stopped the peer meanwhile, is none."""


class World:
    """What happens in a scenario beside the training."""

    def __init__(self, scenario: Scenario, swarm: Swarm, recorder: Recorder, organiser: SwarmOrganiser | None) -> None:
        self._scenario, self._swarm, self._recorder, self._organiser = scenario, swarm, recorder, organiser
        self._driver = swarm.script("", recorder.fault)
        """For faults that are in no script."""
        self._script: FaultDriver | None = None
        self._residents: Mapping[str, ScheduledPeer] = {each.name: each for each in population(scenario)}
        self._lives: list[asyncio.Task[None]] = []
        self._restored = Counter[str]()
        """How often organisers restored a peer: then it is there for good, and the life that it had before is over."""

    @property
    def pending(self) -> tuple[str, ...]:
        """The faults of the script that are due and did not happen, in words."""
        return () if self._script is None else tuple(str(fault) for fault in self._script.pending)

    async def live(self) -> None:
        """Let everything happen; returns when nobody is left and nobody will come any more."""
        loop, faults = asyncio.get_running_loop(), self._scenario.faults
        self._lives += [loop.create_task(self._life(each)) for each in self._residents.values()]
        await asyncio.sleep(0)  # peers that are there from the start are there now
        self._script = self._swarm.script(faults.script, self._recorder.fault)
        striking = [
            loop.create_task(strike_at_random(kind, partial(self._random, number), self._alive, self._driver.strike))
            for number, kind in enumerate(faults.random)
        ]
        if self._organiser is not None:
            striking += [loop.create_task(self._act(each, self._organiser)) for each in self._scenario.orders]
        try:
            while self._lives:
                ended, _ = await asyncio.wait(self._lives, return_when=asyncio.FIRST_COMPLETED)
                for life in ended:
                    self._lives.remove(life)
                    life.result()  # or its error
        finally:
            for task in [*striking, *self._lives]:
                task.cancel()

    async def _act(self, table: OrderTable, organiser: SwarmOrganiser) -> None:
        """Do what the organisers do; what is not possible at that moment is told, and left out."""
        await asyncio.sleep(table.at.values[0])
        step: int | None = None
        try:
            if table.order == "restore" and table.peer is not None:
                self._restore(table.peer, organiser)
            elif table.order == "backup" and table.peer is not None:
                step = organiser.back_up(table.peer)
            elif table.order == "ban" and table.peer is not None:
                organiser.ban(table.peer, None if table.lasts is None else table.lasts.values[0])
            elif table.order == "amend":
                step = organiser.amend(table.changes, table.steps_ahead)
            elif table.order == "pause":
                step = organiser.pause(table.steps_ahead)
            elif table.order == "resume":
                organiser.resume()
            else:
                step = organiser.stop(table.steps_ahead)
        except ConfigurationError as error:
            self._recorder.note("order.failed", order=table.order, why=str(error))
            return
        self._recorder.note("order", order=table.order, step=step, of=table.peer, changes=dict(table.changes))

    def _restore(self, name: str, organiser: SwarmOrganiser) -> None:
        """Start a peer from its backup, which stays to the end."""
        peer = organiser.restore(name)
        self._recorder.arrived(peer)
        self._restored[name] += 1
        stay = self._stay(self._residents[name], PresencePeriod(0.0, None, crashes=False), peer)
        self._lives.append(asyncio.get_running_loop().create_task(stay))

    def _random(self, number: int, setting: str) -> random.Random:
        return random.Random(f"minga faults {self._scenario.seed} {number} {setting}")

    def _alive(self, peers: str | None) -> list[str]:
        """The living, of one class or of all."""
        names = (peer.name for peer in self._swarm.alive())
        return [name for name in names if peers is None or self._residents[name].peer_class.name == peers]

    async def _life(self, resident: ScheduledPeer) -> None:
        """All sessions of one peer."""
        if not resident.fits:
            self._recorder.note("peer.too_small", peer=resident.name)
            return
        for stay in resident.stays():
            if stay.after_s:
                await asyncio.sleep(stay.after_s)
            if self._restored[resident.name]:
                return
            until_s = asyncio.get_running_loop().time() + (stay.for_s or 0.0)
            await self._stay(resident, stay)
            early_s = until_s - asyncio.get_running_loop().time()
            if resident.peer_class.every is not None and early_s > 0.0:
                await asyncio.sleep(early_s)  # a session that a fault ended moves no later one
            if resident.name in self._swarm.peers and self._swarm.peers[resident.name].is_banned:
                return  # its key is worth nothing any more

    async def _stay(self, resident: ScheduledPeer, stay: PresencePeriod, peer: SimulatedPeer | None = None) -> None:
        """One session, of a `peer` that is there already or joins. One that could not join, or failed, tries again as
        long as the session lasts.
        """
        loop, restored = asyncio.get_running_loop(), self._restored[resident.name]
        until_s = math.inf if stay.for_s is None else loop.time() + stay.for_s
        while loop.time() < until_s and self._restored[resident.name] == restored:
            if peer is None and not self._can_join(resident):
                await asyncio.sleep(ENTRY_POLL_S)
                continue
            peer = peer or self._join(resident)
            if not await _has_ended(peer, until_s - loop.time()):
                if not stay.crashes:
                    await peer.finish_step(LAST_STEP_S)
                await self._leave(peer, crashes=stay.crashes)
                return
            if peer.error is None:
                if not peer.is_gone:  # the run is over, and it serves the last state
                    await asyncio.Event().wait()
                self._recorder.left(peer, "killed")
                return
            if peer.is_banned:
                await self._leave(peer, crashes=False, how="banned")
                return
            self._recorder.note("peer.gave_up", peer=peer.name, why=str(peer.error))
            await self._leave(peer, crashes=False, how="error")
            peer = None
            await asyncio.sleep(min(RETRY_S, until_s - loop.time()))

    def _can_join(self, resident: ScheduledPeer) -> bool:
        """Whether there is a peer that it can dial, unless it may be the first one."""
        alive = self._swarm.alive()
        return resident.host.takes_newcomers or any(peer.network.settings.takes_newcomers for peer in alive)

    def _join(self, resident: ScheduledPeer) -> SimulatedPeer:
        """Start a peer."""
        if resident.name in self._swarm.peers:
            peer = self._return(resident.name)
        else:
            peer = self._swarm.add(
                resident.host,
                resident.trainer,
                auxiliary=resident.trainer is None,
                name=resident.name,
                apply_s=resident.apply_s,
            )
        self._recorder.arrived(peer)
        if resident.lies is not None:
            self._driver.strike(Fault("lie", (peer.name,), behaviour=resident.lies))
        return peer

    def _return(self, name: str) -> SimulatedPeer:
        """Start a peer that was here before, with the state that it kept. If nobody is here, the run goes on from that
        state, and what is lost is told.
        """
        former = self._swarm.peers[name]
        kept = 0 if former.checkpoint is None else former.checkpoint.step
        lost = not self._swarm.alive() and kept < self._recorder.timeline.last_step
        if lost and not self._scenario.split.is_on:
            self._recorder.note("run.set_back", peer=name, step=kept)
        return self._swarm.restart(name)

    async def _leave(self, peer: SimulatedPeer, *, crashes: bool, how: str = "goodbye") -> None:
        """End a session, with a goodbye if it can still say one."""
        if not crashes:
            try:
                async with asyncio.timeout(GOODBYE_S):
                    await peer.session.close("the session is over")
                if peer.replica.step and how == "goodbye":
                    peer.checkpoint = peer.replica.capture()
            except TimeoutError:
                crashes = True
        if crashes:
            self._swarm.internet.kill(peer.name)
        self._recorder.left(peer, "crash" if crashes else how)


async def _has_ended(peer: SimulatedPeer, limit_s: float) -> bool:
    """Whether a peer ends by itself, or by a fault, before the time is up."""
    try:
        async with asyncio.timeout(None if limit_s == math.inf else limit_s):
            await peer.ended.wait()
    except TimeoutError:
        return False
    return True


# ---- Attackers, in a scenario whose members check each other: who they are, and how each behaves.


class AttackLab:
    """The attackers of a scenario; those of one table act together, and all know one another."""

    def __init__(self, scenario: Scenario) -> None:
        tables = [table for table in scenario.attackers if table.is_attack]
        self._make_conduct = {
            name: make
            for table in tables
            for make in [attack(table.behaviour).begin(table.from_step)]
            for name in _names(table)
        }
        self.groups = [(table, list(_names(table))) for table in tables]
        """Each table with the names of its peers."""
        self._allies: set[PeerId] = set()

    def conduct_of(self, peer: SimulatedPeer) -> Behaviour:
        """How a peer conducts itself that joins now."""
        if peer.name not in self._make_conduct:
            return Behaviour()
        self._allies.add(peer.network.peer_id)
        behaviour, replica = self._make_conduct[peer.name](self._allies), peer.replica
        if isinstance(behaviour, LabelFlip) and isinstance(replica, ClassifierReplica):
            task = replica.task
            behaviour.labelled = lambda work: _ClassifierWork(work, task)
        return behaviour


class _ClassifierWork:
    """The work of a member that trains the classifier, see `LabelledBackend`."""

    def __init__(self, work: TrainingBackend, task: Classification) -> None:
        self.layout: VectorLayout = work.layout
        self._work, self._task = work, task
        self.gradient, self.apply = work.gradient, work.apply
        self.digest, self.adopt = work.digest, work.adopt

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """With labels 9 - y. A member asks for one gradient at a time."""
        self._task.flips_labels = True
        try:
            return await self._work.gradient(step, seed)
        finally:
            self._task.flips_labels = False


def _names(table: Attackers) -> Iterator[str]:
    return (f"{table.peers}-{number}" for number in range(1, table.count + 1))
