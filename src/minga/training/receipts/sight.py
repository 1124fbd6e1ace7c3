"""What one member saw of the others' contributions in the last rounds, and how it judges a count by that."""

from __future__ import annotations

from collections import Counter, OrderedDict
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


class Sight:
    """That of the peer `me`. Steps are taken in order; a step that was missed is a hole in it."""

    def __init__(self, me: PeerId) -> None:
        self._me = me
        self._rounds: OrderedDict[int, RoundSight] = OrderedDict()
        self._since = 0  # the first step that this peer has not claimed yet

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
        self._rounds[plan.step] = RoundSight(frozenset(plan.ids), samples, reduced, is_root)
        while len(self._rounds) > MAX_SPAN_STEPS:
            self._rounds.popitem(last=False)

    # ---- what this peer claims

    def claim(self, step: int) -> Claim | None:
        """What this peer contributed before `step` and did not claim yet; None if it took part in nothing."""
        steps = [each for each in self._rounds if max(self._since, step - MAX_SPAN_STEPS) <= each < step]
        if not steps:
            return None
        rounds = [self._rounds[each] for each in steps]
        samples = sum(one.samples.get(self._me, 0) for one in rounds)
        reduced = sum(one.reduced.get(self._me, 0) for one in rounds)
        return Claim(step - steps[0], len(rounds), samples, reduced // UNIT_BYTES)

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
        rounds = samples = reduced = 0
        has_heard = True
        for each in range(max(0, step - claim.span), step):
            one = self._rounds.get(each)
            if one is None:
                return False
            if peer in one.members:
                rounds += 1
                reduced += one.reduced.get(peer, 0)
                samples += one.samples.get(peer, 0)
                has_heard = has_heard and peer in one.samples
        if claim.rounds > rounds or claim.reduced * UNIT_BYTES > reduced:
            return False
        return not (is_witness and claim.samples) or (has_heard and claim.samples <= samples)


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
