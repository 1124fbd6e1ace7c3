"""The course of a run: a fold over the entries of its histories, those of earlier processes and those of now."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from statistics import median
from typing import Any, Final

from minga.dashboard.model.series import Journal, Series, SpeedByPeer, numbers
from minga.monitor.history import Entry, number_in, samples_of

MARK_EVENTS: Final = ("joined", "left", "lost", "banned", "amended", "paused", "resumed", "regrouped")
SECURITY_EVENTS: Final = ("suspected", "accused", "banned", "admitted")
ROUND_TIMES: Final = ("compute_s", "wait_s", "communicate_s", "apply_s")
SWARM: Final = ("alive", "training", "syncing", "relayed", "samples_per_second", "sent", "received")
MOST_MARKS, MOST_ROUNDS, MOST_OTHERS = 400, 60, 200
PACE_STEPS: Final = 40
ONE_BAN_S: Final = 600.0
"""A peer is sent off when a step ends, at each of the others a little later."""
MOST_TEXT: Final = 300
TEXTS: Final = ("peer", "why", "changes")
"""Fields of entries that are texts; pages handle all others as numbers."""


class RunModel:
    """What happened in the run so far. All of it is bounded; what cannot be read of an entry is passed over."""

    def __init__(self) -> None:
        self.series = {
            "loss": Series({"t": "last", "samples": "last", "step": "last", "loss": "mean"}),
            "evaluation": Series({"t": "last", "samples": "last", "step": "last", "value": "last"}, most_points=600),
            "swarm": Series({"t": "last", **dict.fromkeys(SWARM, "last")}, most_points=800),
            "participation": Series({"t": "last", "step": "last", "share": "mean", "members": "last"}, most_points=600),
        }
        self.rates = SpeedByPeer()
        self.journals = {
            "marks": Journal(MOST_MARKS),
            "rounds": Journal(MOST_ROUNDS),
            "misses": Journal(MOST_OTHERS),
            "syncs": Journal(MOST_OTHERS),
            "findings": Journal(MOST_OTHERS),
        }
        self.counts = dict.fromkeys((*MARK_EVENTS, *SECURITY_EVENTS, "missed", "synced", "round"), 0)
        self.headline = ""
        """The name of the held-out figure that the recipe names first."""
        self.samples_at_step = 0, 0
        """The newest step, and the samples of all steps up to it."""
        self._samples_a_step = 0.0
        self._paces = deque[tuple[float, float]](maxlen=PACE_STEPS)
        """When the last steps were, each with its number; curves merge their points as they grow."""

    @property
    def steps_per_hour(self) -> float | None:
        """Over the last steps, without times in which nobody looked or the run was paused; None while there are few."""
        apart = [(later[0] - earlier[0], later[1] - earlier[1]) for earlier, later in pairwise(self._paces)]
        longest_s = max(60.0, 10.0 * median(seconds for seconds, _ in apart)) if apart else 0.0
        told = [pair for pair in apart if 0.0 < pair[0] <= longest_s]
        seconds = sum(seconds for seconds, _ in told)
        return 3600.0 * sum(steps for _, steps in told) / seconds if seconds > 0.0 else None

    @property
    def total_samples(self) -> int:
        """Samples of all steps so far."""
        return self.samples_at_step[1]

    def take(self, entry: Entry) -> None:
        """Add one entry of a history."""
        event = entry["event"]
        if event == "step":
            self._take_step(entry)
        elif event == "evaluation":
            self._take_evaluation(entry)
        elif event == "swarm":
            self._take_swarm(entry)
        elif event in self.counts and not self._is_told_again(entry):
            self.counts[event] += 1
            self._list(event, entry)

    def _is_told_again(self, entry: Entry) -> bool:
        """Whether this is a ban that is known: a monitor hears of it itself, and from the host."""
        return entry["event"] == "banned" and any(
            each["event"] == "banned" and each["peer"] == entry.get("peer") and abs(each["t"] - entry["t"]) < ONE_BAN_S
            for each in self.journals["findings"]
        )

    def _list(self, event: str, entry: Entry) -> None:
        if event == "round":
            self._take_round(entry)
        if event in MARK_EVENTS:
            self.journals["marks"].add(_only(entry, "peer", "why", "changes", "step", samples=self.total_samples))
        if event in SECURITY_EVENTS:
            self.journals["findings"].add(_only(entry, "peer", "why", "step"))
        if event == "missed":
            self.journals["misses"].add(_only(entry, "peer", "why", "step"))
        if event == "synced":
            self.journals["syncs"].add(_only(entry, "peer", "seconds"))

    def _take_step(self, entry: Entry) -> None:
        found = numbers(entry, ("step", "loss"))
        if (known := samples_of(entry)) is not None and known > self.samples_at_step:
            self.samples_at_step = known
            self._samples_a_step = numbers(entry, ("samples",))["samples"] or 0.0
        if (step := found["step"]) is not None and (not self._paces or step != self._paces[-1][1]):
            if self._paces and step < self._paces[-1][1]:
                self._paces.clear()  # the run went back
            self._paces.append((entry["t"], step))
        self.series["loss"].add(t=entry["t"], samples=self.total_samples, step=found["step"], loss=found["loss"])

    def _take_evaluation(self, entry: Entry) -> None:
        self.headline = str(entry.get("headline", ""))[:MOST_TEXT]
        found = numbers(entry, ("step", self.headline))
        if (value := found[self.headline]) is not None:
            # A host that comes back evaluates before it hears how many samples the steps had that it missed.
            missed = max(0.0, (found["step"] or 0.0) - self.samples_at_step[0])
            at = self.total_samples + missed * self._samples_a_step
            self.series["evaluation"].add(t=entry["t"], samples=at, step=found["step"], value=value)

    def _take_swarm(self, entry: Entry) -> None:
        self.series["swarm"].add(t=entry["t"], **numbers(entry, SWARM))
        by_peer, others = entry.get("by_peer"), numbers(entry, ("others",))["others"]
        if isinstance(by_peer, dict):
            self.rates.add(entry["t"], by_peer, others or 0.0)

    def _take_round(self, entry: Entry) -> None:
        found = numbers(entry, ("step", "members", "wanted", "lost", *ROUND_TIMES))
        if found["step"] is None:
            return
        self.journals["rounds"].add({"t": entry["t"], **found})
        members, wanted = found["members"], found["wanted"]
        if members is not None and members >= 0 and wanted is not None and wanted > 0:
            share = min(1.0, members / max(wanted, members))
            self.series["participation"].add(t=entry["t"], step=found["step"], share=share, members=members)


def _only(entry: Entry, *names: str, **more: Any) -> dict[str, Any]:
    """Time, event and these fields: texts, cut to a bounded length, numbers, and what has neither is None."""
    kept: dict[str, Any] = {"t": entry["t"], "event": entry["event"], **more}
    for name in names:
        value = entry.get(name)
        if name in TEXTS:
            kept[name] = value[:MOST_TEXT] if isinstance(value, str) else None
        else:
            kept[name] = number_in(entry, name)
    return kept
