"""What was said so far: the statements of a few steps, by slot and author."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from blake3 import blake3

from minga.core.aio.signal import Signal
from minga.network.interface import PeerId
from minga.security.protocol.statements import Slot, Statement, is_genuine

_LABEL = b"minga secure phase 1"


class EquivocationProof(msgspec.Struct, frozen=True, forbid_unknown_fields=True, array_like=True):
    """Two statements of one author in one slot: a proof that needs nothing else."""

    one: Statement
    other: Statement

    @property
    def author(self) -> PeerId:
        """Who signed both."""
        return self.one.author

    def holds(self, run_id: str) -> bool:
        """Whether this proves anything."""
        a, b = self.one, self.other
        same_place = (a.key, a.slot) == (b.key, b.slot) and a.body != b.body
        return same_place and is_genuine(a, run_id) and is_genuine(b, run_id)


class StatementStore:
    """Statements that were checked to be genuine, of the steps that are kept."""

    def __init__(self) -> None:
        self.changed = Signal()
        """Fires with each new statement."""
        self._slots: dict[Slot, dict[PeerId, Statement]] = {}

    def put(self, statement: Statement) -> EquivocationProof | None:
        """Keep a statement, unless its author said something before in that slot; if that was another, the proof."""
        known = self._slots.setdefault(statement.slot, {}).setdefault(statement.author, statement)
        if known is statement:
            self.changed.fire()
            return None
        return None if known.body == statement.body else EquivocationProof(known, statement)

    def of(self, slot: Slot) -> dict[PeerId, Statement]:
        """What was said in a slot, by author."""
        return self._slots.get(slot, {})

    def drop(self, slot: Slot, author: PeerId) -> None:
        """Forget what an author said in a slot."""
        self._slots.get(slot, {}).pop(author, None)

    def forget_before(self, step: int) -> None:
        """Drop what belongs to earlier steps."""
        for slot in [slot for slot in self._slots if slot.step < step]:
            del self._slots[slot]


def phase_digest(statements: Iterable[Statement]) -> bytes:
    """32 bytes that stand for who said what in a phase, whatever the order."""
    entries = sorted(statement.key + statement.digest for statement in statements)
    return blake3(_LABEL + b"".join(entries)).digest()
