"""Whether a plan asks too much of one of its members, by what that member knows.

A member knows its own line first-hand, and from the board what the others say of theirs. A plan is unfair to it if it
keeps its line busy for more than `UNFAIR_FACTOR` times as long as a whole round of equal parts keeps three quarters of
the members busy at most: no honest leader can be so wrong, and however slow a few liars say that they are, nothing
becomes fair by it. Every member checks every plan, so this takes time in proportion to members and parts only. A plan
that seems unfair by that is looked at again with the paths between the members, which may be what makes equal parts
slow, and which take longer to reckon with.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from minga.averaging.link_record import Links
from minga.averaging.messages import Plan
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.averaging.solver.baselines import equal_parts
from minga.averaging.solver.prediction import predict
from minga.network.bandwidth.access_link import AccessRates
from minga.network.interface import PeerId

UNFAIR_FACTOR: Final = 4.0
UNFAIR_S: Final = 10.0
"""Seconds by which an unfair plan must take longer at least: with short rounds all of this is guesswork."""


def unfair_parts(
    plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float
) -> str | None:
    """Why a plan is unfair to its member number `me`, which knows `own` of its line and `links` of all; None if not."""
    usual_s = _usual_s(plan, links, own, me, vector_bytes)
    if usual_s is None:
        return None
    mine_s = _seconds(own, vector_bytes * _vectors_carried(plan, me))
    if mine_s > UNFAIR_FACTOR * usual_s + UNFAIR_S:
        usual_s = max(usual_s, _usual_over_paths_s(plan, links, own, me, vector_bytes))
    if mine_s <= UNFAIR_FACTOR * usual_s + UNFAIR_S:
        return None
    return f"its plan keeps this peer busy for {mine_s:.0f} s, where equal parts take most {usual_s:.0f} s"


def _usual_s(plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float) -> float | None:
    """Seconds for which equal parts keep three quarters of the members busy at most; None if no rate is known."""
    count = len(plan.members)
    carried = 2.0 * vector_bytes * (count - 1) / count
    busy_s = []
    for index, member in enumerate(plan.members):
        line = own if index == me else _line(links.get(member.peer_id))
        if any(line.limits):
            busy_s.append(_seconds(line, carried))
    return _third_quartile(busy_s) if busy_s else None


def _usual_over_paths_s(
    plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float
) -> float:
    """The same by the rates that a leader would plan with, each member's time being that of its line or of three
    quarters of its paths.
    """
    claims = []
    for index, member in enumerate(plan.members):
        line = own if index == me else _line(links.get(member.peer_id))
        shown = {"upload_shown": line.upload_shown, "download_shown": line.download_shown}
        claims.append(RateClaim(line.upload, line.download, aggregates=member.aggregates, **shown))
    rates = swarm_rates(plan.ids, claims, links)
    foreseen, count = predict(equal_parts(rates), rates, vector_bytes), len(rates.peers)
    path_s: list[list[float]] = [[] for _ in rates.peers]
    for (one, _), rate in rates.pairs.items():
        path_s[one].append(2.0 * vector_bytes / count / rate if rate else 0.0)
    busy_s = []
    for index, peer in enumerate(rates.peers):
        up_s = foreseen.upload_bytes[index] / peer.upload if peer.upload else 0.0
        down_s = foreseen.download_bytes[index] / peer.download if peer.download else 0.0
        fast = [0.0] * max(1, count - 1 - len(path_s[index]))
        busy_s.append(max(up_s, down_s, _third_quartile([*fast, *path_s[index]])))
    return _third_quartile(busy_s)


def _third_quartile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.75 * (len(values) - 1))]


def _line(known: Links | None) -> AccessRates:
    if known is None:
        return AccessRates()
    shown = {"upload_shown": known.upload_shown, "download_shown": known.download_shown}
    return AccessRates(known.upload or None, known.download or None, **shown)


def _seconds(line: AccessRates, carried_bytes: float) -> float:
    """How long a line takes for so many bytes each way, the slower way counting, as far as that is known."""
    return max(carried_bytes / rate if rate else 0.0 for rate in line.limits)


def _vectors_carried(plan: Plan, me: int) -> float:
    """How many vectors a member sends, and receives as many, if all have samples and all need the result."""
    own_site = next((number for number, site in enumerate(plan.sites) if me in site), None)
    beside = len(plan.sites[own_site]) - 1 if own_site is not None else 0
    outside = len(plan.members) - sum(len(site) for site in plan.sites)
    below_root = beside + outside + len(plan.sites) - 1  # itself is outside, or one of the sites is its own
    start, carried = 0, 0
    for part in plan.parts:
        size, start = part.stop - start, part.stop
        if part.root == me:
            carried += size * below_root
        elif own_site is not None and part.relays[own_site] == me:
            carried += size * (1 + beside)
        else:
            carried += size
    return carried / start
