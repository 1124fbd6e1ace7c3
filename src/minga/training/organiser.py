"""The actions of an organiser of a run: invite, admit, bar, hand the role over, amend, list the peers in the run.

The desk needs the organiser's key file, which a running peer of the same machine may hold: it signs with the key, but
enters the run as a monitor that the key vouches for. Every member verifies its orders for itself.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from minga.access.access_files import AccessFiles
from minga.access.standing_orders import OPTIMIZER, STOP, STRATEGY, StandingOrders
from minga.core.errors import ConfigurationError, IdentityError, RemoteError, UnreachableError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import (
    AccessLedger,
    InvalidOrderError,
    PublicOrder,
    draft_amendment,
    draft_range_ban,
    draft_revocation,
)
from minga.identity.access.orders import (
    MAX_BARRED,
    MAX_PRESENT,
    MAX_RANGES,
    MAX_TERMS,
    Amendment,
    Grant,
    RangeBan,
    Regroup,
    Transfer,
)
from minga.identity.access.token import IpNetwork, parse_range
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link, LinkAccess
from minga.keeping.rejoin import RejoinFile
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer
from minga.training.plugins_of_run import check_plugins
from minga.training.prospect import completed_step
from minga.training.record_kinds import Progress
from minga.training.status.run_status import RunStatus, newest_step

LEAD_S, LEAST_LEAD = 30.0, 3
"""Seconds, and steps, that an amendment is ahead: orders reach every member within some round trips."""
PAUSE_LEAD_S = 5.0
"""Seconds that a pause or a stop is ahead: it should come soon, and every member has to hear of it."""
GOSSIP_S = 3.0
"""Seconds in which a board that was just synchronised learns of all peers that are alive."""


Changing = TypeVar("Changing", Amendment, Regroup, Transfer)


@dataclass(frozen=True)
class MemberView:
    """One admitted peer as the desk sees it: `expires` in Unix seconds (None: for good), by which invitation, and under
    which `name` its person logged in ("": by no login).
    """

    peer: str
    role: str
    expires: int | None
    invitation: str | None
    is_organiser: bool
    name: str = ""


class Organiser:
    """Signs for one organiser. `peer` is the connection to the run, None where no peer answers."""

    def __init__(
        self, link: Link, spec: RunSpec, ledger: AccessLedger, key: Identity, files: AccessFiles, peer: Peer | None
    ) -> None:
        self.ledger, self.is_connected = ledger, peer is not None
        self._spec = spec
        self._link, self._key, self._files, self._peer = link, key, files, peer
        self._has_heard = False

    # ---- admitting

    def invite(self, uses: int, valid_s: float) -> Link:
        """A link that admits the first `uses` peers that join with it in the next `valid_s` seconds."""
        self._check_for_members()
        key = Identity.generate()
        return self._with(LinkAccess(self._grant(key.peer_id, uses, valid_s), key.seed))

    def admit(self, peer_id: str, valid_s: float) -> Link:
        """A link that admits one peer by its key for the next `valid_s` seconds."""
        self._check_for_members()
        return self._with(LinkAccess(self._grant(peer_id, 0, valid_s)))

    def add_signature(self, access: LinkAccess) -> Link:
        """The link with this organiser's signature of its grant added to those of others."""
        if access.grant.term != self.ledger.term:
            raise ConfigurationError(
                "the link was signed by organisers who have handed their role over; make a new one"
            )
        return self._with(LinkAccess(access.grant.signed_by(self._key), access.secret))

    def signatures_missing(self, access: LinkAccess) -> int:
        """How many more organisers have to sign a grant."""
        return self._missing(access.grant)

    # ---- barring and handing over

    def whole_id(self, beginning: str, former: Iterable[str] = ()) -> str:
        """The id of the one peer, or invitation, that begins with these digits, as displays show ids; `former` are
        peers that may have left.

        Raises `ConfigurationError` if there is none, or more than one.
        """
        self.hear()
        known = {*former, *self.ledger.barred(), *self.ledger.proposed()}
        for view in self.members():
            known |= {view.peer, *filter(None, [view.invitation])}
        if self._peer is not None:
            known |= {each.peer_id for each in self._peer.status().peers}
        found = sorted(each for each in known if each.startswith(beginning.lower()))
        if len(found) != 1:
            said = f"{len(found)} ids that are known here begin" if found else "no id that is known here begins"
            raise ConfigurationError(f"{said} with {beginning}; minga members LINK shows whole ids")
        return found[0]

    def is_half_of_members(self, key: str) -> bool:
        """Whether at least half of the members in sight have this key, or came by this invitation. Never where members
        suspend who falls silent, and the others go on.
        """
        present = [view for view in self.members() if view.role != "monitor"]
        barred = [view for view in present if key in (view.peer, view.invitation)]
        return 2 * len(barred) >= len(present) > 0 and self._spec.security.verification != "byzantine"

    def bar(self, key: str, reason: str) -> bool:
        """Bar a peer's key or an invitation's, unless this organiser's word for that stands; False if more organisers
        have to do so until it takes effect.
        """
        if {key} == self.ledger.organisers.keys:
            raise ConfigurationError("the only organiser cannot be barred; hand the role over first")
        if not self.ledger.may_bar(self._key.peer_id, key):
            raise ConfigurationError(f"one organiser bars at most {MAX_BARRED} keys; another one has to bar this one")
        order = draft_revocation(self.ledger, key, reason, int(time.time()))
        if not self.ledger.bars(self._key.peer_id, key, order.version):
            self._issue(order.signed_by(self._key))
        return key in self.ledger.barred()

    def bar_range(self, addresses: str, valid_s: float, reason: str) -> tuple[str, int, bool]:
        """Bar an address range, in CIDR notation, for `valid_s` seconds.

        Returns the range, until when (Unix seconds), and False if more organisers have to do so until it takes effect.
        Raises `ConfigurationError` for a range that is none or too large.
        """
        now = int(time.time())
        order = draft_range_ban(self.ledger, addresses, now + int(valid_s), reason, now)
        network = parse_range(order.range)
        if not self.ledger.ranges.may_ban(self._key.peer_id, network, now):
            raise ConfigurationError(
                f"one organiser bans at most {MAX_RANGES} ranges at a time, and the one that it banned first still "
                "lasts; ban that one anew, or another organiser has to ban this one"
            )
        self._issue(order.signed_by(self._key))
        return order.range, order.expires, network in self.ranges()

    def ranges(self) -> dict[IpNetwork, RangeBan]:
        """The address ranges that are barred now."""
        return self.ledger.ranges.in_force(self.ledger.organisers.needed, time.time())

    def propose_transfer(self, organisers: Sequence[str], needed: int) -> Transfer:
        """An order that hands the role over, with this organiser's signature."""
        ledger = self.ledger
        if needed > len(set(organisers)) or len(set(organisers)) != len(organisers):
            raise ConfigurationError(
                f"{needed} signatures of {len(set(organisers))} different organisers cannot be had"
            )
        if ledger.term + 1 >= MAX_TERMS:
            raise ConfigurationError(f"the role can be handed over {MAX_TERMS - 1} times; begin a new run")
        keys = tuple(bytes.fromhex(key) for key in organisers)
        run = bytes.fromhex(ledger.run_id)
        order = Transfer(run, ledger.term, int(time.time()), (), keys, needed, ledger.all_barred(), ledger.standing())
        return order.signed_by(self._key)

    # ---- amending

    def amend(self, changes: Mapping[str, Any], from_step: int | None) -> Amendment:
        """An order that changes settings in rounds of `from_step` and later ones, with this organiser's signature.

        Without `from_step` it is a step so far ahead that all members hear of the order before. Raises
        `ConfigurationError` for settings that cannot change, and values that do not go with the others of that step.
        """
        step = self.step_ahead() if from_step is None else from_step
        order = draft_amendment(self.ledger, changes, step, int(time.time()))
        amended = self._amended(order)
        if STRATEGY in changes:
            _check_strategy(changes, amended)
        return order.signed_by(self._key)

    def check_end(self, order: Amendment) -> None:
        """Raise `ConfigurationError` if the run would end by this order before all members hear of it: some would take
        another step. It may have waited for signatures.
        """
        if STOP not in dict(order.changes):
            return
        last, soonest = self._amended(order).training.stop_after_steps, self.step_ahead(PAUSE_LEAD_S)
        if last is not None and last < soonest:
            raise ConfigurationError(
                f"the run cannot end after step {last}: not all members would hear of it before that; name step "
                f"{soonest} or a later one"
            )

    def regroup(self) -> Regroup:
        """An order that the run goes on with the members that are in sight, with this organiser's signature.

        Raises `ConfigurationError` if there is none, or in a run whose members verify each other's work.
        """
        if self._spec.security.verification == "byzantine":
            raise ConfigurationError(
                'in a run with verification = "byzantine" members that fall silent are suspended, and the others go on'
            )
        if self._peer is None:
            raise ConfigurationError("no member of the run answers, so none can go on")
        self.hear()
        session, now = self._peer.session, int(time.time())
        unsigned = self._peer.on_loop(lambda: draft_regroup(session.board, self.ledger, now))
        return unsigned.signed_by(self._key)

    def put_in_force(self, order: Changing) -> tuple[Changing, bool]:
        """An order with this organiser's signature, and whether that was the last that it took: it is sent then.

        Raises `ConfigurationError` for an order of another run or term, one that later orders overrule, and a transfer
        that would undo what was ordered since it was made.
        """
        if order.run.hex() != self.ledger.run_id or order.term != self.ledger.term:
            raise ConfigurationError("this order belongs to another run, or to a term that is over; make a new one")
        if isinstance(order, Transfer) and not self.ledger.is_carried_by(order):
            raise ConfigurationError(
                "this order would undo what was barred, or changed, since it was made; make a new one"
            )
        if isinstance(order, Amendment):
            self._amended(order)
        newest = self.ledger.regroups.newest
        if isinstance(order, Regroup) and newest is not None and newest.epoch > order.epoch:
            raise ConfigurationError("a later order says who goes on; make a new one")
        order = order.signed_by(self._key)
        in_force = not self._missing(order)
        if in_force:
            self._issue(order)
        return order, in_force

    def hear(self) -> None:
        """Wait, if this desk has not waited yet, until its peer knows of all that are alive."""
        if self._peer is not None and not self._has_heard:
            time.sleep(GOSSIP_S)
            self._has_heard = True

    def step_ahead(self, seconds: float = LEAD_S) -> int:
        """A step that the run reaches in no less than `seconds`, by its present speed; 0 if no peer answers."""
        if self._peer is None:
            return 0
        self.hear()
        return step_after(self._peer.status(), seconds)

    def completed_step(self) -> int | None:
        """The run's last step if most of the peers in sight have taken it, else None; call `hear` before."""
        peer = self._peer
        return None if peer is None else peer.on_loop(lambda: completed_step(peer.session, self._spec))

    def check_goes_on(self) -> None:
        """Raise `ConfigurationError` if the run is complete: its members take no further step, whatever is ordered."""
        if (step := self.completed_step()) is not None:
            raise ConfigurationError(
                f"the run is complete: it has taken its last step, {step}. Nothing is left to amend, pause or stop, "
                "since members that are through take no further step; `minga host RUN.TOML --from RUN` begins another "
                "run with its parameters, if its recipe is not `custom` or `fine-tune`"
            )

    def progress(self) -> tuple[int, int]:
        """The step that the run is at, and how many peers train in it, as far as this peer knows."""
        status = self._status()
        if status is None:
            return 0, 0
        return status.step, sum(peer.role in ("trainer", "client") for peer in status.peers)

    # ---- peers in the run

    def members(self) -> list[MemberView]:
        """All peers that are in the run at present, as far as this peer knows."""
        if self._peer is None:
            return []
        session, organisers = self._peer.session, self.ledger.organisers.keys
        self.hear()

        def look() -> list[MemberView]:
            found = []
            for peer in session.board.owners():
                known, info = session.admission.members().get(peer), session.board.get(peer, AddressInfo)
                if known is not None and not known.access.only_watches:
                    role = info.role if info is not None else "unknown"
                    access = known.access
                    view = MemberView(peer, role, access.expires, access.invitation, peer in organisers, access.name)
                    found.append(view)
            return found

        return self._peer.on_loop(look)

    # ---- inner workings

    def _status(self) -> RunStatus | None:
        return None if self._peer is None else self._peer.status()

    def _amended(self, order: Amendment) -> RunSpec:
        """The run spec by this order and the others that are due then. Raises `ConfigurationError` if peers would not
        obey them all.
        """
        step, _ = self.progress()

        def amended() -> RunSpec:
            return StandingOrders(self._spec, self.ledger).check(order, step)

        return amended() if self._peer is None else self._peer.on_loop(amended)

    def _check_for_members(self) -> None:
        if self.ledger.is_open:
            raise ConfigurationError("this run is open to every peer that has its link; no peer needs to be admitted")

    def _grant(self, subject: str, uses: int, valid_s: float) -> Grant:
        now = int(time.time())
        run, version = bytes.fromhex(self.ledger.run_id), self.ledger.next_version
        unsigned = Grant(
            run, self.ledger.term, now, (), bytes.fromhex(subject), uses, version, now + max(1, int(valid_s))
        )
        return unsigned.signed_by(self._key)

    def _with(self, access: LinkAccess) -> Link:
        entries = self._peer.link.entries if self._peer is not None else ()
        return replace(self._link, entries=entries or self._link.entries, access=access)

    def _missing(self, order: Grant | Changing) -> int:
        """How many more organisers have to sign; the signatures of those that were barred do not count."""
        signers = order.signers(self.ledger.organisers.keys) - self.ledger.barred().keys()
        return max(0, self.ledger.organisers.needed - len(signers))

    def _issue(self, order: PublicOrder) -> None:
        """Enter an order here, keep it, and send it to all connected peers.

        Raises `ConfigurationError` if no peer would take it.
        """
        peer = self._peer
        try:
            if peer is None:
                self.ledger.take(order)
            elif invalid := peer.on_loop(lambda: peer.session.admission.take([order])):
                raise invalid[0]
        except InvalidOrderError as error:
            raise ConfigurationError(f"no peer would take this order: {error}") from error
        held = list(self.ledger.orders())
        if (order.CONTEXT, order.statement()) not in {(each.CONTEXT, each.statement()) for each in held}:
            raise ConfigurationError("this order does not count any more; make a new one")
        if peer is not None:
            peer.call(peer.session.spread_orders())
        self._files.keep_orders(held)


@contextlib.contextmanager
def organiser_desk(
    link: Link, options: PeerOptions, identity: Path | None, on_peer: Callable[[Peer], None]
) -> Iterator[Organiser]:
    """The desk of whichever organiser's key lies in the file `identity` or beside it.

    `on_peer` is given the peer by which the desk enters the run. If no peer answers, the desk works with this machine's
    files of the run. Raises `IdentityError` if no organiser's key is here.
    """
    options = replace(options, role="monitor", ephemeral=True, identity=None, voucher=identity)
    link = replace(link, access=None, authority=None)  # it may lack signatures, and is for another peer
    directory = options.run_directory(link.run_id)
    files = AccessFiles(directory)
    with contextlib.ExitStack() as stack:
        peer: Peer | None = None
        try:
            peer = stack.enter_context(join(link, options, with_files=False))
            on_peer(peer)
            spec, ledger = peer.spec, peer.session.admission.ledger
        except RemoteError:
            known = RejoinFile.spec(directory, link)
            if known is None:
                raise
            signed, spec = known
            ledger = AccessLedger.of_spec(signed.run_id, spec, signed.organiser)
        if ledger is None:
            raise UnreachableError("no peer that answers could say what run this is", phase="run spec")
        _take_kept(ledger, files, peer)
        yield Organiser(link, spec, ledger, _key_of(ledger, identity), files, peer)


def _check_strategy(changes: Mapping[str, Any], amended: RunSpec) -> None:
    """Raise `ConfigurationError` if peers of the run may lack this strategy, or if it does not go with the rest."""
    if others := [key for key in changes if key.startswith(OPTIMIZER)]:
        raise ConfigurationError(
            f"{STRATEGY} changes at the end of a round, and {others[0]} within one: amend them one after the other"
        )
    check_plugins(amended)


def draft_regroup(board: Board, ledger: AccessLedger, now: int) -> Regroup:
    """The run goes on with the members on `board`, as a regroup that nobody has signed; `now` in Unix seconds.

    Raises `ConfigurationError` if there is none. On the loop of the board.
    """
    newest = ledger.regroups.newest
    epoch = 0 if newest is None else newest.epoch
    steps = {
        peer: progress.step
        for peer, progress in board.payloads(Progress).items()
        if progress.lineage.epoch == epoch and progress.status not in ("syncing", "finished")
    }
    if not steps:
        raise ConfigurationError("no member that has the run's state is in sight, so none can go on")
    members = tuple(bytes.fromhex(peer) for peer in sorted(steps)[:MAX_PRESENT])
    run, number, step = bytes.fromhex(ledger.run_id), (epoch >> 32) + 1, newest_step([*steps.values()])
    return Regroup(run, ledger.term, now, (), number, step, members)


def _take_kept(ledger: AccessLedger, files: AccessFiles, peer: Peer | None) -> None:
    """Enter the orders that this machine remembers, such as those from a time when no peer was there to take them."""
    kept = files.orders()
    if peer is not None:
        session = peer.session
        peer.on_loop(lambda: session.admission.take(kept))
        return
    for order in kept:
        with contextlib.suppress(InvalidOrderError):
            ledger.take(order)


def _key_of(ledger: AccessLedger, identity: Path | None) -> Identity:
    found = next(iter(Identity.stored(identity, ledger.organisers.keys).values()), None)
    if found is None:
        here = ", ".join(key.peer_id[:10] for key in Identity.stored(identity).values()) or "no key"
        organisers = ", ".join(sorted(key[:10] for key in ledger.organisers.keys))
        raise IdentityError(
            f"only an organiser can do that: {organisers}; here is {here}. Name the right key file with --identity"
        )
    return found


def step_after(status: RunStatus, seconds: float) -> int:
    """A step that the run does not reach within `seconds`, at the fastest pace that is possible: a step takes no less
    than its samples, and no less than its round, whichever of them a strategy overlaps.
    """
    pace = status.samples_per_second / max(1, status.target_batch_size)
    if status.plan is not None and status.plan.round_s:
        pace = min(pace, 1.0 / status.plan.round_s)
    return status.step + LEAST_LEAD + math.ceil(seconds * pace)
