"""What the planner is told and what it answers, in numbers only: rates of peers, and who reduces which share.

Peers are numbered by their place in the group (the leader is 0). The vector is cut into *parts*; each has a *root*,
the member that makes the result. In a flat division every member sends its part of the vector straight to the root.
In a division of two levels some members form *sites*, whose inner links are fast: the members of a site send to the
site's *relay* of that part, which sends one weighted mean on to the root, and passes the result on to its site. So a
part crosses a slow link between two sites once in each direction instead of once for each member.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PeerRates:
    """What is known of one peer: rates in bytes per second, None where unknown.

    `sends`: it has samples to contribute; `receives`: it needs the result; `aggregates`: all others can reach it.
    `samples_per_second` is its speed while it computes, 0 for one that never does.
    """

    upload: float | None
    download: float | None
    samples_per_second: float = 0.0
    sends: bool = True
    receives: bool = True
    aggregates: bool = True


@dataclass(frozen=True)
class SwarmRates:
    """The peers of a group, and the limits (bytes per second) of those paths that are slower than both their ends.

    `pairs[i, j]` limits what i sends to j; 0 means that there is no way at all.
    """

    peers: tuple[PeerRates, ...]
    pairs: Mapping[tuple[int, int], float] = field(default_factory=dict)


@dataclass(frozen=True)
class PartShare:
    """One part: its fraction of the vector (> 0), its root, and for each site of the division the relay there.

    In the root's own site, if it is in one, the relay is the root itself.
    """

    share: float
    root: int
    relays: tuple[int, ...] = ()


@dataclass(frozen=True)
class Binding:
    """The link that a round takes longest on: the peer's upload or download, or (with `other`) the path to it."""

    kind: str  # "upload", "download" or "path"
    peer: int
    other: int | None = None


@dataclass(frozen=True)
class Division:
    """Who reduces what. Shares sum to 1 up to rounding; sites are disjoint and have two members or more.

    `predicted_s` is the time of a round by the rates that the division was made from: None if they are unknown,
    infinite if it needs a path that does not exist.
    """

    parts: tuple[PartShare, ...]
    sites: tuple[tuple[int, ...], ...] = ()
    predicted_s: float | None = None
    binding: Binding | None = None


def renumbered(division: Division, names: Sequence[int]) -> Division:
    """The same division with the peer of number i called `names[i]`, each number once."""
    order = sorted(range(len(division.sites)), key=lambda place: min(names[peer] for peer in division.sites[place]))
    binding = division.binding
    if binding is not None:
        other = None if binding.other is None else names[binding.other]
        binding = Binding(binding.kind, names[binding.peer], other)
    parts = (
        PartShare(part.share, names[part.root], tuple(names[part.relays[place]] for place in order))
        for part in division.parts
    )
    return Division(
        parts=tuple(sorted(parts, key=lambda part: (part.root, part.relays))),
        sites=tuple(tuple(sorted(names[peer] for peer in division.sites[place])) for place in order),
        predicted_s=division.predicted_s,
        binding=binding,
    )
