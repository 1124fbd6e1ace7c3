"""The numbers of an attempt: what an aggregator computes, what senders claim, and what everybody checks.

The radius of clipping follows from the parts themselves: `clip_factor` times the median distance of the parts from the
aggregate. Less than half hostile parts cannot move that median beyond the distances of the honest ones, and since all
publish their distances (`PartClaim.norm`), everybody sees whether an aggregator named a radius of its own liking. But
where a quarter of the parts lie far away, a radius that is too large draws the aggregate so near to them that all
distances grow with it: it is therefore compared with the distances of past steps, too.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

import numpy as np
import numpy.typing as npt
import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.buffer_pool import Bytes
from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.members import Reason
from minga.security.protocol.rules import SecureSettings
from minga.security.robust.interface import AGGREGATORS
from minga.security.verification.checks import (
    PublishedClaims,
    check_averaging,
    check_senders,
    is_far,
    largest_sum,
)
from minga.security.verification.claims import PartClaim, ResultAccuracy, claims
from minga.security.verification.count_sketch import Directions, norm
from minga.security.verification.gradient_match import claimed_errors
from minga.security.verification.norm_bound import DispersionHistory, dispersions, norm_bound

RADIUS_TOLERANCE = 2.0
"""A radius raises a doubt if it is more times than this as large or small as the published distances say: those are
distances from the aggregate, but it is found from the distances from the geometric median. Where half of the parts lie
far from the others, these have nothing to do with each other, so it is then compared with what the parts give."""

RADIUS_GROWTH = 4.0
"""A radius that is more times as large as the dispersion that past steps let expect raises a doubt, too, for which
nobody goes who did as he should: rare words may have some parts looked at."""

AGGREGATE_RESIDUAL = 2.0**-16
"""Residual, in radii, at which an honest aggregator stops; see `Aggregator`."""

SOLVER_LEEWAY, LEAST_ACCURATE = 2.0, 1e-2
"""How much more residual than the own one is allowed where the solver could do no better, and how much at most."""


class StepMath:
    """Of one run: remembers how far parts were from aggregates in the steps before."""

    def __init__(self, settings: SecureSettings) -> None:
        self.settings = settings
        self.directions = settings.directions
        self._aggregator = AGGREGATORS.get(settings.aggregator)(radius_factor=settings.clip_factor)
        self._accuracy = ResultAccuracy(AGGREGATE_RESIDUAL)
        self.history = DispersionHistory()
        """Of the steps before."""

    def aggregate(self, rows: Sequence[torch.Tensor]) -> tuple[torch.Tensor, float]:
        """Clip the rows (float32, one length) to their mean; the aggregate (float32) and the radius of clipping."""
        aggregate = self._aggregator.aggregate(rows)
        return aggregate.value, max(aggregate.clip_radius, _LEAST_RADIUS)

    def true_claims(self, record: AttemptRecord, part: int, owners: Iterable[int]) -> dict[int, PartClaim]:
        """What is true of the bytes of these owners that are at hand, by rank; nothing is where they mean nothing, or
        nothing that a claim can say.

        Each is computed but once. Empty where the aggregate has no elements.
        """
        found, rows = dict[int, PartClaim](), dict[int, torch.Tensor]()
        if not record.terms.division.numel(part):
            return found
        for owner in owners:
            if (owner, part) in record.true_claims:
                found[owner] = record.true_claims[owner, part]
            elif (owner, part) in record.store.parts:
                with contextlib.suppress(InvalidEncodingError):
                    rows[owner] = record.row(owner, part)
        if rows:
            clip, value = record.results[record.terms.members[part]].clip, _array(record.values[part])
            true = claims(list(map(_array, rows.values())), value, clip, self._directions(record, part))
            told = {owner: claim for owner, claim in zip(rows, true, strict=True) if claim is not None}
            found.update(told)
            record.true_claims.update({(owner, part): claim for owner, claim in told.items()})
        return found

    def liars(self, record: AttemptRecord, part: int, owners: Iterable[int]) -> tuple[PeerId, ...]:
        """V1: whose claims about a part are false, of those whose bytes of it are at hand."""
        members, store = record.terms.members, record.store
        claiming = [
            owner
            for owner in owners
            if (owner, part) in store.parts and record.claims[members[owner]].claims[part] is not None
        ]
        if not claiming:
            return ()
        true = self.true_claims(record, part, claiming)
        recomputed = {members[owner]: true.get(owner) for owner in claiming}
        published = self._published(record, part, recomputed.keys())
        return check_senders(published, recomputed)

    def claimed_error(self, record: AttemptRecord, owner: int, expected: Sequence[Bytes]) -> tuple[float, int]:
        """How far the claims of a member are from what is true of the parts that it should have sent, `expected`: the
        largest relative error, and the part that shows it.
        """
        terms, true, norms = record.terms, list[PartClaim | None](), list[float]()
        for part in terms.division.parts:
            row = _array(terms.division.row(expected[part], part, is_sound=True))
            value, clip = _array(record.values[part]), record.results[terms.members[part]].clip
            true += claims([row], value, clip, self._directions(record, part))
            norms.append(norm(row))
        claimed = [record.claims[terms.members[owner]].claims[part] for part in terms.division.parts]
        errors = claimed_errors(claimed, true, norms, [terms.division.numel(part) for part in terms.division.parts])
        return max(zip(errors, terms.division.parts, strict=True))

    def remember(self, record: AttemptRecord) -> None:
        """A step was taken: its distances are what the next ones are compared with."""
        parts = record.terms.division.parts
        norms = [_typical_norm(self._published(record, part)) for part in parts]
        self.history.add([record.terms.division.stops[part] for part in parts], norms)

    def doubtful(self, record: AttemptRecord) -> list[int]:
        """V2, V3 and the radius: which parts have to be computed again. All who have the same claims say the same."""
        parts = record.terms.division.parts
        published = {part: self._published(record, part) for part in parts}
        typical = [_typical_norm(published[part]) for part in parts]
        stops = [record.terms.division.stops[part] for part in parts]
        spread, are_known = dispersions(typical, self.history.references(stops)), self.history.are_known(stops)
        doubtful = []
        for part, dispersion, distance in zip(parts, spread, typical, strict=True):
            one, value = published[part], record.values[part]
            if (
                self._is_off(one, value)
                or is_far(one, norm_bound(dispersion, one.radius))
                or not self._is_usual(one.radius, distance)
                or (are_known and self._has_grown(one.radius, dispersion))
            ):
                doubtful.append(part)
        return doubtful

    def recheck(self, record: AttemptRecord, part: int) -> dict[PeerId, Reason]:
        """The public check of a part of which all bytes are at hand: who goes, and why.

        Depends on nothing but the record, so anybody comes to the same result at any time. Raises `ValueError` if
        claims are missing.
        """
        bans = dict[PeerId, Reason]()
        rows, aggregator, terms = dict[PeerId, torch.Tensor](), record.terms.members[part], record.terms
        for owner in terms.contributors:
            try:
                rows[terms.members[owner]] = record.row(owner, part)
            except InvalidEncodingError:  # nothing can be claimed of it, and nothing can be its mean
                bans |= {terms.members[owner]: Reason.FALSE_CLAIMS, aggregator: Reason.WRONG_AGGREGATE}
        if bans:
            return bans
        published, value = self._published(record, part), _array(record.values[part])
        radius, left = self._aggregator.limits(list(rows.values()))
        radius = max(radius, _LEAST_RADIUS)
        arrays = {peer: _array(row) for peer, row in rows.items()}
        directions, accuracy = self._directions(record, part), _attainable(radius, left / len(rows))
        liars, is_wrong = check_averaging(published, arrays, value, directions, accuracy)
        bans = dict.fromkeys(liars, Reason.FALSE_CLAIMS)
        if is_wrong or not _is_near(published.radius, radius):
            bans.setdefault(aggregator, Reason.WRONG_AGGREGATE)
        return bans

    # ---- inner workings

    def _is_off(self, published: PublishedClaims, value: torch.Tensor) -> bool:
        """V2: whether the projections do not sum up to about nothing."""
        limit = partial(self._accuracy.sum_limit, len(published.claims), published.radius, numel=len(value))
        found = largest_sum(published)
        # The length of the aggregate adds little to the limit, and all its bytes have to be read for it.
        return found > limit(0.0) and found > limit(norm(_array(value)))

    def _is_usual(self, radius: float, distance: float) -> bool:
        return _is_near(radius, max(self.settings.clip_factor * distance, _LEAST_RADIUS))

    def _has_grown(self, radius: float, dispersion: float) -> bool:
        return radius > max(self.settings.clip_factor * RADIUS_GROWTH * dispersion, _LEAST_RADIUS)

    def _published(
        self, record: AttemptRecord, part: int, senders: AbstractSet[PeerId] | None = None
    ) -> PublishedClaims:
        """What all senders claim about a part, or these."""
        terms = record.terms
        said = {
            terms.members[owner]: claim
            for owner in terms.contributors
            if (claim := record.claims[terms.members[owner]].claims[part]) is not None
            and (senders is None or terms.members[owner] in senders)
        }
        return PublishedClaims(part, record.results[terms.members[part]].clip, said)

    def _directions(self, record: AttemptRecord, part: int) -> Directions:
        return Directions(record.randomness, self.directions, record.terms.division.starts[part])


def _attainable(radius: float, left: float) -> ResultAccuracy:
    """The accuracy that may be asked of who aggregated parts, where `left` of each may be left of the equation.

    Where half of them lie far from the others the fixed point is nearly undetermined, and an honest solver gives up.
    """
    return ResultAccuracy(min(max(AGGREGATE_RESIDUAL, SOLVER_LEEWAY * left / radius), LEAST_ACCURATE))


def _is_near(radius: float, expected: float) -> bool:
    return 1.0 / RADIUS_TOLERANCE <= radius / expected <= RADIUS_TOLERANCE


_LEAST_RADIUS = 2.0**-150
"""Where all parts are equal there is no distance to measure, and nothing to clip; float32 vectors that differ are at
least twice as far apart."""


def _typical_norm(published: PublishedClaims) -> float:
    return statistics.median_low(claim.norm for claim in published.claims.values())


def _array(values: torch.Tensor) -> npt.NDArray[np.floating]:
    return values.numpy()
