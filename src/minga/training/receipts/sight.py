"""What one member saw of the others' contributions in the last rounds, and how it judges a count by that."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.messages import Plan
from minga.network.interface import PeerId
from minga.training.receipts.attestation import JudgedCount, pack
from minga.training.receipts.claims import MAX_SPAN_STEPS, UNIT_BYTES, Claim, Count

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
        self._own: deque[tuple[int, int, int]] = deque()
        """Of the rounds from then on: the step, and what this peer gave and had to add up."""
        self._own_samples = self._own_reduced = 0
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
            self._forget_own(math.inf)
        heard = {} if plan.adopts else {**dict.fromkeys(_unheard(outcome), 0), **outcome.heard, self._me: own_samples}
        reduced = {} if plan.adopts else reduced_bytes(plan)
        for peer in outcome.lost:
            reduced.pop(peer, None)
        if plan.adopts:
            heard = dict.fromkeys(plan.ids, 0)
        samples = {peer: min(given, batch) for peer, given in heard.items()}
        is_root = any(plan.ids[part.root] == self._me for part in plan.parts) and not plan.adopts
        self._rounds[plan.step] = one = RoundSight(frozenset(plan.ids), samples, reduced, is_root)
        given, added = samples.get(self._me, 0), reduced.get(self._me, 0)
        self._own.append((plan.step, given, added))
        self._own_samples, self._own_reduced = self._own_samples + given, self._own_reduced + added
        if plan.step != self._next:
            self.begin_count(plan.step)
        self._next = plan.step + 1
        for peer in plan.ids:
            self._sums.setdefault(peer, SeenSum()).add(peer, one)
        while len(self._rounds) > MAX_SPAN_STEPS:
            self._rounds.popitem(last=False)
        self._forget_own(next(iter(self._rounds)))

    # ---- what this peer claims

    def claim(self, step: int) -> Claim | None:
        """What this peer contributed before `step` and did not claim yet; None if it took part in nothing."""
        self._forget_own(max(self._since, step - MAX_SPAN_STEPS))
        later = [one for one in self._own if one[0] >= step] if self._own and self._own[-1][0] >= step else []
        if len(later) == len(self._own):
            return None
        samples = self._own_samples - sum(given for _, given, _ in later)
        reduced = self._own_reduced - sum(added for _, _, added in later)
        return Claim(step - self._own[0][0], len(self._own) - len(later), samples, reduced // UNIT_BYTES)

    def note_claimed(self, step: int) -> None:
        """All before `step` stands in a count."""
        self._since = step

    def _forget_own(self, before: float) -> None:
        """Claim nothing of the steps before one."""
        while self._own and self._own[0][0] < before:
            _, given, added = self._own.popleft()
            self._own_samples, self._own_reduced = self._own_samples - given, self._own_reduced - added

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
