"""Accusations that are pending: made in the commitments of one step, to be decided in the next.

Accusations that oblige no member to look into them are ignored: they would cost their authors nothing. When there are
more than `MAX_CHARGES`, each member's first accusation counts before any member's second one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.statements import MAX_ACCUSATIONS, Accusation, Charge, Commit, Peer

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
        PendingAccusations(
            accuser,
            accusations[turn],
            coverer(record.commits, accusations[turn], record.terms.step, voters_before),
        )
        for turn in range(MAX_ACCUSATIONS)
        for accuser, accusations in counted.items()
        if turn < len(accusations)
    ]
    return tuple(found[:MAX_CHARGES])


def coverer(
    commits: Mapping[PeerId, Commit], accusation: Accusation, step: int, voters_before: Sequence[str]
) -> PeerId | None:
    """The member that aggregated the part that an accusation of false claims is about, and kept silent about them.

    `commits` are those of `step`, `voters_before` were the members of the step before, by rank. An aggregator whose
    commitment has no room for another accusation may have found the lie, too.
    """
    last = accusation.step == step - 1
    if accusation.charge is not Charge.CLAIMS or not last or accusation.part >= len(voters_before):
        return None
    aggregator = PeerId(voters_before[accusation.part])
    said = commits.get(aggregator)  # None: it is no member any more
    silent = said is not None and accusation not in said.accusations and len(said.accusations) < MAX_ACCUSATIONS
    return aggregator if silent and aggregator != accusation.target else None
