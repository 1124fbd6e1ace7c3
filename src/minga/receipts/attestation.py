"""Claims, counts and attestations, and the messages in which members exchange them.

An attestation is one member's signature of counts that it took part in, with its doubts about single claims.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Annotated, NamedTuple

import msgspec
from blake3 import blake3

from minga.averaging.messages import MAX_MEMBERS, MAX_STEP, Epoch, Plan, Samples, Step
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify
from minga.network.interface import PeerId

# ---- Claims of what a member contributed, and the count in which all members of a round have these alike.


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


# ---- Attestations: one member signs the digests of counts, with its doubts.


CONTEXT = b"receipts/1"
MAX_ENTRIES = 32
"""Counts that one signature covers at most."""
MAX_TRAVELLING_BYTES = 900
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


class JudgedCount(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A count, and what one member has to say of it, see `SignedCount`."""

    count: Count
    doubts: Doubts
    is_witness: bool


class Entry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What an attestation has of one count. `step` is twice the number of steps since the entry before, and one more
    for a witness.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
    doubts: Doubts = b""


class Attestation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What one member signed of counts of one `epoch`, ascending: in a book, on the wire, and in a file.

    `digests` are those of the counts, each empty where its reader has the count, and none where it has all of them.
    Nothing is verified by reading one.
    """

    key: Key
    epoch: Epoch
    entries: Annotated[tuple[Entry, ...], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    digests: Annotated[
        tuple[Annotated[bytes, msgspec.Meta(max_length=DIGEST_BYTES)], ...], msgspec.Meta(max_length=MAX_ENTRIES)
    ] = ()

    def __post_init__(self) -> None:
        if len(self.digests) not in (0, len(self.entries)) or self.signed[-1].step > MAX_STEP:
            raise ValueError("an attestation has a digest for each count or none, and steps that a run can reach")

    @classmethod
    def sign(cls, run_id: str, identity: Identity, judged: Collection[JudgedCount]) -> Attestation:
        """Sign counts of one epoch, each with this peer's judgement."""
        ordered = sorted(judged, key=lambda each: each.count.step)
        before, entries = 0, []
        for each in ordered:
            entries.append(Entry(2 * (each.count.step - before) + each.is_witness, each.doubts))
            before = each.count.step
        digests = tuple(each.count.digest for each in ordered)
        key, epoch = bytes.fromhex(identity.peer_id), ordered[0].count.epoch
        unsigned = cls(key, epoch, tuple(entries), bytes(SIGNATURE_BYTES), digests)
        return msgspec.structs.replace(unsigned, signature=identity.sign(unsigned._statement(run_id), context=CONTEXT))

    @classmethod
    def decode(cls, data: bytes) -> Attestation | None:
        """Read one that travelled; None for anything else."""
        if len(data) > MAX_TRAVELLING_BYTES:
            return None
        try:
            return decode_msgpack(data, cls)
        except DECODING_ERRORS:
            return None

    @property
    def attester(self) -> PeerId:
        """The member that signed it, as it says."""
        return PeerId(self.key.hex())

    @property
    def signed(self) -> tuple[SignedCount, ...]:
        """What it says of each count."""
        step, found = 0, []
        for entry, digest in zip(self.entries, self.digests or (b"",) * len(self.entries), strict=True):
            step += entry.step >> 1
            found.append(SignedCount(step, digest, entry.doubts, bool(entry.step & 1)))
        return tuple(found)

    @property
    def places(self) -> tuple[Place, ...]:
        """Those of its counts."""
        return tuple((self.epoch, each.step) for each in self.signed)

    @property
    def travelling(self) -> bytes:
        """How it travels: without digests, since the others have the same counts."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, digests=()))

    def with_digests(self, known: Mapping[Place, bytes]) -> Attestation | None:
        """With the digests of all its counts; None if one of them is missing."""
        digests = tuple(each.digest or known.get((self.epoch, each.step), b"") for each in self.signed)
        return msgspec.structs.replace(self, digests=digests) if all(digests) else None

    def without_digests(self, known: Mapping[Place, bytes]) -> Attestation:
        """Without the digests of the counts that its reader has."""
        pairs = zip(self.places, self.digests, strict=True)
        digests = tuple(b"" if known.get(place) == digest else digest for place, digest in pairs)
        return msgspec.structs.replace(self, digests=digests if any(digests) else ())

    def is_genuine(self, run_id: str) -> bool:
        """Whether the attester's key signed it for this run, and its steps ascend. It has to have all digests."""
        return all(entry.step >> 1 for entry in self.entries[1:]) and verify(
            self.attester, self.signature, self._statement(run_id), context=CONTEXT
        )

    def _statement(self, run_id: str) -> bytes:
        return msgspec.msgpack.encode((bytes.fromhex(run_id), self.epoch, [tuple(each) for each in self.signed]))


def pack(members: Collection[int]) -> bytes:
    """A set of indices as doubts."""
    bits = sum(1 << member for member in set(members))
    return bits.to_bytes(-(-bits.bit_length() // 8), "little")


def unpack(doubts: bytes) -> frozenset[int]:
    """Undo `pack`."""
    bits = int.from_bytes(doubts, "little")
    return frozenset(index for index in range(bits.bit_length()) if bits >> index & 1)


# ---- Messages: the notes that travel with group formation, and the rare calls beside them.


DIGESTS, LAST = "receipts.digests", "receipts.last"
MAX_PASSED_ON = 8
"""Attestations that a leader passes on with one plan: it sends them to all members."""

AttestationBytes = Annotated[bytes, msgspec.Meta(max_length=MAX_TRAVELLING_BYTES)]


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
        if (signed := Attestation.decode(note.attestation)) is not None and signed.attester == peer
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
