"""Who leads a step, and who decides it: the same for everyone who knows the same members."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from minga.averaging.messages import Plan
from minga.network.interface import PeerId

_RANKS_REMEMBERED: Final = 4096


def ranking(run_id: str, step: int, candidates: Iterable[PeerId]) -> list[PeerId]:
    """Possible leaders of `step`, best first: ascending BLAKE3 of run id, step and peer id.

    Nobody can choose a peer id that leads often without redoing that work for each step, and a peer that fails as
    leader is not asked first again in the next step.
    """
    return sorted(set(candidates), key=lambda peer: _rank(run_id, step, peer))


@functools.lru_cache(_RANKS_REMEMBERED)  # the candidates of a step are ranked many times
def _rank(run_id: str, step: int, peer: PeerId) -> bytes:
    return blake3(f"minga leader\n{run_id}\n{step}\n{peer}".encode()).digest()


def has_quorum(alive: Collection[PeerId], view: Iterable[PeerId]) -> bool:
    """Whether `alive` may go on in the name of `view`, the members of the last round, its tie-breaker first.

    More than half of the view may. Exactly half may if it has the tie-breaker, so that two halves never both go on;
    and of a view of two, either may, because there a death cannot be told from a cut and training alone is what one
    peer is for (the two histories meet again in `docs/guarantees.md`).
    """
    members = list(view)
    present = sum(1 for peer in members if peer in alive)
    return _is_enough(present, len(members), breaks_tie=bool(members) and members[0] in alive)


def may_be_committed(view: Sequence[PeerId], lacking: Collection[PeerId]) -> bool:
    """Whether a result may be committed in the name of `view`, its tie-breaker first, though the members `lacking`,
    which are here, never held it: the others have to be a quorum.

    Among the others are members that said goodbye, for they may have held it before. So this is right whichever
    goodbyes the leader of that round knew: without these members, its quorum was no smaller than the rest of its
    electorate, which has all of `lacking`. With them the others are half of the view or more.
    """
    return has_quorum(set(view) - set(lacking), view)


def is_majority(group: Collection[PeerId], living: Sequence[PeerId]) -> bool:
    """Whether `group` has more than half of `living`, or half of them and the first: of two groups at most one has."""
    present = sum(1 for peer in living if peer in group)
    return 2 * present > len(living) or (2 * present == len(living) and (not living or living[0] in group))


def by_tie_breaker(view: Sequence[PeerId], organiser: PeerId | None) -> tuple[PeerId, ...]:
    """The members of a round, its tie-breaker first: the organiser's peer if it is one of them, else their leader."""
    return tuple(sorted(view, key=lambda peer: peer != organiser))


@dataclass(frozen=True)
class Electorate:
    """Who decides in one round whether its result counts; members by their numbers in the plan.

    `size` members of the last round have a vote, of which the `voters` are in this round; `tie_breaker` is None if it
    is not. The members of a first round, which follows none, all have a vote.
    """

    voters: frozenset[int]
    size: int
    tie_breaker: int | None

    @classmethod
    def of(cls, plan: Plan) -> Electorate:
        """The electorate that a plan names."""
        if not plan.electorate:
            return cls(frozenset(range(len(plan.members))), len(plan.members), 0)
        return cls(frozenset(plan.voters), plan.electorate, plan.tie_breaker)

    def is_quorum(self, members: Iterable[int]) -> bool:
        """Whether these members may decide; see `has_quorum`."""
        present = self.voters.intersection(members)
        return _is_enough(len(present), self.size, breaks_tie=self.tie_breaker in present)


def _is_enough(present: int, size: int, *, breaks_tie: bool) -> bool:
    if not size or 2 * present != size:
        return not size or 2 * present > size
    return present > 0 and (breaks_tie or size == 2)
