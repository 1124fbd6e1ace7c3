"""Which peers are alive: an accrual failure detector on the heartbeats of every peer.

Theory of operation. A beat is a record with a higher version than any seen before from its owner, whatever way it came.
From the recent intervals between beats the detector knows what is usual for each owner; suspicion (phi) is -log10 of
the chance that a living owner would be silent for this long. The detector assumes a logistic distribution of the
intervals. Its tail falls off exponentially, as the tail of independently lost beats does; by a normal distribution
three lost beats in a row would be impossible. With mean m, standard deviation s and silence t

    phi(t) = log10(1 + exp(pi (t - m) / (sqrt(3) s)))

and phi = 10, from which a peer counts as dead, is reached at t = m + 12.7 s (Hayashibara et al., "The phi accrual
failure detector", 2004, with their normal distribution replaced).

The detector remembers by how much an interval exceeds the beat period agreed at that time, so a swarm that grows, and
beats more slowly, need not learn again. m is never below the beat period: a burst of quick beats does not make the next
pause look deadly. An interval counts at most as much as the silence after which the owner counted as dead, so that a
stall does not blunt the detector for long.

The last connection to a peer breaking is worth 6 units of phi until its next beat: dead within about 2.5 beats if no
other path brings one. Only time in which this process was awake counts (`AwakeClock`), so a process that was stopped or
starved accuses no peer when it wakes up.
"""

from __future__ import annotations

import functools
import math
from array import array
from collections.abc import Callable

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId

ALIVE_BELOW_PHI = 10.0
"""Suspicion from which a peer counts as dead: a false accusation about once in 10^10 beats of the assumed kind."""

LOST_CONNECTION_PHI = 6.0
"""The suspicion that the loss of the last connection adds to a peer."""

WINDOW_BEATS = 64
"""How many intervals are remembered: long enough for a steady estimate, short enough to follow a changing link."""

MIN_DEVIATION_S = 0.1
MIN_DEVIATION_BEATS = 0.08
"""The standard deviation is not taken below `MIN_DEVIATION_S` plus this share of a beat."""

MAX_AGE_S = 600.0

_SLOPE = math.pi / math.sqrt(3.0)


@loop_bound
class AwakeClock:
    """Seconds in which this process was awake, driven by `tick`, which the loop should call every `period_s`.

    Between two ticks the clock never advances by more than `2 * period_s`, however late the second one comes.
    """

    def __init__(self, clock: Callable[[], float], period_s: float = 0.25) -> None:
        self.period_s = period_s
        self._clock = clock
        self._base_s = 0.0
        self._last_tick = clock()

    def __call__(self) -> float:
        """Awake seconds so far."""
        return self._base_s + min(self._clock() - self._last_tick, 2.0 * self.period_s)

    def tick(self) -> float:
        """Note that the loop runs; returns the seconds that were slept through since the tick before (0 if none)."""
        awake, now = self(), self._clock()
        slept = (now - self._last_tick) - (awake - self._base_s)
        self._base_s, self._last_tick = awake, now
        return slept


class _Beats:
    """The heartbeats of one owner; all times in seconds of the awake clock."""

    __slots__ = (
        "arrived",
        "beat_s",
        "connection_lost",
        "counted",
        "deadline",
        "deviation",
        "excesses",
        "mean",
        "seen",
        "squares",
        "total",
    )

    def __init__(self, now: float, age_s: float, beat_s: float) -> None:
        self.seen = now  # when the newest version came
        self.arrived = self.counted = now - age_s  # when it would have come on a quick path
        self.connection_lost = False
        # Two made-up intervals stand for what is not known yet: some patience, which real ones soon wash out.
        # Plain numbers, since a simulation of a thousand peers has a million of these.
        self.excesses = array("d", (-0.1 * beat_s, 0.6 * beat_s))
        self.total, self.squares = sum(self.excesses), sum(excess * excess for excess in self.excesses)
        self.update(beat_s)

    def count(self, beat_s: float) -> None:
        """Remember by how much the interval that ended just now exceeds the plan; ignore those of a quick series."""
        interval = self.seen - self.counted  # all the silence there was, including how long the beat took to come
        if interval >= 0.5 * beat_s:
            excess = min(interval, self.patience(ALIVE_BELOW_PHI)) - beat_s
            oldest = self.excesses.pop(0) if len(self.excesses) == WINDOW_BEATS else 0.0
            self.excesses.append(excess)
            self.total += excess - oldest
            self.squares += excess * excess - oldest * oldest
            self.counted = self.arrived

    def update(self, beat_s: float) -> None:
        """Compute mean, deviation and deadline again."""
        self.beat_s = beat_s
        mean = self.total / len(self.excesses)
        variance = max(0.0, self.squares / len(self.excesses) - mean * mean)
        self.mean = beat_s + max(mean, 0.0)
        self.deviation = max(math.sqrt(variance), MIN_DEVIATION_S + MIN_DEVIATION_BEATS * beat_s)
        self.set_deadline()

    def set_deadline(self) -> None:
        """When suspicion will reach the threshold."""
        phi = ALIVE_BELOW_PHI - (LOST_CONNECTION_PHI if self.connection_lost else 0.0)
        self.deadline = self.arrived + self.patience(phi)

    def patience(self, phi: float) -> float:
        """Seconds of silence that make this much suspicion: the inverse of the formula above."""
        return self.mean + self.deviation * _deviations(phi)


@functools.cache
def _deviations(phi: float) -> float:
    """How many deviations beyond the mean a silence has to be for this much suspicion."""
    return math.log(10.0**phi - 1.0) / _SLOPE


@loop_bound
class FailureDetector:
    """Suspicion about every peer that was ever heard of and not forgotten.

    `beat_s` is the longest interval, in seconds, that peers at present leave between two beats on purpose; it may be
    changed at any time. `now` is always the time of one `AwakeClock`.
    """

    def __init__(self, beat_s: float = 0.5) -> None:
        self._beat_s = beat_s
        self._beats: dict[PeerId, _Beats] = {}
        self._has_grown = False  # the interval did, and not all that is known of peers has been brought up to it
        self._look_at = -math.inf  # before then no peer that counts as alive now can count as dead

    @property
    def beat_s(self) -> float:
        """The longest pause, in seconds, that peers make on purpose."""
        return self._beat_s

    @beat_s.setter
    def beat_s(self, beat_s: float) -> None:
        # More patience is due at once, less only from each peer's next beat on. While a swarm forms the interval grows
        # all the time: so each peer gets its patience when it is looked at.
        if beat_s > self._beat_s:
            self._has_grown = True
        elif beat_s < self._beat_s and self._has_grown:
            self._has_grown = False
            for beats in self._beats.values():
                self._bring_up(beats)
        self._beat_s = beat_s

    def _bring_up(self, beats: _Beats) -> None:
        if beats.beat_s < self._beat_s:
            beats.update(self._beat_s)

    def _known(self, peer: PeerId) -> _Beats | None:
        beats = self._beats.get(peer)
        if beats is not None and beats.beat_s < self._beat_s:
            beats.update(self._beat_s)
        return beats

    def heard(self, peer: PeerId, now: float, age_s: float = 0.0) -> None:
        """A new version of `peer` came, which was already `age_s` old where it came from."""
        age_s = min(max(age_s, 0.0), MAX_AGE_S)
        beats = self._known(peer)
        if beats is None:
            beats = self._beats[peer] = _Beats(now, age_s, self._beat_s)
            self._look_at = min(self._look_at, beats.deadline)
            return
        beats.seen = now
        if now - age_s > beats.arrived:
            beats.arrived = now - age_s
            beats.connection_lost = False
            beats.count(self._beat_s)
            beats.update(self._beat_s)
            self._look_at = min(self._look_at, beats.deadline)

    def heard_again(self, peer: PeerId, now: float, age_s: float) -> None:
        """The newest version came once more, with an age of its own.

        The younger claim counts, but none can make a version younger than its first arrival here: so a single
        neighbour can neither make a living peer look dead nor a dead one look alive.
        """
        beats = self._known(peer)
        if beats is not None and now - age_s > beats.arrived and beats.seen > beats.arrived:
            beats.arrived = min(now - max(age_s, 0.0), beats.seen)
            beats.set_deadline()

    def connection_lost(self, peer: PeerId) -> None:
        """The last connection to `peer` is gone."""
        beats = self._known(peer)
        if beats is not None:
            beats.connection_lost = True
            beats.set_deadline()
            self._look_at = min(self._look_at, beats.deadline)

    def forget(self, peer: PeerId) -> None:
        """Drop all that is known about `peer`."""
        self._beats.pop(peer, None)

    def may_have_died(self, now: float) -> bool:
        """Whether it is worth asking `is_alive` of those that were alive when this was asked last."""
        if now < self._look_at:
            return False
        for beats in self._beats.values():
            self._bring_up(beats)
        later = [beats.deadline for beats in self._beats.values() if beats.deadline > now]
        self._look_at = min(later, default=-math.inf)
        return True

    def is_alive(self, peer: PeerId, now: float) -> bool:
        """Whether suspicion about `peer` is below `ALIVE_BELOW_PHI`; unknown peers are not alive."""
        beats = self._known(peer)
        return beats is not None and now < beats.deadline

    def silence_s(self, peer: PeerId, now: float) -> float:
        """Seconds since the newest beat of `peer`; infinite for unknown ones."""
        beats = self._beats.get(peer)
        return math.inf if beats is None else now - beats.arrived

    def patience_s(self, peer: PeerId) -> float:
        """Seconds of silence after which `peer` will count as dead, as things are now; 0 for unknown ones."""
        beats = self._known(peer)
        return 0.0 if beats is None else beats.deadline - beats.arrived
