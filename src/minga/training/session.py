"""A session: one peer's presence in one run, on the event loop, in either world.

It assembles the rooms below: a node on a network, the board and its gossip, the servers of state and files, and, once
a trainer is attached, the member that takes the steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import traceback
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from minga.access.access_files import AccessFiles, AccessWatch, KnownAccess
from minga.access.admission import Admission, Entrance
from minga.access.standing_orders import StandingOrders
from minga.averaging.links import LinkReporter
from minga.averaging.planning.plan_maker import Divide
from minga.averaging.solver.planner import divide
from minga.core.aio import DiskWrites, end
from minga.core.errors import (
    ClosedError,
    ConfigurationError,
    MingaError,
    RejectedError,
    RemoteError,
    UnfitError,
    UnreachableError,
)
from minga.core.events.bus import EventBus
from minga.core.events.network import PeerNotDialable
from minga.core.events.training import AccessLost, MemberFailed, MemberUnfit, RunNobodyAnswers
from minga.core.printable import printable
from minga.core.rate_cap import RateCap
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import any_thread, loop_bound
from minga.identity.access.ledger import AccessLedger
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.network.bandwidth.access_link import AccessLink
from minga.network.gossip.board import Board, Change
from minga.network.gossip.gossip import Gossip
from minga.network.gossip.record_kinds import AddressInfo, Credential, RecordKinds
from minga.network.interface import Address, Network, PeerId
from minga.network.probing import Prober
from minga.network.rpc.handshake import Incarnation, Role, key_in_use
from minga.network.rpc.node import Node
from minga.network.rpc.reachability import OwnAddress, Reachability
from minga.network.rpc.run_clock import RunClock
from minga.receipts.book_file import BookFile
from minga.receipts.receipts import Receipts
from minga.security.protocol.behaviour import Behaviour
from minga.training.bridge.assigned_port import AssignedPort
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.catching_up import Download
from minga.training.life.founding import Founding, Genesis, Participation
from minga.training.life.member import Member
from minga.training.life.verified_member import VerifiedMember, VerifiedOptions
from minga.training.record_kinds import MAX_WHY_CHARACTERS, RUN_KINDS, UNFIT, Progress, Unfit
from minga.training.replica.interface import ReplicaInterface
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.download import Wanted, download
from minga.training.transfer.server import StateServer

MOST_UNFIT_TOLD = 100
"""So many times a session tells that another's program does not fit: anybody can say it as often as he likes."""
LEAVE_S = 0.8
"""Longest time, in seconds, that saying goodbye may take."""

logger = logging.getLogger("minga")


@dataclass(frozen=True)
class SessionSettings:
    """The settings that this peer itself chooses.

    All traffic keeps to `max_upload` and `max_download`, and the plan knows them. Verified chunks of an unfinished
    state download are kept in `cache`, and there lies a large state that is being downloaded. With `may_be_alone` the
    peer goes on where no other answers. One that `probes` fills its line now and then to learn what it carries.
    `divide` makes the plans of the groups that it leads, and `kinds` are the records that it can read and write.
    """

    role: Role = "trainer"
    max_upload: RateCap | None = None
    max_download: RateCap | None = None
    cache: Path | None = None
    may_be_alone: bool = False
    probes: bool = True
    divide: Divide = divide
    kinds: RecordKinds = RUN_KINDS


Meeting = Callable[["Session", PeerId], Awaitable[None]]
"""A newcomer's call to the first peer that it meets, before it believes anything else."""


@loop_bound
class Session:
    """One peer in one run. `entries` are addresses at which the run can be found; none for its very first peer.

    `admission` says which peers may take part (default: all). Where the kind of the run is not known yet, `on_meeting`
    has to find it out from a peer, and call `open_to_all` or `Session.follow_orders`.
    """

    def __init__(
        self,
        network: Network,
        identity: Identity,
        run_id: str,
        settings: SessionSettings,
        entries: Sequence[Address] = (),
        admission: Admission | None = None,
        on_meeting: Meeting | None = None,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.events = EventBus(loop.time)
        self.settings, self.entries = settings, tuple(e for e in entries if e.peer_id != network.peer_id)
        self.admission = admission or Admission.for_everybody(network.peer_id, RunClock.of(network, entries))
        self.admission.events = self.events
        self.admission.entries = frozenset(entry.peer_id for entry in self.entries)
        self._on_meeting = on_meeting
        self.node = Node(
            network,
            run_id=run_id,
            role=settings.role,
            lookup=self._lookup,
            events=self.events,
            access_link=AccessLink(loop.time, network.wall_time, settings.max_upload, settings.max_download),
            authorizer=self.admission,
            clock=self.admission.clock,
            identity=identity,
        )
        self.node.on_rival.add(self._give_way)
        self.board = Board(
            identity,
            run_id,
            run_clock=self.node.clock,
            clock=loop.time,
            events=self.events,
            authorizer=self.admission,
            kinds=settings.kinds,
        )
        self.board.observe(self._note_unfit)
        self.board.on_rival.add(self._give_way)
        self.admission.address_of = self.board.address_of
        self.gossip = Gossip(self.board, self.node, entries=self.entries)
        self.reachability = Reachability(self.node)
        self.own_address = OwnAddress(self.node, self.reachability)
        self.state_server = StateServer(self.node)
        self.member: Member | VerifiedMember | None = None
        self.disk = DiskWrites()
        """What this peer writes beside the loop; to be closed when the loop has ended."""
        self.behaviour = Behaviour()
        """The behaviour of this peer in a secure run; only tests of the others' defence change it."""
        self.error: RejectedError | None = None
        """Why this peer may not take part any more, once that is so."""
        self.founding: Founding | None = None
        """How the run begins, as this peer sees it."""
        self.identity = identity
        self.orders: StandingOrders | None = None
        """The organisers' amendments, once a trainer is attached."""
        self._life: asyncio.Task[None] | None = None
        self._access_watch: AccessWatch | None = None
        self._started = self._entered = False
        self._unfit_told = 0
        self._silencing: asyncio.Task[None] | None = None

    @property
    @any_thread
    def peer_id(self) -> PeerId:
        """This peer's own id."""
        return self.node.peer_id

    @property
    @any_thread
    def run(self) -> Participation:
        """The run, and how this peer takes part in it. Raises `ConfigurationError` before `begin_founding`."""
        return self._founded().run

    @property
    @any_thread
    def spec(self) -> RunSpec:
        """The run spec as it is amended by what is in force here. Raises as `run`."""
        return self.member.amended.now if isinstance(self.member, Member) else self.run.spec

    @property
    @any_thread
    def is_ready(self) -> bool:
        """Whether this peer has the swarm's state and takes part in steps."""
        return self.member is not None and self.member.ready.is_set()

    @property
    @any_thread
    def stays_s(self) -> float:
        """Longest time, in seconds, that this peer stays for the others when it leaves."""
        return Member.stays_s if self.member is None else self.member.stays_s

    @property
    def ledger(self) -> AccessLedger | None:
        """The organisers' orders; None while the run is not known."""
        return self.admission.ledger

    async def start(self) -> None:
        """Appear in the run: accept connections, find the others through the entries, publish the own address.

        Raises as `Entrance.enter`, unless this peer may be alone, and what `error` says.
        """
        self.node.start()
        self._started = True
        if self._access_watch is not None:
            self.node.spawn(self._access_watch.run())
        self.gossip.start()
        await self._enter()
        await asyncio.gather(*map(self.node.disconnect, self.admission.end_entering()))
        self.node.clock.settle()
        if self.settings.role in ("trainer", "auxiliary") and await self.own_address.is_dialable() is False:
            self.settings = replace(self.settings, role="client")
            self.node.role, self.node.is_dialable = "client", False
            self.events.emit(PeerNotDialable())
        if self.error is not None:
            raise self.error
        self._entered = True
        self.publish_address()
        if self.settings.role != "monitor" or self.settings.may_be_alone:  # others are dialled by no newcomer
            self.own_address.start(self.publish_address)

    def leads_in(self, peer: PeerId, organiser: str) -> bool:
        """Whether others may find the run by a peer: by the organiser's, and by one that does not only watch, as most
        do for moments.
        """
        info = self.board.get(peer, AddressInfo)
        return peer == organiser or info is None or info.role != "monitor"

    def publish_address(self) -> None:
        """Tell the others where this peer can be dialled; call it again when that changes."""
        if self.admission.is_for_members:
            self._publish_token()
            if self.admission.only_watches:
                return
        address = self.node.address
        self.board.put(AddressInfo(self.settings.role, address.direct, address.relay, self.node.incarnation))

    def show_token(self, token: Token) -> None:
        """Show a newer access token from now on: in handshakes, and by gossip to peers that are connected already."""
        self.admission.show(token)
        if self._access_watch is not None:
            self._access_watch.keep_token(token)
            self._publish_token()

    def follow_orders(
        self, ledger: AccessLedger, files: AccessFiles | None = None, known: KnownAccess | None = None
    ) -> None:
        """Only peers that the orders in `ledger` allow may take part, those that are `known` and those to come; what
        this peer learns about that is kept in `files`.
        """
        refused = self.admission.enforce(ledger)
        self._access_watch = AccessWatch(
            self.node,
            self.board,
            self.admission,
            ledger,
            files,
            known,
            self.disk,
            in_step=lambda: self.is_ready,
            on_own_end=self._lose_access,
        )
        if self._started:
            self.node.spawn(self._access_watch.run())
        for peer in refused:
            self.node.spawn(self.node.disconnect(peer))

    async def spread_orders(self) -> None:
        """Bring the organisers' orders to all neighbours, and wait until each has them or is gone."""
        if self._access_watch is not None:
            exchange = self._access_watch.exchange.exchange
            await asyncio.gather(*map(exchange, self.node.connected()), return_exceptions=True)

    def attach(self, replica: ReplicaInterface, port: GradientPort, receipts_file: BookFile | None = None) -> Member:
        """Begin to take part in steps with a trainer behind `port`; `receipts_file` keeps receipts beyond this process.
        Raises `ConfigurationError` before `begin_founding`.
        """
        founding = self._founded()
        watch, ledger = self._access_watch, self.admission.ledger
        orders = None if watch is None or ledger is None else watch.exchange.exchange
        self.orders = standing = StandingOrders(founding.run.spec, ledger, orders)
        receipts = Receipts(self.node, self.identity, receipts_file, self.admission.credential_of)
        member = Member(
            self.node,
            self.identity,
            self.board,
            replica,
            port,
            self._downloader(replica, port),
            founding,
            standing,
            receipts,
            self.settings.divide,
        )
        member.on_replaced = self.state_server.withdraw
        self._begin(member, replica, port)
        return member

    def attach_secure(
        self,
        replica: ReplicaInterface,
        port: AssignedPort,
        directory: Path | None = None,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
    ) -> VerifiedMember:
        """The same in a Byzantine-tolerant run. `directory` holds the files of the run, and `entropy` gives this
        peer's secrets. Raises `ConfigurationError` for other roles than trainer, too.
        """
        if self.settings.role != "trainer":
            raise ConfigurationError(
                f'role "{self.settings.role}": in this run everybody computes and can be dialled by everybody, as a '
                "trainer; where nobody asked for another role, `minga doctor` shows what keeps others from dialling"
            )
        options = VerifiedOptions(self._founded(), self.state_server, self.behaviour, directory, entropy)
        life = VerifiedMember(self.node, self.identity, self.board, options, replica, port)
        self._begin(life, replica, port)
        return life

    def begin_founding(
        self, spec: RunSpec, organiser: str, path: Path | None = None, known: Genesis | None = None
    ) -> Founding:
        """Learn how the run was founded, and tell others; `organiser` is whose key signed its spec. The genesis is kept
        at `path`; `known` is what lay there.

        The organiser's peer, where it has a model, founds the run when that takes part. Else it signs who else does.
        """
        run = Participation(spec, PeerId(organiser), self.settings.role)
        is_organiser, only_looks = self.peer_id == organiser, self.settings.role == "monitor"
        self.founding = founding = Founding(self.node, self.identity, self.board, self.admission, run, path, known)
        may_sign_for_others = spec.security.verification == "none" and not founding.rules.by_organiser
        has_shared_state = not spec.split.is_on or spec.split.averages_clients
        if has_shared_state and (only_looks or not is_organiser or may_sign_for_others):
            self.node.spawn(founding.look_on())
        return founding

    async def close(self, reason: str = "") -> None:
        """`leave`, and close the network."""
        await self.leave(reason)
        await self.node.close()

    async def leave(self, reason: str = "") -> None:
        """Say goodbye and end everything but the network, within `stays_s` and `LEAVE_S` seconds. Without a word if
        another process takes part with this one's key: the others would take it for that one's.
        """
        is_rival = self.error is not None and self.error.code is RefusalCode.KEY
        if self.member is not None and not is_rival:
            await self.member.see_off()
        if self._life is not None:
            await end(self._life)
        if self.member is not None:
            self.member.close(ClosedError("this peer was closed"))
        if not is_rival:
            with contextlib.suppress(RemoteError, TimeoutError):
                async with asyncio.timeout(LEAVE_S):
                    await self.gossip.leave(reason)

    # ---- inner workings

    def _begin(
        self, member: Member | VerifiedMember, replica: ReplicaInterface, port: GradientPort | AssignedPort
    ) -> None:
        member.on_finished = self.state_server.publish_last
        member.on_step_ended.add(self._end_step)
        self.member = member

        def serve_state() -> None:
            if replica.lineage.is_founded and self.state_server.wants(replica.step):
                self.state_server.publish(replica.capture())

        port.at_boundary = serve_state
        self._life = asyncio.get_running_loop().create_task(self._live(member, replica.step), name="minga-member")
        if self.settings.probes:
            self.node.spawn(
                Prober(self.node, lambda: member.swarm_view.reachable() if member.ready.is_set() else []).run()
            )
        self.node.spawn(LinkReporter(self.node, self.board).run())

    @any_thread
    def _founded(self) -> Founding:
        if self.founding is None:
            raise ConfigurationError("this session does not know the spec of its run yet")
        return self.founding

    def _publish_token(self) -> None:
        if credential := self.admission.credential():
            self.board.put(Credential(credential))

    def _lookup(self, peer: PeerId) -> Address | None:
        known = self.board.address_of(peer)
        if known is not None and known.dialable:
            return known
        return next((entry for entry in self.entries if entry.peer_id == peer), known)

    async def _enter(self) -> None:
        entrance = Entrance(self.node, self.gossip, self.entries, self._greet)
        if not self.settings.may_be_alone:
            return await entrance.enter()
        try:
            await entrance.enter(may_be_alone=True)
        except UnreachableError as error:
            self.events.emit(RunNobodyAnswers(why=str(error)))

    async def _greet(self, peer: PeerId) -> None:
        if self._on_meeting is not None and not self.admission.is_decided:
            await self._on_meeting(self, peer)
        if self._access_watch is not None:
            try:
                await self._access_watch.exchange.exchange(peer)
            except RejectedError as error:
                if error.code != RefusalCode.METHOD or self.admission.is_for_members:
                    raise  # in an open run an earlier version of minga knows no orders
            self.admission.confirm(peer)

    def _end_step(self) -> None:
        if self._access_watch is not None:
            self._access_watch.end_step()

    def _lose_access(self, why: str) -> None:
        if self._entered and self.error is None:  # a newcomer may not know all orders yet
            self._end(RejectedError(f"this machine's access to the run has ended: {why}", code=RefusalCode.ACCESS), why)

    def _give_way(self, older: Incarnation) -> None:
        """Another process with this one's key takes part, and this one says nothing more in its name."""
        if self.error is None:
            error = key_in_use(older.since)
            self._end(error, error.message)
            if self._entered:
                self._silencing = asyncio.get_running_loop().create_task(self.node.close())

    def _end(self, error: RejectedError, why: str) -> None:
        """This peer may not take part any more: let the trainer go."""
        self.error = error
        self.events.emit(AccessLost(why=why))
        if self._life is not None:
            self._life.cancel()
        if self.member is not None:
            self.member.close(error)

    async def _live(self, member: Member | VerifiedMember, step: int) -> None:
        try:
            await member.run(step)
        except MingaError as error:
            self._give_up(str(error))
            if isinstance(error, UnfitError):  # those who see it come and go hear why
                self.board.put(Unfit(str(error)[:MAX_WHY_CHARACTERS]))
        except Exception as error:  # a mistake in the program: no other text would say where it was
            logger.exception("this peer's member of the run failed")
            self._give_up(traceback.format_exception_only(error)[-1].strip())

    def _give_up(self, why: str) -> None:
        self.events.emit(MemberFailed(why=why))
        self.board.retract(Progress)  # while the program lives on, no step is to wait for this peer

    def _note_unfit(self, peer: PeerId, change: Change) -> None:
        said = self.board.get(peer, Unfit) if change == UNFIT.name and peer != self.peer_id else None
        if said is None or self._unfit_told >= MOST_UNFIT_TOLD:
            return
        self._unfit_told += 1
        why = printable(said.why)
        self.events.emit(MemberUnfit(peer=peer, why=why))
        logger.warning("peer %s cannot train in this run; it says: %s", peer[:10], why)

    def _downloader(self, replica: ReplicaInterface, port: GradientPort) -> Download:
        async def fetch(wanted: Wanted, own: StateSnapshot) -> StateSnapshot:
            with self.state_server.fetching():
                state = await download(
                    self.node,
                    self.member.swarm_view.donors() if self.member is not None else [],
                    wanted,
                    have=own,
                    cache=self.settings.cache,
                    accept=lambda manifest: port.accept(lambda: replica.check(manifest)),
                    server=self.state_server,
                )
            return state.snapshot

        return fetch
