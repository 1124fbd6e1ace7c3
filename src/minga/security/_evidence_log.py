"""The evidence of a run in the order in which members left, in memory and, if wanted, in a file.

The file is a sequence of records, each with a header before it: its length (8 bytes, little-endian) and a checksum of
that. It is only ever appended to; if a machine stops in the middle of that, the next start finds an incomplete last
record and cuts it off. Thanks to the checksum, a length that was damaged later does not look like that.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from minga.core._errors import StorageError
from minga.network._interface import PeerId
from minga.security._evidence import Admitted, Case, Entered, Evidence, EvidenceError, Judged
from minga.security._evidence_check import verify
from minga.security._ledger import Ledger

_LENGTH_BYTES = 8
_HEADER_BYTES = 16


class EvidenceLog:
    """Append-only. Reads what is in the file at `path`, if there is one; raises `StorageError` if that is impossible,
    and `EvidenceError` if a whole record in it is malformed.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._entries: list[Evidence] = []
        if path is None or not path.exists():
            return
        self._entries, whole, size = _read(path)
        try:
            if whole < size:
                os.truncate(path, whole)
        except OSError as error:
            raise StorageError(f"the evidence in {path} cannot be read: {error}") from error

    @property
    def entries(self) -> tuple[Evidence, ...]:
        """All evidence so far."""
        return tuple(self._entries)

    def append(self, evidence: Evidence) -> None:
        """Add evidence; it is on the disk when this returns. Raises `StorageError` if the disk refuses."""
        if self._path is not None:
            record = evidence.to_bytes()
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                with self._path.open("ab") as file:
                    file.write(_header(len(record)) + record)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise StorageError(f"the evidence cannot be written to {self._path}: {error}") from error
        self._entries.append(evidence)


def read_log(path: Path) -> tuple[Evidence, ...]:
    """The evidence in a file, which is left as it is, since a peer may be writing to it. Raises as `EvidenceLog`."""
    return tuple(_read(path)[0])


def _read(path: Path) -> tuple[list[Evidence], int, int]:
    """The evidence in a file, how many bytes that is, and how many the file has."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"the evidence in {path} cannot be read: {error}") from error
    records = list(_records(data))
    whole = sum(_HEADER_BYTES + len(record) for record in records)
    return [Evidence.from_bytes(record) for record in records], whole, len(data)


@dataclass(frozen=True)
class LogEnd:
    """Who is a member after all evidence of a log, and, where it did not begin with the founders, with what it did."""

    members: tuple[PeerId, ...]
    entered: Case | None = None


def verify_log(run_id: str, founders: Iterable[PeerId], entries: Iterable[Evidence]) -> LogEnd:
    """Verify all evidence of a run that began with `founders`, and return to where it leads.

    Raises `EvidenceError` at the first entry that proves nothing or does not follow on those before it.
    """

    def verified() -> Iterator[Evidence]:
        for entry in entries:
            verify(entry, run_id)
            yield entry

    return follow_log(founders, verified())


def follow_log(founders: Iterable[PeerId], entries: Iterable[Evidence]) -> LogEnd:
    """The same for evidence of which each entry was verified.

    Of a member that came later, or came back, the log begins anew with those who were members then. Nothing but their
    own word shows that these followed on the founders, so whoever reads the outcome has to be told.
    """
    replay = _Replay(Ledger(founders))
    for entry in entries:
        replay.follow(entry)
    return LogEnd(replay.ledger.members, replay.entered)


class _Replay:
    """Follows the list of members; all who leave after the same attempt were members in it."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.entered: Case | None = None
        """Where it began anew last."""
        self._witness: PeerId | None = None
        self._place = (-1, 0)
        self._members = ledger.members
        self._of_steps: list[tuple[int, tuple[PeerId, ...]]] = [(-1, ledger.members)]
        """Who was a member in the last attempt of a step, and in all that follow up to the next entry."""

    def follow(self, entry: Evidence) -> None:
        case, place, peer = entry.case, (entry.case.step, entry.case.attempt), PeerId(entry.case.peer)
        if self._witness not in (None, entry.author):
            raise EvidenceError("its witness is not that of the evidence before it", peer=peer, round=case.step)
        self._witness = entry.author
        if place < self._place:
            raise EvidenceError("it is older than the evidence before it", peer=peer, round=case.step)
        if isinstance(case.proof, Entered):
            self._begin_anew(entry, case.proof)
            return
        if place > self._place:
            self._place, self._members = place, self.ledger.members
        if case.members != self._members:
            raise EvidenceError("its members are not those who were left by then", peer=peer, round=case.step)
        proof = case.proof
        is_new = isinstance(proof, Admitted) or case.ban is not None  # whoever is banned may be a candidate
        if peer in self.ledger.bans or (peer not in self.ledger and not is_new):
            raise EvidenceError("it had left before", peer=peer, round=case.step)
        if isinstance(proof, Judged) and proof.covering and proof.members_then != self._at(proof.accusation.step):
            raise EvidenceError("other members aggregated in the accused step", peer=peer, round=case.step)
        if isinstance(proof, Admitted):
            self.ledger.admit(peer)
        elif case.ban is None:
            self.ledger.remove(peer, case.step)
        else:
            self.ledger.ban(peer, case.step, case.ban)
        # a judgement or an admission comes when a step was taken, all else before
        self._of_steps.append((case.step + isinstance(proof, Judged | Admitted), self.ledger.members))

    def _begin_anew(self, entry: Evidence, proof: Entered) -> None:
        """The witness was away, if only to be started anew, and came back; that takes it at least a step."""
        case = entry.case
        if case.peer != entry.author:
            raise EvidenceError("it tells where another peer than its witness entered", peer=case.peer, round=case.step)
        if case.step <= self._place[0]:
            raise EvidenceError("its witness was a member in that step already", peer=case.peer, round=case.step)
        self.entered, self._place = case, (case.step, case.attempt)
        self.ledger = proof.standing.ledger
        self._members = self.ledger.members
        self._of_steps.append((case.step, self._members))

    def _at(self, step: int) -> tuple[PeerId, ...]:
        return next(members for first, members in reversed(self._of_steps) if first <= step)


def _header(length: int) -> bytes:
    encoded = length.to_bytes(_LENGTH_BYTES, "little")
    return encoded + bytes(blake3(encoded).digest(length=_HEADER_BYTES - _LENGTH_BYTES))


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + _HEADER_BYTES <= len(data):
        length = int.from_bytes(data[at : at + _LENGTH_BYTES], "little")
        start = at + _HEADER_BYTES
        if data[at:start] != _header(length):
            raise EvidenceError(f"malformed evidence: at byte {at} of the file there is no length of a record")
        if start + length > len(data):
            return
        yield data[start : start + length]
        at = start + length
