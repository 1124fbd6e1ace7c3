"""One seeded story of how peers of a simulated run come, load, die and come back, and whose weights it ends with.

Each peer builds a model of its own: one of its parameters, the mark, names the process that made it, and no gradient
moves it. So whoever trains or takes over a state shows where that came from, whatever the code says of it. The first
peer is the organiser. It may be the last that has loaded its model, leave or be killed in any phase, and come back from
its last checkpoint, sooner or later; and so may the others. The clocks of the machines are off by up to a quarter of an
hour, and machines with copies of keys that are in use come through other peers.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from benchmarks._partition_play import LIMIT_S, MOST_SKEW_S, later, spec_of
from minga.core.errors import LocalError, RejectedError
from minga.core.events.bus import Event
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim.sgd import SGD
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.replica.replica import Replica

AT_ONCE, FOUNDED = "at once", "state.founded"
STEP_MOMENTS = ("step.applied", "round.begun", "round.reduced")
STRATEGIES = ("synchronous", "synchronous", "delayed", "local")
SYNC_MOMENTS = ("state.published", "state.downloaded", "sync.finished")
MICRO_BATCH, MICRO_BATCH_S = 4, (0.2, 0.4)
RATE = 1e6
SLOWEST_LOAD_S = 15.0
LONGEST_AWAY_S = 20.0
ACTS_S = 30.0
"""Seconds in which peers come, go and come back."""
QUIET_S = 30.0
"""Seconds that follow, in which nothing more happens."""
ORGANISER = 0


@dataclass(frozen=True)
class Loss:
    """A peer is killed, or `says_goodbye`, at the first `moment` of any peer `at_s` seconds after the beginning or
    later, or `AT_ONCE`, and comes back `away_s` seconds later, or not at all.
    """

    peer: int
    moment: str
    at_s: float
    says_goodbye: bool
    away_s: float | None


@dataclass(frozen=True)
class Copy:
    """A machine that has a copy of the key of the peer `whose` joins `at_s` seconds after the beginning, if that peer
    takes part then, by another one, and loads for `load_s` seconds.
    """

    whose: int
    at_s: float
    load_s: float


@dataclass(frozen=True)
class Story:
    """All that a seed decides: when each peer joins, for how long it loads then, by how much its clock is fast, who is
    lost when, who comes with a copy of a key, and the strategy of the run. Clocks of copies are right.
    """

    seed: int
    joins_s: tuple[float, ...]
    loads_s: tuple[float, ...]
    skews_s: tuple[float, ...]
    losses: tuple[Loss, ...]
    copies: tuple[Copy, ...]
    strategy: str

    @classmethod
    def drawn(cls, seed: int) -> Story:
        """The story of a seed."""
        rng = random.Random(f"minga lineage {seed}")
        peers = rng.choice((2, 2, 3, 3, 4, 5))
        joins = [0.0, *(rng.choice((0.1, rng.uniform(0.0, 20.0))) for _ in range(peers - 1))]
        loads = [rng.choice((0.0, rng.uniform(0.0, SLOWEST_LOAD_S))) for _ in range(peers)]
        losses = []
        for _ in range(rng.choice((0, 1, 1, 2, 3))):
            peer = ORGANISER if rng.random() < 0.6 else rng.randrange(peers)
            away = None if peer != ORGANISER and rng.random() < 0.3 else rng.uniform(0.5, LONGEST_AWAY_S)
            losses.append(_drawn_loss(rng, peer, away, joins[peer], loads[peer]))
        skews = [rng.choice((0.0, rng.uniform(-MOST_SKEW_S, MOST_SKEW_S))) for _ in range(peers)]
        copies = [
            Copy(rng.randrange(peers), rng.uniform(0.0, ACTS_S), rng.choice((0.0, rng.uniform(0.0, SLOWEST_LOAD_S))))
            for _ in range(rng.choice((0, 0, 1, 2)))
        ]
        losses.sort(key=lambda loss: loss.at_s)
        return cls(seed, tuple(joins), tuple(loads), tuple(skews), tuple(losses), tuple(copies), rng.choice(STRATEGIES))


def _drawn_loss(rng: random.Random, peer: int, away_s: float | None, joins_s: float, loads_s: float) -> Loss:
    moment = rng.choice((AT_ONCE, FOUNDED, *SYNC_MOMENTS, *STEP_MOMENTS))
    first_s, last_s = 0.5, ACTS_S
    if moment == AT_ONCE and loads_s:
        first_s, last_s = joins_s + 0.1, joins_s + loads_s
    elif moment == FOUNDED:
        first_s = last_s = 0.0  # that happens once
    elif moment in SYNC_MOMENTS:
        last_s = SLOWEST_LOAD_S  # later nobody may have to fetch anything
    at_s = rng.uniform(first_s, last_s)
    return Loss(peer, moment, at_s, rng.random() < 0.4, away_s)


@dataclass
class Ending:
    """What one story came to."""

    story: Story
    foreign: tuple[str, ...] = ()
    """Peers that trained with weights that do not come from the organiser, or from another founding than the first."""
    apart: tuple[str, ...] = ()
    """The groups of peers that trained side by side at the end, if there was more than one."""
    idle: tuple[str, ...] = ()
    """Peers that did not train at the end although a peer with the organiser's weights was there, but for stories in
    which too many members of a round were lost at once, and somebody was told.
    """
    lost_steps: int = 0
    """By how many steps the organiser's state went back at most."""
    played: Counter[str] = field(default_factory=Counter)
    """How often each thing happened."""
    errors: list[str] = field(default_factory=list)


class StoryPlay:
    """One story on a running virtual loop."""

    def __init__(self, story: Story) -> None:
        self._story, self._rng = story, random.Random(story.seed)
        self._made, self._maker = 0, ORGANISER
        self._organisers = set[float]()
        """Marks of models that the organiser's processes made."""
        self._mark: float | None = None
        """That of the model with which the run began."""
        self._played = Counter({story.strategy: 1})
        spec = spec_of(2 * MICRO_BATCH * len(story.joins_s), story.strategy)
        self._swarm = Swarm(
            spec.published({}), seed=story.seed, make_replica=self._make, gradient=_pull, checkpoint_every=3
        )
        self._waiting = [loss for loss in story.losses if loss.moment != AT_ONCE]
        self._foreign: dict[str, None] = {}
        self._newest: dict[str, int] = {}
        self._last_s: dict[str, float] = {}
        self._told_s = 0.0
        """When a peer was told last that no step can be taken."""
        self._rounds: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self._lost_steps = 0

    async def run(self) -> Ending:
        """Play it, and judge."""
        ending = Ending(self._story)
        for index, at_s in enumerate(self._story.joins_s):
            if index == ORGANISER:
                self._add(index)
            else:
                later(at_s, lambda index=index: self._add(index))  # type: ignore[misc]
        for loss in self._story.losses:
            if loss.moment == AT_ONCE:
                later(loss.at_s, lambda loss=loss: self._lose(loss))  # type: ignore[misc]
        for number, copy in enumerate(self._story.copies):
            later(copy.at_s, lambda copy=copy, number=number: self._add_copy(copy, number))  # type: ignore[misc]
        await asyncio.sleep(ACTS_S + SLOWEST_LOAD_S + LONGEST_AWAY_S + QUIET_S)
        self._judge(ending)
        await self._swarm.close()
        return ending

    def _make(self, spec: RunSpec) -> Replica:
        """A model of random weights, marked with the number of the process that is made now."""
        torch.manual_seed(1000 * self._story.seed + self._made)
        self._made += 1
        if self._maker == ORGANISER:
            self._organisers.add(float(self._made))
        model = torch.nn.Linear(4, 2)
        model.register_parameter("mark", torch.nn.Parameter(torch.tensor([float(self._made)])))
        return Replica(spec, SGD(model.parameters(), lr=0.1), model=model)

    def _add(self, index: int) -> None:
        skew_s = self._story.skews_s[index]
        self._maker = index
        self._watch(self._swarm.add(*self._machine(skew_s), name=_name(index), load_s=self._story.loads_s[index]))
        self._played["clock that is wrong"] += skew_s != 0.0

    def _add_copy(self, copy: Copy, number: int) -> None:
        """Through any peer with another key: by itself it would be in a run of its own."""
        if self._is_gone(copy.whose):
            return
        key = self._swarm.peers[name := _name(copy.whose)].network.peer_id
        others = [each.network.address for each in self._swarm.alive() if each.network.peer_id != key]
        if not others:
            return
        self._maker = copy.whose
        entries = self._rng.sample(others, 1)
        self._watch(
            self._swarm.add(
                *self._machine(0.0), name=f"copy-{number}", load_s=copy.load_s, key_of=name, entries=entries
            )
        )
        self._played["copy of " + ("the organiser's key" if copy.whose == ORGANISER else "another key")] += 1

    def _machine(self, skew_s: float) -> tuple[HostSettings, TrainerSettings]:
        host = HostSettings(RATE, RATE, self._rng.uniform(0.02, 0.06), clock_skew_s=skew_s)
        return host, TrainerSettings(MICRO_BATCH, self._rng.uniform(*MICRO_BATCH_S), jitter=0.1)

    def _watch(self, peer: SimulatedPeer) -> None:
        peer.session.events.subscribe(lambda event: self._hear(peer, event))

    def _hear(self, peer: SimulatedPeer, event: Event) -> None:
        if event.kind == "round.reduced":
            self._rounds[peer.name].append((event.time, str(event.fields["round"])))
        if event.kind == "group.minority":
            self._told_s = event.time
        if event.kind == "step.applied":
            self._last_s[peer.name] = event.time
            mark = _mark(peer)
            self._mark = mark if self._mark is None else self._mark
            if mark != self._mark or mark not in self._organisers:
                self._foreign[peer.name] = None
            if peer.name == _name(ORGANISER):
                self._lost_steps = max(self._lost_steps, self._newest.get(peer.name, 0) - peer.replica.step)
                self._newest[peer.name] = peer.replica.step
        due = [each for each in self._waiting if each.at_s <= event.time <= ACTS_S and each.moment == event.kind]
        for loss in due:
            if not self._is_gone(loss.peer):
                self._waiting.remove(loss)
                later(0.0, lambda loss=loss: self._lose(loss))  # type: ignore[misc]

    def _is_gone(self, index: int) -> bool:
        return _name(index) not in self._swarm.peers or self._swarm.peers[_name(index)].is_gone

    def _lose(self, loss: Loss) -> None:
        if self._is_gone(loss.peer):
            return
        peer = self._swarm.peers[name := _name(loss.peer)]
        who, how = "organiser" if loss.peer == ORGANISER else "other", "leaves" if loss.says_goodbye else "is killed"
        phase = "while it loads" if peer.session.member is None else "at some time"
        moment = phase if loss.moment == AT_ONCE else f"at {loss.moment}"
        self._played[f"{who} {how} {moment}"] += 1
        if loss.says_goodbye:
            self._ending = asyncio.get_running_loop().create_task(self._leave(peer))
        else:
            self._swarm.internet.kill(name)
        if loss.away_s is not None:
            later(loss.away_s + 1.0, lambda: self._come_back(loss.peer))

    async def _leave(self, peer: SimulatedPeer) -> None:
        await peer.session.close()
        if not peer.is_gone:
            self._swarm.internet.kill(peer.name)

    def _come_back(self, index: int) -> None:
        if self._is_gone(index):
            self._maker = index
            self._watch(self._swarm.restart(_name(index)))
            self._played["organiser comes back" if index == ORGANISER else "other comes back"] += 1

    def _judge(self, ending: Ending) -> None:
        living = [peer for peer in self._swarm.alive() if peer.error is None]
        now = asyncio.get_running_loop().time()
        trained = [peer for peer in living if now - self._last_s.get(peer.name, -QUIET_S) < QUIET_S / 2]
        ending.foreign = tuple(self._foreign)
        groups = self._groups([peer.name for peer in trained], now)
        ending.apart = tuple(" ".join(sorted(group)) for group in groups) if len(groups) > 1 else ()
        has_state = any(_mark(peer) == self._mark and peer.replica.step for peer in living)
        is_told = not trained and self._told_s > max(self._last_s.values(), default=0.0)
        self._played["end without a quorum"] += is_told
        ending.idle = tuple(peer.name for peer in living if has_state and peer not in trained and not is_told)
        ending.lost_steps = self._lost_steps
        ending.played = self._played
        ending.errors = [f"{peer.name}: {peer.error!r}" for peer in self._refused()]

    def _refused(self) -> Iterator[SimulatedPeer]:
        """Peers that ended with an error, but for those whose key another process has that takes part."""
        taken = {peer.network.peer_id for peer in self._swarm.alive() if peer.error is None}
        for peer in self._swarm.alive():
            error, is_twin = peer.error, peer.network.peer_id in taken
            if error is not None and not (
                is_twin and isinstance(error, RejectedError) and error.code is RefusalCode.KEY
            ):
                yield peer

    def _groups(self, names: list[str], now: float) -> list[set[str]]:
        """Those that took part in common rounds lately."""
        groups: list[tuple[set[str], set[str]]] = []
        for name in names:
            rounds = {round_id for time, round_id in self._rounds[name] if time > now - QUIET_S / 3}
            joined = [group for group in groups if group[1] & rounds]
            groups = [group for group in groups if group not in joined]
            groups.append(({name}.union(*(each for each, _ in joined)), rounds.union(*(each for _, each in joined))))
        return [members for members, _ in groups]


def _name(index: int) -> str:
    return f"peer-{index}"


def _mark(peer: SimulatedPeer) -> float:
    tensors = peer.replica.tensors()
    return float(next(tensor for name, tensor in tensors.items() if name.endswith("mark")))


def _pull(peer: SimulatedPeer, samples: int) -> float:
    generator = torch.Generator().manual_seed(peer.samples_done * 1009 + int(peer.network.peer_id[:8], 16))
    for parameter in peer.replica.vector.parameters():
        is_mark = parameter.numel() == 1
        parameter.grad = torch.zeros(1) if is_mark else parameter.detach() - torch.randn(1, generator=generator)
    return float(samples)


def play_story(seed: int) -> Ending:
    """Play the story of a seed to its end."""

    async def main() -> Ending:
        return await StoryPlay(Story.drawn(seed)).run()

    try:
        return run_virtual(main(), limit_s=LIMIT_S)
    except LocalError as error:  # a deadlock, or no end
        return Ending(Story.drawn(seed), errors=[f"{type(error).__name__}: {error}"])
