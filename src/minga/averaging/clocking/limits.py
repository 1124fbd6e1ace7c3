"""The leader tells the members of a group in the making where to stop, if that is not what they know and pays.

It goes on comparing while the step is computed: if the step would be full clearly sooner with other limits (a member is
slower than it was, or left, or came), it tells new ones. `sample_quota` says how limits are chosen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from minga.averaging.clocking.sample_quota import SURPLUS, UPDATE_PERIOD_S, Registration, seconds_as_is, share_out
from minga.averaging.messages import MAX_SAMPLES
from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId

GAIN_S, GAIN_SHARE = 0.02, 0.05
"""New limits are told if the step is full sooner by so much, or by this share of the step."""

SOONEST_LOOK_S, LATEST_LOOK_S = 0.05, 1.0
LOOKED_AT_ONCE = 64
"""Seconds between two comparisons of the limits with better ones; with so many members twice as long, and so on."""


def soonest_look_s(members: int) -> float:
    """Seconds after which a leader of so many members may look at all of them again: it costs more with each."""
    return SOONEST_LOOK_S * (1.0 + members / LOOKED_AT_ONCE)


def collect_s(members: int) -> float:
    """Seconds for which it collects news of who comes and goes before it looks at all again; none in a small group."""
    return SOONEST_LOOK_S * max(0.0, members / LOOKED_AT_ONCE - 1.0)


@loop_bound
class Limits:
    """The limits of one step; none is below `least`."""

    def __init__(self, least: int = 0) -> None:
        self._least = least
        self._look_s = 0.0
        self._unknown: set[PeerId] = set()
        """Members that were told to stop after their first micro-batch, for nothing was known of them."""

    @property
    def pause_s(self) -> float:
        """Seconds until limits may be compared again."""
        left_s = self._look_s - asyncio.get_running_loop().time()
        return max(SOONEST_LOOK_S, min(left_s, UPDATE_PERIOD_S) if self._unknown else left_s)

    def better(self, batch: int, everyone: Mapping[PeerId, Registration], begun_s: float) -> dict[PeerId, int]:
        """The limits that members are to be told now, in a step of `batch` samples that began at `begun_s` by the
        loop's clock; none if it is not yet time to compare all of them with the best ones.
        """
        now = asyncio.get_running_loop().time()
        strangers = [
            peer
            for peer, registration in everyone.items()
            if registration.limit is None or not registration.report.rate
        ]
        is_known = any(peer in everyone and everyone[peer].report.rate for peer in self._unknown)
        if now < self._look_s and not is_known and all(everyone[peer].ordered is not None for peer in strangers):
            return {}
        self._unknown = {peer for peer in strangers if not everyone[peer].report.rate}
        paces = {peer: registration.pace(now) for peer, registration in everyone.items()}
        best = share_out(batch, list(paces.values()))
        as_is_s = seconds_as_is(batch, list(paces.values()))
        step_s = now - begun_s + best.seconds
        limits = {peer: max(each, self._least) for peer, each in zip(paces, best.samples, strict=True)}
        limits |= {peer: paces[peer].samples + 1 for peer in self._unknown}
        limits = {peer: min(each, MAX_SAMPLES) for peer, each in limits.items()}  # whatever is made of a report
        is_late = as_is_s > best.seconds + max(GAIN_S, GAIN_SHARE * step_s)
        is_much = sum(registration.limit or 0 for registration in everyone.values()) > (1.0 + SURPLUS) * batch
        told = list(limits) if is_late or is_much else strangers
        self._look_s = now + min(LATEST_LOOK_S, max(soonest_look_s(len(everyone)), 0.2 * best.seconds))
        return {peer: limits[peer] for peer in told if limits[peer] != everyone[peer].limit}
