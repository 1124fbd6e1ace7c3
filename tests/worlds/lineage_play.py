"""One seeded story of how peers of a simulated run come, load, die and come back, and whose weights it ends with.

Each peer builds a model of its own: one of its parameters, the mark, names the process that made it, and no gradient
moves it. So whoever trains or takes over a state shows where that came from, whatever the code says of it. The first
peer is the organiser. It may be the last that has loaded its model, leave or be killed in any phase, and come back from
its last checkpoint, sooner or later; and so may the others. The clocks of the machines are off by up to a quarter of an
hour, and machines with copies of keys that are in use come through other peers. Links are cut and restored meanwhile,
organisers regroup the run, and some runs end, and are visited afterwards. In some the first that trains is the founder.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import cast

import torch

from minga.core.errors import ConfigurationError, LocalError, RejectedError, UnreachableError
from minga.core.events.bus import Event
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.network.virtual.internet import HostSettings
from minga.optim.sgd import SGD
from minga.simulation import run_virtual
from minga.simulation.swarm.organiser import SwarmOrganiser
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.replica.replica import Replica
from tests.worlds.partition_play import LIMIT_S, MOST_SKEW_S, spec_of
from tests.worlds.swarm_tools import later

AT_ONCE, FOUNDED = "at once", "state.founded"
STEP_MOMENTS = ("step.applied", "round.begun", "round.reduced")
STRATEGIES = ("synchronous", "synchronous", "delayed", "local")
SYNC_MOMENTS = ("state.published", "state.downloaded", "sync.finished")
CHECKPOINT_EVERY = 3
LATEST_END = 31
MICRO_BATCH, MICRO_BATCH_S = 4, (0.2, 0.4)
RATE = 1e6
SLOWEST_LOAD_S = 15.0
LONGEST_AWAY_S = 20.0
ACTS_S = 30.0
"""Seconds in which peers come, go and come back."""
QUIET_S = 30.0
"""Seconds that follow, in which nothing more happens."""
TRY_AGAIN_S = 5.0
"""Seconds after which a program that reached no peer is started again."""
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
class Cut:
    """Nothing passes between the peers of the `side` and the others, from `at_s` seconds after the beginning on for
    `lasts_s` seconds.
    """

    side: tuple[int, ...]
    at_s: float
    lasts_s: float


@dataclass(frozen=True)
class Regrouping:
    """The organisers order `at_s` seconds after the beginning that the run goes on with those that `peer` sees."""

    peer: int
    at_s: float


@dataclass(frozen=True)
class Story:
    """All that a seed decides: when each peer joins, for how long it loads then, by how much its clock is fast, who is
    lost when, who comes with a copy of a key, which links are cut, who is asked when the organisers regroup the run,
    its strategy, whose state is its first one, and its last step, if it has one. Clocks of copies are right.
    """

    seed: int
    joins_s: tuple[float, ...]
    loads_s: tuple[float, ...]
    skews_s: tuple[float, ...]
    losses: tuple[Loss, ...]
    copies: tuple[Copy, ...]
    strategy: str
    cuts: tuple[Cut, ...]
    regroupings: tuple[Regrouping, ...]
    founder: str
    last_step: int | None

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
        strategy = rng.choice(STRATEGIES)
        rng = random.Random(f"minga lineage events {seed}")
        last_step = None
        if rng.random() < 0.3:
            last_step = rng.randrange(CHECKPOINT_EVERY, LATEST_END, CHECKPOINT_EVERY)
            joins += [rng.uniform(0.0, ACTS_S + SLOWEST_LOAD_S)]
            loads += [rng.choice((0.0, rng.uniform(0.0, SLOWEST_LOAD_S)))]
            skews += [0.0]
        peers = len(joins)
        cuts = [_drawn_cut(rng, peers) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
        if cuts:  # two of the organiser that cannot hear of each other may each found the run
            copies = [copy for copy in copies if copy.whose != ORGANISER]
        regroupings = [
            Regrouping(rng.randrange(peers), rng.uniform(2.0, ACTS_S + LONGEST_AWAY_S))
            for _ in range(rng.choice((0, 0, 0, 0, 1, 2)))
        ]
        founder = rng.choice(("organiser", "organiser", "organiser", "first"))
        return cls(
            seed,
            tuple(joins),
            tuple(loads),
            tuple(skews),
            tuple(losses),
            tuple(copies),
            strategy,
            tuple(cuts),
            tuple(regroupings),
            founder,
            last_step,
        )


def _drawn_cut(rng: random.Random, peers: int) -> Cut:
    side = rng.sample(range(peers), rng.randrange(1, peers))
    return Cut(tuple(sorted(side)), rng.uniform(0.0, ACTS_S), rng.uniform(0.5, LONGEST_AWAY_S))


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
    """Peers that trained with weights that do not come from the founder, or from another founding than the first."""
    apart: tuple[str, ...] = ()
    """The groups of peers that trained side by side at the end, if there was more than one; and those that were through
    with the run in different states, though no peer had taken rounds alone in one of their histories only.
    """
    idle: tuple[str, ...] = ()
    """Peers that neither trained at the end nor had the last state although a peer with the founder's weights was
    there, but for stories in which none could go on, as when too many members of a round were lost at once, and one was
    told.
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
        spec = spec_of(2 * MICRO_BATCH * len(story.joins_s), story.strategy, story.founder, story.last_step)
        orders = Identity.from_seed(bytes(32))
        self._swarm = Swarm(
            spec.published({}),
            seed=story.seed,
            make_replica=self._make,
            gradient=_pull,
            checkpoint_every=CHECKPOINT_EVERY,
            organiser=orders,
        )
        self._desk = SwarmOrganiser(self._swarm, orders)
        self._cuts: list[Cut] = []
        """Those of the present."""
        self._waiting = [loss for loss in story.losses if loss.moment != AT_ONCE]
        self._foreign: dict[str, None] = {}
        self._newest: dict[str, int] = {}
        self._last_s: dict[str, float] = {}
        self._told_s = 0.0
        """When a peer was told last that it can take no step."""
        self._rounds: dict[str, list[tuple[float, str]]] = defaultdict(list)
        self._lost_steps = 0
        self._ends: dict[tuple[int, int], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        """Who was through with which state: of one regroup, and after so many rounds that one peer took alone."""

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
        for cut in self._story.cuts:
            later(cut.at_s, lambda cut=cut: self._begin(cut))  # type: ignore[misc]
            later(cut.at_s + cut.lasts_s, lambda cut=cut: self._end(cut))  # type: ignore[misc]
        for regrouping in self._story.regroupings:
            later(regrouping.at_s, lambda peer=regrouping.peer: self._regroup(peer))  # type: ignore[misc]
        for _ in range(round((ACTS_S + SLOWEST_LOAD_S + LONGEST_AWAY_S + QUIET_S) / TRY_AGAIN_S)):
            await asyncio.sleep(TRY_AGAIN_S)
            self._try_again()
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

    def _begin(self, cut: Cut) -> None:
        self._cuts.append(cut)
        self._cut_links()
        self._played["cut"] += 1

    def _end(self, cut: Cut) -> None:
        self._cuts.remove(cut)
        for one, other in self._links(cut):
            self._swarm.internet.restore(one, other)
        self._cut_links()

    def _cut_links(self) -> None:
        for cut in self._cuts:
            for one, other in self._links(cut):
                self._swarm.internet.cut(one, other)

    def _links(self, cut: Cut) -> list[tuple[str, str]]:
        """Those of peers that are away too: a machine's cables outlive its processes."""
        here = [index for index in range(len(self._story.joins_s)) if _name(index) in self._swarm.peers]
        apart = [[_name(index) for index in here if (index in cut.side) is is_there] for is_there in (False, True)]
        return list(itertools.product(apart[0], apart[1]))

    def _regroup(self, index: int) -> None:
        if not self._is_gone(index):
            with contextlib.suppress(ConfigurationError):  # nobody is there that could go on
                self._desk.regroup(_name(index))
                self._played["regroup"] += 1

    def _try_again(self) -> None:
        """Who reached nobody is told so, and starts the program again."""
        for index in range(len(self._story.joins_s)):
            name = _name(index)
            if (
                name in self._swarm.peers
                and self._is_gone(index)
                and isinstance(self._swarm.peers[name].error, UnreachableError)
            ):
                self._come_back(index)

    def _machine(self, skew_s: float) -> tuple[HostSettings, TrainerSettings]:
        host = HostSettings(RATE, RATE, self._rng.uniform(0.02, 0.06), clock_skew_s=skew_s)
        return host, TrainerSettings(MICRO_BATCH, self._rng.uniform(*MICRO_BATCH_S), jitter=0.1)

    def _watch(self, peer: SimulatedPeer) -> None:
        self._cut_links()
        peer.session.events.subscribe(lambda event: self._hear(peer, event))

    def _hear(self, peer: SimulatedPeer, event: Event) -> None:
        if event.kind == "round.reduced":
            self._rounds[peer.name].append((event.time, str(event.fields["round"])))
        if event.kind == "run.finished":
            lineage = peer.replica.lineage
            self._ends[lineage.epoch, lineage.solo][peer.replica.digest()].add(peer.name)
        if event.kind in ("group.minority", "state.awaited"):
            self._told_s = event.time
        if event.kind == "step.applied":
            self._last_s[peer.name] = event.time
            mark = _mark(peer)
            self._mark = mark if self._mark is None else self._mark
            by_organiser = self._story.founder == "first" or mark in self._organisers
            if mark != self._mark or not by_organiser:
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
        done = [peer for peer in living if peer.replica.step == self._story.last_step]
        lately = {name for name, last_s in self._last_s.items() if now - last_s < QUIET_S / 2}
        trained = [peer for peer in living if peer.name in lately and peer not in done]
        ending.foreign = tuple(self._foreign)
        groups = [*self._groups([peer.name for peer in trained], now), *filter(None, [{peer.name for peer in done}])]
        apart = [each for each in (groups, *(list(ends.values()) for ends in self._ends.values())) if len(each) > 1]
        ending.apart = tuple(" ".join(sorted(group)) for each in apart for group in each)
        has_state = any(_mark(peer) == self._mark and peer.replica.step for peer in living)
        is_told = not groups and self._told_s > max((self._last_s.get(peer.name, 0.0) for peer in living), default=0.0)
        self._played["end without a quorum"] += is_told
        self._played["complete"] += bool(done)
        busy = [*trained, *done]
        ending.idle = tuple(peer.name for peer in living if has_state and peer not in busy and not is_told)
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
    for parameter in cast("Replica", peer.replica).vector.parameters():
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
