"""What counts: claims that enough members of their round attest, and the totals that come of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from minga.network.interface import PeerId
from minga.training.receipts.attestation import pack, unpack
from minga.training.receipts.claims import UNIT_BYTES, Count


@dataclass(frozen=True)
class PeerTotals:
    """What is attested of one peer: the rounds in which it took part (`steps`), its samples, the bytes of others that
    it added up, and the number of its claims that count, of so many that it made.
    """

    steps: int = 0
    samples: int = 0
    bytes_reduced: int = 0
    counted: int = 0
    claimed: int = 0


@dataclass(frozen=True)
class CountedPeers:
    """The members of one count whose claims enough members attest."""

    peers: frozenset[PeerId]

    @classmethod
    def of(
        cls, count: Count, attested: Mapping[PeerId, bytes | None], electors: Collection[PeerId] | None = None
    ) -> CountedPeers:
        """By what members `attested`: their doubts, or None where they saw the count and compared nothing.

        `electors`: only their word counts, though all members are counted (default: every member's).
        """
        said = {peer: doubts for peer, doubts in attested.items() if electors is None or peer in electors}
        if 2 * len(said) <= len(count.members):
            return cls(frozenset())
        doubts = {peer: unpack(each) for peer, each in said.items() if each is not None}
        return cls(
            frozenset(
                peer for index, peer in enumerate(count.ids) if count.claims[index] and _agreed(peer, index, doubts)
            )
        )


def _agreed(peer: PeerId, index: int, doubts: Mapping[PeerId, frozenset[int]]) -> bool:
    confirming = {witness for witness, each in doubts.items() if index not in each}
    return 2 * len(confirming) > len(doubts) and bool(confirming - {peer})


def merge_doubts(attested: dict[PeerId, bytes | None], attester: PeerId, doubts: bytes | None) -> None:
    """Enter what a member signed; of two signatures for one count both doubts count."""
    before = attested.get(attester)
    both = doubts if before is None else before if doubts is None else pack(unpack(before) | unpack(doubts))
    attested[attester] = both


def tally(counts: Iterable[tuple[Count, CountedPeers]]) -> dict[PeerId, PeerTotals]:
    """The totals of all peers that claim anything; no step of a peer counts twice."""
    totals: dict[PeerId, PeerTotals] = {}
    until: dict[tuple[int, PeerId], int] = {}  # epoch and peer -> the step before which all is counted
    for count, counted in sorted(counts, key=lambda each: each[0].place):
        for peer, claim in zip(count.ids, count.claims, strict=True):
            if claim is None:
                continue
            now = totals.get(peer, PeerTotals())
            known = until.get((count.epoch, peer), 0)
            is_counted = peer in counted.peers and max(0, count.step - claim.span) >= known
            if is_counted:
                until[count.epoch, peer] = count.step
                now = PeerTotals(
                    now.steps + claim.rounds,
                    now.samples + claim.samples,
                    now.bytes_reduced + UNIT_BYTES * claim.reduced,
                    now.counted + 1,
                    now.claimed,
                )
            totals[peer] = PeerTotals(now.steps, now.samples, now.bytes_reduced, now.counted, now.claimed + 1)
    return totals
