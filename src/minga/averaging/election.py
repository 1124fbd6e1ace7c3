"""Who leads: the same order for everyone who knows the same members, a new one each step."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from blake3 import blake3

from minga.network.interface import PeerId


def ranking(run_id: str, step: int, candidates: Iterable[PeerId]) -> list[PeerId]:
    """Possible leaders of `step`, best first: ascending BLAKE3 of run id, step and peer id.

    Nobody can choose a peer id that leads often without redoing that work for each step, and a peer that fails as
    leader is not asked first again in the next step.
    """

    def key(peer: PeerId) -> bytes:
        return blake3(f"minga leader\n{run_id}\n{step}\n{peer}".encode()).digest()

    return sorted(set(candidates), key=key)


def has_quorum(alive: set[PeerId], view: Iterable[PeerId]) -> bool:
    """Whether `alive` may go on in the name of `view`, the members of the last round.

    More than half of the view may. Exactly half may if it has the view's first member, so that two halves never both
    go on; and of a view of two, either may, because there a death cannot be told from a cut and training alone is
    what one peer is for (the two histories meet again in `docs/guarantees.md`).
    """
    members = list(view)
    present = sum(1 for peer in members if peer in alive)
    if not members or 2 * present != len(members):
        return not members or 2 * present > len(members)
    return present > 0 and (members[0] in alive or len(members) == 2)


def is_majority(group: Collection[PeerId], living: Sequence[PeerId]) -> bool:
    """Whether `group` has more than half of `living`, or half of them and the first: of two groups at most one has."""
    present = sum(1 for peer in living if peer in group)
    return 2 * present > len(living) or (2 * present == len(living) and (not living or living[0] in group))
