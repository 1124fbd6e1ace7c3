"""Which of the keys of this machine a peer takes, where its owner names no file.

* A host that goes on with a run takes the key that began it, wherever that lies: see `PeerOptions.hold_organiser`.
* A host that begins a run takes the first free key, and before all others one that the run's `organisers` name.
* A peer that joins takes a free key that the link admits, or else one that was in the run or began it, or else any
  other; and of several such keys one that hosts no run, since no host can go on with a run while a peer has its key.
"""

from __future__ import annotations

import functools
from collections.abc import Collection
from pathlib import Path

from minga.identity.access.token import Token
from minga.identity.keys.keys import Rank
from minga.identity.links.links import Link
from minga.keeping.known_runs import FOLDER_DIGITS, organisers
from minga.keeping.rejoin import RejoinFile
from minga.network.interface import PeerId


def to_begin(named: Collection[str]) -> Rank:
    """In which order a host takes keys for a new run whose `organisers` are `named`."""
    return lambda peer: (peer not in named,)


def to_join(runs: Path, link: Link) -> Rank:
    """In which order a peer takes keys to join by `link`; the folders of runs lie in `runs`."""
    hosting = functools.cache(organisers)  # not read for a peer that has no choice

    def rank(peer: str | None) -> tuple[bool, ...]:
        if peer is None:
            return True, True, False
        is_admitted = link.access is not None and Token(link.access.grant).is_bound_to(peer)
        is_back = peer == link.organiser or RejoinFile(runs / link.run_id[:FOLDER_DIGITS], PeerId(peer)).is_there
        return not is_admitted, not is_back, peer in hosting(runs)

    return rank
