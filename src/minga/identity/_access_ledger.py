"""The ledger of a run of members: the organisers' orders as far as they are known here, and what follows from them.

Rules.

* The organisers of the present term, and whoever signed the run spec, need no token.
* A grant counts if enough organisers of its term signed it. It stays good after a transfer, until it expires.
* Between a revocation and an admission the *version* decides, not the date: a grant is void if a revocation of the
  peer's key, or of the invitation's, has the same version or a higher one. Grants and revocations are issued with a
  version above all that their issuer knows. So when two organisers disagree at the same moment the revocation wins
  everywhere, in whatever order the two arrive, and who is to come back gets a new grant, which is above it.
* Who bars an organiser's key takes all its signatures of grants and transfers away, those of earlier days included: a
  thief could date them as he likes. Revocations that it signed stay. Where one organiser is enough to sign, each can
  so put out any other; that is what `organisers_needed` is for.
* Revocations end with the term of those who signed them; the transfer lists who stays barred. So a retired
  organiser's key bars nobody any more. Of two transfers of one term the first that came stays.

Clocks may be `CLOCK_SKEW_S` wrong: for so long a grant counts before its date and after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from minga.core._run_spec import RunSpec
from minga.identity._access_orders import MAX_BARRED, MAX_TERMS, Barred, Grant, Order, Revocation, Transfer
from minga.identity._access_token import Token

CLOCK_SKEW_S = 120.0


class NoAccessError(Exception):
    """Why somebody may not take part, in words for that peer."""


class InvalidOrderError(Exception):
    """Why an order is none: somebody else signed it, or too few did."""


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
    """What lets a peer take part: until when (Unix seconds; None: for good), and by which invitation, if by one."""

    expires: int | None = None
    invitation: str | None = None
    uses: int = 0


class AccessLedger:
    """The orders of one run; `publisher` is the key that signed its spec."""

    def __init__(self, run_id: str, organisers: Organisers, publisher: str) -> None:
        self.run_id, self.publisher = run_id, publisher
        self._terms = [organisers]
        self._transfers: list[Transfer] = []
        self._revocations: dict[str, Revocation] = {}
        self._barred: dict[str, int] = {}

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
        """Above every version that is known here."""
        return max(self._barred.values(), default=0) + 1

    def orders(self) -> Iterator[Transfer | Revocation]:
        """All that others have to know, in an order in which it can be taken."""
        yield from self._transfers
        yield from sorted(self._revocations.values(), key=lambda order: order.subject)

    def barred(self) -> dict[str, str]:
        """The keys that are barred, each with the reason that was given."""
        reasons = {key: order.reason for key, order in self._revocations.items()}
        return {key: reasons.get(key, "") for key in sorted(self._barred)}

    def all_barred(self) -> tuple[Barred, ...]:
        """The same for a transfer."""
        return tuple(Barred(bytes.fromhex(key), version) for key, version in sorted(self._barred.items()))

    def take(self, order: Transfer | Revocation) -> bool:
        """Enter an order; whether it says anything new. Raises `InvalidOrderError`."""
        if order.run.hex() != self.run_id:
            raise InvalidOrderError("it belongs to another run")
        return self._take_transfer(order) if isinstance(order, Transfer) else self._take_revocation(order)

    def check(self, token: Token | None, peer: str, now_s: float) -> Access:
        """What lets `peer`, who shows `token`, take part. Raises `NoAccessError`; `now_s` is in Unix seconds."""
        if peer in self.organisers.keys or peer == self.publisher:
            self._check_not_barred(peer, None)
            return Access()
        if token is None:
            raise NoAccessError("this run is for members only; ask its organiser to admit you")
        grant = token.grant
        if grant.run.hex() != self.run_id:
            raise NoAccessError("the access token belongs to another run")
        if not token.is_bound_to(peer):
            raise NoAccessError("the access token belongs to another peer's key")
        self._check_not_barred(peer, grant)
        if token.invitation is not None:
            self._check_not_barred(token.invitation, grant)
        self._check_signatures(grant)
        if now_s < grant.issued - CLOCK_SKEW_S:
            raise NoAccessError("the access token is not valid yet: a clock is wrong, here or at its issuer's")
        if now_s > grant.expires + CLOCK_SKEW_S:
            raise NoAccessError("the access token has expired; ask the organiser for a new invitation")
        return Access(grant.expires, token.invitation, grant.uses)

    # ---- inner workings

    def _take_transfer(self, order: Transfer) -> bool:
        if order.term < self.term or len(self._terms) == MAX_TERMS:
            return False
        self._check_enough(order, revoked_count=False)
        if len(set(order.organisers)) != len(order.organisers) or order.needed > len(order.organisers):
            raise InvalidOrderError(f"{order.needed} of {len(order.organisers)} organisers cannot sign")
        self._transfers.append(order)
        self._terms.append(Organisers(frozenset(key.hex() for key in order.organisers), order.needed))
        self._barred = {barred.subject.hex(): barred.version for barred in order.barred}
        self._revocations.clear()
        return True

    def _take_revocation(self, order: Revocation) -> bool:
        subject = order.subject.hex()
        if order.term < self.term or order.version <= self._barred.get(subject, -1):
            return False
        self._check_enough(order, revoked_count=True)
        if subject not in self._barred and len(self._barred) >= MAX_BARRED:
            raise InvalidOrderError(f"{MAX_BARRED} keys are barred already")
        self._revocations[subject] = order
        self._barred[subject] = order.version
        return True

    def _check_enough(self, order: Order, *, revoked_count: bool) -> None:
        if order.term > self.term:
            raise InvalidOrderError(f"it is of term {order.term}, of which nothing is known here")
        organisers = self._terms[order.term]
        signers = order.signers(organisers.keys)
        if not revoked_count:
            signers -= self._barred.keys()
        if len(signers) < organisers.needed:
            raise InvalidOrderError(f"{len(signers)} of the {organisers.needed} organisers that it takes signed it")

    def _check_signatures(self, grant: Grant) -> None:
        try:
            self._check_enough(grant, revoked_count=False)
        except InvalidOrderError as error:
            raise NoAccessError(f"the access token is not valid: {error}") from error

    def _check_not_barred(self, key: str, grant: Grant | None) -> None:
        if key not in self._barred or (grant is not None and grant.version > self._barred[key]):
            return
        what = "this invitation" if grant is not None and grant.uses and key == grant.subject.hex() else "this peer"
        reason = self._revocations[key].reason if key in self._revocations else ""
        raise NoAccessError(f"the organisers barred {what} from the run" + (f": {reason}" if reason else ""))
