"""What a swarm will reach, worked out before it exists, by the planner that the peers themselves will use.

A step is made of

    filling      until the target batch is there, in whole micro-batches (`fill`)
    forming      `FORMING_TRIPS` round trips: the last report, the plan, and the latency of the round itself
    round        `divide` and `predict` for the members that compute; the others are those that a leader would let rest.
                 Where a round takes one contribution, it is that of the member with the slowest line
    update       the slowest peer applies the result

one after the other with the synchronous strategy. With the delayed one the next batch fills meanwhile, and a step takes
whichever is longer: filling, or all the rest.

Rates are what the lines carry as payload, as a speed test shows it, and all of it is free for the run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from minga.averaging.clocking import sample_quota
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.planning.contributor_choice import StepWork, resting, with_one_sender, with_resting
from minga.averaging.solver.division import Binding, Division, SwarmRates, usable
from minga.averaging.solver.flat import Prediction, predict
from minga.averaging.solver.planner import divide
from minga.averaging.strategy_choice import StrategyFacts
from minga.core.errors import ConfigurationError
from minga.network.gossip.gossip import usual_beat_s
from minga.network.gossip.rumours import TELLS_ALL
from minga.planner.device_memory import NO_PASSES, DeviceMemory, device_memory, estimated_passes
from minga.planner.model_facts import ModelFacts
from minga.planner.planned_run import PlannedRun, Volunteers, swarm_rates

# ---- When a step is full, and what each class of peers has by then: the leader's own choice of limits, for known
# speeds.
#
# All begin the step at the same time, and a peer's k-th micro-batch ends k times as long after that. From these paces
# `share_out` of `minga.averaging.clocking.sample_quota` chooses the samples at which each peer stops, as it does for
# leaders in a run; what they stop at together is the batch of the step. The way of a report to the leader is no part
# of it.


@dataclass(frozen=True)
class PeerPace:
    """`count` equal peers that compute `micro_batch` samples in `micro_batch_s` seconds."""

    count: int
    micro_batch: int
    micro_batch_s: float

    @property
    def samples_per_s(self) -> float:
        """Of all of them together."""
        return self.count * self.micro_batch / self.micro_batch_s


@dataclass(frozen=True)
class StepFill:
    """Seconds from the beginning of a step until all have stopped, and the samples that each pace has by then."""

    seconds: float
    samples: tuple[int, ...]


def fill(paces: Sequence[PeerPace], batch: int) -> StepFill:
    """How a step of at least `batch` samples fills up; forever if nobody computes."""
    singles = [
        sample_quota.MemberPace(0, pace.micro_batch, pace.micro_batch_s, pace.micro_batch_s)
        for pace in paces
        for _ in range(pace.count)
    ]
    limits = sample_quota.share_out(batch, singles)
    samples, start = [], 0
    for pace in paces:
        samples.append(sum(limits.samples[start : start + pace.count]))
        start += pace.count
    return StepFill(limits.seconds, tuple(samples))


# ---- What comes of a run.


FORMING_TRIPS: Final = 2.5
DAY_S: Final = 86_400.0

TOLD_BYTES, EXCHANGED_BYTES_PER_S = 190.0, 140.0
PASSED_ON_BYTES, FIRST_COPIES = 350.0, 1.6
"""What gossip takes, fitted to the table of docs/planning.md, of virtual swarms of 2 to 200 peers."""


@dataclass(frozen=True)
class ClassForecast:
    """What each peer of one class will do, on average: bytes for each round, samples for each step of all of them.

    `reduces` is the fraction of the vector of which it is root or relay. `resting` of them compute nothing; `sync_s` is
    the time that one more of them needs for the state.
    """

    reduces: float
    upload_bytes: float
    download_bytes: float
    upload_bytes_per_day: float
    download_bytes_per_day: float
    samples: int
    resting: int
    sync_s: float


@dataclass(frozen=True)
class Forecast:
    """A setting and what comes of it. Times in seconds; `idle` is the share of a step in which nobody computes.

    `utilisation` is the share of all that the machines could compute that goes into steps.
    """

    setting: PlannedRun
    vector_bytes: int
    filling_s: float
    forming_s: float
    round_s: float
    update_s: float
    step_s: float
    batch: int
    utilisation: float
    idle: float
    binding: Binding | None
    classes: tuple[ClassForecast, ...]

    @property
    def steps_per_hour(self) -> float:
        """0 if no step ever ends."""
        return 3600.0 / self.step_s if self.step_s < math.inf else 0.0

    @property
    def communication_s(self) -> float:
        """All of a step that is not computing."""
        return self.forming_s + self.round_s + self.update_s


def encoded_bytes(model: ModelFacts, codec: str, download_codec: str | None = None) -> tuple[int, int]:
    """Bytes of the vector as it travels: on its way up, and of a mean on its way down."""
    layout = VectorLayout(tuple(sorted(model.tensors, reverse=True)), codec, download_codec)
    return layout.upload_bytes(0, layout.total), layout.download_bytes(0, layout.total)


def step_work(facts: StrategyFacts, sizes: tuple[int, int], batch: int) -> StepWork:
    """What a step of a strategy carries: `sizes` as `encoded_bytes` has them, `batch` samples of all peers together."""
    up, down = (math.ceil(size / facts.fragments) for size in sizes)
    unequal = (up, down) if up != down else None
    return StepWork(max(up, down), batch, facts.max_in_flight > 0, unequal, facts.contributors == "best")


def forecast(setting: PlannedRun) -> Forecast:
    """What comes of `setting`; takes a second or two for large swarms.

    Raises `ConfigurationError` if nobody computes, or nobody can reduce.
    """
    given = _checked(setting)
    sizes = encoded_bytes(setting.model, setting.codec, setting.download_codec)
    work = step_work(setting.strategy.facts, sizes, setting.round_batch_size)
    rests = () if work.takes_best else resting(given, work)
    rates = giving(with_resting(given, rests), work)
    division = divide(rates, work.vector_bytes)
    foreseen = foresee(division, rates, work)
    rested = _count_by_class(setting, rests)
    paces = _paces(setting, rested)
    filling = fill(paces, setting.round_batch_size)
    forming_s = FORMING_TRIPS * _round_trip_s(setting)
    update_s = max(each.update_s for each in setting.volunteers)
    communication_s = forming_s + foreseen.seconds + update_s
    computing_s, batch = _computing(setting, paces, filling)
    step_s = max(computing_s, communication_s) if work.overlapped else computing_s + communication_s
    able = sum(peer.samples_per_second for peer in given.peers)
    used = batch / able / step_s if step_s < math.inf else 0.0
    return Forecast(
        setting=setting,
        vector_bytes=int(work.vector_bytes),
        filling_s=computing_s,
        forming_s=forming_s,
        round_s=foreseen.seconds,
        update_s=update_s,
        step_s=step_s,
        batch=batch,
        utilisation=min(1.0, used),
        idle=max(0.0, 1.0 - computing_s / step_s) if step_s < math.inf else 1.0,
        binding=foreseen.binding,
        classes=_classes(setting, division, foreseen, filling, rested, step_s),
    )


def giving(rates: SwarmRates, work: StepWork) -> SwarmRates:
    """The peers as a round of this step has them: those that contribute in it send."""
    return with_one_sender(rates) if work.takes_best else rates


def foresee(division: Division, rates: SwarmRates, work: StepWork) -> Prediction:
    """A round of this step, whose peers are as `giving` returns them."""
    if work.sizes is None:
        return predict(division, rates, work.vector_bytes)
    return _predicted(division, rates, *work.sizes)


def gossip_bytes_per_s(peers: int) -> float:
    """Bytes that a peer sends, and receives, besides rounds, within a tenth of what was measured.

    In a small swarm each owner tells all others of its beats. In a larger one each peer passes on nearly all beats of
    the swarm; the fewer peers there are, the more of them have a beat already.
    """
    if peers < 2:
        return 0.0
    beats_per_s = 1.0 / usual_beat_s(peers)
    if peers <= TELLS_ALL:
        return EXCHANGED_BYTES_PER_S + TOLD_BYTES * (peers - 1) * beats_per_s
    return PASSED_ON_BYTES * (peers - FIRST_COPIES) * beats_per_s


# ---- inner workings


def _checked(setting: PlannedRun) -> SwarmRates:
    rates = swarm_rates(setting.volunteers)
    if not any(each.computes for each in setting.volunteers):
        raise ConfigurationError("--peers: nobody computes gradients; add peers with a device or samples_per_s=")
    if len(rates.peers) > 1 and not any(peer.aggregates for peer in rates.peers):
        raise ConfigurationError("--peers: all are clients, so nobody can reduce; at least one must be reachable")
    return rates


def _predicted(division: Division, rates: SwarmRates, up_bytes: float, down_bytes: float) -> Prediction:
    """A round whose contributions and means differ in size: what each peer carries of both, over its link."""
    no_means = replace(rates, peers=tuple(replace(peer, receives=False) for peer in rates.peers))
    no_gradients = replace(rates, peers=tuple(replace(peer, sends=False) for peer in rates.peers))
    one, other = predict(division, no_means, up_bytes), predict(division, no_gradients, down_bytes)
    sent = np.add(one.upload_bytes, other.upload_bytes)
    received = np.add(one.download_bytes, other.download_bytes)
    links = usable(rates)
    seconds = np.concatenate((sent / links.upload, received / links.download))
    busiest = int(np.argmax(seconds))
    binding: Binding | None = Binding("upload" if busiest < len(sent) else "download", busiest % len(sent))
    longest = float(seconds[busiest])
    slower = max(one, other, key=lambda each: each.busy_s)
    if slower.busy_s > longest:  # a path of its own is what it waits for
        longest, binding = slower.busy_s, slower.binding
    return Prediction(longest, tuple(sent.tolist()), tuple(received.tolist()), binding if longest > 0.0 else None)


def _count_by_class(setting: PlannedRun, rests: Sequence[int]) -> list[int]:
    ends = np.cumsum([each.peers.count for each in setting.volunteers])
    found = np.bincount(np.searchsorted(ends, np.array(rests, dtype=int), side="right"), minlength=len(ends))
    return [int(number) for number in found]


def _paces(setting: PlannedRun, rested: Sequence[int]) -> list[PeerPace]:
    return [
        PeerPace(each.peers.count - resting, each.micro_batch, each.micro_batch / each.samples_per_s)
        if each.computes
        else PeerPace(0, 1, 1.0)
        for each, resting in zip(setting.volunteers, rested, strict=True)
    ]


def _computing(setting: PlannedRun, paces: Sequence[PeerPace], filling: StepFill) -> tuple[float, int]:
    """Seconds of a step's computing and its samples.

    With the delayed strategy members that stop go on into the next step, so all that have part in a step compute all
    the time, and since they get out of step those with the smallest micro-batches make it just full.
    """
    if setting.strategy.facts.max_in_flight == 0 or not filling.seconds < math.inf:
        return filling.seconds, sum(filling.samples)
    heard = [pace for pace, samples in zip(paces, filling.samples, strict=True) if samples]
    least = min(pace.micro_batch for pace in heard)
    batch = least * math.ceil(setting.round_batch_size / least)
    return batch / sum(pace.samples_per_s for pace in heard), batch


def _round_trip_s(setting: PlannedRun) -> float:
    """The longest round trip to a leader, who may be anybody that can be reached."""
    if sum(each.peers.count for each in setting.volunteers) == 1:
        return 0.0
    leaders = [each.peers for each in setting.volunteers if each.peers.role != "client"]
    mean_s = sum(each.count * each.latency_s for each in leaders) / sum(each.count for each in leaders)
    return 2.0 * (mean_s + max(each.peers.latency_s for each in setting.volunteers))


def _classes(
    setting: PlannedRun,
    division: Division,
    foreseen: Prediction,
    filling: StepFill,
    rested: Sequence[int],
    step_s: float,
) -> tuple[ClassForecast, ...]:
    found, start = [], 0
    per_day = DAY_S / step_s if step_s < math.inf else 0.0
    total = len(foreseen.upload_bytes)
    gossip = gossip_bytes_per_s(total) * DAY_S
    donors_per_s = _free_for_newcomers(setting, foreseen, step_s)
    reduces = np.zeros(total)
    for part in division.parts:
        reduces[list({part.root, *part.relays})] += part.share
    for each, samples, rests in zip(setting.volunteers, filling.samples, rested, strict=True):
        stop = start + each.peers.count
        up, down = (float(np.mean(part[start:stop])) for part in (foreseen.upload_bytes, foreseen.download_bytes))
        rate = min(each.peers.download, donors_per_s)
        found.append(
            ClassForecast(
                reduces=float(np.mean(reduces[start:stop])),
                upload_bytes=up,
                download_bytes=down,
                upload_bytes_per_day=up * per_day + gossip,
                download_bytes_per_day=down * per_day + gossip,
                samples=samples,
                resting=rests,
                sync_s=setting.state_bytes / rate if rate > 0.0 else math.inf,
            )
        )
        start = stop
    return tuple(found)


def _free_for_newcomers(setting: PlannedRun, foreseen: Prediction, step_s: float) -> float:
    """Bytes per second that reachable members have left for a newcomer beside the rounds."""
    free, index = 0.0, 0
    for each in setting.volunteers:
        for _ in range(each.peers.count):
            used = foreseen.upload_bytes[index] / step_s if step_s < math.inf else 0.0
            free += max(0.0, each.peers.upload - used) if each.peers.role != "client" else 0.0
            index += 1
    return free


# ---- How much memory a peer needs. Programs and libraries (some 0.5 to 1 GB) come on top, and the data.


def memory_of(forecast: Forecast, place: int) -> DeviceMemory:
    """That of a peer of class number `place`. One that computes nothing has updates, but no passes."""
    setting = forecast.setting
    each: Volunteers = setting.volunteers[place]
    passes = estimated_passes(setting.model, half=each.in_half) if each.computes else NO_PASSES
    found = device_memory(setting.model, setting.optimizer, setting.strategy, passes)
    return replace(
        found,
        base=found.base if each.computes else 0,
        sums=found.sums if each.computes else 0,
        # And of each sender a few chunks on their way, below 1 % of the vector.
        wire=round(forecast.classes[place].reduces * forecast.vector_bytes),
        state_copy=setting.state_bytes,
    )
