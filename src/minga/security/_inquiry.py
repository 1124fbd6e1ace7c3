"""Looking into what a member did at an earlier step: what validators do, and everybody who judges an accusation.

Everything that is needed is public (the seed of the batch follows from the coin) or was committed to (parts and
aggregates by their digests), so all who look come to the same finding; gradients that differ by rounding, because two
members have different hardware, count as equal.
"""

from __future__ import annotations

import asyncio
import math

import torch

from minga.averaging._codec_interface import InvalidEncodingError
from minga.network._interface import PeerId
from minga.security._arithmetic import Arithmetic
from minga.security._conduct import Work
from minga.security._data_seeds import data_seed
from minga.security._delivery import Deliveries
from minga.security._hysteresis import gradient_error
from minga.security._merkle import MerkleTree
from minga.security._record import Record
from minga.security._wire import Accusation, Charge


class Inquiry:
    """Looks into the members of one past step; `before` is the coin of the step before it."""

    def __init__(
        self, record: Record, before: bytes, work: Work, arithmetic: Arithmetic, deliveries: Deliveries
    ) -> None:
        self._record, self._before, self._work = record, before, work
        self._arithmetic, self._deliveries = arithmetic, deliveries
        self._thresholds = arithmetic.settings.thresholds

    async def validate(self, target: PeerId) -> tuple[Accusation, ...]:
        """What is wrong with the contribution of a member, as far as it can be found out."""
        terms = self._record.terms
        if target not in terms.members or target in terms.validators:
            return ()
        if self._thresholds.accuses(await self._gradient_error(target)):
            return (Accusation(terms.step, target, Charge.GRADIENT),)
        part = await asyncio.to_thread(self._first_false_claim, terms.members.index(target))
        return () if part is None else (Accusation(terms.step, target, Charge.CLAIMS, part),)

    async def is_guilty(self, accusation: Accusation) -> bool:
        """Whether an accusation about this step is true."""
        terms, target = self._record.terms, PeerId(accusation.target)
        if accusation.step != terms.step or target not in terms.members or target in terms.validators:
            return False
        if accusation.charge is Charge.GRADIENT:
            return self._thresholds.convicts(await self._gradient_error(target))
        owner, part = terms.members.index(target), accusation.part
        if part >= len(terms.members) or not terms.division.numel(part):
            return False
        await self._get(owner, part)
        return bool(await asyncio.to_thread(self._arithmetic.liars, self._record, part, [owner]))

    async def false_claims(self, part: int) -> tuple[Accusation, ...]:
        """Of the aggregator of a part: whose claims about it are false."""
        terms = self._record.terms
        liars = await asyncio.to_thread(self._arithmetic.liars, self._record, part, terms.contributors)
        return tuple(Accusation(terms.step, liar, Charge.CLAIMS, part) for liar in liars)

    # ---- inner workings

    async def _gradient_error(self, target: PeerId) -> float:
        """Compute the gradient of a member again; how far what the member committed to is from it, 0 if not at all."""
        terms, cargo = self._record.terms, self._record.cargo
        expected = await self._work.gradient(terms.step, data_seed(self._before, target))
        owner, division = terms.members.index(target), terms.division
        parts = [
            await asyncio.to_thread(division.encode, expected, part, cargo.rooms) for part in range(len(terms.members))
        ]
        tree = await asyncio.to_thread(MerkleTree, parts)
        if cargo.roots.get(owner) == tree.root:  # it is the same to the last bit
            cargo.put_owners(owner, dict(enumerate(parts)), tree)
            return 0.0
        ours, theirs = [], []
        for part, encoded in enumerate(parts):
            if encoded:
                await self._get(owner, part)
            if (owner, part) not in cargo.parts:
                continue  # what nobody hands out proves nothing about anybody
            own = torch.empty(division.numel(part))
            await asyncio.to_thread(division.decode, encoded, part, own)
            ours.append(own.numpy())
            try:
                theirs.append((await asyncio.to_thread(self._record.row, owner, part)).numpy())
            except InvalidEncodingError:  # what means nothing is no gradient
                return math.inf
        return await asyncio.to_thread(gradient_error, theirs, ours)

    def _first_false_claim(self, owner: int) -> int | None:
        """The first part about which a member claims what is not true of the bytes that are at hand."""
        parts = range(len(self._record.terms.members))
        return next((part for part in parts if self._arithmetic.liars(self._record, part, [owner])), None)

    async def _get(self, owner: int, part: int) -> None:
        terms = self._record.terms
        if (owner, part) not in self._record.cargo.parts:
            await self._deliveries.fetch_part(terms.step, terms.attempt, part, owner)
