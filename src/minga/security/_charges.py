"""Accusations that are pending: made in the commitments of one step, to be decided in the next."""

from __future__ import annotations

from typing import Final

import msgspec

from minga.network._interface import PeerId
from minga.security._record import Record
from minga.security._wire import MAX_ACCUSATIONS, Accusation, Charge, Peer

MAX_CHARGES: Final = 64
"""Of one step; there are more only if many members accuse others in vain, who are soon gone."""


class Charged(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An accusation of the last step, which the judges decide in this one; `coverer` aggregated the part that it is
    about and kept silent.
    """

    accuser: Peer
    accusation: Accusation
    coverer: Peer | None = None


def charges(record: Record, voters_before: tuple[PeerId, ...]) -> tuple[Charged, ...]:
    """What the commitments of a step accuse others of; `voters_before` were the members of the step before, by rank."""
    found = [
        Charged(accuser, accusation, _coverer(record, accusation, voters_before))
        for accuser in sorted(record.commits)
        for accusation in record.commits[accuser].accusations
    ]
    return tuple(found[:MAX_CHARGES])


def _coverer(record: Record, accusation: Accusation, voters_before: tuple[PeerId, ...]) -> PeerId | None:
    """Who aggregated the part that an accusation of the last step's claims is about, and should have made it, too."""
    last = accusation.step == record.terms.step - 1
    if accusation.charge is not Charge.CLAIMS or not last or accusation.part >= len(voters_before):
        return None
    aggregator = voters_before[accusation.part]
    said = record.commits.get(aggregator)  # None: it is no member any more
    had_room = said is not None and len(said.accusations) < MAX_ACCUSATIONS  # else it may have found it, too
    silent = said is not None and accusation not in said.accusations
    return aggregator if had_room and silent and aggregator != accusation.target else None
