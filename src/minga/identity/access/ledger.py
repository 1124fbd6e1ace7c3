"""The ledger of a run: the organisers' orders as far as they are known here, and what follows from them.

Rules.

* In an open run all peers take part but those that are barred. In a run for members a token has to be shown.
* The organisers of the present term, and the key that signed the run spec, need no token.
* Each organiser revokes for itself. A key is revoked once as many organisers as have to sign did so, up to the
  highest version on which so many agree.
* A grant counts if enough organisers of its term signed it. It stays good after a transfer, until it expires.
* Between a revocation and an admission the *version* decides, not the date: a grant is void if a revocation of the
  peer's key, or of the invitation's, has the same version or a higher one. Grants and revocations are issued with a
  version above all at which keys are revoked as far as their issuer knows. So when two organisers disagree at the same
  moment the revocation wins everywhere, in whatever order the two arrive. A new grant to the same key, which has a
  higher version, restores access; a new invitation restores that of no peer whose own key is revoked. A version at
  which too few organisers revoke a key moves nobody's.
* Revoking an organiser's key voids all its signatures of grants and transfers, earlier ones included: a thief could
  backdate them. Revocations that it signed stay. Where one organiser is enough to sign, each can so remove any other;
  `organisers_needed` prevents that.
* Revocations end with the term of the organisers that signed them; the transfer lists the keys that stay revoked. So
  a retired organiser's key revokes nothing any more. Of two transfers of one term the one that arrived first stays, and
  so does, of a transfer and the revocation of a key that it needs, what arrived first.
* The changes of a run (amendments, regroups) that a transfer lists stay in force; a retired organiser's key makes no
  other one. Revoking an organiser's key voids the changes that it was needed for; the others may order them anew.
* Peers from a banned address range (`RangeBans`) may not take part until the ban ends, but for the organisers.

Peers may differ by `CLOCK_SKEW_S` about what the run's time is: a grant counts for that long after its end. Before its
date it counts for `MOST_AHEAD_S`, by which the clock of the organiser may be ahead who signed it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from minga.core.errors import ConfigurationError
from minga.core.printable import is_printable
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.orders import (
    MAX_BARRED,
    MAX_CHANGES,
    MAX_REASON_CHARACTERS,
    MAX_TERMS,
    MAX_VALUE_CHARACTERS,
    Amendment,
    Amendments,
    Barred,
    Grant,
    Order,
    RangeBan,
    Regroup,
    Regroups,
    Revocation,
    Transfer,
)
from minga.identity.access.token import Login, RangeBans, Token, WatchToken, parse_range

PublicOrder = Transfer | Revocation | RangeBan | Amendment | Regroup
"""What every peer of a run has to know; grants concern only the peers that show them."""

CLOCK_SKEW_S = 120.0
MOST_AHEAD_S = 1800.0 + CLOCK_SKEW_S
MAX_WATCH_S = 86_400
"""For how long, in seconds, a member may let another key look on."""


class NoAccessError(Exception):
    """Why a peer may not take part, in words for that peer."""


class AccessBannedError(NoAccessError):
    """The organisers banned the peer: its key, its invitation or its addresses."""


class UnknownTermError(NoAccessError):
    """The token is of organisers to whom the role was handed over, as far as nothing is known of it here."""


class InvalidOrderError(Exception):
    """Why an order is none: it was not signed by organisers, or not by enough of them."""


@dataclass(frozen=True)
class Organisers:
    """The organisers of one term by their keys, and how many of them have to sign."""

    keys: frozenset[str]
    needed: int

    @classmethod
    def of_spec(cls, spec: RunSpec, signer: str) -> Organisers:
        """Those that a run spec, signed by `signer`, begins with."""
        return cls(frozenset(spec.security.organisers or (signer,)), spec.security.organisers_needed)


@dataclass(frozen=True)
class Access:
    """The access of a peer: until when (Unix seconds; None: for good), and by which invitation, if by one.

    `name` is the name of the person who logged in at an authority. A peer that `only_watches` may watch for a member.
    """

    expires: int | None = None
    invitation: str | None = None
    uses: int = 0
    name: str = ""
    only_watches: bool = False


class AccessLedger:
    """The orders of one run; `publisher` is the key that signed its spec, and `is_open` a run that admits all peers."""

    def __init__(self, run_id: str, organisers: Organisers, publisher: str, *, is_open: bool = False) -> None:
        self.run_id, self.publisher, self.is_open = run_id, publisher, is_open
        self.ranges = RangeBans()
        """Address ranges that are banned in the present term."""
        self.amendments = Amendments()
        """Settings that the organisers changed."""
        self.regroups = Regroups()
        """Who goes on where the majority was lost."""
        self._terms = [organisers]
        self._transfers: list[Transfer] = []
        self._revocations: dict[str, dict[str, Revocation]] = {}  # by the key barred, and who barred it
        self._barred_by: Counter[str] = Counter()
        self._carried: dict[str, int] = {}  # barred in earlier terms
        self._standing: frozenset[bytes] = frozenset()  # the changes of earlier terms that count
        self._barred: dict[str, int] = {}
        self._highest = 0  # of the versions in it, also of those that are gone

    @classmethod
    def of_spec(cls, run_id: str, spec: RunSpec, signer: str) -> AccessLedger:
        """That of a run whose spec `signer` signed, with no order yet."""
        return cls(run_id, Organisers.of_spec(spec, signer), signer, is_open=spec.security.admission == "open")

    @property
    def organisers(self) -> Organisers:
        """Those of the present term."""
        return self._terms[-1]

    @property
    def term(self) -> int:
        """Number of the present term."""
        return len(self._terms) - 1

    @property
    def next_version(self) -> int:
        """Above every version at which a key is, or was, revoked."""
        return self._highest + 1

    def orders(self) -> Iterator[PublicOrder]:
        """All that others have to know, in an order in which it can be taken."""
        yield from self._transfers
        for _, orders in sorted(self._revocations.items()):
            yield from (order for _, order in sorted(orders.items()))
        yield from self.ranges.orders()
        yield from self.amendments
        yield from self.regroups

    def barred(self) -> dict[str, str]:
        """The keys that are barred, each with the reason that was given."""
        return {key: self._reason(key) for key in sorted(self._barred)}

    def proposed(self) -> dict[str, int]:
        """The keys that some organisers barred, but fewer than it takes, and how many did."""
        return {key: len(orders) for key, orders in sorted(self._revocations.items()) if key not in self._barred}

    def may_bar(self, signer: str, key: str) -> bool:
        """Whether `signer` may bar this key, too."""
        return self._barred_by[signer] < MAX_BARRED or signer in self._revocations.get(key, {})

    def bars(self, signer: str, key: str, version: int) -> bool:
        """Whether the word of `signer` stands that this key be barred, at this version or a higher one."""
        order = self._revocations.get(key, {}).get(signer)
        return order is not None and order.version >= version

    def all_barred(self) -> tuple[Barred, ...]:
        """The same for a transfer."""
        return tuple(Barred(bytes.fromhex(key), version) for key, version in sorted(self._barred.items()))

    def standing(self) -> tuple[bytes, ...]:
        """The ids of the changes that are in force, or may be, for a transfer."""
        return tuple(sorted(each.change_id for each in (*self.amendments, *self.regroups)))

    def is_carried_by(self, order: Transfer) -> bool:
        """Whether a transfer lists all that is barred, and changed, by now: the rest would end with the term."""
        listed = {barred.subject: barred.version for barred in order.barred}
        stays_barred = all(listed.get(each.subject, -1) >= each.version for each in self.all_barred())
        return stays_barred and set(self.standing()) <= set(order.standing)

    def take(self, order: PublicOrder) -> bool:
        """Enter an order; whether it says anything new. Raises `InvalidOrderError`."""
        if order.run.hex() != self.run_id:
            raise InvalidOrderError("it belongs to another run")
        if isinstance(order, Transfer):
            return self._take_transfer(order)
        if isinstance(order, Amendment | Regroup):
            return self._take_change(order)
        return self._take_revocation(order) if isinstance(order, Revocation) else self._take_range(order)

    def is_of_other_heirs(self, order: PublicOrder) -> bool:
        """Whether it hands over a term that was handed over otherwise here, or whose signer was barred first: who holds
        it goes by other organisers.
        """
        if not isinstance(order, Transfer) or order.term > self.term:
            return False
        if order.term < self.term:
            return order.statement() != self._transfers[order.term].statement()
        signers, needed = self._signers(order), self.organisers.needed
        return len(signers - self._barred.keys()) < needed <= len(signers)

    def check_address(self, peer: str, endpoints: Iterable[str], now_s: float) -> None:
        """Raises `AccessBannedError` if `peer` can be dialled at an address of a banned range."""
        ban = self.ranges.ban_of(endpoints, self.organisers.needed, now_s)
        if ban is not None and peer not in self.organisers.keys and peer != self.publisher:
            because = f": {ban.reason}" if ban.reason else ""
            raise AccessBannedError(f"the organisers barred the addresses {ban.range} from the run for a time{because}")

    def check(self, token: Token | None, peer: str, now_s: float) -> Access:
        """The access of `peer`, which shows `token`. Raises `NoAccessError`; `now_s` is in Unix seconds."""
        if self.is_open:
            self._check_not_barred(peer, None)
            return Access()
        if token is not None and token.watch is not None:
            return self._check_watch(token, token.watch, peer, now_s)
        if peer in self.organisers.keys or peer == self.publisher:
            self._check_not_barred(peer, None)
            return Access()
        if token is None:
            raise NoAccessError(
                f"this run is for members only; ask its organiser to admit the peer {peer}, and join with the new link "
                "that you then get"
            )
        grant = token.grant
        if grant is None:
            raise NoAccessError("the access token grants nothing")
        if grant.run.hex() != self.run_id:
            raise NoAccessError("the access token belongs to another run")
        if not token.is_bound_to(peer):
            raise NoAccessError("the access token belongs to another peer's key")
        self._check_not_barred(peer, grant)
        if token.invitation is not None:
            self._check_not_barred(token.invitation, grant)
        self._check_signatures(grant)
        _check_dates(grant, token.login, now_s)
        name = "" if token.login is None else token.login.name
        return Access(token.expires, token.invitation, grant.uses, name)

    # ---- inner workings

    def _check_watch(self, token: Token, watch: WatchToken, peer: str, now_s: float) -> Access:
        if not token.may_watch(self.run_id, peer):
            raise NoAccessError("the permission to look on was given to another peer's key, or for another run")
        if not now_s - CLOCK_SKEW_S <= watch.expires <= now_s + MAX_WATCH_S + CLOCK_SKEW_S:
            raise NoAccessError("the permission to look on has expired, or is for longer than it may be")
        self._check_not_barred(peer, None)
        self.check(token.of_member(), watch.member.hex(), now_s)
        return Access(watch.expires, only_watches=True)

    def _take_transfer(self, order: Transfer) -> bool:
        if order.term < self.term or len(self._terms) == MAX_TERMS:
            return False
        self._check_enough(order)
        if len(set(order.organisers)) != len(order.organisers) or order.needed > len(order.organisers):
            raise InvalidOrderError(f"{order.needed} of {len(order.organisers)} organisers cannot sign")
        self._transfers.append(order)
        self._terms.append(Organisers(frozenset(key.hex() for key in order.organisers), order.needed))
        self._carried = {barred.subject.hex(): barred.version for barred in order.barred}
        self._barred = dict(self._carried)
        self._highest = max([self._highest, *self._carried.values()])
        self._revocations.clear()
        self._barred_by.clear()
        self.ranges = RangeBans()
        self._standing = frozenset(order.standing)
        self._drop_void()
        return True

    def _take_range(self, order: RangeBan) -> bool:
        if order.term < self.term:
            return False
        try:
            return self.ranges.take(self._signer(order), order)
        except ValueError as error:
            raise InvalidOrderError(str(error)) from error

    def _take_change(self, order: Amendment | Regroup) -> bool:
        is_known = order.id in self.amendments if isinstance(order, Amendment) else order.epoch in self.regroups
        if is_known:
            return False
        self._check_signed(order, self._signers(order))
        if not self._counts(order):  # who passes it on may not know yet that a signer was barred or has retired
            return False
        try:
            return self.amendments.take(order) if isinstance(order, Amendment) else self.regroups.take(order)
        except ValueError as error:
            raise InvalidOrderError(str(error)) from error

    def _counts(self, order: Amendment | Regroup) -> bool:
        """Whether those of its signers who are not barred are enough, and no later organisers let it drop."""
        signers = self._signers(order) - self._barred.keys()
        is_standing = order.term == self.term or order.change_id in self._standing
        return is_standing and len(signers) >= self._terms[order.term].needed

    def _drop_void(self) -> None:
        """Let changes rest that a newcomer would not take from anybody, and those count again that it would: all peers
        are to go by the same ones, in whatever order they heard of them.
        """
        self.amendments.keep(self._counts)
        self.regroups.keep(self._counts)

    def _signer(self, order: Order) -> str:
        """The one organiser that signed an order of the present term."""
        self._check_term(order)
        signers = order.signers(self.organisers.keys)
        if len(signers) != 1 or len(order.signatures) != 1:
            raise InvalidOrderError("no organiser signed it")
        return signers.pop()

    def _take_revocation(self, order: Revocation) -> bool:
        if order.term < self.term:
            return False
        self._check_term(order)
        subject = order.subject.hex()
        by_signer = self._revocations.get(subject, {})
        claimed = by_signer.get(order.signatures[0].signer.hex()) if len(order.signatures) == 1 else None
        if claimed is not None and claimed.version >= order.version:  # nothing new, whether it is signed or not
            return False
        signer = self._signer(order)
        if signer not in by_signer and not self._has_room(signer, subject):
            return False
        self._revocations.setdefault(subject, {})[signer] = order
        self._count(subject)
        return True

    def _has_room(self, signer: str, subject: str) -> bool:
        """Whether one more key that `signer` bars counts. Of too many those count that come first by their digits,
        wherever they came from and in whatever order; so all peers come to the same ones.
        """
        if self._barred_by[signer] < MAX_BARRED:
            self._barred_by[signer] += 1
            return True
        last = max(key for key, orders in self._revocations.items() if signer in orders)
        if subject > last:
            return False
        del self._revocations[last][signer]
        self._count(last)
        return True

    def _count(self, subject: str) -> None:
        """The highest version at which the needed number of organisers revoke a key."""
        versions = sorted((order.version for order in self._revocations[subject].values()), reverse=True)
        carried, needed = self._carried.get(subject), self.organisers.needed
        found = [] if carried is None else [carried]
        found += versions[needed - 1 : needed]
        before = self._barred.pop(subject, None)
        if found:
            self._barred[subject] = max(found)
            self._highest = max(self._highest, *found)
        if not versions:
            del self._revocations[subject]
        if self._barred.get(subject) != before and any(subject in term.keys for term in self._terms):
            self._drop_void()

    def _check_term(self, order: Order) -> None:
        if order.term > self.term:
            raise InvalidOrderError(f"it is of term {order.term}, of which nothing is known here")

    def _signers(self, order: Order) -> set[str]:
        """The organisers of its term that signed it, also those that were barred since."""
        self._check_term(order)
        return order.signers(self._terms[order.term].keys)

    def _check_enough(self, order: Grant | Transfer) -> None:
        self._check_signed(order, self._signers(order) - self._barred.keys())

    def _check_signed(self, order: Order, signers: set[str]) -> None:
        needed = self._terms[order.term].needed
        if len(signers) < needed:
            raise InvalidOrderError(f"{len(signers)} of the {needed} organisers that it takes signed it")

    def _check_signatures(self, grant: Grant) -> None:
        if grant.term > self.term:
            raise UnknownTermError(f"the access token is of term {grant.term}, of which nothing is known here")
        try:
            self._check_enough(grant)
        except InvalidOrderError as error:
            raise NoAccessError(f"the access token is not valid: {error}") from error

    def _check_not_barred(self, key: str, grant: Grant | None) -> None:
        is_own = grant is not None and key == grant.subject.hex()
        if key not in self._barred or (grant is not None and is_own and grant.version > self._barred[key]):
            return
        what = "this invitation" if grant is not None and grant.uses and is_own else "this peer"
        reason = self._reason(key)
        raise AccessBannedError(f"the organisers barred {what} from the run" + (f": {reason}" if reason else ""))

    def _reason(self, subject: str) -> str:
        orders = self._revocations.get(subject, {})
        return next((order.reason for _, order in sorted(orders.items()) if order.reason), "")


def _check_dates(grant: Grant, login: Login | None, now_s: float) -> None:
    if now_s < grant.issued - MOST_AHEAD_S:
        raise NoAccessError("the access token is not valid yet: a clock is wrong, here or at its issuer's")
    if now_s > grant.expires + CLOCK_SKEW_S:
        raise NoAccessError("the access token has expired; ask the organiser for a new invitation")
    if login is not None and now_s > login.expires + CLOCK_SKEW_S:
        raise NoAccessError("the access token has expired; log in again with the link of the run")


# ---- Orders as an organiser would sign them, from what a ledger knows: the term, and the next number or version.


def draft_amendment(ledger: AccessLedger, changes: Mapping[str, Any], from_step: int, now: int) -> Amendment:
    """These settings change in rounds of `from_step` and later ones; `now` in Unix seconds.

    Raises `ConfigurationError` for too many settings, or too long values; whether they can change is for others to say.
    """
    try:
        said = tuple((key, json.dumps(value)) for key, value in sorted(changes.items()))
    except TypeError as error:  # such as a date of TOML
        raise ConfigurationError(f"no setting has such a value: {error}") from error
    if len(said) > MAX_CHANGES or any(len(text) > MAX_VALUE_CHARACTERS for _, text in said):
        raise ConfigurationError(f"one amendment changes at most {MAX_CHANGES} settings, by short values")
    return Amendment(_run(ledger), ledger.term, now, (), ledger.amendments.next_number, from_step, said)


def draft_revocation(ledger: AccessLedger, key: str, reason: str, now: int) -> Revocation:
    """The key of a peer or of an invitation is barred.

    Raises `ConfigurationError` for a reason that cannot be shown.
    """
    _check_reason(reason)
    return Revocation(_run(ledger), ledger.term, now, (), bytes.fromhex(key), ledger.next_version, reason)


def draft_range_ban(ledger: AccessLedger, addresses: str, until: int, reason: str, now: int) -> RangeBan:
    """The address range, in CIDR notation, is barred until then (Unix seconds).

    Raises `ConfigurationError` for a range that is none or too large, or a reason that cannot be shown.
    """
    _check_reason(reason)
    try:
        network = parse_range(addresses)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error
    return RangeBan(_run(ledger), ledger.term, now, (), str(network), until, reason)


def _run(ledger: AccessLedger) -> bytes:
    return bytes.fromhex(ledger.run_id)


def _check_reason(reason: str) -> None:
    if len(reason) > MAX_REASON_CHARACTERS or not is_printable(reason):
        raise ConfigurationError(f"a reason has at most {MAX_REASON_CHARACTERS} printable characters")
