"""Where a training state comes from: the run's founding, and the rounds that led from there to the state.

Theory of operation. A run has one first state, which its organiser signed (`minga.training.life.founding`). Every other
state of the run is what rounds made of that one. So each state carries the founding that it descends from, the epoch of
the organisers' last regroup, and a running digest of the ids of all committed rounds: two states of one step have the
same history if and only if these are equal. A state without a founding is a program's own, and no state of any run.

Two histories of one founding can both go on for a while: of two members that lose each other each goes on alone, and so
does a peer that comes back with its checkpoint and sees nobody. When they meet, one gives way. Which one is no question
of the higher step, since a peer that is alone takes steps as fast as it can. What counts are the rounds that at least
two peers took together. So a state also says how many rounds one peer took `solo`, and which peer was `alone` in the
last one. `Standing` is the order that follows. Histories part where a peer goes on alone: those with the same `branch`
have the same rounds at least up to there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Final, NamedTuple

import msgspec
from blake3 import blake3

from minga.network.interface import PeerId

MAX_ROUNDS: Final = 1 << 53
DIGEST_BYTES: Final = 16

ShortDigest = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")]
"""32 lower-case hexadecimal digits, or none."""


class Standing(NamedTuple):
    """How far a history got. Of two histories the one with the higher standing goes on, and the other gives way.

    A `final` one is that of a peer which finished the run, at its last step by the orders that the reader knows. Else
    the rounds count that two or more peers took together. Of as many, the history counts that the organiser carried on
    alone, then one that another peer carried on, then one that nobody did. Then the later `step` counts, and in the end
    the id of the peer that was alone.
    """

    final: bool
    shared: int
    carried: int
    step: int
    alone: str


class Lineage(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """The `founding` that a state descends from (the id of its genesis, "" for none), the `epoch` of the organisers'
    last regroup, the running digest of its `rounds`, how many of these one peer took `solo`, the peer that was `alone`
    in the last one ("" if none was), and the `branch`: what `rounds` was after the last solo one ("" before any).
    """

    founding: ShortDigest = ""
    epoch: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)] = 0
    rounds: ShortDigest = ""
    solo: Annotated[int, msgspec.Meta(ge=0, le=MAX_ROUNDS)] = 0
    alone: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")] = ""
    branch: ShortDigest = ""

    @classmethod
    def founded(cls, founding: str) -> Lineage:
        """That of the first state of a run."""
        return cls(founding, rounds=founding)

    @property
    def is_founded(self) -> bool:
        """Whether the state is one of a run at all."""
        return bool(self.founding)

    def after(self, round_id: str, members: Collection[PeerId]) -> Lineage:
        """The lineage after the round whose result has this id, which `members` made."""
        rounds = blake3(f"minga rounds\n{self.rounds}\n{round_id}".encode()).hexdigest(length=DIGEST_BYTES)
        alone = next(iter(members)) if len(members) == 1 else ""
        solo, branch = (self.solo + 1, rounds) if alone else (self.solo, self.branch)
        return msgspec.structs.replace(self, rounds=rounds, solo=solo, alone=alone, branch=branch)

    def in_epoch(self, epoch: int) -> Lineage:
        """The same state after the organisers' regroup of this epoch."""
        return msgspec.structs.replace(self, epoch=epoch)

    def may_lead_to(self, later: Lineage) -> bool:
        """Whether the rounds behind this state can be among those behind the `later` one: both descend from one
        founding, and no peer took rounds alone on the way to one of them only.
        """
        return (self.founding, self.branch) == (later.founding, later.branch)

    def standing(self, step: int, organiser: str | None, *, final: bool = False) -> Standing:
        """How far the history got with which a peer is at `step`, which may be `final` there."""
        carried = 0 if not self.alone else 2 if self.alone == organiser else 1
        return Standing(final, step - self.solo, carried, step, self.alone)


UNFOUNDED: Final = Lineage()
"""That of a state which is none of any run."""
