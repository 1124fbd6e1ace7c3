"""The state of a run on the board, as plain values for displays."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median_low
from typing import Any, Final

from minga.access.standing_orders import spec_due
from minga.averaging.apportionment import NoAggregatorError
from minga.averaging.links import Links
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import Division, SwarmRates
from minga.averaging.solver.planner import divide
from minga.averaging.strategy_choice import facts_of, round_batch_range
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.agreement.comparison import is_same
from minga.training.record_kinds import IN_STEP, Metrics, Progress, SplitServing, StateInfo, is_another_process
from minga.training.status.last_problem import Trouble

# ---- The rates of a living run, from its board, as the planner wants them.


@dataclass(frozen=True)
class LiveRates:
    """The peers that take part in rounds, and their rates in the same order.

    `vector_bytes` is the size of the encoded vector that peers report, 0 if none does.
    """

    peers: tuple[PeerId, ...]
    rates: SwarmRates
    vector_bytes: int


def live_rates(board: Board) -> LiveRates:
    """The rates on the board at this moment; no peers if none is in sync yet. On the event loop's thread only."""
    links = {item.owner: item.payload for item in board.items(Links)}
    order: list[PeerId] = []
    claims: list[RateClaim] = []
    sizes: list[int] = []
    for peer, progress, _ in sorted(board.items(Progress), key=lambda item: item.owner):
        info = board.get(peer, AddressInfo)
        if progress.is_in_step and info is not None and info.role != "monitor":
            order.append(peer)
            claims.append(_claim(info, progress, links.get(peer, Links())))
            sizes.append(progress.vector_bytes)
    return LiveRates(tuple(order), swarm_rates(order, claims, links), _agreed(sizes))


def _agreed(sizes: Iterable[int]) -> int:
    """The median, which a minority of the reporting peers cannot shift: all honest peers report the same size."""
    told = [size for size in sizes if size]
    return median_low(told) if told else 0


def _claim(info: AddressInfo, progress: Progress, links: Links) -> RateClaim:
    auxiliary = info.role == "auxiliary"
    return RateClaim(
        upload=links.upload or None,
        download=links.download or None,
        samples_per_second=0.0 if auxiliary else progress.samples_per_second,
        sends=not auxiliary,
        aggregates=not progress.client,
        upload_shown=links.upload_shown,
        download_shown=links.download_shown,
    )


# ---- The swarm's training loss and count of samples, from the totals that peers publish about themselves.
#
# Each peer's record holds totals since it joined; the difference between two of its records is what happened in
# between. A peer's mean loss over that time is weighted by its samples, as its gradients were.


MAX_REMEMBERED = 4096
"""How many peers' totals are kept; those of more, if they are gone, melt into one number."""

MEMORY = 0.8
"""Weight of what came before when a new step is added to the smoothed loss; its power when several are."""


@dataclass(frozen=True)
class LossSample:
    """The loss since the sample before: its mean over `samples` samples, up to global step `step`."""

    step: int
    loss: float
    samples: int


class SampleCount:
    """The samples of all steps so far. Each step counts once, with the target batch size at which it was seen: so the
    count does not depend on who watches, and on how often that process began anew.

    A watcher that begins in the middle learns by `know` how many there were before. Until then the count is an
    estimate: the totals of the peers that are here, as far as so many steps can have so many samples.
    """

    def __init__(self) -> None:
        self.total = 0
        self.step: int | None = None
        """The last step that is counted; None while the count is an estimate."""

    def know(self, step: int, total: int) -> None:
        """All steps up to `step` had `total` samples. Does nothing if that is known of a later step."""
        if self.step is None or step > self.step:
            self.step, self.total = step, total

    def take(self, step: int, batch: int, *, bounds: tuple[int, int], seen: int) -> None:
        """The run is at `step`; its steps have `batch` samples now, and each within `bounds`. Peers tell of `seen`."""
        if self.step is None:
            least, most = bounds
            self.total = min(max(seen, step * least), step * most)
        elif step > self.step:
            self.total += (step - self.step) * batch
            self.step = step


class LossMeter:
    """Turns successive totals into losses.

    With `from_start` the first totals of a peer count, as is right for who saw the peer begin; otherwise they are only
    what later ones are compared with.
    """

    def __init__(self, *, from_start: bool = False) -> None:
        self.smoothed: float | None = None
        """The loss, smoothed over the last few samples."""
        self._from_start = from_start
        self._last: dict[PeerId, Metrics] = {}
        self._gone_samples = 0
        self._step = 0

    @property
    def total_samples(self) -> int:
        """Samples of all peers that were ever seen, gone ones included, since each joined."""
        return self._gone_samples + sum(metrics.samples for metrics in self._last.values())

    def update(self, records: Mapping[PeerId, Metrics]) -> LossSample | None:
        """Take in the present totals; None if no micro-batch with a loss was added."""
        weighted, samples, step = 0.0, 0, 0
        for peer, now in records.items():
            before = self._last.get(peer, Metrics(0, 0.0, 0, 0) if self._from_start else now)
            has_less = now.samples < before.samples or now.mini_steps < before.mini_steps
            if has_less or is_another_process(now.since, before.since):
                self._gone_samples += before.samples  # the peer started again
                before = Metrics(0, 0.0, 0, 0)
            self._last[peer] = now
            batches, added = now.mini_steps - before.mini_steps, now.samples - before.samples
            if batches > 0 and added > 0:
                weighted += (now.loss_sum - before.loss_sum) / batches * added
                samples += added
                step = max(step, now.step)
        self._forget_some(set(records))
        if not samples:
            return None
        loss = weighted / samples
        kept = MEMORY ** max(1, step - self._step)  # the same, however rarely one looks
        self._step = step
        self.smoothed = loss if self.smoothed is None else kept * self.smoothed + (1.0 - kept) * loss
        return LossSample(step, loss, samples)

    def _forget_some(self, present: set[PeerId]) -> None:
        if len(self._last) > MAX_REMEMBERED:
            for peer in set(self._last) - present:
                self._gone_samples += self._last.pop(peer).samples


# ---- The plan of a living run in short: which peer reduces how much, and which link rounds wait for.


PERIOD_S = 5.0


@dataclass(frozen=True)
class PlanStatus:
    """The plan that the next leader would make from the board. `reduces` are fractions of the vector, by peer id.

    `binding` names the link that rounds wait for ("upload", "download" or "path", the peer, the other end of a path);
    `round_s` is how long rounds take by that. Both are None while no rate is known. The encoded vector has
    `vector_bytes`.
    """

    reduces: dict[str, float]
    two_level: bool
    binding: tuple[str, str, str | None] | None
    round_s: float | None
    vector_bytes: int = 0


class PlanWatch:
    """Plans again every few seconds; plans may take a while, so never call it on an event loop's thread."""

    def __init__(self) -> None:
        self._status: PlanStatus | None = None
        self._made_s: float | None = None

    def at(self, now_s: float, live: LiveRates) -> PlanStatus | None:
        """The plan at this moment, at most `PERIOD_S` old; None if fewer than two peers take part, or none of them says
        how large the vector is.
        """
        if self._made_s is None or not 0.0 <= now_s - self._made_s < PERIOD_S:
            self._status, self._made_s = _status(live), now_s
        return self._status


def _status(live: LiveRates) -> PlanStatus | None:
    if len(live.peers) < 2 or not live.vector_bytes:
        return None
    try:
        division = divide(live.rates, live.vector_bytes)
    except NoAggregatorError:
        return None
    reduces = dict.fromkeys(live.peers, 0.0)
    for part in division.parts:
        reduces[live.peers[part.root]] += part.share
    seconds = division.predicted_s
    return PlanStatus(
        reduces={str(peer): round(share, 6) for peer, share in reduces.items()},
        two_level=bool(division.sites),
        binding=_binding(division, live),
        round_s=round(seconds, 4) if seconds is not None and math.isfinite(seconds) else None,
        vector_bytes=live.vector_bytes,
    )


def _binding(division: Division, live: LiveRates) -> tuple[str, str, str | None] | None:
    if division.binding is None:
        return None
    other = None if division.binding.other is None else live.peers[division.binding.other]
    return division.binding.kind, live.peers[division.binding.peer], other


# ---- A model that is cut, as the board tells of it: who serves, how many clients train, and how fast.


WINDOW_S: Final = 30.0
MOST_MARKS: Final = 64


@dataclass(frozen=True)
class SplitRunStatus:
    """`servers` have the server's part, and `clients` train with it; of the server that is furthest: its `steps`, the
    `samples` of all clients so far, batches that wait, and its speed, None until two of its records were seen.
    """

    servers: tuple[PeerId, ...]
    clients: tuple[PeerId, ...]
    steps: int
    samples: int
    waiting: int
    batches_per_second: float | None = None
    samples_per_second: float | None = None


@dataclass(frozen=True)
class _SplitMark:
    """A record of a server, and when it was published, in seconds of whoever looks."""

    time_s: float
    steps: int
    samples: int


class SplitMeter:
    """Look again and again: speeds are those between the records of the last half minute."""

    def __init__(self) -> None:
        self._server: PeerId | None = None
        self._marks: deque[_SplitMark] = deque(maxlen=MOST_MARKS)

    def look(self, board: Board, now_s: float) -> SplitRunStatus:
        """The present status; where nobody serves, without servers and at the last step that was seen."""
        records = {item.owner: item for item in board.items(SplitServing)}
        if not records:
            clients = tuple(sorted(item.owner for item in board.items(Metrics)))
            last = self._marks[-1] if self._marks else _SplitMark(now_s, 0, 0)
            return SplitRunStatus((), clients, last.steps, last.samples, 0)
        first = max(records, key=lambda peer: (records[peer].payload.step, peer))
        item = records[first]
        serving = item.payload
        if first != self._server or (self._marks and serving.step < self._marks[-1].steps):
            self._server = first
            self._marks.clear()
        mark = _SplitMark(now_s - item.age_s, serving.step, serving.samples)
        if not self._marks or mark.steps != self._marks[-1].steps:
            self._marks.append(mark)
        while len(self._marks) > 2 and mark.time_s - self._marks[0].time_s > WINDOW_S:
            self._marks.popleft()
        batches, samples = self._speeds(now_s)
        clients = tuple(sorted(item.owner for item in board.items(Metrics) if item.owner not in records))
        return SplitRunStatus(
            tuple(sorted(records)),
            clients,
            serving.step,
            serving.samples,
            serving.waiting,
            batches,
            samples,
        )

    def _speeds(self, now_s: float) -> tuple[float | None, float | None]:
        first, last = self._marks[0], self._marks[-1]
        if now_s - last.time_s > WINDOW_S:
            return 0.0, 0.0
        seconds = last.time_s - first.time_s
        if seconds <= 0.0:
            return None, None
        return (last.steps - first.steps) / seconds, (last.samples - first.samples) / seconds


# ---- The status of the run and of each peer.


@dataclass(frozen=True)
class PeerStatus:
    """One living peer. `path` and `round_trip_s` are those of the link from here, None without one.

    `samples` are towards the next step, `samples_per_second` while it computes, `total_samples`, `bytes_sent` and
    `bytes_received` since it joined, None while its record of them is not here; `age_s` is how long ago its last news
    came. `status` is None for peers that take no part in steps, such as monitors. `part` is "server" or "client" where
    the model is cut. `since` stands for the process that the totals are of, 0 if unknown.
    """

    peer_id: str
    role: str
    status: str | None
    step: int
    samples: int
    samples_per_second: float
    total_samples: int | None
    bytes_sent: int | None
    bytes_received: int | None
    path: str | None
    round_trip_s: float | None
    age_s: float
    is_self: bool
    part: str | None = None
    since: float = 0.0

    @property
    def is_in_step(self) -> bool:
        """Whether it takes part in a step just now."""
        return self.status in IN_STEP

    @property
    def doing(self) -> str | None:
        """The `status` in a word for displays: an auxiliary takes part in steps, but computes nothing for them."""
        return "helping" if self.role == "auxiliary" and self.status == "training" else self.status


@dataclass(frozen=True)
class AmendmentStatus:
    """An order of the organisers that changes settings, such as "optimizer.learning_rate = 0.001", in rounds of
    `from_step` and later ones. `due`: that step is reached, and no later number overrules it; `overruled`: it is
    reached, and one does.
    """

    number: int
    from_step: int
    changes: str
    due: bool
    overruled: bool = False


@dataclass(frozen=True)
class RunStatus:
    """A run as one peer sees it. `loss` is None until two reports of one trainer were compared.

    `members` take part in rounds (trainers, clients and auxiliaries that are in sync); `averages` says whether at least
    two of them do, the sign of a healthy run. `digests_agree` is None until two peers published a digest of the same
    step. `trouble` is the last problem of the peer that looks. `plan` is None while fewer than two take part.
    `resting`: the peer that looks is on standby. `mode` names the run spec's settings admission and verification
    in a word: open, members, byzantine or members+byzantine. In the last two all members compute and reduce the same,
    so there is no plan and no count of samples towards a step.
    `total_samples` are those of all steps so far, see `SampleCount`.
    `last_step` and the target batch size are as amended; `amendments` are those that this peer knows, by number.
    `founders` says how many are ready and wanted while the run waits for its founders. `split` is there if the
    model is cut, also while nobody serves it; then steps are batches that the server applied, and `members` are servers
    and clients. `phase` says which strategy is at work and which comes next, where a run has several.
    """

    name: str
    run_id: str
    step: int
    last_step: int | None
    loss: float | None
    samples_per_second: float
    samples: int
    target_batch_size: int
    total_samples: int
    members: int
    averages: bool
    digests_agree: bool | None
    peers: tuple[PeerStatus, ...]
    mode: str = "open"
    founders: tuple[int, int] | None = None
    trouble: Trouble | None = None
    plan: PlanStatus | None = None
    resting: bool = False
    amendments: tuple[AmendmentStatus, ...] = ()
    paused: bool = False
    split: SplitRunStatus | None = None
    phase: str = ""

    @property
    def is_verified(self) -> bool:
        """Whether the members verify each other's work."""
        return self.mode.endswith("byzantine")

    @property
    def is_complete(self) -> bool:
        """Whether the run has taken its last step."""
        return self.last_step is not None and self.step >= self.last_step

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values, digits of floats cut to what is meant."""
        values = asdict(self)
        values["loss"] = None if self.loss is None else round(self.loss, 4)
        values["samples_per_second"] = round(self.samples_per_second, 2)
        for peer, known in zip(values["peers"], self.peers, strict=True):
            peer["status"] = known.doing
            peer["samples_per_second"] = round(peer["samples_per_second"], 2)
            peer["age_s"] = round(peer["age_s"], 2)
        if self.trouble is not None:
            values["trouble"]["age_s"] = round(self.trouble.age_s, 2)
        if self.split is not None:
            for speed in ("batches_per_second", "samples_per_second"):
                value = getattr(self.split, speed)
                values["split"][speed] = None if value is None else round(value, 2)
        return values


def read_status(board: Board, node: Node, spec: RunSpec, losses: LossMeter) -> RunStatus:
    """The state of the run at this moment. On the event loop's thread only."""
    ages = _ages(board)
    peers = tuple(_peer_status(board, node, peer, ages.get(peer, 0.0)) for peer in board.owners())
    active = [peer for peer in peers if peer.status not in (None, "syncing")]
    step = _present_step(board)
    return RunStatus(
        name=spec.name,
        run_id=node.run_id,
        step=step,
        last_step=spec.training.stop_after_steps,
        loss=losses.smoothed,
        samples_per_second=sum(peer.samples_per_second for peer in active),
        samples=sum(peer.samples for peer in active if peer.step == step),
        target_batch_size=target_batch_size(board, spec),
        total_samples=losses.total_samples,
        members=len(active),
        averages=len(active) >= 2,
        digests_agree=_agreement(board),
        peers=peers,
        mode=spec.security.mode,
        phase=spec.training.phase_at(step),
    )


def with_split(status: RunStatus, split: SplitRunStatus | None) -> RunStatus:
    """The status of a run whose model is cut; None is one whose model is whole."""
    if split is None:
        return status
    parts: dict[str, str] = {
        **dict.fromkeys(split.clients, "client"),
        **dict.fromkeys(split.servers, "server"),
    }
    return replace(
        status,
        step=split.steps,
        samples_per_second=split.samples_per_second or 0.0,
        members=len(parts),
        averages=bool(split.clients and split.servers),
        peers=tuple(replace(each, part=parts.get(each.peer_id)) for each in status.peers),
        split=split,
    )


def step_of_half(steps: Sequence[int]) -> int:
    """The step that half of the peers have reached, 0 if there are none.

    Members are at most a step apart; one among three that claims another step is not believed.
    """
    return sorted(steps)[len(steps) // 2] if steps else 0


def newest_step(steps: Sequence[int]) -> int:
    """The newest of these steps that is at most one past that of half of the peers: one of them may know a result that
    the others have not heard of.
    """
    half = step_of_half(steps)
    return max((step for step in steps if step <= half + 1), default=0)


def target_batch_size(board: Board, spec: RunSpec) -> int:
    """The value of most peers at the present step, within the bounds of the run spec."""
    known, step = [item.payload for item in board.items(Progress)], _present_step(board)
    least, most = round_batch_range(spec.at(step))
    told = [progress.target_batch_size for progress in known if progress.step == step]
    return int(statistics.mode([batch for batch in told if least <= batch <= most] or [least]))


def live_work(board: Board, spec: RunSpec, ledger: AccessLedger | None) -> tuple[LiveRates, StepWork]:
    """The rates on the board, and what a step of the run carries, as the orders in `ledger` amend it: what a plan is
    made of. On the event loop only.
    """
    present, live = present_spec(board, spec, ledger), live_rates(board)
    facts = facts_of(present.at(_present_step(board)))
    overlapped, takes_best = facts.max_in_flight > 0, facts.contributors == "best"
    batch = target_batch_size(board, present)
    return live, StepWork(live.vector_bytes, batch, overlapped, takes_best=takes_best)


def present_spec(board: Board, spec: RunSpec, ledger: AccessLedger | None) -> RunSpec:
    """The run spec as the orders in `ledger` amend it at the step where the run is. On the event loop only."""
    return spec_due(spec, ledger, _present_step(board))


def _present_step(board: Board) -> int:
    known = [item.payload for item in board.items(Progress)]
    settled = [progress for progress in known if progress.is_settled]
    return step_of_half([progress.step for progress in settled or known])


def _ages(board: Board) -> dict[PeerId, float]:
    """How long ago the last news of each peer came, in seconds."""
    ages: dict[PeerId, float] = {}
    for kind in (Progress, AddressInfo):
        for item in board.items(kind):
            ages[item.owner] = min(item.age_s, ages.get(item.owner, item.age_s))
    return ages


def _peer_status(board: Board, node: Node, peer: PeerId, age_s: float) -> PeerStatus:
    info, progress = board.get(peer, AddressInfo), board.get(peer, Progress)
    metrics, facts = board.get(peer, Metrics), node.facts(peer)
    own = node.traffic() if peer == node.peer_id else None
    told = info.role if info else "unknown"  # in runs for members, who only watches publishes no address
    sent, received = own or ((metrics.bytes_sent, metrics.bytes_received) if metrics else (None, None))
    return PeerStatus(
        peer_id=peer,
        role=told if own is None else node.role,
        status=progress.status if progress else None,
        step=progress.step if progress else 0,
        samples=progress.samples if progress else 0,
        samples_per_second=progress.samples_per_second if progress else 0.0,
        total_samples=metrics.samples if metrics else None,
        bytes_sent=sent,
        bytes_received=received,
        path=facts.path if facts else None,
        round_trip_s=facts.round_trip_s if facts else None,
        age_s=age_s,
        is_self=peer == node.peer_id,
        since=metrics.since if metrics else 0.0,
    )


def _agreement(board: Board) -> bool | None:
    by_step: dict[int, list[StateInfo]] = {}
    for item in board.items(StateInfo):
        by_step.setdefault(item.payload.step, []).append(item.payload)
    compared = [states for states in by_step.values() if len(states) >= 2]
    return all(is_same(states[0], state) for states in compared for state in states) if compared else None
