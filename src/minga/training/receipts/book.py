"""The counts that one peer took part in, and what the members signed of them: in memory, bounded."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from minga.network.interface import PeerId
from minga.training.receipts.attestation import MAX_ENTRIES, Attestation, Entry, JudgedCount
from minga.training.receipts.claims import Count, Place
from minga.training.receipts.tally import AttestedPeers, PeerTotals, merged, tally

MAX_COUNTS = 20_000
"""Counts that are kept, the newest: half a year of a run of 100 peers, two weeks of one of a few."""


class ReceiptBook:
    """Counts by their place, and attestations by their attester."""

    def __init__(self) -> None:
        self.tokens: dict[PeerId, bytes] = {}
        """The access tokens of members, in a run for members."""
        self._judged: OrderedDict[Place, JudgedCount] = OrderedDict()
        self._attested: dict[Place, dict[PeerId, Entry]] = {}
        self._attestations: list[Attestation] = []
        self._decided: dict[Place, AttestedPeers] = {}

    def __len__(self) -> int:
        return len(self._judged)

    @property
    def counts(self) -> tuple[Count, ...]:
        """All counts, in the order in which they came."""
        return tuple(judged.count for judged in self._judged.values())

    @property
    def digests(self) -> dict[Place, bytes]:
        """The digest of each count."""
        return {place: judged.count.digest for place, judged in self._judged.items()}

    def attestations(self, places: Iterable[Place]) -> Iterator[Attestation]:
        """Those that say something of one of these counts."""
        wanted = set(places)
        for attestation in self._attestations:
            if any((attestation.epoch, entry.step) in wanted for entry in attestation.entries):
                yield attestation

    def has(self, place: Place) -> bool:
        """Whether there is a count at this place."""
        return place in self._judged

    def own_newest(self, peer: PeerId) -> Attestation | None:
        """The last attestation of `peer`, if there is one."""
        return next((each for each in reversed(self._attestations) if each.attester == peer), None)

    def add_count(self, judged: JudgedCount) -> bool:
        """Keep a count that this peer took part in, with its own judgement; False if its place is taken."""
        place = judged.count.place
        if place in self._judged:
            return False
        self._judged[place] = judged
        while len(self._judged) > MAX_COUNTS:
            self._drop_oldest()
        return True

    def add(self, attestation: Attestation) -> bool:
        """Keep a genuine attestation; False if it says nothing new about a count that is here."""
        peer, is_new = attestation.attester, False
        for entry in attestation.entries:
            place = attestation.epoch, entry.step
            known = self._judged.get(place)
            if known is None or known.count.digest != entry.digest or peer not in known.count.ids:
                continue
            attested = self._attested.setdefault(place, {})
            is_new = is_new or peer not in attested
            attested[peer] = merged(attested.get(peer), entry)
            self._decided.pop(place, None)
        if is_new:
            self._attestations.append(attestation)
        return is_new

    def unsigned(self, peer: PeerId) -> list[JudgedCount]:
        """The oldest counts that `peer`, whose book this is, has not signed yet: of one epoch, and no more than one
        attestation may have.
        """
        found = [judged for place, judged in self._judged.items() if peer not in self._attested.get(place, {})]
        return [judged for judged in found if judged.count.epoch == found[0].count.epoch][:MAX_ENTRIES]

    def totals(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer."""
        for place, judged in self._judged.items():
            if place not in self._decided:
                self._decided[place] = AttestedPeers.of(judged.count, self._attested.get(place, {}))
        return tally((judged.count, self._decided[place]) for place, judged in self._judged.items())

    def _drop_oldest(self) -> None:
        place, _ = self._judged.popitem(last=False)
        self._attested.pop(place, None)
        self._decided.pop(place, None)
        oldest = next(iter(self._judged))
        if self._attestations and self._attestations[0].entries[-1].step < oldest[1]:
            del self._attestations[0]
