"""A file of receipts: what members signed of one peer's contribution, or of all, for anybody to check without the run.

    magic | zlib of a msgpack: signed run spec, subject, entries of a member's book

The file holds the counts in which its subject claims something, all attestations of them, the digests of the other
counts that those attestations cover, and the access tokens of those who signed. Whoever reads it computes all digests
again, verifies all signatures, and tallies by the same rule as the members do. The run spec in it belongs to the run id
that the link names, and says whether the run is for members: then a signature counts only with an access token that
leads to the organisers' keys in the spec.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import msgspec

from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ConfigurationError, ProtocolError, RejectedError, RemoteError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import AccessLedger, NoAccessError
from minga.identity.access.token import Token
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.receipts.attestation import Count, Key, Place, SignedCount
from minga.receipts.book import (
    MAX_CLAIMS,
    MAX_COUNTS,
    AttestedPeers,
    BookEntry,
    PeerTotals,
    ReceiptBook,
    merged,
    tally,
)

MAGIC = b"minga receipts 2\n"
MAX_FILE_BYTES, MAX_UNPACKED_BYTES = 64 << 20, 192 << 20
"""Of a file as it is, and unpacked: a full book has less than 180 MB, even if all members doubt all claims. It has no
more claims than `MAX_CLAIMS`, nor attestations, since each says something new of a claim's member."""


class ReceiptError(Exception):
    """Why a file of receipts proves nothing."""


class ReceiptDocument(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """What is in the file: the signed run spec, and what a book has about `subject`, None for all."""

    spec: Annotated[bytes, msgspec.Meta(max_length=MAX_SIGNED_SPEC_BYTES)]
    subject: Key | None
    entries: Annotated[tuple[BookEntry, ...], msgspec.Meta(max_length=MAX_COUNTS + 2 * MAX_CLAIMS)]


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
    entries = tuple(book.entries(subject))
    if not entries:
        raise ConfigurationError("there are no receipts yet" if subject is None else f"there are none of {subject}")
    key = None if subject is None else bytes.fromhex(subject)
    return MAGIC + zlib.compress(msgspec.msgpack.encode(ReceiptDocument(signed_spec.encode(), key, entries)), 9)


def verify_document(data: bytes, run_id: str | None = None, organiser: str | None = None) -> VerifiedReceipts:
    """What a file proves about the run with this id and organiser (None: of the run that it names itself).

    Raises `ReceiptError` if it is damaged, forged, or of another run, and `ConfigurationError` if this version of minga
    cannot read the run spec.
    """
    document = _read(data)
    signed, spec = _spec_of(document, run_id, organiser)
    counts = _counts_of(document)
    attested = _attested(document, counts, signed.run_id)
    attesters = {peer for each in attested.values() for peer in each}
    tokens = dict(entry.token for entry in document.entries if entry.token is not None)
    electors = {peer for peer in attesters if _is_admitted(peer, tokens.get(bytes.fromhex(peer), b""), signed, spec)}
    decided = {place: AttestedPeers.of(count, attested.get(place, {}), electors) for place, count in counts.items()}
    totals = tally((count, decided[place]) for place, count in counts.items())
    subject = None if document.subject is None else PeerId(document.subject.hex())
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
    if sum(len(entry.count.count.claims) for entry in document.entries if entry.count is not None) > MAX_CLAIMS:
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


def _counts_of(document: ReceiptDocument) -> dict[Place, Count]:
    counts: dict[Place, Count] = {}
    for entry in document.entries:
        if entry.count is None:
            continue
        count = entry.count.count
        if not count.is_sound or count.place in counts:
            raise ReceiptError(f"the count of step {count.step} is none, or there twice")
        counts[count.place] = count
    return counts


def _attested(
    document: ReceiptDocument, counts: dict[Place, Count], run_id: str
) -> dict[Place, dict[PeerId, SignedCount]]:
    """What each member signed about the counts in the file. Raises `ReceiptError` for a signature that is wrong."""
    found: dict[Place, dict[PeerId, SignedCount]] = {}
    digests = {place: count.digest for place, count in counts.items()}
    for entry in document.entries:
        if entry.attestation is None:
            continue
        attester, attestation = entry.attestation.attester, entry.attestation.with_digests(digests)
        if attestation is None or not attestation.is_genuine(run_id):
            raise ReceiptError(f"a signature of {attester[:16]} is wrong")
        for place, signed in zip(attestation.places, attestation.signed, strict=True):
            if digests.get(place) == signed.digest and attester in counts[place].ids:
                said = found.setdefault(place, {})
                said[attester] = merged(said.get(attester), signed)
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
"""Seconds that a member has to send its file, alive or not, and that a reader has to take it."""
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
        async with stream.taken_within(FETCH_S):
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
