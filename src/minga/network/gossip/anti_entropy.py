"""How two boards are made equal: the messages of one exchange, and what goes into them.

Theory of operation (push-pull anti-entropy). The caller sends a summary: for each owner it knows, 8 bytes of its key
and a 4-byte fingerprint of its records' versions. The other side answers with the versions it holds itself of every
owner whose fingerprint differs or that only one of them knows. From that the caller knows who lacks what: it sends
the records that it has newer and asks for those it has older; the other side sends these. Two round trips; records
travel in pages well below the largest message. A summary is 12 bytes an owner, about 2.4 kB in a swarm of 200. The
answer names those with the fewest records first, as many as fit into one message. The turn of the others comes when
these are equal, and owners that were made up with many records crowd out each other.

Records that came a moment ago are left to rumours, unless the caller asks for everything, as newcomers do. Every
record travels with its age, so that hearsay about a peer that died a minute ago is not taken for a sign of life.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import Annotated, NamedTuple

import msgspec

from minga.core.errors import ProtocolError
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import ACCESS, LEFT, MAX_CODE
from minga.network.gossip.record_store import MAX_OWNERS, PREFIX_BYTES, PeerRecords, StoredRecord
from minga.network.gossip.records import Record
from minga.network.interface import PeerId
from minga.network.rpc.handshake import UnixTime

PAGE_BYTES = 200_000
"""Records are put into one message up to this size; `MAX_MESSAGE_BYTES` is far more than that and one record."""

DETAIL_BYTES = 700_000
"""The same for versions: ten kinds of `MAX_OWNERS` owners take about 600,000."""

MAX_RECORDS = MAX_OWNERS * 32  # kinds, known and unknown
_ITEM_BYTES = PREFIX_BYTES + 4
_OVERHEAD_BYTES = 140  # of a record and its age around the payload, at most
_HELD_BYTES, _VERSION_BYTES = 16, 13  # of an owner without its versions, and of one of these, at most

Prefix = Annotated[bytes, msgspec.Meta(min_length=PREFIX_BYTES, max_length=PREFIX_BYTES)]
Code = Annotated[int, msgspec.Meta(ge=0, le=MAX_CODE)]
Version = Annotated[int, msgspec.Meta(ge=0)]


class Aged(msgspec.Struct, frozen=True, array_like=True):
    """A record and how long ago, in milliseconds, the sender got it."""

    record: Record
    age_ms: Annotated[int, msgspec.Meta(ge=0)]


class Push(msgspec.Struct, frozen=True, array_like=True):
    """Records that the sender thinks are news; no reply but the end of the stream. `is_to_all`: it sends its own ones
    to all living peers, so that nobody need repeat these.
    """

    records: Annotated[list[Aged], msgspec.Meta(max_length=MAX_RECORDS)]
    is_to_all: bool = False


class Summary(msgspec.Struct, frozen=True, array_like=True):
    """Prefix and fingerprint of every owner known, concatenated. `full` asks for the youngest records, too, which are
    otherwise left to rumours. `run_time` is the run's time, in Unix seconds, if the sender is sure of it.
    """

    full: bool
    owners: Annotated[bytes, msgspec.Meta(max_length=MAX_OWNERS * _ITEM_BYTES)]
    run_time: UnixTime | None = None


class Held(msgspec.Struct, frozen=True, array_like=True):
    """The versions held of one owner's records, each with its code; none if the owner is not known."""

    prefix: Prefix
    versions: Annotated[list[tuple[Code, Version]], msgspec.Meta(max_length=MAX_CODE)]


class Detail(msgspec.Struct, frozen=True, array_like=True):
    """What the answering side holds of owners that are not the same on both sides. For `run_time` see `Summary`."""

    held: Annotated[list[Held], msgspec.Meta(max_length=2 * MAX_OWNERS)]
    run_time: UnixTime | None = None


class WantedRecords(msgspec.Struct, frozen=True, array_like=True):
    """Codes of the records of one owner that the sender would like to have."""

    prefix: Prefix
    codes: Annotated[list[Code], msgspec.Meta(max_length=MAX_CODE)]


class Page(msgspec.Struct, frozen=True, array_like=True):
    """Some of the records that the other side lacks; the caller's first page also says what it wants."""

    records: Annotated[list[Aged], msgspec.Meta(max_length=MAX_RECORDS)]
    more: bool
    wanted: Annotated[list[WantedRecords], msgspec.Meta(max_length=2 * MAX_OWNERS)] = []


class Settled(NamedTuple):
    """Which records are exchanged: those that came before these awake times. Rumours still bring younger ones, and
    urgent news are sooner everywhere than others.
    """

    others: float
    urgent: float

    def covers(self, board: Board, entry: StoredRecord) -> bool:
        """Whether this record is exchanged."""
        if entry.arrived >= self.others:
            kind = board.kinds.with_code(entry.record.code)
            if kind is None or not kind.is_urgent or entry.is_renewal or entry.arrived >= self.urgent:
                return False
        return entry.passed_on


EVERYTHING = Settled(math.inf, math.inf)


def summarise(board: Board, *, full: bool) -> Summary:
    """The summary of everything on the board."""
    owners = b"".join(owner.prefix + owner.fingerprint for owner in _known(board).values())
    return Summary(full, owners, board.run_clock.voice())


def detail(board: Board, summary: Summary, peer: PeerId) -> Detail:
    """What this side holds where `summary`, sent by `peer`, differs. Raises `ProtocolError` for a broken one."""
    packed = summary.owners
    if len(packed) % _ITEM_BYTES:
        raise ProtocolError(f"a summary of {len(packed)} bytes", peer=peer)
    theirs = {packed[i : i + _ITEM_BYTES] for i in range(0, len(packed), _ITEM_BYTES)}
    known = _known(board)
    ours = {prefix + owner.fingerprint: owner for prefix, owner in known.items()}
    held = [Held(owner.prefix, owner.versions()) for item, owner in ours.items() if item not in theirs]
    prefixes = sorted({item[:PREFIX_BYTES] for item in theirs - ours.keys()} - known.keys())
    return Detail(_as_fit([Held(prefix, []) for prefix in prefixes] + held), board.run_clock.voice())


def compare(board: Board, theirs: Detail, settled: Settled) -> tuple[list[StoredRecord], list[WantedRecords]]:
    """The `settled` records to send to the other side, and those to ask it for."""
    known = _known(board)
    to_send: list[StoredRecord] = []
    wanted: list[WantedRecords] = []
    for held in {held.prefix: held for held in theirs.held}.values():
        owner = known.get(held.prefix)
        entries = owner.entries if owner else {}
        their_versions = dict(held.versions)
        to_send += [
            entries[code]
            for code in sorted(entries)
            if entries[code].record.version > their_versions.get(code, 0) and settled.covers(board, entries[code])
        ]
        codes = [
            code
            for code, version in sorted(their_versions.items())
            if owner is None or not owner.is_past(code, version)
        ]
        if codes:
            wanted.append(WantedRecords(held.prefix, codes))
    return to_send, wanted


def select(board: Board, wanted: Iterable[WantedRecords], settled: Settled) -> list[StoredRecord]:
    """The entries that were asked for, each once, as far as they are there and `settled`."""
    known, codes = _known(board), {item.prefix: sorted({*item.codes}) for item in wanted}
    found = [known[prefix].entries.get(code) for prefix in codes if prefix in known for code in codes[prefix]]
    return [entry for entry in found if entry is not None and settled.covers(board, entry)]


def paged(entries: Iterable[StoredRecord], now: float) -> Iterator[list[Aged]]:
    """The entries with their ages at awake time `now`, in lists of at most about `PAGE_BYTES`.

    What says that an owner is admitted comes first, else its other records would be turned away; then the newest, so
    that older ones of the same owner are not taken for earlier beats. A goodbye, which voids what was said before it,
    comes last.
    """
    page: list[Aged] = []
    size = 0
    ranks = {ACCESS.code: 0, LEFT.code: 2}
    for entry in sorted(entries, key=lambda entry: (ranks.get(entry.record.code, 1), -entry.record.version)):
        bytes_needed = len(entry.record.payload) + _OVERHEAD_BYTES
        if page and size + bytes_needed > PAGE_BYTES:
            yield page
            page, size = [], 0
        page.append(Aged(entry.record, max(0, int((now - entry.arrived) * 1000.0))))
        size += bytes_needed
    if page:
        yield page


def _as_fit(held: list[Held]) -> list[Held]:
    """Those with the fewest versions, as many as fit into one message."""
    held.sort(key=lambda owner: len(owner.versions))
    sizes = itertools.accumulate(_HELD_BYTES + _VERSION_BYTES * len(owner.versions) for owner in held)
    return held[: bisect.bisect(list(sizes), DETAIL_BYTES)]


def _known(board: Board) -> dict[bytes, PeerRecords]:
    owners = board.store.owners
    return {owner.prefix: owner for _, owner in sorted(owners.items()) if owner.entries or owner.dropped}
