"""One seeded partition of a simulated swarm: what is drawn, how it is played, and what it came to."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from minga.core.errors import LocalError
from minga.core.events.bus import Event
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from tests.worlds.swarm_tools import later

SHAPES = ("halves", "thirds", "one-way", "link by link")
MOMENTS = ("step.applied", "round.begun", "round.reduced")
CUT_S = 10.0
"""How long the swarm is divided: longer than any silence after which a peer is given up."""
HEALED_S = 15.0
"""How long it is watched afterwards."""
STAGGER_S = 1.0
MOST_SKEW_S = 900.0
WENT_ON_S = 4.0
LIMIT_S = 300.0
MICRO_BATCH, MICRO_BATCH_S = 4, (0.3, 0.4)
RATE = 1e6
BEFORE = 3
"""Steps that are taken before anything happens."""


@dataclass(frozen=True)
class Partition:
    """All that a seed decides: `sides` are indices of peers, `cut_at_s` seconds after the moment for each link."""

    seed: int
    shape: str
    peers: int
    sides: tuple[tuple[int, ...], ...]
    cut_at_s: tuple[tuple[int, int, float], ...]
    moment: str
    killed: tuple[int, float] | None
    newcomer_s: float | None
    skews_s: tuple[float, ...]
    """By how much the clock of each peer is fast."""
    copied: tuple[int, float, tuple[int, ...]] | None
    """Whose key another machine has, when that one comes, and by which peers it enters."""

    @classmethod
    def drawn(cls, seed: int, peers: int | None = None) -> Partition:
        """The partition of a seed, of so many peers or of a drawn number."""
        rng = random.Random(f"minga partition {seed}")
        shape = SHAPES[seed % len(SHAPES)]
        peers = peers or (rng.choice((6, 9)) if shape == "thirds" else rng.choice((4, 4, 5, 6, 8)))
        order = rng.sample(range(peers), peers)
        count = 3 if shape == "thirds" else 2
        sides = tuple(tuple(sorted(order[k::count])) for k in range(count))
        pairs = [(a, b) for one, other in itertools.combinations(sides, 2) for a in one for b in other]
        stagger_s = STAGGER_S if shape == "link by link" else 0.0
        first_s = rng.choice((0.0, 0.0, rng.uniform(0.0, 0.6)))  # at once: a plan is on its way then
        cuts = tuple((a, b, first_s + rng.uniform(0.0, stagger_s)) for a, b in pairs)
        killed = (rng.randrange(peers), rng.uniform(0.0, 3.0)) if rng.random() < 0.25 else None
        newcomer_s = rng.uniform(0.0, 3.0) if rng.random() < 0.25 else None
        moment = rng.choice(MOMENTS)
        rng = random.Random(f"minga partition machines {seed}")
        skews_s = tuple(rng.uniform(-MOST_SKEW_S, MOST_SKEW_S) for _ in range(peers))
        copied = None
        if rng.random() < 0.25:
            whose, *others = rng.sample(range(peers), peers)
            copied = (whose, rng.uniform(-1.0, CUT_S + 3.0), tuple(others[: rng.choice((1, 2))]))
        return cls(seed, shape, peers, sides, cuts, moment, killed, newcomer_s, skews_s, copied)


@dataclass
class Verdict:
    """What one partition came to; `forked_at` is the first step of which there were two states, or None."""

    partition: Partition
    forked_at: int | None = None
    steps_apart: int = 0
    """Steps of which there were two states."""
    excepted: bool = False
    """Whether the last common round had at most two members, which `guarantees.md` names as an exception."""
    stall_s: float | None = None
    """By how much longer than usual the side that went on took for a step once it was healed; None if none went on."""
    stood_still: tuple[str, ...] = ()
    """Living peers that applied no step in the last third of the time after healing."""
    errors: list[str] = field(default_factory=list)


class Play:
    """One partition on a running virtual loop."""

    def __init__(self, partition: Partition) -> None:
        self._partition, rng = partition, random.Random(partition.seed)
        spec = spec_of(2 * MICRO_BATCH * partition.peers)
        self._swarm = Swarm(spec.published({}), seed=partition.seed)
        self._rng = rng
        self._states: dict[int, set[str]] = defaultdict(set)
        self._applied: list[tuple[float, str]] = []
        self._sizes: dict[int, int] = {}
        self._begun = asyncio.Event()
        self._names = [self._add(skew_s) for skew_s in partition.skews_s]

    async def run(self) -> Verdict:
        """Play it, and judge."""
        verdict = Verdict(self._partition)
        try:
            async with asyncio.timeout(60.0):
                await self._begun.wait()
            await asyncio.sleep(CUT_S)
            for a, b, _ in self._partition.cut_at_s:
                self._swarm.internet.restore(self._names[a], self._names[b])
            healed_s = asyncio.get_running_loop().time()
            await asyncio.sleep(HEALED_S)
            self._judge(verdict, healed_s)
        except TimeoutError:
            verdict.errors.append("the swarm never came to the moment")
        finally:
            await self._swarm.close()
        return verdict

    def _add(self, skew_s: float = 0.0, *, key_of: str | None = None, through: Sequence[int] = ()) -> str:
        host = HostSettings(RATE, RATE, self._rng.uniform(0.02, 0.06), clock_skew_s=skew_s)
        trainer = TrainerSettings(MICRO_BATCH, self._rng.uniform(*MICRO_BATCH_S), jitter=0.1)
        through_peers = [self._swarm.peers[self._names[index]] for index in through]
        entries = [peer.network.address for peer in through_peers if not peer.is_gone] or None
        peer = self._swarm.add(host, trainer, key_of=key_of, entries=entries)
        peer.session.events.subscribe(lambda event: self._hear(peer, event))
        return peer.name

    def _hear(self, peer: SimulatedPeer, event: Event) -> None:
        if event.kind == "round.begun":
            step = int(str(event.fields["step"]))
            self._sizes[step] = max(self._sizes.get(step, 0), int(str(event.fields["members"])))
        if event.kind == "step.applied":
            self._states[peer.replica.step].add(peer.replica.digest())
            self._applied.append((event.time, peer.name))
        due = event.kind == self._partition.moment and int(str(event.fields["step"])) >= BEFORE
        if due and not self._begun.is_set():
            self._begun.set()
            self._plan_mishaps()

    def _plan_mishaps(self) -> None:
        partition, net = self._partition, self._swarm.internet
        one_way = partition.shape == "one-way"
        for a, b, at_s in partition.cut_at_s:
            one, other = self._names[a], self._names[b]
            later(at_s, lambda one=one, other=other: net.cut(one, other, one_way=one_way))  # type: ignore[misc]
        if partition.killed is not None:
            name, at_s = self._names[partition.killed[0]], partition.killed[1]
            later(at_s, lambda: net.kill(name))
        if partition.newcomer_s is not None:
            later(partition.newcomer_s, self._add)
        if partition.copied is not None:
            whose, at_s, through = partition.copied
            later(max(0.0, at_s), lambda: self._add(key_of=self._names[whose], through=through))

    def _judge(self, verdict: Verdict, healed_s: float) -> None:
        apart = sorted(step for step, states in self._states.items() if len(states) > 1)
        if apart:
            verdict.forked_at, verdict.steps_apart = apart[0], len(apart)
            verdict.excepted = self._sizes.get(apart[0] - 2, 0) <= 2  # the round of step s - 1 made state s
        verdict.stall_s = stall_s(self._applied, healed_s, healed_s + HEALED_S)
        moved = {name for time, name in self._applied if time >= healed_s + HEALED_S * 2 / 3}
        verdict.stood_still = tuple(sorted(peer.name for peer in self._swarm.alive() if peer.name not in moved))
        verdict.errors += [f"{peer.name}: {peer.error!r}" for peer in self._swarm.alive() if peer.error]


def spec_of(
    batch: int, strategy: str = "synchronous", founder: str = "organiser", last_step: int | None = None
) -> RunSpec:
    """The run of a partition, with so many samples a step."""
    training: dict[str, object] = {"target_batch_size": batch, "strategy": strategy}
    if last_step is not None:
        training["stop_after_steps"] = last_step
    return RunSpec.from_mapping(
        {
            "name": "partitions",
            "training": training,
            "averaging": {"codec": "float32"},
            "state": {"founder": founder},
        }
    )


def stall_s(applied: Sequence[tuple[float, str]], healed_s: float, end_s: float) -> float | None:
    """Longest step of the peers that took steps in the last `WENT_ON_S` before healing, less what was usual then; None
    where they took too few to tell.
    """
    went_on = {name for time, name in applied if healed_s - WENT_ON_S <= time < healed_s}
    times = sorted(time for time, name in applied if name in went_on)
    before = [b - a for a, b in itertools.pairwise(t for t in times if healed_s - 2 * WENT_ON_S <= t < healed_s)]
    steps = [gap for gap in before if gap > max(before) / 2]  # the other gaps are between members of one step
    if not steps:
        return None
    last = max(time for time in times if time < healed_s)
    after = [last, *(time for time in times if time >= healed_s), end_s]
    return max(b - a for a, b in itertools.pairwise(after)) - statistics.median(steps)


def play(seed: int) -> Verdict:
    """Play the partition of a seed to its end."""

    async def main() -> Verdict:
        return await Play(Partition.drawn(seed)).run()

    try:
        return run_virtual(main(), limit_s=LIMIT_S)
    except LocalError as error:  # a deadlock, or no end
        return Verdict(Partition.drawn(seed), errors=[f"{type(error).__name__}: {error}"])
