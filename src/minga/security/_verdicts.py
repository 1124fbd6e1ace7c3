"""What follows from accusations: who was accused in one step goes if most say so in the next, or else its accuser."""

from __future__ import annotations

from collections.abc import Mapping

from minga.network._interface import PeerId
from minga.security._evidence import Case
from minga.security._ledger import Reason
from minga.security._record import Record
from minga.security._wire import MAX_ACCUSATIONS, Accusation, Charge, Judgement
from minga.security._witness import Witness


def verdicts(record: Record, records: Mapping[int, Record], witness: Witness) -> tuple[Case, ...]:
    """The cases that the commitments of `record` decide; `records` are those of past steps, `witness` is its own."""
    before = records.get(record.terms.step - 1)
    if before is None:
        return ()
    cases: list[Case] = []
    for accuser, commit in before.commits.items():
        for accusation in commit.accusations:
            guilty = _judges(record, Judgement(accuser, accusation, guilty=True))
            innocent = _judges(record, Judgement(accuser, accusation, guilty=False))
            if 2 * len(guilty) > len(record.terms.members):
                for peer, reason, members_then in _guilty(accusation, before, records):
                    cases.append(witness.judged(peer, reason, accuser, accusation, before.terms, guilty, members_then))
            elif 2 * len(innocent) > len(record.terms.members):
                reason = Reason.FALSE_ACCUSATION
                cases.append(witness.judged(accuser, reason, accuser, accusation, before.terms, innocent))
    return tuple(cases)


def _judges(record: Record, judgement: Judgement) -> tuple[PeerId, ...]:
    return tuple(peer for peer, commit in record.commits.items() if judgement in commit.judgements)


def _guilty(
    accusation: Accusation, before: Record, records: Mapping[int, Record]
) -> list[tuple[PeerId, Reason, tuple[PeerId, ...]]]:
    target = PeerId(accusation.target)
    if accusation.charge is Charge.GRADIENT:
        return [(target, Reason.WRONG_GRADIENT, ())]
    guilty: list[tuple[PeerId, Reason, tuple[PeerId, ...]]] = [(target, Reason.FALSE_CLAIMS, ())]
    accused = records.get(accusation.step)
    if accused is not None:
        aggregator = accused.terms.members[accusation.part]
        said = before.commits.get(aggregator)  # None: it is no member any more
        had_room = said is not None and len(said.accusations) < MAX_ACCUSATIONS  # else it may have found it, too
        if said is not None and had_room and accusation not in said.accusations and aggregator != target:
            guilty.append((aggregator, Reason.COVERED, accused.terms.members))
    return guilty
