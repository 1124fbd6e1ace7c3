"""An attestation: one member's signature of counts that it took part in, with its doubts about single claims."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, NamedTuple

import msgspec

from minga.averaging.messages import MAX_MEMBERS, MAX_STEP, Epoch
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify
from minga.network.interface import PeerId
from minga.training.receipts.claims import Count, Key, Place

CONTEXT = b"receipts/1"
MAX_ENTRIES = 32
"""Counts that one signature covers at most."""
MAX_COMPACT_BYTES = 900
"""It goes into the note of a registration beside a claim."""

Doubts = Annotated[bytes, msgspec.Meta(max_length=-(-MAX_MEMBERS // 8))]


class SignedCount(NamedTuple):
    """One count: its step and digest, and the members whose claims this one doubts, one bit each, lowest first and
    without the zeros at the end. Only a *witness* could compare samples: it was the root of a part lately.
    """

    step: int
    digest: bytes
    doubts: bytes
    is_witness: bool


@dataclass(frozen=True)
class JudgedCount:
    """A count, and what one member has to say of it, see `SignedCount`."""

    count: Count
    doubts: bytes
    is_witness: bool


class CompactEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry as it travels, without the digest, since the others have the same counts.

    `step` is twice the number of steps since the entry before, and one more for a witness.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    doubts: Doubts = b""


class Compact(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An attestation as it travels."""

    key: Key
    epoch: Epoch
    entries: Annotated[tuple[CompactEntry, ...], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]

    @property
    def attester(self) -> PeerId:
        """The member that signed it, as it says."""
        return PeerId(self.key.hex())

    @property
    def steps(self) -> tuple[int, ...]:
        """The steps of its counts, ascending."""
        found, step = [], 0
        for entry in self.entries:
            step += entry.step >> 1
            found.append(step)
        return tuple(found)

    @classmethod
    def decode(cls, data: bytes) -> Compact | None:
        """Read it; None for anything else, such as steps that no run reaches. No signature is verified yet."""
        if len(data) > MAX_COMPACT_BYTES:
            return None
        try:
            found = decode_msgpack(data, cls)
        except DECODING_ERRORS:
            return None
        return found if found.steps[-1] <= MAX_STEP else None

    def expand(self, digests: Mapping[Place, bytes]) -> Attestation | None:
        """With the digests of its counts; None if one of them is missing."""
        steps = self.steps
        if any((self.epoch, step) not in digests for step in steps):
            return None
        entries = (
            SignedCount(step, digests[self.epoch, step], entry.doubts, bool(entry.step & 1))
            for step, entry in zip(steps, self.entries, strict=True)
        )
        return Attestation(self.attester, self.epoch, tuple(entries), self.signature)


class Attestation(msgspec.Struct, frozen=True, dict=True):
    """What `attester` signed: the entries, ascending, of one epoch."""

    attester: PeerId
    epoch: int
    entries: tuple[SignedCount, ...]
    signature: bytes

    @classmethod
    def sign(cls, run_id: str, identity: Identity, judged: Collection[JudgedCount]) -> Attestation:
        """Sign counts of one epoch, each with this peer's judgement."""
        ordered = sorted(judged, key=lambda each: each.count.step)
        epoch = ordered[0].count.epoch
        entries = tuple(SignedCount(j.count.step, j.count.digest, j.doubts, j.is_witness) for j in ordered)
        signature = identity.sign(_statement(run_id, epoch, entries), context=CONTEXT)
        return cls(PeerId(identity.peer_id), epoch, entries, signature)

    def is_genuine(self, run_id: str) -> bool:
        """Whether the attester's key signed it for this run, and its steps ascend."""
        ascends = all(before.step < after.step for before, after in zip(self.entries, self.entries[1:], strict=False))
        statement = _statement(run_id, self.epoch, self.entries)
        return ascends and verify(self.attester, self.signature, statement, context=CONTEXT)

    @cached_property
    def compact(self) -> bytes:
        """How it travels."""
        before, entries = 0, []
        for entry in self.entries:
            entries.append(CompactEntry(2 * (entry.step - before) + entry.is_witness, entry.doubts))
            before = entry.step
        return msgspec.msgpack.encode(Compact(bytes.fromhex(self.attester), self.epoch, tuple(entries), self.signature))


def pack(members: Collection[int]) -> bytes:
    """A set of indices as doubts."""
    bits = sum(1 << member for member in set(members))
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def unpack(doubts: bytes) -> frozenset[int]:
    """Undo `pack`."""
    bits = int.from_bytes(doubts, "little")
    return frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)


def _statement(run_id: str, epoch: int, entries: tuple[SignedCount, ...]) -> bytes:
    return msgspec.msgpack.encode((bytes.fromhex(run_id), epoch, [tuple(entry) for entry in entries]))
