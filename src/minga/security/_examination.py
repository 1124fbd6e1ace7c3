"""Looking into candidates: what validators do, and all members who judge their accusations.

A validator that finds a wrong gradient accuses the candidate of it, who is banned if most find the same, while a false
accuser is. A validator that cannot get the gradient cannot show that either; if most others cannot get it, or find it
wrong, the candidate has to start over, and else nothing happens. So neither does a broken line cost anybody its place,
nor does it help a candidate to keep its gradient from those who look.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Mapping, Sequence

from minga.averaging._codec_interface import InvalidEncodingError
from minga.core._rooms import Bytes
from minga.network._interface import PeerId
from minga.security._candidacies import Candidacies
from minga.security._conduct import Work
from minga.security._data_seeds import data_seed
from minga.security._delivery import digest_of
from minga.security._hysteresis import Hysteresis, gradient_error
from minga.security._probation import CANDIDACY_LAG, heard_by_most
from minga.security._record import Record
from minga.security._submissions import Submissions
from minga.security._wire import Accusation, Charge


def is_about_candidate(accusation: Accusation, candidates: Container[PeerId]) -> bool:
    """Whether an accusation is one of a candidate, and not of a member."""
    return accusation.charge is Charge.WITHHELD or accusation.target in candidates


def counts(accuser: PeerId, accusation: Accusation, record: Record, drawn: Mapping[PeerId, PeerId]) -> bool:
    """Whether all look into an accusation of a candidate in the step of `record`, for which validators were `drawn`.

    They do if the accuser was to validate that candidate, and heard of it the same as most. Other accusations of
    candidates mean nothing.
    """
    target = PeerId(accusation.target)
    digest = heard_by_most(record).get(target)
    due = drawn.get(accuser) == target and accusation.step == record.terms.step - CANDIDACY_LAG
    told = digest is not None and (accusation.target, digest) in record.commits[accuser].heard
    return due and told and accusation.charge in (Charge.GRADIENT, Charge.WITHHELD)


class Examiner:
    """Looks into candidates on behalf of one member."""

    def __init__(self, work: Work, submissions: Submissions, candidacies: Candidacies, thresholds: Hysteresis) -> None:
        self._work, self._submissions = work, submissions
        self._candidacies, self._thresholds = candidacies, thresholds

    async def validate(self, step: int, target: PeerId, coin: bytes) -> tuple[Accusation, ...]:
        """What is wrong with what a candidate did in a step; `coin` is that of the step before."""
        digest = self._candidacies.of(step).get(target)
        if digest is None:  # it did nothing that could be wrong
            return ()
        error = await self._error(step, target, digest, coin, (target,))
        if error is None:
            return (Accusation(step, target, Charge.WITHHELD),)
        return (Accusation(step, target, Charge.GRADIENT),) if self._thresholds.accuses(error) else ()

    async def is_guilty(self, accusation: Accusation, accuser: PeerId, record: Record, coin: bytes) -> bool | None:
        """Whether an accusation that counts is true; None if this member cannot find out."""
        target = PeerId(accusation.target)
        digest = heard_by_most(record)[target]
        sources = (target, accuser) if accusation.charge is Charge.GRADIENT else (target,)
        error = await self._error(accusation.step, target, digest or b"", coin, sources)
        if error is None:
            return True if accusation.charge is Charge.WITHHELD else None
        return self._thresholds.convicts(error)

    async def _error(
        self, step: int, target: PeerId, digest: bytes, coin: bytes, sources: Sequence[PeerId]
    ) -> float | None:
        """How far what a candidate committed to is from what it should be; None if nobody hands it out."""
        expected = await self._work.gradient(step, data_seed(coin, target))
        encoded = await self._submissions.encode(expected)
        if await asyncio.to_thread(digest_of, encoded) == digest:
            return 0.0
        body = await self._submissions.fetch(step, target, digest, sources)
        if body is None:
            return None
        return await asyncio.to_thread(self._compare, body, encoded)

    def _compare(self, body: Bytes, expected: Bytes) -> float:
        """How far one encoded gradient is from another."""
        try:
            sent = self._submissions.decode(body)
        except InvalidEncodingError:  # what means nothing is no gradient
            return math.inf
        return gradient_error([sent.numpy()], [self._submissions.decode(expected).numpy()])
