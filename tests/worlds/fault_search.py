"""A search for faults that a swarm does not survive: twelve simulated peers, mishaps two at a time, all from one seed.

Their clocks are up to a quarter of an hour off, and some swarms meet a machine with a copy of a peer's key.

`search(seed)` plays one swarm and returns what was wrong with it, as sentences; nothing is the usual answer. What is
checked:

* the simulation comes to an end: no deadlock, and a bounded virtual time until all who live train together again;
* no program error at any peer, no member that failed, no blame: everybody here is honest;
* nobody applies other numbers than the others: equal digests after each step, and at the end;
* each step is taken by one group, and nobody takes it twice;
* *no step is lost that a quorum of survivors could have kept.* A round counts as keepable if more than half of its
  members were neither killed nor stopped nor left while it ran, and nothing cut any two of these off from each other.
  All these members have to finish such a round: none may give it up, and so nobody has to do its step again. For a
  member that is still at it the round runs on when all others have finished it. A round that is under way when all
  train together again, and the play ends, has no verdict.
"""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import math
import random
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from minga.averaging.election import ranking
from minga.averaging.strategy_choice import facts_of
from minga.core.errors import LocalError
from minga.core.events.bus import Event
from minga.network.virtual.internet import HostSettings
from minga.simulation import run_virtual
from minga.simulation.swarm.swarm import SimulatedPeer, Swarm, TrainerSettings
from tests.worlds.swarm_tools import later, longest_gap_s, make_spec, offences, pull, rounds, vector_replica

PEERS = 12
NUMEL = 40_000
ROWS = 100
"""Of each matrix, where a sketch wants matrices."""
RATE = 4 * NUMEL * 6.0
"""Bytes per second of each line: a round takes about a third of a second."""
SLOWER = 20
"""How many times slower a slow link is; what is left carries the talk of twelve peers, but hardly a vector."""
MICRO_BATCH, BATCH = 8, 96
KINDS = ("kill", "restart", "leave", "stall", "cut", "one-way cut", "slow link", "newcomer")
ROLES = ("leader of the last round", "leader of the next round", "trainer", "client", "auxiliary", "anybody")
MOMENTS = ("round.begun", "round.reduced", "step.applied")
LONGEST_S = 3.0
SKEW_S = 900.0
"""How far clocks are off."""
STEPS_AFTER = 2
BACK_WITHIN_S = 60.0
"""Virtual seconds after the last mishap within which all who live have taken `STEPS_AFTER` more steps."""
GAP_S = 12.0
"""Longest time in which nobody applies a step: two peers that fall silent one after the other, and slow lines."""
LIMIT_S = 300.0
DULL = ("peer.", "sync.progress", "member.status", "state.", "board.", "links.", "record.")


@dataclass(frozen=True)
class Mishap:
    """What happens to whom: `delay_s` after the scene's moment, for `lasts_s` (if it ends at all)."""

    kind: str
    role: str
    delay_s: float
    lasts_s: float


@dataclass(frozen=True)
class Scene:
    """All that a seed decides about a swarm and its mishaps, which begin with the first event `moment` of `step`."""

    seed: int
    clients: int
    auxiliary: bool
    strategy: str
    codec: str
    moment: str
    step: int
    mishaps: tuple[Mishap, ...]
    copied_s: float | None = None
    """When another machine comes with the key of one that is there, if that happens."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Of the strategy."""
    averaging: Mapping[str, Any] = field(default_factory=dict)
    """Settings of that section, before `codec`."""

    @classmethod
    def drawn(cls, seed: int) -> Scene:
        """The scene of a seed."""
        rng = random.Random(f"minga fault search {seed}")
        mishaps = tuple(
            Mishap(rng.choice(KINDS), rng.choice(ROLES), delay_s, rng.uniform(0.5, LONGEST_S))
            for delay_s in sorted((rng.uniform(0.0, 0.6), rng.uniform(0.0, 1.5)))
        )
        machines = random.Random(f"minga fault machines {seed}")
        return cls(
            seed,
            clients=rng.choice((0, 1, 2, 3)),
            auxiliary=rng.random() < 0.3,
            strategy="delayed" if rng.random() < 0.35 else "synchronous",
            codec=rng.choice(("float32", "float32", "float16", "int8")),
            moment=(moment := rng.choice(MOMENTS)),
            step=rng.choice((0, 1)) + (moment == "step.applied"),
            mishaps=mishaps,
            copied_s=machines.uniform(0.0, 3.0) if machines.random() < 0.3 else None,
        )


@dataclass(frozen=True)
class Harm:
    """From when to when peers were not at work: one that was gone or stopped, or two that were cut off."""

    peers: tuple[str, ...]
    since_s: float
    until_s: float = math.inf


class Play:
    """One scene on a running virtual loop."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.rng = scene, random.Random(f"minga fault victims {scene.seed}")
        self.machines = random.Random(f"minga fault clocks and keys {scene.seed}")
        self.harms: list[Harm] = []
        self.told: list[str] = []
        """What was done to whom, in words."""
        self.wrong: list[str] = []
        self._begun = asyncio.Event()
        self._leader: str | None = None
        self.digests: dict[int, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        """step -> digest -> peers that had it after that step."""
        self.unfinished: int | None = None
        """The step that was under way when all trained together again, which ended the play."""
        settings = {scene.strategy: dict(scene.settings)} if scene.settings else {}
        averaging = {"codec": scene.codec, **scene.averaging}
        spec = make_spec(BATCH, training={"strategy": scene.strategy}, strategy=settings, averaging=averaging)
        rows = ROWS if "sketch" in averaging else 1
        make = vector_replica(NUMEL, scene.settings.get("fragments", 1), rows)
        self.swarm = Swarm(spec, seed=scene.seed, make_replica=make, gradient=pull, checkpoint_every=2)
        for index in range(PEERS):
            auxiliary = scene.auxiliary and index == 1
            self._add(dialable=index < PEERS - scene.clients, auxiliary=auxiliary)

    async def run(self) -> None:
        """Play until all is over; what went wrong then stands in `wrong`."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, about: self.wrong.append(f"loop: {about}"))
        try:
            await self._play()
        except (TimeoutError, LocalError) as error:
            self.wrong.append(f"{type(error).__name__}: {error}")
        finally:
            events = len(self.swarm.log.events)
            ended = [task for task in self.swarm._tasks if task.done() and not task.cancelled()]
            self.wrong += [f"a peer's program failed: {task.exception()!r}" for task in ended if task.exception()]
            self.wrong += [f"{peer.name} ended: {peer.error!r}" for peer in self.swarm.alive() if peer.error]
            await self.swarm.close()
            del self.swarm.log.events[events:]  # how they part is not the subject

    async def _play(self) -> None:
        async with asyncio.timeout(BACK_WITHIN_S):
            await self._begun.wait()
        await asyncio.sleep(max(mishap.delay_s + mishap.lasts_s for mishap in self.scene.mishaps))
        await self._copies_are_gone()
        steps, deadline_s = max(self._steps()), asyncio.get_running_loop().time() + BACK_WITHIN_S
        while max(self._steps()) < steps + STEPS_AFTER or not self._are_together():
            if asyncio.get_running_loop().time() > deadline_s:
                reached = {peer.name: peer.replica.step for peer in self.swarm.alive()}
                raise TimeoutError(f"not all train together {BACK_WITHIN_S:g} s after the last mishap: {reached}")
            await asyncio.sleep(0.1)
        self.unfinished = max(self._steps())

    async def _copies_are_gone(self) -> None:
        """Of two machines with one key one has to end, or both if the first was among the victims."""
        async with asyncio.timeout(BACK_WITHIN_S):
            while len({peer.network.peer_id for peer in self.swarm.alive()}) < len(self.swarm.alive()):
                await asyncio.sleep(0.1)

    def _steps(self) -> list[int]:
        return [peer.replica.step for peer in self.swarm.alive()]

    def _are_together(self) -> bool:
        """Whether all who live took part in the last step, and have applied it."""
        newest = max(self._steps())
        last = rounds(self.swarm, "round.reduced").get(newest - 1, {})
        alive = {peer.name for peer in self.swarm.alive()}
        return set(self._steps()) == {newest} and [alive] == [set(members) for members in last.values()]

    # ---- mishaps

    def _add(self, *, dialable: bool, auxiliary: bool = False) -> str:
        skew_s = self.machines.uniform(-SKEW_S, SKEW_S)
        host = HostSettings(RATE, RATE, self.rng.uniform(0.005, 0.04), dialable=dialable, clock_skew_s=skew_s)
        trainer = TrainerSettings(MICRO_BATCH, self.rng.uniform(0.25, 0.4), jitter=0.1)
        peer = self.swarm.add(host, None if auxiliary else trainer, auxiliary=auxiliary)
        self._watch(peer)
        return peer.name

    def _copy(self) -> None:
        """Another machine enters by anybody, with the key of somebody else."""
        whose, entry = self.machines.sample([peer for peer in self.swarm.alive() if peer.network.settings.dialable], 2)
        trainer = TrainerSettings(MICRO_BATCH, 0.3, jitter=0.1)
        copy = self.swarm.add(HostSettings(RATE, RATE), trainer, key_of=whose.name, entries=[entry.network.address])
        self._watch(copy)
        self.told.append(f"{copy.name} comes with the key of {whose.name}, by {entry.name}")

    def _watch(self, peer: SimulatedPeer) -> None:
        peer.session.events.subscribe(lambda event: self._hear(peer, event))

    def _hear(self, peer: SimulatedPeer, event: Event) -> None:
        if event.kind == "round.begun":
            self._leader = self.swarm.name_of(str(event.fields["leader"]))
        if event.kind == "step.applied":
            self.digests[peer.replica.step][peer.replica.digest()].append(peer.name)
        due = event.kind == self.scene.moment and event.fields["step"] == self.scene.step
        if due and not self._begun.is_set():
            self._begun.set()
            for mishap in self.scene.mishaps:
                later(mishap.delay_s, lambda mishap=mishap: self._strike(mishap))
            if self.scene.copied_s is not None:
                later(self.scene.copied_s, self._copy)

    def _victim(self, role: str) -> str:
        alive = {peer.name: peer for peer in self.swarm.alive()}
        dialable = [name for name, peer in alive.items() if peer.network.settings.dialable]
        step = max(peer.replica.step for peer in alive.values())
        ids = [alive[name].network.peer_id for name in dialable]
        found = {
            "leader of the last round": [self._leader] if self._leader in alive else [],
            "leader of the next round": [self.swarm.name_of(ranking(self.swarm.spec.run_id, step, ids)[0])],
            "trainer": dialable,
            "client": [name for name in alive if name not in dialable],
            "auxiliary": [name for name, peer in alive.items() if peer.settings is None],
        }.get(role)
        return str(self.rng.choice(found or list(alive)))

    def _strike(self, mishap: Mishap) -> None:
        now, net, name = asyncio.get_running_loop().time(), self.swarm.internet, self._victim(mishap.role)
        end_s = now + mishap.lasts_s
        other = self.rng.choice([peer.name for peer in self.swarm.alive() if peer.name != name])
        match mishap.kind:
            case "kill":
                net.kill(name)
                self.harms.append(Harm((name,), now))
            case "restart":
                net.kill(name)
                self.harms.append(Harm((name,), now, end_s))
                later(mishap.lasts_s, lambda: self._watch(self.swarm.restart(name)))
            case "leave":
                self.harms.append(Harm((name,), now))
                peer = self.swarm.peers[name]
                peer.network.process.run(peer.session.close("enough"))
            case "stall":
                net.stall(name)
                self.harms.append(Harm((name,), now, end_s))
                later(mishap.lasts_s, lambda: net.resume(name))
            case "cut" | "one-way cut":
                net.cut(name, other, one_way=mishap.kind == "one-way cut")
                self.harms.append(Harm((name, other), now, end_s))
                later(mishap.lasts_s, lambda: net.restore(name, other))
            case "slow link":
                net.set_rate(name, RATE / SLOWER, RATE / SLOWER)
                later(mishap.lasts_s, lambda: net.set_rate(name, RATE, RATE))
            case "newcomer":
                name = self._add(dialable=mishap.role != "client")
        whom = f"{name} and {other}" if "cut" in mishap.kind else name
        self.told.append(f"{now:.3f} s: {mishap.kind} of {whom} ({mishap.role}), {mishap.lasts_s:.2f} s")


# ---- what must hold


def judge(play: Play) -> list[str]:
    """What was wrong with a swarm that was played to its end."""
    swarm = play.swarm
    wrong = list(play.wrong)
    wrong += [f"{e.peer} failed: {e.event.fields['why']}" for e in swarm.log.of("member.failed")]
    wrong += [f"{one} blames {other}: {what}" for one, other, what in offences(swarm)]
    wrong += [
        f"different states after step {step}: {dict(states)}"
        for step, states in sorted(play.digests.items())
        if len(states) > 1
    ]
    for step, groups in sorted(rounds(swarm, "round.reduced").items()):
        if len(groups) > 1:
            wrong.append(f"step {step} was taken by several groups: { {k[:6]: sorted(v) for k, v in groups.items()} }")
    if (gap_s := longest_gap_s(swarm)) > GAP_S:
        wrong.append(f"no step for {gap_s:.1f} s")
    takes_best = facts_of(swarm.spec).contributors == "best"  # with its only contributor a round is lost
    return wrong + ([] if takes_best else lost_steps(play))


def lost_steps(play: Play) -> list[str]:
    """Keepable rounds that a member gave up which had no reason to; see the top of this file."""
    begun: dict[str, dict[str, Event]] = defaultdict(dict)
    ended: dict[str, dict[str, Event]] = defaultdict(dict)
    current: dict[str, str] = {}
    for name, event in play.swarm.log.events:
        if event.kind == "round.begun":
            current[name] = str(event.fields["round"])
            begun[current[name]][name] = event
        elif event.kind in ("round.reduced", "round.aborted"):
            ended[current[name]][name] = event
    wrong = []
    for round_id, members in begun.items():
        since_s = min(event.time for event in members.values())
        until_s = max((event.time for event in ended[round_id].values()), default=math.inf)
        harms = [harm for harm in play.harms if harm.since_s <= until_s and harm.until_s >= since_s]
        whole = set(members) - {
            harm.peers[0]
            for harm in play.harms
            if len(harm.peers) == 1 and harm.until_s >= since_s
            if harm.since_s <= until_s or harm.peers[0] not in ended[round_id]
        }
        cut = [harm.peers for harm in harms if len(harm.peers) == 2 and whole.issuperset(harm.peers)]
        count = next(iter(members.values())).fields["members"]
        # Of each pair that is cut off from each other one has to go.
        if 2 * max(len(whole.difference(gone)) for gone in itertools.product(*cut)) <= count:
            continue
        for name in sorted(whole - {peer for pair in cut for peer in pair}):
            end, step = ended[round_id].get(name), members[name].fields["step"]
            if (end is None and step != play.unfinished) or (end is not None and end.kind == "round.aborted"):
                why = end.fields["why"] if end is not None else "it never ended"
                wrong.append(f"step {step}, round {round_id[:6]}: {name} gave it up without need: {why}")
    return wrong


def play(
    seed: int,
    strategy: str | None = None,
    settings: Mapping[str, Any] | None = None,
    averaging: Mapping[str, Any] | None = None,
) -> Play:
    """Play the swarm of a seed to its end; with another `strategy` or `averaging` than the seed's, if one is named."""
    errors, played = _Errors(), None
    logging.getLogger().addHandler(errors)

    async def main() -> None:
        nonlocal played
        scene = Scene.drawn(seed)
        if strategy is not None:
            scene = replace(scene, strategy=strategy, settings=settings or {})
        scene = replace(scene, averaging=averaging or {})
        played = Play(scene)
        await played.run()

    gc.disable()  # it takes a quarter of the time, for garbage that is collected below
    try:
        run_virtual(main(), limit_s=LIMIT_S)
    except LocalError as error:  # a deadlock, or no end
        errors.told.append(f"{type(error).__name__}: {error}")
    finally:
        logging.getLogger().removeHandler(errors)
        gc.enable()
        gc.collect()
    assert played is not None
    played.wrong += errors.told
    return played


def search(
    seed: int,
    strategy: str | None = None,
    settings: Mapping[str, Any] | None = None,
    averaging: Mapping[str, Any] | None = None,
) -> list[str]:
    """What was wrong with the swarm of a seed, if anything, and then what was done to it; see `play`."""
    played = play(seed, strategy, settings, averaging)
    wrong = judge(played)
    return [*wrong, f"({played.scene})", *(f"({told})" for told in played.told)] if wrong else []


def story(played: Play) -> list[str]:
    """The telling events of a swarm, one a line, and what was done to it."""
    swarm = played.swarm
    names = {peer.network.peer_id: name for name, peer in swarm.peers.items()}
    lines = []
    for name, event in swarm.log.events:
        if not event.kind.startswith(DULL):
            fields = {k: names.get(v, v) if isinstance(v, str) else v for k, v in event.fields.items()}
            lines.append(f"{event.time:9.3f} {name:8} {event.kind} {fields}")
    return lines + played.told


class _Errors(logging.Handler):
    """Collects what is logged as an error."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.told: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.told.append(f"logged as an error: {self.format(record)}")
