"""What counts: claims that enough members of their round attest, and the totals that come of it."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from minga.network.interface import PeerId
from minga.training.receipts.attestation import SignedCount, pack, unpack
from minga.training.receipts.claims import UNIT_BYTES, Count


@dataclass(frozen=True)
class PeerTotals:
    """What is attested of one peer: the rounds in which it took part (`steps`), its samples, and the bytes of others
    that it added up. `counted` of its `claimed` claims count in full.
    """

    steps: int = 0
    samples: int = 0
    reduced_bytes: int = 0
    counted: int = 0
    claimed: int = 0


@dataclass(frozen=True)
class AttestedPeers:
    """The members of one count whose claims of `samples`, and of rounds and bytes (`work`), enough members attest."""

    samples: frozenset[PeerId]
    work: frozenset[PeerId]

    @classmethod
    def of(
        cls, count: Count, attested: Mapping[PeerId, SignedCount], electors: Collection[PeerId] | None = None
    ) -> AttestedPeers:
        """By what members `attested`. `electors`: only their word counts, though all members do (default: all's).

        More than half of the members have to have signed the count. Of those, more than half confirm rounds and bytes,
        which all can compare with the plans; and of the witnesses among them more than half confirm samples. Nobody
        confirms alone what is its own.
        """
        said = {peer: entry for peer, entry in attested.items() if electors is None or peer in electors}
        if 2 * len(said) <= len(count.members):
            return cls(frozenset(), frozenset())
        doubts = {peer: unpack(entry.doubts) for peer, entry in said.items()}
        seen = {peer: each for peer, each in doubts.items() if said[peer].is_witness}
        claims = [(index, peer) for index, peer in enumerate(count.ids) if count.claims[index] is not None]
        return cls(
            frozenset(peer for index, peer in claims if _is_confirmed(peer, index, seen)),
            frozenset(peer for index, peer in claims if _is_confirmed(peer, index, doubts)),
        )


def _is_confirmed(peer: PeerId, index: int, doubts: Mapping[PeerId, frozenset[int]]) -> bool:
    confirming = {other for other, each in doubts.items() if index not in each}
    return 2 * len(confirming) > len(doubts) and bool(confirming - {peer})


def merged(before: SignedCount | None, entry: SignedCount) -> SignedCount:
    """What a member says that signed one count twice: all that it doubted either time."""
    if before is None:
        return entry
    doubts = pack(unpack(before.doubts) | unpack(entry.doubts))
    return entry._replace(doubts=doubts, is_witness=before.is_witness or entry.is_witness)


Kind = Literal["samples", "work"]


class ReceiptTally:
    """The sums of what is attested; counts go in in the order of their places. No step of a peer counts twice."""

    def __init__(self) -> None:
        self._sums: dict[PeerId, Counter[str]] = {}
        self._until: dict[tuple[int, PeerId, Kind], int] = {}  # before which step all of that kind is counted

    def add(self, count: Count, attested: AttestedPeers) -> None:
        """Add what one count has."""
        for peer, claim in zip(count.ids, count.claims, strict=True):
            if claim is None:
                continue
            total, start = self._sums.setdefault(peer, Counter()), max(0, count.step - claim.span)
            kinds: tuple[tuple[Kind, frozenset[PeerId]], ...] = (
                ("samples", attested.samples),
                ("work", attested.work),
            )
            counts_as = {
                kind
                for kind, peers in kinds
                if peer in peers and start >= self._until.get((count.epoch, peer, kind), 0)
            }
            self._until |= {(count.epoch, peer, kind): count.step for kind in counts_as}
            if "samples" in counts_as:
                total["samples"] += claim.samples
            if "work" in counts_as:
                total.update(steps=claim.rounds, reduced_bytes=UNIT_BYTES * claim.reduced)
            total.update(counted=int(len(counts_as) == 2), claimed=1)

    def totals(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer that claimed anything."""
        return {peer: PeerTotals(**total) for peer, total in self._sums.items()}


def tally(
    counts: Iterable[tuple[Count, AttestedPeers]], before: ReceiptTally | None = None
) -> dict[PeerId, PeerTotals]:
    """The totals of all peers that claim anything in these counts, and in those of the tally `before`, which stays."""
    sums = ReceiptTally() if before is None else copy.deepcopy(before)
    for count, attested in sorted(counts, key=lambda each: each[0].place):
        sums.add(count, attested)
    return sums.totals()
