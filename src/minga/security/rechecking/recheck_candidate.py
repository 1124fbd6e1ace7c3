"""Looking into candidates: what validators do, and all members who judge their accusations.

A member that looks computes the gradient itself, and meanwhile fetches a sample of what the candidate committed to
(`minga.security.messaging.gradient_samples`), which it needs if the two are not the same to the last bit. It waits
for that as long as it computes, or `LOOK_S` seconds: a candidate that lets it wait holds up no step that takes longer
than that.

A validator that finds a wrong gradient accuses the candidate of it, who is banned if most find the same, while a false
accuser is. A validator that cannot get the sample cannot show that either; if most others cannot get it, or find it
wrong, the candidate has to start over, and else nothing happens. So neither does a broken line cost anybody its place,
nor does it help a candidate to keep its gradient from members that look.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Container, Mapping, Sequence

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.aio.ending import end
from minga.network.interface import PeerId
from minga.security.messaging.gradient_samples import GradientCommitment, GradientPieces, GradientSamples
from minga.security.parts.transfer_limits import LOOK_S
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import TrainingBackend
from minga.security.protocol.probation import CANDIDACY_LAG, heard_by_most
from minga.security.protocol.statements import Accusation, Charge
from minga.security.randomness.public_batch import data_seed
from minga.security.rechecking.applicants import Applicants
from minga.security.verification.exact_sum import norm
from minga.security.verification.gradient_match import GradientTolerance, sampled_error


def is_about_candidate(accusation: Accusation, candidates: Container[PeerId]) -> bool:
    """Whether an accusation is one of a candidate, and not of a member."""
    return accusation.charge is Charge.WITHHELD or accusation.target in candidates


def counts(accuser: PeerId, accusation: Accusation, record: AttemptRecord, drawn: Mapping[PeerId, PeerId]) -> bool:
    """Whether all look into an accusation of a candidate in the step of `record`, for which validators were `drawn`.

    They do if the accuser was to validate that candidate, and heard of it the same as most. Other accusations of
    candidates mean nothing.
    """
    target = PeerId(accusation.target)
    digest = heard_by_most(record.terms.members, record.commits).get(target)
    due = drawn.get(accuser) == target and accusation.step == record.terms.step - CANDIDACY_LAG
    told = digest is not None and (accusation.target, digest) in record.commits[accuser].heard
    return due and told and accusation.charge in (Charge.GRADIENT, Charge.WITHHELD)


class CandidateRecheck:
    """Looks into candidates on behalf of one member; `coins` are those of past steps."""

    def __init__(
        self,
        work: TrainingBackend,
        samples: GradientSamples,
        candidacies: Applicants,
        thresholds: GradientTolerance,
        coins: Mapping[int, bytes],
    ) -> None:
        self._work, self._samples, self._coins = work, samples, coins
        self._candidacies, self._thresholds = candidacies, thresholds

    async def validate(self, step: int, target: PeerId) -> tuple[Accusation, ...]:
        """What is wrong with what a candidate did in a step."""
        root = self._candidacies.of(step).get(target)
        if root is None:  # it did nothing that could be wrong
            return ()
        error = await self._error(step, target, root, (target,))
        if error is None:
            return (Accusation(step, target, Charge.WITHHELD),)
        return (Accusation(step, target, Charge.GRADIENT),) if self._thresholds.accuses(error) else ()

    async def is_guilty(self, accusation: Accusation, accuser: PeerId, record: AttemptRecord) -> bool | None:
        """Whether an accusation that counts is true; None if this member cannot find out."""
        target = PeerId(accusation.target)
        root = heard_by_most(record.terms.members, record.commits)[target]
        sources = (target, accuser) if accusation.charge is Charge.GRADIENT else (target,)
        error = await self._error(accusation.step, target, root or b"", sources)
        if error is None:
            return True if accusation.charge is Charge.WITHHELD else None
        return self._thresholds.convicts(error)

    async def _error(self, step: int, target: PeerId, root: bytes, sources: Sequence[PeerId]) -> float | None:
        """How far what a candidate committed to is from what it should be; None if nobody shows that in time."""
        places = self._samples.drawn(self._coins[step + 1], target)
        loop = asyncio.get_running_loop()
        until_s = loop.time() + LOOK_S
        fetching = loop.create_task(self._samples.fetch(step, target, root, places, sources))
        try:
            expected = await self._work.gradient(step, data_seed(self._coins[step - 1], target))
            own = await self._samples.encode(expected)
            if own.root == root:
                return 0.0
            await asyncio.wait([fetching], timeout=max(0.0, until_s - loop.time()))
            sent = fetching.result() if fetching.done() else None
        finally:
            await end(fetching)
        return await asyncio.to_thread(self._compare, sent, own, expected) if sent is not None else None

    def _compare(self, sent: GradientPieces, own: GradientCommitment, expected: torch.Tensor) -> float:
        """How far a sample is from the same pieces of a gradient that is `expected`."""
        try:
            theirs = self._samples.decode(sent)
        except InvalidEncodingError:  # what means nothing is no gradient
            return math.inf
        ours = self._samples.decode(own.sample(sent.pieces))
        return sampled_error(theirs.numpy(), ours.numpy(), norm(expected.numpy()), expected.numel())
