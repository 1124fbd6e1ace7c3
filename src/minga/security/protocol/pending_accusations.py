"""Accusations that are pending: made in the commitments of one step, to be decided in the next.

There is room for `MAX_CHARGES`, so nobody may fill it for nothing. What costs its author nothing, because nobody looks
into it, is no charge; and before anybody's second accusation comes the first one of everybody.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.statements import MAX_ACCUSATIONS, Accusation, Charge, Peer

MAX_CHARGES: Final = 64
"""Of one step; there are more only if many members accuse others in vain, who are soon gone."""


class PendingAccusations(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """An accusation of the last step, which the judges decide in this one; `coverer` aggregated the part that it is
    about and kept silent.
    """

    accuser: Peer
    accusation: Accusation
    coverer: Peer | None = None


def charges(
    record: AttemptRecord, voters_before: tuple[PeerId, ...], counts: Callable[[PeerId, Accusation], bool]
) -> tuple[PendingAccusations, ...]:
    """What the commitments of a step accuse others of, as far as it `counts`; `voters_before` were the members of the
    step before, by rank.
    """
    counted = {
        accuser: [accusation for accusation in commit.accusations if counts(accuser, accusation)]
        for accuser, commit in sorted(record.commits.items())
    }
    found = [
        PendingAccusations(accuser, accusations[turn], _coverer(record, accusations[turn], voters_before))
        for turn in range(MAX_ACCUSATIONS)
        for accuser, accusations in counted.items()
        if turn < len(accusations)
    ]
    return tuple(found[:MAX_CHARGES])


def _coverer(record: AttemptRecord, accusation: Accusation, voters_before: tuple[PeerId, ...]) -> PeerId | None:
    """Who aggregated the part that an accusation of the last step's claims is about, and should have made it, too."""
    last = accusation.step == record.terms.step - 1
    if accusation.charge is not Charge.CLAIMS or not last or accusation.part >= len(voters_before):
        return None
    aggregator = voters_before[accusation.part]
    said = record.commits.get(aggregator)  # None: it is no member any more
    had_room = said is not None and len(said.accusations) < MAX_ACCUSATIONS  # else it may have found it, too
    silent = said is not None and accusation not in said.accusations
    return aggregator if had_room and silent and aggregator != accusation.target else None
