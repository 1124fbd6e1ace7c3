"""Which peers may take part in a run, as one peer knows it, and how this peer itself gets in.

Theory of operation. `Admission` is the authorizer of this peer's node and board. The run spec says whether a run is
open to every peer, or for members, and a newcomer does not have it when it meets the first peer. So until `open_to_all`
or `enforce` is called, connections are admitted provisionally, and no record is kept; `enforce` then says which peers
have to go again. The link verifies the spec itself, whichever peer sends it.

A newcomer may know nothing yet of the organisers by whose word its entries are members. So until it has entered, an
entry that it cannot admit is provisional: it may tell the orders, and nothing else, and `confirm` judges it by these.
Later on, the role may have been handed over while this peer was cut off. So who shows a token of a term that is not
known here, or is an entry without one, is refused like others, but may exchange the orders before it dials again.

This peer keeps the token that each peer showed in a handshake or in its record "access", which gossip carries to peers
that never connect to it. The `AccessLedger` judges tokens. A peer whose access ends in the middle of a run stays known
until `expel`, so that a step under way is not torn apart, but it cannot connect again.

In an open run the ledger knows no tokens: it keeps out the keys and address ranges that the organisers barred. What is
known of addresses are the peers' own words, so a range keeps out peers that say where they are, and no others.

This peer counts the uses of an invitation by the peers that joined with it. A handshake keeps to the count. Gossip may
bring up to twice as many, since the same invitation may be used at two places at the same moment, and then all members
have to reach the same result. So the count holds, with two exceptions: members that admit peers against the rules, and
peers that join faster than gossip travels. An overused invitation is reported as an event.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from minga.core.aio import racing
from minga.core.errors import RejectedError, RemoteError, UnreachableError
from minga.core.events.bus import EventBus
from minga.core.events.training import AccessOverused
from minga.core.refusal_code import RefusalCause, RefusalCode
from minga.core.thread_guard import loop_bound
from minga.identity.access.ledger import (
    CLOCK_SKEW_S,
    Access,
    AccessBannedError,
    AccessLedger,
    InvalidOrderError,
    NoAccessError,
    PublicOrder,
    UnknownTermError,
)
from minga.identity.access.token import Token
from minga.identity.keys.keys import remember_signatures
from minga.network.bounded_dict import BoundedDict
from minga.network.gossip.gossip import Gossip
from minga.network.gossip.record_store import MAX_OWNERS
from minga.network.interface import MAX_ENDPOINTS, Address, PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import RunClock

GOSSIP_USES = 2
"""The factor by which peers may exceed the uses of an invitation when other members admitted them."""


WATCHERS_WRITE = ("access", "beat", "left")
"""The records of peers that only watch for a member."""

MORE_SIGNATURES = 2
"""Those of a token beside the organisers'. All are remembered of each admitted peer: a look at whose access ended goes
over the tokens of all, one after the other, and would verify each anew where the last ones push out the first.
"""

MAX_INVALID = 8
"""How many orders that are none are looked at, of those that come together."""

ORDERS = "access."
"""The methods that every connected peer may call."""

WATCHERS_CALL = (ORDERS, "board.", "run.", "state.", "receipts.file")
"""The methods that a peer may call that only watches: none of averaging."""


class AdmittedPeer(NamedTuple):
    """The token that one peer showed, and the access that it gives."""

    credential: bytes
    token: Token | None
    access: Access


@loop_bound
class Admission:
    """The authorizer of one peer. `clock` says when access begins and ends, `token` is what this peer itself shows."""

    def __init__(self, own_id: PeerId, clock: RunClock, token: Token | None = None) -> None:
        self.token, self.clock = token, clock
        self.ledger: AccessLedger | None = None
        """The orders of the organisers, once the run is known; None in a simulated run that has none."""
        self.is_decided = False
        self.on_orders: Callable[[], None] = lambda: None
        """Called when an order came that says something new."""
        self.address_of: Callable[[PeerId], Address | None] = lambda _: None
        """Where a peer says that it can be dialled: address ranges are banned by that."""
        self.entries: frozenset[PeerId] = frozenset()
        """The peers by which this one enters."""
        self.events: EventBus | None = None
        """Where to tell of what is worth knowing."""
        self._own_id, self._has_entered = own_id, False
        self._provisional: BoundedDict[PeerId, bytes] = BoundedDict(MAX_OWNERS)
        self._admitted: BoundedDict[PeerId, AdmittedPeer] = BoundedDict(2 * MAX_OWNERS)
        self._guests: dict[str, dict[PeerId, None]] = {}
        self._caught: BoundedDict[PeerId, tuple[str, ...]] = BoundedDict(MAX_OWNERS)
        """Addresses of peers that a banned range kept out: the board forgets these peers."""
        self._look_again_s = 0.0

    @classmethod
    def for_everybody(cls, own_id: PeerId, clock: RunClock) -> Admission:
        """The authorizer of a run that is known to be open, and without organisers."""
        admission = cls(own_id, clock)
        admission.open_to_all()
        return admission

    # ---- what kind of run it is

    def open_to_all(self) -> None:
        """The run turned out to be open, and without organisers."""
        self.is_decided = True

    def enforce(self, ledger: AccessLedger) -> list[PeerId]:
        """The run follows these orders; returns those among the peers met so far that they keep out."""
        self.ledger, self.is_decided = ledger, True
        if (
            self.is_for_members
            and self.token is not None
            and self.token.watch is None
            and self.token.invitation is not None
        ):
            self.remember_guests({self.token.invitation: [self._own_id]})
        return self._judge_provisional()

    def confirm(self, peer: PeerId) -> None:
        """Judge an entry by the orders that it told. Raises `RejectedError` if they keep it out."""
        if peer in self._provisional and self.ledger is not None:
            self._admit(self.ledger, peer, self._provisional[peer])

    def end_entering(self) -> list[PeerId]:
        """From now on entries are judged as all others are; returns those among them that the orders keep out."""
        self._has_entered = True
        return self._judge_provisional() if self.is_decided else []

    @property
    def is_for_members(self) -> bool:
        """Whether the run is known to be for members."""
        return self.ledger is not None and not self.ledger.is_open

    @property
    def only_watches(self) -> bool:
        """Whether this peer itself may only look on."""
        return self.is_for_members and self.token is not None and self.token.watch is not None

    def show(self, token: Token) -> None:
        """Show another token from now on, in place of one that expires earlier."""
        self.token = token
        self._look_again_s = 0.0

    # ---- the authorizer

    def credential(self) -> bytes:
        """This peer's token."""
        return b"" if self.token is None else self.token.encode()

    def meet(self, peer: PeerId, credential: bytes) -> None:
        """See `Authorizer`."""
        if not self.is_decided:
            self._provisional[peer] = credential
        elif self.ledger is not None:
            try:
                self._admit(self.ledger, peer, credential)
            except RejectedError as error:
                if not self._may_enter_by(peer, error):
                    raise
                self._provisional[peer] = credential

    def learn(self, peer: PeerId, credential: bytes) -> bool:
        """See `Authorizer`."""
        if self.ledger is None:
            return self.is_decided
        known = self._admitted.get(peer)
        if known is not None and known.credential == credential:
            return True
        try:
            found = self._judge(self.ledger, peer, credential)
            self._check_uses(peer, found.access, GOSSIP_USES * found.access.uses)
        except NoAccessError:
            return False
        self._note(peer, found)
        return True

    def admits(self, peer: PeerId, record_name: str) -> bool:
        """See `Authorizer`."""
        if self.ledger is None:
            return self.is_decided
        known = self._admitted.get(peer)
        if known is None:
            return self.learn(peer, b"")  # the organisers need no token
        return not known.access.only_watches or record_name in WATCHERS_WRITE

    def permits(self, peer: PeerId | None, method: str) -> bool:
        """See `Authorizer`."""
        if self.ledger is None:
            return True
        if peer is None:
            return method.startswith(ORDERS)
        known = self._admitted.get(peer)
        if known is None:
            return method.startswith(ORDERS) or (self.ledger.is_open and self.learn(peer, b""))
        return not known.access.only_watches or method.startswith(WATCHERS_CALL)

    # ---- orders, and what they change

    def take(self, orders: Iterable[PublicOrder]) -> list[InvalidOrderError]:
        """Enter orders from anywhere; those that are none are returned as errors.

        After `MAX_INVALID` of them the others are not looked at: to find a signature wrong costs time, to write one
        costs none.
        """
        invalid, is_new = [], False
        ledger = self.ledger
        for order in orders if ledger is not None else ():
            try:
                is_new |= ledger is not None and ledger.take(order)
            except InvalidOrderError as error:
                invalid.append(error)
                if len(invalid) == MAX_INVALID:
                    break
        if is_new:
            self._look_again_s = 0.0
            self.on_orders()
        return invalid

    def ended(self) -> dict[PeerId, str]:
        """Those known, this peer included, who may not take part any more, each with the reason."""
        now_s, found = self.clock.now(), dict[PeerId, str]()
        if self.ledger is None or now_s < self._look_again_s:
            return found
        own = AdmittedPeer(self.credential(), self.token, Access())
        ends = [now_s + CLOCK_SKEW_S]
        for peer, admitted in [*self._admitted.items(), (self._own_id, own)]:
            try:
                access = self.ledger.check(admitted.token, peer, now_s)
                self._check_address(self.ledger, peer, now_s)
            except UnknownTermError:  # this peer's own: it was not there when the role was handed over
                continue
            except NoAccessError as error:
                found[peer] = str(error)
            else:
                ends += [access.expires + CLOCK_SKEW_S] if access.expires is not None else []
        bans_last = any(ban.expires > now_s for ban in self.ledger.ranges.orders())
        self._look_again_s = now_s if found or bans_last else min(ends)
        return found

    def banned(self) -> set[str]:
        """The peers whose keys the organisers barred, less those that they admitted anew."""
        return set() if self.ledger is None else self.ledger.barred().keys() - self._admitted.keys()

    def expel(self, peer: PeerId) -> None:
        """Forget that a peer was admitted."""
        self._admitted.pop(peer, None)

    def members(self) -> Mapping[PeerId, AdmittedPeer]:
        """All peers known to be admitted."""
        return self._admitted

    def credential_of(self, peer: PeerId) -> bytes:
        """The token that a peer showed; empty for one that needs none, or is not known."""
        if peer == self._own_id:
            return self.credential()
        return self._admitted[peer].credential if peer in self._admitted else b""

    # ---- uses of invitations

    def guests(self) -> dict[str, list[PeerId]]:
        """The peers that came by each invitation, as far as they are known here."""
        return {invitation: list(peers) for invitation, peers in self._guests.items()}

    @property
    def guests_counted(self) -> int:
        """How many these are."""
        return sum(map(len, self._guests.values()))

    def remember_guests(self, guests: Mapping[str, Iterable[PeerId]]) -> None:
        """Count peers that came by invitations at an earlier time."""
        for invitation, peers in guests.items():
            self._guests.setdefault(invitation, {}).update(dict.fromkeys(peers))

    # ---- inner workings

    def _judge_provisional(self) -> list[PeerId]:
        met, refused = dict(self._provisional), list[PeerId]()
        self._provisional.clear()
        if self.ledger is None:
            return refused
        for peer, credential in met.items():
            try:
                self._admit(self.ledger, peer, credential)
            except RejectedError as error:
                if self._may_enter_by(peer, error):
                    self._provisional[peer] = credential
                else:
                    refused.append(peer)
        return refused

    def _may_enter_by(self, peer: PeerId, refusal: RejectedError) -> bool:
        return not self._has_entered and peer in self.entries and refusal.code is not RefusalCode.BANNED

    def _admit(self, ledger: AccessLedger, peer: PeerId, credential: bytes) -> None:
        try:
            found = self._judge(ledger, peer, credential)
            self._check_uses(peer, found.access, found.access.uses)
        except NoAccessError as error:
            code = RefusalCode.ACCESS
            if isinstance(error, AccessBannedError):
                code = RefusalCode.BANNED
            elif isinstance(error, UnknownTermError) or (not credential and peer in self.entries):
                code = RefusalCode.ORDERS
            raise RejectedError(str(error), code=code, peer=peer) from error
        self._note(peer, found)

    def _judge(self, ledger: AccessLedger, peer: PeerId, credential: bytes) -> AdmittedPeer:
        now_s = self.clock.now()
        if ledger.is_open:
            credential = b""
        try:
            token = Token.decode(credential) if credential else None
        except ValueError as error:
            raise NoAccessError(str(error)) from error
        access = ledger.check(token, peer, now_s)  # first: a ban of a range ends where the role is handed over
        self._check_address(ledger, peer, now_s)
        return AdmittedPeer(credential, token, access)

    def _check_address(self, ledger: AccessLedger, peer: PeerId, now_s: float) -> None:
        """An address that is known once keeps its peer out, however it connects, until the ban ends."""
        address = self.address_of(peer)
        known = self._caught.get(peer, ()) if address is None else (*address.direct, *self._caught.get(peer, ()))
        try:
            ledger.check_address(peer, known, now_s)
        except NoAccessError:
            self._caught[peer] = known[:MAX_ENDPOINTS]
            raise

    def _check_uses(self, peer: PeerId, access: Access, limit: int) -> None:
        guests = self._guests.get(access.invitation or "", {})
        if access.invitation is not None and peer not in guests and len(guests) >= limit:
            times = "once" if access.uses == 1 else f"{access.uses} times"
            raise NoAccessError(f"the invitation was good for {times} and is used up; ask the organiser for a new one")

    def _note(self, peer: PeerId, found: AdmittedPeer) -> None:
        self._admitted[peer] = found
        needed = 0 if self.ledger is None else self.ledger.organisers.needed
        remember_signatures((MORE_SIGNATURES + needed) * len(self._admitted))
        self._look_again_s = 0.0
        access = found.access
        if access.invitation is None:
            return
        guests = self._guests.setdefault(access.invitation, {})
        if peer not in guests:
            guests[peer] = None
            if len(guests) > access.uses and self.events is not None:
                self.events.emit(
                    AccessOverused(invitation=access.invitation, peer=peer, uses=access.uses, used=len(guests))
                )


# ---- The entrance: a peer tries all entries of the link at once, because a dead address takes long to find out.
#
# One entry that lets it in is enough: gossip tells of the other peers. That one has to be in the run itself, though:
# another newcomer knows neither the others nor the run's time.


ENTRY_ATTEMPTS = 3
ENTRY_PAUSE_S = 1.0
ATTEMPT_S = 10.0
"""How long a refusal that passes is borne at least, as long as a dial lasts: an entry that is full says so at once."""
STAND_BY_S = 12.0
"""Seconds for which an entry is waited for that is about to come in itself: it may first try dead addresses."""


@loop_bound
class Entrance:
    """The `entries` of a run. A peer that lets this one in is asked by `greet` before anything else."""

    def __init__(
        self, node: Node, gossip: Gossip, entries: Sequence[Address], greet: Callable[[PeerId], Awaitable[None]]
    ) -> None:
        self._node, self._gossip, self._entries, self._greet = node, gossip, tuple(entries), greet

    async def enter(self, *, may_be_alone: bool = False) -> None:
        """Enter by the first entry that lets this peer in; without entries, at once. An attempt lasts as long as a
        dial, about 10 s. Who `may_be_alone` makes one only, and enters by another newcomer, too.

        Raises `RejectedError` if the peers that answer refuse this one: at once for what it has to change itself, else
        after the last attempt; and `UnreachableError` if none answers.
        """
        clock = asyncio.get_running_loop().time
        error: RemoteError | None = None
        attempts = 1 if may_be_alone else ENTRY_ATTEMPTS
        for attempt in range(attempts if self._entries else 0):
            begun_s = clock()
            errors: list[RemoteError] = []
            async with racing(self._knock(entry, may_be_alone=may_be_alone) for entry in self._entries) as knocks:
                for knock in knocks:
                    try:
                        await knock
                        return
                    except RemoteError as failure:
                        errors.append(failure)
            refused = [failure for failure in errors if isinstance(failure, RejectedError)]
            for refusal in refused:
                if refusal.code.cause is RefusalCause.LOCAL:  # one that lacks orders, or is busy, speaks for no other
                    raise refusal
            error = (refused or errors)[-1]
            if attempt < attempts - 1:
                await asyncio.sleep(max(ENTRY_PAUSE_S, begun_s + ATTEMPT_S - clock()) if refused else ENTRY_PAUSE_S)
        if isinstance(error, RejectedError):
            raise error
        if error is not None:
            raise UnreachableError(
                f"none of the {len(self._entries)} entry addresses of the link answers; the last error was: {error}"
            ) from error

    async def _knock(self, entry: Address, *, may_be_alone: bool) -> None:
        await self._node.dial(entry)
        if not may_be_alone:
            await self._wait_for(entry.peer_id)
        await self._greet(entry.peer_id)
        await self._gossip.synchronise(entry.peer_id)

    async def _wait_for(self, peer: PeerId) -> None:
        """Until this entry is in the run itself."""
        clock = self._node.clock
        try:
            async with asyncio.timeout(STAND_BY_S):
                while (run_time := clock.time_at(peer)) is None:
                    await clock.on_heard.wait()
        except TimeoutError as error:
            raise UnreachableError("it has not come into the run itself yet", peer=peer) from error
        clock.enter_by(peer, run_time)
