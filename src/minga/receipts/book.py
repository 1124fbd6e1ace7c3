"""One peer's book of counts: what members signed of them, what counts by that, and how this peer judges a count itself.

The book is kept in memory, and bounded.
"""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Literal

import msgspec

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.messages import Plan
from minga.identity.access.token import MAX_TOKEN_BYTES
from minga.network.interface import PeerId
from minga.receipts.attestation import (
    MAX_ENTRIES,
    MAX_SPAN_STEPS,
    UNIT_BYTES,
    Attestation,
    Claim,
    Count,
    JudgedCount,
    Key,
    Place,
    SignedCount,
    pack,
    unpack,
)

# ---- The tally: which claims enough members of their round attest, and the totals that come of it.


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


# ---- The book: counts, and what was signed of them.


MAX_COUNTS = 50_000
MAX_CLAIMS = 300_000
"""Counts that are kept, the newest, and the claims in all of them: about a month of any run, and 60 MB. Of older ones
the totals remain."""


class BookEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One thing in a book, the others None: a count with the judgement of the peer whose book it is, an attestation of
    any member, or the access token that a peer showed in a run for members.
    """

    count: JudgedCount | None = None
    attestation: Attestation | None = None
    token: tuple[Key, Annotated[bytes, msgspec.Meta(max_length=MAX_TOKEN_BYTES)]] | None = None


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

    def entries(self, subject: PeerId | None = None) -> Iterator[BookEntry]:
        """What there is of `subject`, or of all peers: the counts, what was signed of them, and access tokens."""
        judged = [each for each in self._judged.values() if subject is None or each.count.claim_of(subject) is not None]
        yield from (BookEntry(count=each) for each in judged)
        digests = {each.count.place: each.count.digest for each in judged}
        attestations = list(self.attestations(digests))
        yield from (BookEntry(attestation=each.without_digests(digests)) for each in attestations)
        for peer in sorted({each.attester for each in attestations} & self.tokens.keys()):
            yield BookEntry(token=(bytes.fromhex(peer), self.tokens[peer]))

    def enter(self, entry: BookEntry) -> None:
        """Take up what an earlier process of this peer kept; no signature is verified again."""
        if entry.count is not None and entry.count.count.is_sound:
            self.add_count(entry.count)
        if entry.attestation is not None and (attestation := entry.attestation.with_digests(self._digests)) is not None:
            self.add(attestation)
        if entry.token is not None:
            key, token = entry.token
            self.tokens[PeerId(key.hex())] = token

    def attestations(self, places: Iterable[Place]) -> Iterator[Attestation]:
        """Those that say something of one of these counts."""
        wanted = set(places)
        for attestation in self._attestations:
            if not wanted.isdisjoint(attestation.places):
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
        for place, entry in zip(attestation.places, attestation.signed, strict=True):
            known = self._judged.get(place)
            if known is None or self._digests[place] != entry.digest or peer not in known.count.ids:
                continue
            attested = self._attested.setdefault(place, {})
            before, attested[peer] = attested.get(peer), merged(attested.get(peer), entry)
            is_new = is_new or attested[peer] != before
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
        return any(place in self._judged for place in attestation.places)


class ReceiptTotals:
    """A look at a book: what `add_up` needs of it, which takes a while where the book is long."""

    def __init__(self, decided: list[tuple[Count, AttestedPeers]], before: ReceiptTally) -> None:
        self._decided, self._before = decided, before

    def add_up(self) -> dict[PeerId, PeerTotals]:
        """What is attested of each peer."""
        return tally(self._decided, self._before)


# ---- Sight: what one member saw of the others' contributions in the last rounds, and how it judges a count by that.


RECENT_ROUNDS = 16
"""A member that was a root in one of so many last rounds is a witness: a single leader cannot make it none."""


@dataclass(frozen=True)
class RoundSight:
    """One round: the samples of the members that were seen, and the bytes that each had to add up by the plan.

    `is_root`: the member that looks made the result of a part, so that it heard of all. Nothing was contributed to a
    round that adopted the result of an earlier one.
    """

    members: frozenset[PeerId]
    samples: dict[PeerId, int]
    reduced: dict[PeerId, int]
    is_root: bool


@dataclass
class SeenSum:
    """What was seen of one peer in some rounds; `is_whole` unless it sent samples to some that were not heard here."""

    rounds: int = 0
    samples: int = 0
    reduced: int = 0
    is_whole: bool = True

    def add(self, peer: PeerId, one: RoundSight) -> None:
        """Add a round in which the peer took part."""
        self.rounds += 1
        self.samples += one.samples.get(peer, 0)
        self.reduced += one.reduced.get(peer, 0)
        self.is_whole = self.is_whole and peer in one.samples


class Sight:
    """That of the peer `me`. Steps are taken in order; a step that was missed is a hole in it."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._rounds: OrderedDict[int, RoundSight] = OrderedDict()
        self._since = 0  # the first step that this peer has not claimed yet
        self._begun, self._next = 0, 0
        self._sums: dict[PeerId, SeenSum] = {}
        """Of the steps from `_begun` to before `_next`, which are those since the last count, as most claims are."""

    def begin_count(self, step: int) -> None:
        """A count of this step is committed: the next one is about this step and later ones."""
        self._begun = self._next = step
        self._sums.clear()

    def note(self, outcome: RoundOutcome, own_samples: int, batch: int) -> None:
        """Take up a committed round, to which this peer gave `own_samples`; nobody gave more than the `batch`."""
        plan = outcome.plan
        if self._rounds and plan.step <= next(reversed(self._rounds)):
            self._rounds.clear()  # the organisers regrouped the run: its history is another one
            self._since = 0
        heard = {} if plan.adopts else {**dict.fromkeys(_unheard(outcome), 0), **outcome.heard, self._me: own_samples}
        reduced = {} if plan.adopts else reduced_bytes(plan)
        for peer in outcome.lost:
            reduced.pop(peer, None)
        if plan.adopts:
            heard = dict.fromkeys(plan.ids, 0)
        samples = {peer: min(given, batch) for peer, given in heard.items()}
        is_root = any(plan.ids[part.root] == self._me for part in plan.parts) and not plan.adopts
        self._rounds[plan.step] = one = RoundSight(frozenset(plan.ids), samples, reduced, is_root)
        if plan.step != self._next:
            self.begin_count(plan.step)
        self._next = plan.step + 1
        for peer in plan.ids:
            self._sums.setdefault(peer, SeenSum()).add(peer, one)
        while len(self._rounds) > MAX_SPAN_STEPS:
            self._rounds.popitem(last=False)

    # ---- what this peer claims

    def claim(self, step: int) -> Claim | None:
        """What this peer contributed before `step` and did not claim yet; None if it took part in nothing."""
        start = max(self._since, step - MAX_SPAN_STEPS)
        own = {at: one for at, one in self._rounds.items() if start <= at < step}
        if not own:
            return None
        samples = sum(one.samples.get(self._me, 0) for one in own.values())
        reduced = sum(one.reduced.get(self._me, 0) for one in own.values())
        return Claim(step - min(own), len(own), samples, reduced // UNIT_BYTES)

    def note_claimed(self, step: int) -> None:
        """All before `step` stands in a count."""
        self._since = step

    # ---- how this peer judges

    def judge(self, count: Count) -> JudgedCount:
        """Doubt the claims that exceed what was seen, or were not seen in full. Only a witness can compare samples."""
        recent = [step for step in self._rounds if step < count.step][-RECENT_ROUNDS:]
        is_witness = any(self._rounds[step].is_root for step in recent)
        claims = zip(count.ids, count.claims, strict=True)
        doubted = [
            index
            for index, (peer, claim) in enumerate(claims)
            if claim is not None and not self._confirms(peer, claim, count.step, is_witness=is_witness)
        ]
        return JudgedCount(count, pack(doubted), is_witness)

    def _confirms(self, peer: PeerId, claim: Claim, step: int, *, is_witness: bool) -> bool:
        seen = self._seen(peer, max(0, step - claim.span), step)
        if seen is None or claim.rounds > seen.rounds or claim.reduced * UNIT_BYTES > seen.reduced:
            return False
        return not (is_witness and claim.samples) or (seen.is_whole and claim.samples <= seen.samples)

    def _seen(self, peer: PeerId, start: int, stop: int) -> SeenSum | None:
        """What a peer did from one step to before another; None if this peer missed some of them."""
        if start == self._begun and stop == self._next:
            return self._sums.get(peer, SeenSum())
        seen = SeenSum()
        for step in range(start, stop):
            one = self._rounds.get(step)
            if one is None:
                return None
            if peer in one.members:
                seen.add(peer, one)
        return seen


def _unheard(outcome: RoundOutcome) -> list[PeerId]:
    """The members that this one would have heard, had they sent anything: they gave nothing that it knows of."""
    return [peer for peer in outcome.lost if peer in outcome.plan.ids]


def reduced_bytes(plan: Plan) -> dict[PeerId, int]:
    """The bytes of float32 values of others that each aggregator, root or relay, had to add up by the plan."""
    ids, found = plan.ids, Counter[PeerId]()
    site_of = {member: site for site in plan.sites for member in site}
    alone = len(ids) - len(site_of)
    start = 0
    for part in plan.parts:
        values = 4 * (part.stop - start)
        start = part.stop
        own = site_of.get(part.root, ())
        others = (len(own) - 1 + alone) if own else alone - 1
        found[ids[part.root]] += values * (others + len(plan.sites) - bool(own))
        for site, relay in zip(plan.sites, part.relays, strict=True):
            if relay != part.root:
                found[ids[relay]] += values * (len(site) - 1)
    return dict(found)
