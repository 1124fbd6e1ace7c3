"""The orders that the organisers of a run sign: whom they admit or revoke, who succeeds them, and changes of the run.

An order is valid if enough of the organisers of its *term* signed it. Term 0 has the organisers that the run spec names
(or, if it names none, the key that signed the spec); each `Transfer` begins the next term. The signatures cover
everything else in the order, the run's id included, and each kind of order has a context of its own. So a signature for
one purpose or run is worth nothing in another.

Orders are public: no secret is in them, and every peer may pass them on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Annotated, ClassVar, Self

import msgspec
from blake3 import blake3

from minga.core.spec.sections import MAX_ORGANISERS
from minga.identity.keys.keys import SIGNATURE_BYTES, Identity, verify

MAX_BARRED = 1000
"""How many keys one organiser may bar from a run."""

MAX_TERMS = 8
"""How many times the role of the organisers may be handed over, and once more."""

MAX_STANDING = 256
"""How many changes of a run may stay in force when the role is handed over."""

MAX_RANGES = 100
"""How many address ranges one organiser may ban from a run."""

MAX_RANGE_CHARACTERS = 43
MAX_USES = 10_000
MAX_REASON_CHARACTERS = 100
MAX_TIME_S = 1 << 40

Key = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
"""A public key as bytes; a peer's id is its hexadecimal form."""

SignatureBytes = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
ChangeId = Annotated[bytes, msgspec.Meta(min_length=8, max_length=8)]
Version = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Term = Annotated[int, msgspec.Meta(ge=0, lt=MAX_TERMS)]
UnixSeconds = Annotated[int, msgspec.Meta(ge=0, le=MAX_TIME_S)]


class Signature(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One organiser's signature of an order."""

    signer: Key
    signature: SignatureBytes


class Order(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Base of what organisers sign. `run` is the run's id as bytes, `issued` a date by the first signer's clock."""

    CONTEXT: ClassVar[bytes] = b""

    run: Key
    term: Term
    issued: UnixSeconds
    signatures: Annotated[tuple[Signature, ...], msgspec.Meta(max_length=MAX_ORGANISERS)]

    def statement(self) -> bytes:
        """What the signatures cover."""
        return msgspec.msgpack.encode(msgspec.structs.replace(self, signatures=()))

    def signed_by(self, organiser: Identity) -> Self:
        """The order with the signature of `organiser` added, unless it is there already."""
        signer = bytes.fromhex(organiser.peer_id)
        others = tuple(signature for signature in self.signatures if signature.signer != signer)
        added = Signature(signer, organiser.sign(self.statement(), context=self.CONTEXT))
        return msgspec.structs.replace(self, signatures=(*others, added))

    def signers(self, organisers: Collection[str]) -> set[str]:
        """Those of `organisers` (hexadecimal keys) whose first signature of this order is right."""
        statement = self.statement()
        claimed = {item.signer.hex(): item.signature for item in reversed(self.signatures)}
        return {
            signer
            for signer, signature in claimed.items()
            if signer in organisers and verify(signer, signature, statement, context=self.CONTEXT)
        }


class Grant(Order, frozen=True):
    """Admits the key `subject` itself (`uses` 0), or up to `uses` peers for whom `subject`, the key of an invitation,
    signs.

    A later revocation of the key, or one of the same `version`, voids it. It is good from `issued` to `expires`.
    """

    CONTEXT: ClassVar[bytes] = b"access-grant"

    subject: Key
    uses: Annotated[int, msgspec.Meta(ge=0, le=MAX_USES)]
    version: Version
    expires: UnixSeconds


class Revocation(Order, frozen=True):
    """One organiser's word that the key `subject`, of a peer or of an invitation, be barred.

    Grants to it up to `version` are void once enough organisers said so.
    """

    CONTEXT: ClassVar[bytes] = b"access-revocation"

    subject: Key
    version: Version
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)] = ""


class RangeBan(Order, frozen=True):
    """One organiser's word that no peer take part from the addresses of `range` until `expires`.

    `range` is in CIDR notation. A later one of the same organiser for the same range takes the place of this one.
    """

    CONTEXT: ClassVar[bytes] = b"access-range-ban"

    range: Annotated[str, msgspec.Meta(min_length=4, max_length=MAX_RANGE_CHARACTERS)]
    expires: UnixSeconds
    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON_CHARACTERS)] = ""


class Barred(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A key that was barred in an earlier term and stays so: grants to it up to `version` are void."""

    subject: Key
    version: Version


class Transfer(Order, frozen=True):
    """Hands the role over: from term `term` + 1 on `organisers`, of whom `needed` have to sign, give the orders.

    The organisers of `term` sign it. It names all revoked keys, because single revocations end with their term, and by
    their ids the changes of the run (amendments and regroups) that stay in force: no other change of earlier terms
    counts from then on, whatever date it bears.
    """

    CONTEXT: ClassVar[bytes] = b"access-transfer"

    organisers: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=MAX_ORGANISERS)]
    needed: Annotated[int, msgspec.Meta(ge=1, le=MAX_ORGANISERS)]
    barred: Annotated[tuple[Barred, ...], msgspec.Meta(max_length=MAX_BARRED * MAX_ORGANISERS)] = ()
    standing: Annotated[tuple[ChangeId, ...], msgspec.Meta(max_length=MAX_STANDING)] = ()


# ---- Orders that change a run while it goes on: amendments of its settings, and regroups.
#
# An amendment names what it changes, a step, and a number. It may be in force in rounds from that step on; whether it
# is, the plan of each round says, so that all members of a round go by the same values. Of two amendments of one
# setting the one with the higher number wins, whichever came first; of one number, that with the greater id.
#
# A regroup names the members that go on where the majority of the last round is lost, and the newest step that one of
# them had; see `averaging/allreduce/commit.py`. Each begins another *epoch* of the run.
#
# A run has at most `MAX_AMENDMENTS`, and `MAX_REGROUPS`. Those that a transfer of the organisers' role names stay in
# force after it.


MAX_AMENDMENTS = 200
MAX_REGROUPS = 8
MAX_PRESENT = 1000
MAX_CHANGES = 8
MAX_KEY_CHARACTERS, MAX_VALUE_CHARACTERS = 60, 60
MAX_AMENDED_STEP = 10**9

Change = tuple[
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_KEY_CHARACTERS)],
    Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_VALUE_CHARACTERS)],
]
"""A setting's key, such as optimizer.learning_rate, and its value as JSON."""


class ChangeOrder(Order, frozen=True):
    """An order that changes the run."""

    @property
    def change_id(self) -> bytes:
        """8 bytes of the hash of what the organisers signed."""
        return bytes(blake3(self.statement()).digest(length=8))


class Amendment(ChangeOrder, frozen=True):
    """The settings `changes` may be in force in rounds of `from_step` and later ones."""

    CONTEXT: ClassVar[bytes] = b"run-amendment"

    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    from_step: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMENDED_STEP)]
    changes: Annotated[tuple[Change, ...], msgspec.Meta(min_length=1, max_length=MAX_CHANGES)]

    @property
    def id(self) -> str:
        """The change's id, hexadecimal."""
        return self.change_id.hex()

    def first_step(self, early: Collection[str]) -> int:
        """The first step in whose round it may be in force, where these settings are a round ahead of their step."""
        return self.from_step - any(key in early for key, _ in self.changes)

    @property
    def rank(self) -> tuple[int, str]:
        """What decides between two amendments of one setting."""
        return self.number, self.id


class Amendments:
    """All amendments of a run that one peer knows."""

    def __init__(self) -> None:
        self._known: dict[str, Amendment] = {}
        self._void: dict[str, Amendment] = {}
        """Those that count no more: a round that began by one ends by it."""

    def __iter__(self) -> Iterator[Amendment]:
        """By number."""
        return iter(sorted(self._known.values(), key=lambda each: each.rank))

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in self._void

    @property
    def next_number(self) -> int:
        """Above every number that is known here."""
        return max((each.number for each in self._known.values()), default=0) + 1

    @property
    def is_full(self) -> bool:
        """Whether no other one can come."""
        return len(self._known) >= MAX_AMENDMENTS

    def take(self, amendment: Amendment) -> bool:
        """Enter one whose signatures were checked; whether it is new. Raises `ValueError` if there are too many."""
        if amendment.id in self._known:
            return False
        if self.is_full:
            raise ValueError(f"a run has at most {MAX_AMENDMENTS} amendments")
        self._known[amendment.id] = amendment
        return True

    def plus(self, amendment: Amendment) -> Amendments:
        """What they would be with this one."""
        more = Amendments()
        more._known, more._void = {**self._known, amendment.id: amendment}, dict(self._void)
        return more

    def keep(self, counts: Callable[[Amendment], bool]) -> None:
        """Let no round begin by those any more that do not count."""
        heard = {**self._void, **self._known}
        self._known = {name: each for name, each in heard.items() if counts(each)}
        self._void = {name: each for name, each in heard.items() if name not in self._known}

    def due(self, step: int, early: Collection[str] = ()) -> tuple[str, ...]:
        """The ids of those that may be in force in the round of `step` and are not overruled, by number. Settings that
        come `early` are in force in the round before their step.
        """
        winners: dict[str, str] = {}
        for amendment in self:
            if amendment.first_step(early) <= step:
                winners.update({key: amendment.id for key, _ in amendment.changes})
        wins = set(winners.values())
        return tuple(amendment.id for amendment in self if amendment.id in wins)

    def not_due(self, ids: Iterable[str], step: int, early: Collection[str] = ()) -> tuple[str, ...]:
        """Which of these are for later steps than `step`."""
        known = {**self._void, **self._known}
        return tuple(name for name in ids if name in known and known[name].first_step(early) > step)

    def changes(self, ids: Iterable[str]) -> dict[str, str]:
        """What these amendments together say: the JSON of a value by key. Those not known here are left out."""
        found: dict[str, str] = {}
        known = {**self._void, **self._known}
        for amendment in sorted((known[name] for name in ids if name in known), key=lambda a: a.rank):
            found.update(amendment.changes)
        return found


class Regroup(ChangeOrder, frozen=True):
    """The run goes on with these `members`, from the newest state among them, which is of `step`."""

    CONTEXT: ClassVar[bytes] = b"run-regroup"

    number: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_AMENDED_STEP)]
    members: Annotated[tuple[Key, ...], msgspec.Meta(min_length=1, max_length=MAX_PRESENT)]

    @property
    def epoch(self) -> int:
        """Above that of every regroup with a lower number; of one number, the hash decides."""
        return self.number << 32 | int.from_bytes(blake3(self.statement()).digest(length=4), "big")

    @property
    def present(self) -> tuple[str, ...]:
        """The members' ids."""
        return tuple(key.hex() for key in self.members)


class Regroups:
    """All regroups of a run that one peer knows."""

    def __init__(self) -> None:
        self._known: dict[int, Regroup] = {}
        self._void: dict[int, Regroup] = {}

    def __iter__(self) -> Iterator[Regroup]:
        """The newest last."""
        return iter([self._known[epoch] for epoch in sorted(self._known)])

    def __contains__(self, epoch: int) -> bool:
        return epoch in self._known

    def keep(self, counts: Callable[[Regroup], bool]) -> None:
        """Let those rest that do not count."""
        heard = {**self._void, **self._known}
        self._known = {epoch: each for epoch, each in heard.items() if counts(each)}
        self._void = {epoch: each for epoch, each in heard.items() if epoch not in self._known}

    @property
    def newest(self) -> Regroup | None:
        """The one that counts."""
        return self._known[max(self._known)] if self._known else None

    def take(self, regroup: Regroup) -> bool:
        """Enter one whose signatures were checked; whether it is new. Raises `ValueError` if there are too many."""
        if regroup.epoch in self._known:
            return False
        if len(self._known) >= MAX_REGROUPS:
            raise ValueError(f"a run is regrouped at most {MAX_REGROUPS} times")
        self._known[regroup.epoch] = regroup
        return True
