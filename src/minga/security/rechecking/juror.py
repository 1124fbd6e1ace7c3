"""What a member says of accusations: it looks into each, and tells the others in its next commitment what it found."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

from minga.core.thread_guard import loop_bound
from minga.network.interface import PeerId
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.pending_accusations import PendingAccusations
from minga.security.protocol.statements import Accusation, Judgement
from minga.security.rechecking.candidates import CandidateRegister
from minga.security.rechecking.recheck_candidate import is_about_candidate
from minga.security.rechecking.recheck_member import MemberRecheck


@loop_bound
class Juror:
    """Of one member; `records` are those of the steps that may be asked about, `recheck` looks into one of them."""

    def __init__(
        self,
        records: Mapping[int, AttemptRecord],
        register: CandidateRegister,
        behaviour: Behaviour,
        recheck: Callable[[int], MemberRecheck],
        first: int,
    ) -> None:
        self._records, self._register, self._behaviour, self._recheck = records, register, behaviour, recheck
        self.first = first
        """The first step in which this peer can take part as a member; of those before it has nothing to say."""

    def begin_at(self, step: int) -> None:
        """This peer took no part in the steps before `step`."""
        self.first = step

    async def look_into(
        self, pending: Sequence[PendingAccusations], record: AttemptRecord, candidates: Container[PeerId]
    ) -> tuple[Judgement, ...]:
        """What this member has to say of the charges of the step of `record`, with these candidates."""
        judgements = []
        found: dict[Accusation, bool | None] = {}
        for one in pending:
            accusation = one.accusation
            if accusation not in found:
                accusers = [PeerId(each.accuser) for each in pending if each.accusation == accusation]
                found[accusation] = await self._is_guilty(accusation, accusers, record, candidates)
            guilty = found[accusation]
            if guilty is not None:
                said = self._behaviour.judgement(accusation, guilty=guilty)
                judgements.append(Judgement(one.accuser, accusation, said))
        return tuple(judgements)

    async def _is_guilty(
        self, accusation: Accusation, accusers: Sequence[PeerId], record: AttemptRecord, candidates: Container[PeerId]
    ) -> bool | None:
        """Whether an accusation is true; None if it cannot be said."""
        if accusation.step < self.first:
            return None
        if is_about_candidate(accusation, candidates):
            return await self._register.is_guilty(accusers[0], accusation, record)
        if accusation.step not in self._records:
            return False
        return await self._recheck(accusation.step).is_guilty(accusation, accusers)
