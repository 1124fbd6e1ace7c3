"""The counts that one peer took part in, and what the members signed of them: in memory, bounded."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from minga.network.interface import PeerId
from minga.training.receipts.attestation import MAX_ENTRIES, Attestation, JudgedCount, SignedCount
from minga.training.receipts.claims import Count, Place
from minga.training.receipts.tally import AttestedPeers, PeerTotals, ReceiptTally, merged, tally

MAX_COUNTS = 50_000
MAX_CLAIMS = 300_000
"""Counts that are kept, the newest, and the claims in all of them: about a month of any run, and 60 MB. Of older ones
the totals remain."""


class ReceiptBook:
    """Counts by their place, and attestations by their attester."""

    def __init__(self) -> None:
        self.tokens: dict[PeerId, bytes] = {}
        """The access tokens of members, in a run for members."""
        self._judged: OrderedDict[Place, JudgedCount] = OrderedDict()
        self._digests: dict[Place, bytes] = {}
        self._attested: dict[Place, dict[PeerId, SignedCount]] = {}
        self._attestations: deque[Attestation] = deque()
        self._entries = Counter[PeerId]()  # in the attestations of each
        self._named = Counter[bytes]()  # counts that name each
        self._decided: dict[Place, AttestedPeers] = {}
        self._keys: dict[bytes, bytes] = {}  # one object for each, however many counts name it
        self._claims = 0
        self._before = ReceiptTally()
        """What was dropped for want of room."""

    def __len__(self) -> int:
        return len(self._judged)

    @property
    def counts(self) -> tuple[Count, ...]:
        """All counts, in the order in which they came."""
        return tuple(judged.count for judged in self._judged.values())

    @property
    def digests(self) -> Mapping[Place, bytes]:
        """The digest of each count."""
        return self._digests

    def attestations(self, places: Iterable[Place]) -> Iterator[Attestation]:
        """Those that say something of one of these counts."""
        wanted = set(places)
        for attestation in self._attestations:
            if any((attestation.epoch, entry.step) in wanted for entry in attestation.entries):
                yield attestation

    def own_newest(self, peer: PeerId) -> Attestation | None:
        """The last attestation of `peer`, if there is one."""
        return next((each for each in reversed(self._attestations) if each.attester == peer), None)

    def add_count(self, judged: JudgedCount) -> bool:
        """Keep a count that this peer took part in, with its own judgement; False if its place is taken."""
        place = judged.count.place
        if place in self._judged:
            return False
        members = tuple(self._keys.setdefault(key, key) for key in judged.count.members)
        count = msgspec.structs.replace(judged.count, members=members)
        self._judged[place] = JudgedCount(count, judged.doubts, judged.is_witness)
        self._digests[place] = count.digest
        self._claims += len(count.claims)
        self._named.update(members)
        while len(self._judged) > MAX_COUNTS or self._claims > MAX_CLAIMS:
            self._drop_oldest()
        return True

    def add(self, attestation: Attestation) -> bool:
        """Keep a genuine attestation; False if it says nothing new about a count that is here, or if its attester
        said far more already than there are counts that name it: it may sign some counts again and again.
        """
        peer, is_new = attestation.attester, False
        entries = self._entries[peer] + len(attestation.entries)
        if entries > 2 * (self._named[bytes.fromhex(peer)] + MAX_ENTRIES):
            return False
        for entry in attestation.entries:
            place = attestation.epoch, entry.step
            known = self._judged.get(place)
            if known is None or self._digests[place] != entry.digest or peer not in known.count.ids:
                continue
            attested = self._attested.setdefault(place, {})
            is_new = is_new or peer not in attested
            attested[peer] = merged(attested.get(peer), entry)
            self._decided.pop(place, None)
        if is_new:
            self._attestations.append(attestation)
            self._entries[peer] = entries
        return is_new

    def snapshot(self) -> ReceiptBook:
        """A copy of its counts, attestations and tokens, for another thread to write down."""
        copied = ReceiptBook()
        copied.tokens, copied._judged = dict(self.tokens), OrderedDict(self._judged)
        copied._attestations = deque(self._attestations)
        return copied

    def unsigned(self, peer: PeerId) -> list[JudgedCount]:
        """The oldest counts that `peer`, whose book this is, has not signed yet: of one epoch, and no more than one
        attestation may have.
        """
        found = [judged for place, judged in self._judged.items() if peer not in self._attested.get(place, {})]
        return [judged for judged in found if judged.count.epoch == found[0].count.epoch][:MAX_ENTRIES]

    def decided(self) -> ReceiptTotals:
        """What is attested so far, to be added up on any thread."""
        for place, judged in self._judged.items():
            if place not in self._decided:
                self._decided[place] = AttestedPeers.of(judged.count, self._attested.get(place, {}))
        pairs = [(judged.count, self._decided[place]) for place, judged in self._judged.items()]
        return ReceiptTotals(pairs, copy.deepcopy(self._before))

    def totals(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer."""
        return self.decided().add_up()

    def _drop_oldest(self) -> None:
        place, judged = self._judged.popitem(last=False)
        decided = self._decided.pop(place, None)
        attested = self._attested.pop(place, {})
        self._before.add(judged.count, decided or AttestedPeers.of(judged.count, attested))
        del self._digests[place]
        self._claims -= len(judged.count.claims)
        self._named.subtract(judged.count.members)
        while self._attestations and not self._is_about_any(self._attestations[0]):
            gone = self._attestations.popleft()
            self._entries[gone.attester] -= len(gone.entries)

    def _is_about_any(self, attestation: Attestation) -> bool:
        """Whether it says something of a count that is here; what else it names may be made up."""
        return any((attestation.epoch, entry.step) in self._judged for entry in attestation.entries)


class ReceiptTotals:
    """A look at a book: what `add_up` needs of it, which takes a while where the book is long."""

    def __init__(self, decided: list[tuple[Count, AttestedPeers]], before: ReceiptTally) -> None:
        self._decided, self._before = decided, before

    def add_up(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer."""
        return tally(self._decided, self._before)
