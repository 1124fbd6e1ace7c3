"""What members tell each other for their receipts: in the notes of group formation, and the rare calls beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated

import msgspec

from minga.averaging.messages import MAX_MEMBERS, Epoch, Step
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.network.interface import PeerId
from minga.training.receipts.attestation import MAX_COMPACT_BYTES, MAX_ENTRIES, Compact
from minga.training.receipts.claims import Claim

DIGESTS, LAST = "receipts.digests", "receipts.last"
MAX_PASSED_ON = 8
"""Attestations that a leader passes on with one plan: it sends them to all members."""

AttestationBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_COMPACT_BYTES)]


class JoinNote(msgspec.Struct, frozen=True, array_like=True):
    """Member to leader: its claim, if a count is due, and its attestation, until it sees that a leader passed it on."""

    claim: Claim | None = None
    attestation: AttestationBytes = b""

    @classmethod
    def decode(cls, note: bytes) -> JoinNote:
        """Read it; one that cannot be read says nothing."""
        try:
            return decode_msgpack(note, cls) if note else cls()
        except DECODING_ERRORS:
            return cls()


class PlanNote(msgspec.Struct, frozen=True, array_like=True):
    """Leader to members: the claims of all members, in the order of the plan, if it counts; and attestations."""

    claims: Annotated[tuple[Claim | None, ...], msgspec.Meta(max_length=MAX_MEMBERS)] = ()
    attestations: Annotated[tuple[AttestationBytes, ...], msgspec.Meta(max_length=MAX_PASSED_ON)] = ()

    @classmethod
    def decode(cls, note: bytes) -> PlanNote:
        """Read it; one that cannot be read says nothing."""
        try:
            return decode_msgpack(note, cls) if note else cls()
        except DECODING_ERRORS:
            return cls()


def passed_on(step: int, notes: Sequence[tuple[PeerId, JoinNote]]) -> list[bytes]:
    """The attestations that go with the plan of `step`: as many as it takes, each signed by the member that sent it.

    With each step others come first, so that a few members that always send one keep nobody from being heard.
    """
    begin = step * MAX_PASSED_ON % len(notes)
    in_turn = (*notes[begin:], *notes[:begin])
    own = (
        note.attestation
        for peer, note in in_turn
        if (compact := Compact.decode(note.attestation)) is not None and compact.attester == peer
    )
    return list(islice(own, MAX_PASSED_ON))


class AskDigests(msgspec.Struct, frozen=True):
    """To an attester: which counts did you sign at these steps? This peer was not there, or has others."""

    epoch: Epoch
    steps: Annotated[tuple[Step, ...], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]


class Digests(msgspec.Struct, frozen=True):
    """Their digests, empty where there is none."""

    digests: Annotated[tuple[Annotated[bytes, msgspec.Meta(max_length=32)], ...], msgspec.Meta(max_length=MAX_ENTRIES)]


class LastAttestation(msgspec.Struct, frozen=True):
    """A peer that leaves, to the others: what no leader passed on any more."""

    attestation: AttestationBytes


class Taken(msgspec.Struct, frozen=True):
    """An empty answer."""
