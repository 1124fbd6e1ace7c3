"""The counts that one peer took part in, and what the members signed of them: in memory, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from minga.network.interface import PeerId
from minga.training.receipts.attestation import MAX_ENTRIES, Attestation
from minga.training.receipts.claims import Count, Place
from minga.training.receipts.tally import CountedPeers, PeerTotals, merge_doubts, tally

MAX_COUNTS = 20_000
"""Counts that are kept, the newest: half a year of a run of 100 peers, two weeks of one of a few."""


class ReceiptBook:
    """Counts by their place, and attestations by their attester."""

    def __init__(self) -> None:
        self.tokens: dict[PeerId, bytes] = {}
        """The access tokens of members, in a run for members."""
        self._counts: OrderedDict[Place, Count] = OrderedDict()
        self._own_doubts: dict[Place, bytes | None] = {}
        self._attested: dict[Place, dict[PeerId, bytes | None]] = {}
        self._attestations: list[Attestation] = []
        self._decided: dict[Place, CountedPeers] = {}

    def __len__(self) -> int:
        return len(self._counts)

    @property
    def counts(self) -> tuple[Count, ...]:
        """All counts, in the order in which they came."""
        return tuple(self._counts.values())

    @property
    def digests(self) -> dict[Place, bytes]:
        """The digest of each count."""
        return {place: count.digest for place, count in self._counts.items()}

    def attestations(self, places: Iterable[Place]) -> Iterator[Attestation]:
        """Those that say something of one of these counts."""
        wanted = set(places)
        for attestation in self._attestations:
            if any((attestation.epoch, entry.step) in wanted for entry in attestation.entries):
                yield attestation

    def has(self, place: Place) -> bool:
        """Whether there is a count at this place."""
        return place in self._counts

    def own_newest(self, peer: PeerId) -> Attestation | None:
        """The last attestation of `peer`, if there is one."""
        return next((each for each in reversed(self._attestations) if each.attester == peer), None)

    def add_count(self, count: Count, doubts: bytes | None) -> bool:
        """Keep a count that this peer took part in, with its own doubts; False if its place is taken."""
        if count.place in self._counts:
            return False
        self._counts[count.place], self._own_doubts[count.place] = count, doubts
        while len(self._counts) > MAX_COUNTS:
            self._drop_oldest()
        return True

    def add(self, attestation: Attestation) -> bool:
        """Keep a genuine attestation; False if it says nothing new about a count that is here."""
        news = [
            entry
            for entry in attestation.entries
            if (count := self._counts.get((attestation.epoch, entry.step))) is not None
            and count.digest == entry.digest
            and attestation.attester in count.ids
            and attestation.attester not in self._attested.get(count.place, {})
        ]
        if not news:
            return False
        for entry in attestation.entries:
            place = attestation.epoch, entry.step
            count = self._counts.get(place)
            if count is not None and count.digest == entry.digest and attestation.attester in count.ids:
                merge_doubts(self._attested.setdefault(place, {}), attestation.attester, entry.doubts)
                self._decided.pop(place, None)
        self._attestations.append(attestation)
        return True

    def unsigned(self, peer: PeerId) -> list[tuple[Count, bytes | None]]:
        """The oldest counts that `peer`, whose book this is, has not signed yet, with its doubts: of one epoch, and no
        more than one attestation may have.
        """
        found = [count for place, count in self._counts.items() if peer not in self._attested.get(place, {})]
        epoch = found[0].epoch if found else 0
        chosen = [count for count in found if count.epoch == epoch][:MAX_ENTRIES]
        return [(count, self._own_doubts[count.place]) for count in chosen]

    def totals(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer."""
        for place, count in self._counts.items():
            if place not in self._decided:
                self._decided[place] = CountedPeers.of(count, self._attested.get(place, {}))
        return tally((count, self._decided[place]) for place, count in self._counts.items())

    def _drop_oldest(self) -> None:
        place, _ = self._counts.popitem(last=False)
        self._own_doubts.pop(place, None)
        self._attested.pop(place, None)
        self._decided.pop(place, None)
        oldest = next(iter(self._counts))
        if self._attestations and self._attestations[0].entries[-1].step < oldest[1]:
            del self._attestations[0]
