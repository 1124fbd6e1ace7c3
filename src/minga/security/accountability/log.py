"""The evidence of a run in the order in which members left, and how each change of their list is noted and told.

The log lies in a file or, without one, in memory. The file is a sequence of records, each with a header before it: its
length (8 bytes, little-endian) and a checksum of that. It is only ever appended to; if a machine stops in the middle of
that, the next start finds an incomplete last record, or zeros where a file system had made room for its end, and cuts
it off: a whole one ends with a signature. Thanks to the checksum, a length that was damaged later does not look like
that.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from minga.core.errors import StorageError, reason_of
from minga.core.events.security import SecureAdmitted, SecureBanned, SecureCandidate, SecureDropped, SecureMemberAway
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.security.accountability.evidence import Decision, Entered, Evidence, EvidenceError, Transcript
from minga.security.accountability.rulings import Ruling
from minga.security.protocol.members import Members
from minga.security.protocol.protocol_state import ProtocolState, StepProgress

_LENGTH_BYTES = 8
_HEADER_BYTES = 16
_LEAST_ZEROS = 8
"""So many at the end of a file are no end of a signature."""


class EvidenceLog:
    """Append-only; kept in the file at `path`, or in memory if there is none. Of a file that is there already an
    incomplete last record is cut off; raises `StorageError` if it is damaged or cannot be used.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: list[Evidence] = []
        if path is not None and path.exists():
            _cut_off(path)

    @property
    def entries(self) -> tuple[Evidence, ...]:
        """All evidence so far that is kept in memory; `read_log` reads a file."""
        return tuple(self._entries)

    def append(self, evidence: Evidence) -> None:
        """Add evidence; it is on the disk when this returns. Raises `StorageError` if the disk refuses."""
        if self._path is None:
            self._entries.append(evidence)
            return
        record = evidence.to_bytes()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with self._path.open("ab") as file:
                file.write(_header(len(record)) + record)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise StorageError(f"the evidence cannot be written to {self._path}: {reason_of(error)}") from error


def read_log(path: Path) -> tuple[Evidence, ...]:
    """The evidence in a file, which is left as it is, since a peer may be writing to it: an incomplete last record is
    passed over. Raises `StorageError` if it cannot be read, and `EvidenceError` if it is malformed.
    """
    try:
        with path.open("rb") as file:
            return tuple(Evidence.from_bytes(_read(file, start, length)) for start, length in _records(file))
    except OSError as error:
        raise StorageError(f"the evidence in {path} cannot be read: {reason_of(error)}") from error


def _cut_off(path: Path) -> None:
    """Cut an incomplete last record off; reads the headers only, since a record may hold as much as a gradient."""
    try:
        with path.open("r+b") as file:
            whole = max((start + length for start, length in _records(file)), default=0)
            if whole < file.seek(0, os.SEEK_END):
                file.truncate(whole)
    except EvidenceError as error:
        raise StorageError(f"the evidence in {path} is damaged, so move the file away: {error}") from error
    except OSError as error:
        raise StorageError(f"the evidence in {path} cannot be read: {reason_of(error)}") from error


@dataclass(frozen=True)
class LogEnd:
    """The members after all evidence of a log, and, where it did not begin with the founders, with what it did."""

    members: tuple[PeerId, ...]
    entered: Evidence | None = None


def follow_log(founders: Iterable[PeerId], entries: Iterable[tuple[Evidence, Decision]]) -> LogEnd:
    """Where the evidence of a run that began with `founders` leads; of each entry is known what it shows.

    Of a member that came later, or came back, the log begins anew with the members of that time. Nothing but their
    own word shows that these followed on the founders, so whoever reads where it leads has to be told. Raises
    `EvidenceError` at the first entry that does not follow on those before it.
    """
    replay = _Replay(Members(founders))
    for entry, decision in entries:
        replay.follow(entry, decision)
    return LogEnd(replay.membership.members, replay.entered)


class _Replay:
    """Follows the list of members; all who leave after the same attempt were members in it."""

    def __init__(self, membership: Members) -> None:
        self.membership = membership
        self.entered: Evidence | None = None
        """Where it began anew last."""
        self._witness: PeerId | None = None
        self._place, self._members = (-1, 0), membership.members

    def follow(self, entry: Evidence, decision: Decision) -> None:
        standing, author, step = entry.proof.standing, entry.author, entry.step
        if self._witness not in (None, author):
            raise EvidenceError("its witness is not that of the evidence before it", peer=author, round=step)
        self._witness, place = author, (step, entry.proof.attempt)
        if place < self._place:
            raise EvidenceError("it is older than the evidence before it", peer=author, round=step)
        if isinstance(entry.proof, Entered):
            if step <= self._place[0]:  # it was away, if only to be started anew, and that takes it at least a step
                raise EvidenceError("its witness was a member in that step already", peer=author, round=step)
            self.entered, self._members = entry, standing.membership.members
        elif place > self._place:
            self._members = self.membership.members
        if tuple(standing.members) != self._members:
            raise EvidenceError("its members are not those who were left by then", peer=author, round=step)
        if place > self._place:
            self._place, self.membership = place, standing.membership
        left = [peer for peer, reason in decision.gone.items() if self.membership.leave(peer, step, reason)]
        came = [peer for peer in decision.admitted if peer not in self.membership]
        for peer in came:
            self.membership.admit(peer)
        if isinstance(entry.proof, Transcript) and not left and not came:
            raise EvidenceError("whoever left or came by it had done so before", peer=author, round=step)


def _header(length: int) -> bytes:
    encoded = length.to_bytes(_LENGTH_BYTES, "little")
    return encoded + bytes(blake3(encoded).digest(length=_HEADER_BYTES - _LENGTH_BYTES))


def _records(file: BinaryIO) -> Iterator[tuple[int, int]]:
    """Where each whole record of a file begins, and its length, in bytes."""
    at, size = 0, file.seek(0, os.SEEK_END)
    ends_in_zeros = not _read(file, max(0, size - _LEAST_ZEROS), _LEAST_ZEROS).strip(b"\0")
    while at + _HEADER_BYTES <= size:
        header = _read(file, at, _HEADER_BYTES)
        start, length = at + _HEADER_BYTES, int.from_bytes(header[:_LENGTH_BYTES], "little")
        if header != _header(length):
            if not _read(file, start, size - start).strip(b"\0"):
                return
            raise EvidenceError(f"malformed evidence: at byte {at} of the file there is no length of a record")
        end = start + length
        if end > size or (end == size and ends_in_zeros):
            return
        yield start, length
        at = end


def _read(file: BinaryIO, start: int, length: int) -> bytes:
    file.seek(start)
    return file.read(length)


# ---- Changes of the list of members: each is noted, told as an event, and written down as evidence.


class MembershipChanges:
    """As one peer sees them, which notes them in `progress`."""

    def __init__(self, node: Node, identity: Identity, progress: StepProgress, evidence: EvidenceLog) -> None:
        self._node, self._identity, self._progress, self._evidence = node, identity, progress, evidence

    def leave_out(self, gone: Ruling) -> bool:
        """These peers leave, unless they have left already; whether any does."""
        membership, step, events, anybody = self._progress.membership, self._progress.step, self._node.events, False
        for peer, reason in gone.items():
            if not membership.leave(peer, step, reason):
                continue
            anybody = True
            if reason is None:
                events.emit(SecureMemberAway(step=step, peer=peer))
            else:
                events.emit(SecureBanned(step=step, peer=peer, reason=reason.name, why=membership.bans[peer].why))
        return anybody

    async def write_down(self, proofs: Iterable[Transcript | Entered]) -> None:
        """Keep evidence; each is made when the one before it is on the disk, since they may be large."""
        await asyncio.to_thread(self._append, proofs)

    def tell_candidates(self, before: ProtocolState) -> None:
        """What became of candidates since then."""
        candidates, progress, events = before.membership.candidates.keys(), self._progress, self._node.events
        membership, step = progress.membership, progress.step
        for peer in sorted(membership.candidates.keys() - candidates):
            events.emit(SecureCandidate(step=step, peer=peer))
        barred = {peer for peer in membership.bans if membership.is_barred(peer, step)}
        for peer in sorted(candidates - membership.candidates.keys() - barred):
            events.emit((SecureAdmitted if peer in membership else SecureDropped)(step=step, peer=peer))

    def _append(self, proofs: Iterable[Transcript | Entered]) -> None:
        for proof in proofs:
            self._evidence.append(Evidence.of(proof, self._identity, self._node.run_id))
