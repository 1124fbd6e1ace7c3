"""Looking into what a member did at an earlier step: what validators do, and everybody who judges an accusation.

Everything that is needed is public (the seed of the batch follows from the coin) or was committed to (parts and
aggregates by their digests), so all who look come to the same finding; gradients that differ by rounding, because two
members have different hardware, count as equal.
"""

from __future__ import annotations

import math

import torch

from minga.network._interface import PeerId
from minga.security._arithmetic import Arithmetic
from minga.security._conduct import Work
from minga.security._data_seeds import data_seed
from minga.security._delivery import Deliveries
from minga.security._record import Record
from minga.security._wire import Accusation, Charge


class Inquiry:
    """Looks into the members of one past step; `before` is the coin of the step before it."""

    def __init__(
        self, record: Record, before: bytes, work: Work, arithmetic: Arithmetic, deliveries: Deliveries
    ) -> None:
        self._record, self._before, self._work = record, before, work
        self._arithmetic, self._deliveries = arithmetic, deliveries

    async def validate(self, target: PeerId) -> tuple[Accusation, ...]:
        """What is wrong with the contribution of a member, as far as it can be found out."""
        terms = self._record.terms
        if target not in terms.members or target in terms.validators:
            return ()
        if not await self._gradient_is_right(target):
            return (Accusation(terms.step, target, Charge.GRADIENT),)
        owner = terms.members.index(target)
        false = [part for part in range(len(terms.members)) if self._claim_is_false(owner, part)]
        return tuple(Accusation(terms.step, target, Charge.CLAIMS, part) for part in false[:1])

    async def is_guilty(self, accusation: Accusation) -> bool:
        """Whether an accusation about this step is true."""
        terms, target = self._record.terms, PeerId(accusation.target)
        if accusation.step != terms.step or target not in terms.members or target in terms.validators:
            return False
        if accusation.charge is Charge.GRADIENT:
            return not await self._gradient_is_right(target)
        owner, part = terms.members.index(target), accusation.part
        if part >= len(terms.members) or not terms.division.numel(part):
            return False
        await self._get(owner, part)
        return self._claim_is_false(owner, part)

    def false_claims(self, part: int) -> tuple[Accusation, ...]:
        """Of the aggregator of a part: whose claims about it are false."""
        terms = self._record.terms
        false = [owner for owner in terms.contributors if self._claim_is_false(owner, part)]
        return tuple(Accusation(terms.step, terms.members[owner], Charge.CLAIMS, part) for owner in false)

    # ---- inner workings

    async def _gradient_is_right(self, target: PeerId) -> bool:
        """Compute the gradient of a member again and compare it with what the member committed to."""
        terms = self._record.terms
        expected = await self._work.gradient(terms.step, data_seed(self._before, target))
        owner, division = terms.members.index(target), terms.division
        unlike = 0.0
        for part in range(len(terms.members)):
            if not division.numel(part):
                continue
            encoded = division.encode(expected, part)
            if self._record.cargo.put_part(owner, part, encoded):
                continue  # to the last bit
            await self._get(owner, part)
            try:
                sent = self._record.row(owner, part)
            except KeyError:  # it hands out to nobody what it committed to
                return False
            ours = torch.empty_like(sent)
            division.decode(encoded, part, ours)
            unlike += float((sent.double() - ours.double()).square().sum())
        return math.sqrt(unlike) <= self._arithmetic.settings.gradient_tolerance * float(expected.double().norm())

    def _claim_is_false(self, owner: int, part: int) -> bool:
        record = self._record
        if not record.terms.division.numel(part) or (owner, part) not in record.cargo.parts:
            return False
        claimed = record.claims[record.terms.members[owner]].claims[part]
        return claimed != self._arithmetic.claim(record, owner, part)

    async def _get(self, owner: int, part: int) -> None:
        terms = self._record.terms
        if (owner, part) not in self._record.cargo.parts:
            await self._deliveries.fetch_part(terms.step, terms.attempt, part, owner)
