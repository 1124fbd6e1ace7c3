"""A file of receipts: what members signed of one peer's contribution, or of all, for anybody to check without the run.

    magic | zlib of a msgpack: signed run spec · keys · access tokens · counts · attestations

The file holds the counts in which its subject claims something, all attestations of them, and the digests of the other
counts that those attestations cover. Whoever reads it computes all digests again, verifies all signatures, and tallies
by the same rule as the members do. The run spec in it belongs to the run id that the link names, and says whether the
run is for members: then a signature counts only with an access token that leads to the organisers' keys in the spec.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from minga.averaging.messages import MAX_MEMBERS, Epoch, Step
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError, ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import AccessLedger, NoAccessError
from minga.identity.access.token import MAX_TOKEN_BYTES, Token
from minga.identity.keys.keys import SIGNATURE_BYTES
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.training.receipts.attestation import MAX_ENTRIES, Attestation, Claim, Count, Doubts, Key, Place, SignedCount
from minga.training.receipts.book import MAX_CLAIMS, MAX_COUNTS, AttestedPeers, PeerTotals, ReceiptBook, merged, tally

MAGIC = b"minga receipts 1\n"
MAX_FILE_BYTES, MAX_UNPACKED_BYTES = 64 << 20, 160 << 20
"""Of a file as it is, and unpacked: a full book has less than 150 MB, even if all members doubt all claims. It has no
more claims than `MAX_CLAIMS`, nor attestations, since each says something new of a claim's member."""
MAX_PEERS = 1 << 16

_PeerNumber = Annotated[int, msgspec.Meta(ge=0, lt=MAX_PEERS)]
_Group = Annotated[tuple[_PeerNumber, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]


class ReceiptError(Exception):
    """Why a file of receipts proves nothing."""


class FiledCount(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A count; its members are those of the group with number `group`."""

    epoch: Epoch
    step: Step
    round: Annotated[bytes, msgspec.Meta(min_length=16, max_length=16)]
    group: Annotated[int, msgspec.Meta(ge=0, lt=MAX_COUNTS)]
    claims: Annotated[tuple[Claim | None, ...], msgspec.Meta(min_length=1, max_length=MAX_MEMBERS)]


class FiledEntry(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An entry; the digest is empty where it is that of the count in the file."""

    step: Step
    digest: Annotated[bytes, msgspec.Meta(max_length=32)]
    doubts: Doubts
    is_witness: bool


class FiledAttestation(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An attestation of the peer with a number."""

    attester: _PeerNumber
    epoch: Epoch
    entries: Annotated[tuple[FiledEntry, ...], msgspec.Meta(min_length=1, max_length=MAX_ENTRIES)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]


class ReceiptDocument(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is in the file. `subject` is the number of the peer that it is about, None for all; `tokens` has one for
    each peer, empty where it showed none.
    """

    spec: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNED_SPEC_BYTES)]
    subject: _PeerNumber | None
    peers: Annotated[tuple[Key, ...], msgspec.Meta(max_length=MAX_PEERS)]
    tokens: Annotated[
        tuple[Annotated[bytes, msgspec.Meta(max_length=MAX_TOKEN_BYTES)], ...], msgspec.Meta(max_length=MAX_PEERS)
    ]
    groups: Annotated[tuple[_Group, ...], msgspec.Meta(max_length=MAX_COUNTS)]
    counts: Annotated[tuple[FiledCount, ...], msgspec.Meta(max_length=MAX_COUNTS)]
    attestations: Annotated[tuple[FiledAttestation, ...], msgspec.Meta(max_length=MAX_CLAIMS)]


@dataclass(frozen=True)
class VerifiedReceipts:
    """What a file proves. `subject` is the peer that it is about, None for all. Of its `counts`, the organiser's key
    signed `seen_by_organiser`; `attesters` is the number of keys whose word counts, `strangers` of those whose does not
    because no token shows that they were admitted.
    """

    run_id: str
    organiser: str
    spec: RunSpec
    subject: PeerId | None
    totals: dict[PeerId, PeerTotals]
    counts: int
    seen_by_organiser: int
    attesters: int
    strangers: int
    steps: tuple[int, int]

    @property
    def is_for_members(self) -> bool:
        """Whether all attesters were admitted by the organisers."""
        return self.spec.security.admission == "members"


def write_document(book: ReceiptBook, signed_spec: SignedRunSpec, subject: PeerId | None = None) -> bytes:
    """The file about `subject`, or about all peers. Raises `ConfigurationError` if the book has nothing of it."""
    counts = [count for count in book.counts if subject is None or count.claim_of(subject) is not None]
    if not counts:
        raise ConfigurationError("there are no receipts yet" if subject is None else f"there are none of {subject}")
    attestations = list(book.attestations(count.place for count in counts))
    peers = sorted({peer for count in counts for peer in count.ids} | {each.attester for each in attestations})
    numbers = {peer: number for number, peer in enumerate(peers)}
    groups: dict[tuple[int, ...], int] = {}
    filed = [
        FiledCount(
            count.epoch,
            count.step,
            count.round,
            groups.setdefault(tuple(numbers[peer] for peer in count.ids), len(groups)),
            count.claims,
        )
        for count in counts
    ]
    digests = {count.place: count.digest for count in counts}
    document = ReceiptDocument(
        spec=signed_spec.encode(),
        subject=None if subject is None else numbers[subject],
        peers=tuple(map(bytes.fromhex, peers)),
        tokens=tuple(book.tokens.get(peer, b"") for peer in peers),
        groups=tuple(groups),
        counts=tuple(filed),
        attestations=tuple(_filed(each, numbers[each.attester], digests) for each in attestations),
    )
    return MAGIC + zlib.compress(msgspec.msgpack.encode(document), 9)


def verify_document(data: bytes, run_id: str | None = None, organiser: str | None = None) -> VerifiedReceipts:
    """What a file proves about the run with this id and organiser (None: of the run that it names itself).

    Raises `ReceiptError` if it is damaged, forged, or of another run, and `ConfigurationError` if this version of minga
    cannot read the run spec.
    """
    document = _read(data)
    signed, spec = _spec_of(document, run_id, organiser)
    peers = [PeerId(key.hex()) for key in document.peers]
    if len(set(peers)) != len(peers) or len(document.tokens) != len(peers):
        raise ReceiptError("it names a peer twice, or not one token for each")
    counts = _counts_of(document, peers)
    attested = _attested(document, peers, counts, signed.run_id)
    attesters = {peer for each in attested.values() for peer in each}
    tokens = dict(zip(peers, document.tokens, strict=True))
    electors = {peer for peer in attesters if _is_admitted(peer, tokens[peer], signed, spec)}
    decided = {place: AttestedPeers.of(count, attested.get(place, {}), electors) for place, count in counts.items()}
    totals = tally((count, decided[place]) for place, count in counts.items())
    subject = None if document.subject is None else peers[document.subject]
    steps = [count.step for count in counts.values()]
    return VerifiedReceipts(
        run_id=signed.run_id,
        organiser=signed.organiser,
        spec=spec,
        subject=subject,
        totals=totals if subject is None else {subject: totals.get(subject, PeerTotals())},
        counts=len(counts),
        seen_by_organiser=sum(signed.organiser in attested.get(place, {}) for place in counts),
        attesters=len(electors),
        strangers=len(attesters - electors),
        steps=(min(steps, default=0), max(steps, default=0)),
    )


def _filed(attestation: Attestation, attester: int, digests: dict[Place, bytes]) -> FiledAttestation:
    entries = (
        FiledEntry(
            entry.step,
            b"" if digests.get((attestation.epoch, entry.step)) == entry.digest else entry.digest,
            entry.doubts,
            entry.is_witness,
        )
        for entry in attestation.entries
    )
    return FiledAttestation(attester, attestation.epoch, tuple(entries), attestation.signature)


def _read(data: bytes) -> ReceiptDocument:
    if not data.startswith(MAGIC) or len(data) > MAX_FILE_BYTES:
        raise ReceiptError("it is no file of receipts")
    unpacking = zlib.decompressobj()
    try:
        body = unpacking.decompress(data[len(MAGIC) :], MAX_UNPACKED_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise ReceiptError("it is cut off, or too large")
        document = decode_msgpack(body, ReceiptDocument)
    except (zlib.error, *DECODING_ERRORS) as error:
        raise ReceiptError(f"it is damaged: {error}") from error
    if document.subject is not None and document.subject >= len(document.peers):
        raise ReceiptError("it does not say whom it is about")
    if sum(len(count.claims) for count in document.counts) > MAX_CLAIMS:
        raise ReceiptError(f"it has more than {MAX_CLAIMS} claims")
    return document


def _spec_of(document: ReceiptDocument, run_id: str | None, organiser: str | None) -> tuple[SignedRunSpec, RunSpec]:
    try:
        signed = SignedRunSpec.decode(document.spec)
        if run_id not in (None, signed.run_id) or organiser not in (None, signed.organiser):
            raise ReceiptError(f"it is of another run, {signed.run_id[:16]}, which {signed.organiser[:16]} organises")
        return signed, signed.verify(signed.run_id, signed.organiser)
    except ProtocolError as error:
        raise ReceiptError(f"its run spec is not genuine: {error.message}") from error


def _counts_of(document: ReceiptDocument, peers: list[PeerId]) -> dict[Place, Count]:
    counts: dict[Place, Count] = {}
    for filed in document.counts:
        if filed.group >= len(document.groups) or max(document.groups[filed.group]) >= len(peers):
            raise ReceiptError("it names a peer that it does not list")
        members = tuple(document.peers[number] for number in document.groups[filed.group])
        count = Count(filed.epoch, filed.step, filed.round, members, filed.claims)
        if not count.is_sound or count.place in counts:
            raise ReceiptError(f"the count of step {filed.step} is none, or there twice")
        counts[count.place] = count
    return counts


def _attested(
    document: ReceiptDocument, peers: list[PeerId], counts: dict[Place, Count], run_id: str
) -> dict[Place, dict[PeerId, SignedCount]]:
    """What each member signed about the counts in the file. Raises `ReceiptError` for a signature that is wrong."""
    found: dict[Place, dict[PeerId, SignedCount]] = {}
    digests = {place: count.digest for place, count in counts.items()}
    for filed in document.attestations:
        if filed.attester >= len(peers):
            raise ReceiptError("it names a peer that it does not list")
        attester = peers[filed.attester]
        entries = tuple(
            SignedCount(
                each.step, each.digest or digests.get((filed.epoch, each.step), b""), each.doubts, each.is_witness
            )
            for each in filed.entries
        )
        if not Attestation(attester, filed.epoch, entries, filed.signature).is_genuine(run_id):
            raise ReceiptError(f"a signature of {attester[:16]} is wrong")
        for entry in entries:
            place = filed.epoch, entry.step
            if digests.get(place) == entry.digest and attester in counts[place].ids:
                said = found.setdefault(place, {})
                said[attester] = merged(said.get(attester), entry)
    return found


def _is_admitted(peer: PeerId, token: bytes, signed: SignedRunSpec, spec: RunSpec) -> bool:
    """Whether the organisers in the run spec ever admitted a peer; in an open run any peer is."""
    ledger = AccessLedger.of_spec(signed.run_id, spec, signed.organiser)
    try:
        read = Token.decode(token) if token else None
        when_s = 0 if read is None or read.grant is None else read.grant.issued  # it may have expired since
        return not ledger.check(read, peer, when_s).only_watches
    except (ValueError, NoAccessError):
        return False


# ---- The service for peers that take no part, such as monitors: a member sends the file, which they verify.
#
#     receipts.file     FileRequest -> FileReply, then bulk frames of at most PAGE_BYTES until all bytes came
#
# The file is made on another thread, once for all that ask within `FRESH_S`.


FILE = "receipts.file"
FRESH_S = 60.0
"""Seconds for which a file that was made is sent again."""
FETCH_S = 120.0
"""Seconds that a member has to send its file, alive or not."""
PAGE_BYTES = 1 << 20
MAX_ASKED = 3
"""Members that a reader asks, one after the other."""


class FileRequest(msgspec.Struct, frozen=True):
    """What do the members attest?"""


class FileReply(msgspec.Struct, frozen=True):
    """A file of so many bytes follows."""

    size: Annotated[int, msgspec.Meta(ge=1, le=MAX_FILE_BYTES)]


@loop_bound
class ReceiptFileServer:
    """Serves what is in a member's book."""

    def __init__(self, node: Node, book: ReceiptBook, signed_spec: SignedRunSpec) -> None:
        self._book, self._signed_spec = book, signed_spec
        self._making = asyncio.Lock()
        self._made, self._made_s = b"", float("-inf")
        node.serve(FILE, self._serve)

    async def _serve(self, peer: PeerId, stream: MessageStream) -> None:
        await stream.receive(FileRequest)
        data = await self._file(peer)
        await stream.send(FileReply(len(data)))
        for start in range(0, len(data), PAGE_BYTES):
            await stream.send_bulk(memoryview(data)[start : start + PAGE_BYTES])

    async def _file(self, peer: PeerId) -> bytes:
        loop = asyncio.get_running_loop()
        async with self._making:
            if loop.time() - self._made_s >= FRESH_S:
                try:
                    self._made = await loop.run_in_executor(
                        None, write_document, self._book.snapshot(), self._signed_spec
                    )
                except ConfigurationError as error:
                    raise RejectedError(str(error), code=RefusalCode.GONE, peer=peer) from error
                self._made_s = loop.time()
            return self._made


async def fetch_receipts(node: Node, members: Iterable[PeerId], run_id: str, organiser: str) -> VerifiedReceipts | None:
    """What a member sends, verified; None if none of the first few members has anything that holds.

    Which rounds there are is the member's word: another one may know more.
    """
    loop = asyncio.get_running_loop()
    for member in list(members)[:MAX_ASKED]:
        try:
            async with asyncio.timeout(FETCH_S):
                data = await _fetch(node, member)
            return await loop.run_in_executor(None, verify_document, data, run_id, organiser)
        except ReceiptError as error:
            node.offend(member, f"its receipts prove nothing: {error}")
        except (RemoteError, TimeoutError):
            continue
    return None


async def _fetch(node: Node, member: PeerId) -> bytes:
    async with node.open(member, FILE, bulk=True) as stream:
        await stream.send(FileRequest())
        await stream.finish()
        data = await stream.receive_pages((await stream.receive(FileReply)).size, PAGE_BYTES)
        await stream.receive_end()
    return bytes(data)
