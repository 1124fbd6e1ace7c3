"""What follows from accusations: who was accused in one step goes if most say so in the next, or else its accuser."""

from __future__ import annotations

from collections.abc import Mapping

from minga.network.interface import PeerId
from minga.security.accountability.case_builder import CaseBuilder
from minga.security.accountability.proofs import Case
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.members import Reason
from minga.security.protocol.pending_accusations import PendingAccusations
from minga.security.protocol.statements import Charge, Judgement


def verdicts(
    charged: tuple[PendingAccusations, ...],
    record: AttemptRecord,
    records: Mapping[int, AttemptRecord],
    witness: CaseBuilder,
) -> tuple[Case, ...]:
    """The cases that the commitments of `record` decide about the charges of the step before; `records` are those of
    the past steps in which this peer was a member, `witness` is that of `record`.
    """
    cases: list[Case] = []
    for charge in charged:
        accuser, accusation = PeerId(charge.accuser), charge.accusation
        if accusation.charge is Charge.WITHHELD:
            continue
        guilty = _judges(record, Judgement(accuser, accusation, guilty=True))
        innocent = _judges(record, Judgement(accuser, accusation, guilty=False))
        if 2 * len(guilty) > len(record.terms.members):
            for peer, reason in _guilty(charge):
                cases.append(witness.judged(peer, reason, accuser, accusation, records, guilty))
        elif 2 * len(innocent) > len(record.terms.members):
            cases.append(witness.judged(accuser, Reason.FALSE_ACCUSATION, accuser, accusation, records, innocent))
    return tuple(cases)


def withheld(charged: tuple[PendingAccusations, ...], record: AttemptRecord) -> frozenset[PeerId]:
    """Candidates whose gradients most members could not get, or found wrong."""
    return frozenset(
        PeerId(charge.accusation.target)
        for charge in charged
        if charge.accusation.charge is Charge.WITHHELD
        and 2 * len(_judges(record, Judgement(charge.accuser, charge.accusation, guilty=True)))
        > len(record.terms.members)
    )


def _judges(record: AttemptRecord, judgement: Judgement) -> tuple[PeerId, ...]:
    return tuple(peer for peer, commit in record.commits.items() if judgement in commit.judgements)


def _guilty(charge: PendingAccusations) -> list[tuple[PeerId, Reason]]:
    target = PeerId(charge.accusation.target)
    if charge.accusation.charge is Charge.GRADIENT:
        return [(target, Reason.WRONG_GRADIENT)]
    covering = [(PeerId(charge.coverer), Reason.COVERED)] if charge.coverer is not None else []
    return [(target, Reason.FALSE_CLAIMS), *covering]
