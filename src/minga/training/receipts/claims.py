"""What the members of a round claim to have contributed, and the count in which all of them have it alike."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated

import msgspec
from blake3 import blake3

from minga.averaging.messages import MAX_MEMBERS, Epoch, Plan, Samples, Step
from minga.network.interface import PeerId

MAX_SPAN_STEPS = 512
"""A claim goes back no further: members compare it with as many rounds."""
UNIT_BYTES = 1024
DIGEST_BYTES = 32

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]


class Claim(msgspec.Struct, frozen=True, array_like=True):
    """What a member says that it contributed in the `span` steps before a count: the rounds in which it took part, the
    samples that were counted, and the bytes of others that it added up, in units of 1024.
    """

    span: Annotated[int, msgspec.Meta(ge=1, le=MAX_SPAN_STEPS)]
    rounds: Annotated[int, msgspec.Meta(ge=0, le=MAX_SPAN_STEPS)]
    samples: Samples
    reduced: Annotated[int, msgspec.Meta(ge=0, le=1 << 53)]

    @property
    def is_empty(self) -> bool:
        """Whether it claims nothing that anybody could doubt."""
        return not (self.samples or self.reduced)


class Count(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True, dict=True):
    """The claims of all members of one round: what they contributed before its step.

    `epoch` is that of the organisers' last regroup. Claims stand in the order of the members, None where a member made
    none.
    """

    epoch: Epoch
    step: Step
    round: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    members: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]
    claims: Annotated[tuple[Claim | None, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]

    @classmethod
    def of(cls, plan: Plan, epoch: int, claims: tuple[Claim | None, ...]) -> Count:
        """The count that a leader sent along with `plan`, one claim for each of its members."""
        keys = tuple(bytes.fromhex(peer) for peer in plan.ids)
        return cls(epoch, plan.step, bytes.fromhex(plan.round_id), keys, claims)

    @property
    def place(self) -> Place:
        """Where in the run's history it stands."""
        return self.epoch, self.step

    @cached_property
    def ids(self) -> tuple[PeerId, ...]:
        """The members' ids."""
        return tuple(PeerId(key.hex()) for key in self.members)

    @cached_property
    def digest(self) -> bytes:
        """What members sign: 32 bytes that stand for all of it."""
        return bytes(blake3(msgspec.msgpack.encode(self)).digest(length=DIGEST_BYTES))

    @property
    def is_sound(self) -> bool:
        """Whether each member has one claim, and is named once."""
        return len(self.claims) == len(self.members) == len(set(self.members))

    def claim_of(self, peer: PeerId) -> Claim | None:
        """What `peer` claims; None if it claims nothing here."""
        return self.claims[self.ids.index(peer)] if peer in self.ids else None


Place = tuple[int, int]
"""Epoch and step of a count: within one history no two counts share it."""
