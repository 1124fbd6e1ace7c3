"""A peer as a program holds it: a background thread that takes part in a run, and what it knows."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from minga.core.errors import ClosedError, ConfigurationError
from minga.core.events.bus import Event, EventData, Value
from minga.core.events.catalogue import CATALOGUE
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import EntryPoint, Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.receipts.book import PeerTotals
from minga.receipts.document import fetch_receipts
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.loop_thread import LoopThread
from minga.training.checkpointer import Checkpointer
from minga.training.life.founding import Genesis
from minga.training.life.member import Member
from minga.training.life.verified_member import genesis_file
from minga.training.record_kinds import Progress
from minga.training.replica.replica import Replica
from minga.training.session import Session
from minga.training.state.snapshot import StateSnapshot
from minga.training.status.metrics_publisher import EventStream, MetricsPublisher
from minga.training.status.run_status import PeerStatus, RunStatus
from minga.training.status.status_reader import StatusReader
from minga.training.transfer.run_files import RunFileServer

T = TypeVar("T")

CLOSE_S = 0.6
"""Longest time, in seconds, that the end takes beside that for which the peer stays for the others."""


class Peer:
    """This process's part in a run; made by `minga.join` and `minga.host`, and used by `minga.Optimizer`.

    All networking happens on one background thread; every method may be called from the program's own thread. Use it
    as a context manager, or call `close` at the end.
    """

    def __init__(
        self,
        thread: LoopThread,
        session: Session,
        signed_spec: SignedRunSpec,
        spec: RunSpec,
        files: Mapping[str, Path],
        directory: Path,
        held: contextlib.ExitStack,
    ) -> None:
        """`held` is what this process alone may use as long as the peer lives, such as its key; the peer frees it."""
        self.spec = spec
        """The run spec, the same for all peers."""
        self.files = dict(files)
        """Files that ship with the run (such as the tokenizer), by name."""
        self.directory = directory
        """Where this peer keeps files and checkpoints of the run."""
        self.signed_spec = signed_spec
        """The same with the organiser's signature."""
        self.metrics = MetricsPublisher(session.board, session.node, self._later)
        """What this peer publishes of its work; for who trains."""
        self._thread, self._session, self._closed = thread, session, False
        self._status, self._streams = StatusReader(self), list[EventStream]()
        self.checkpointer = Checkpointer(session, directory, self.note)
        """For the optimizer: keeps checkpoints, and what this peer alone has."""
        thread.ask(lambda: RunFileServer(session.node, signed_spec, spec.files, self.files))
        organiser, path, known = signed_spec.organiser, None, None
        if self.role != "monitor" or self.peer_id == organiser:  # who only looks on leaves nothing behind
            path = genesis_file(directory, session.peer_id)
            known = Genesis.from_file(path, self.run_id, organiser) or self.checkpointer.genesis(organiser)
        thread.ask(lambda: session.begin_founding(spec, organiser, path, known))
        self.held = held.pop_all()
        """What is let go when this peer is closed."""
        atexit.register(self.close)

    # ---- who and where

    @property
    def peer_id(self) -> str:
        """This peer's public key, 64 hexadecimal digits."""
        return self._session.peer_id

    @property
    def seed(self) -> int:
        """A number of this peer's own, from 0 to 2**32 - 1, to seed the order of its data and its augmentation by:
        peers that are seeded alike compute the same samples. It stays the same as long as the peer's key does.
        """
        return int(self.peer_id[:8], 16)

    @property
    def role(self) -> str:
        """How this peer takes part: "trainer", "client", "auxiliary" or "monitor"."""
        return self._session.settings.role

    @property
    def run_id(self) -> str:
        """The hash of the run spec, 64 hexadecimal digits."""
        return self._session.node.run_id

    @property
    def link(self) -> Link:
        """An invitation to this run: enter by this peer if it can be dialled, and by others that it knows."""

        def make() -> Link:
            board, organiser = self._session.board, self.signed_spec.organiser
            living = [board.address_of(peer) for peer in board.owners() if self._session.leads_in(peer, organiser)]
            addresses = [self._session.node.address, *filter(None, living), *self._session.entries]
            entries: dict[str, EntryPoint] = {}
            for address in addresses:
                direct = tuple(a for a in address.direct if "%" not in a)[:8]
                if (direct or address.relay) and len(entries) < 3:
                    entries.setdefault(address.peer_id, EntryPoint(address.peer_id, direct, address.relay))
            return Link(self.run_id, self.signed_spec.organiser, tuple(entries.values()))

        return self.on_loop(make)

    # ---- for programs

    def status(self) -> RunStatus:
        """The state of the run as this peer sees it now: step, loss, speed, peers, plan, the last problem.

        The loss is known from the second call on, since it is the difference of two reports of the peers. One thread at
        a time may call it. Raises `ClosedError` after `close`, and `RejectedError` once this peer may
        not take part any more.
        """
        return self._status.look().status

    def peers(self) -> tuple[PeerStatus, ...]:
        """The living peers that this peer knows of, itself included: role, step, speed, traffic, path.

        Raises `ClosedError` after `close`.
        """
        return self.status().peers

    def receipts(self) -> Mapping[str, PeerTotals]:
        """What the members attest of each peer, by its id, in the rounds in which this peer took part: steps, samples,
        bytes reduced. A monitor asks a member, and verifies what it sends; that may take some seconds. Empty where
        nothing is attested yet, and in Byzantine-tolerant runs. Raises `ClosedError` after `close`.
        """
        member, session = self._session.member, self._session
        if not isinstance(member, Member):
            found = self.on_loop(
                lambda: sorted(session.board.payloads(Progress), key=self.signed_spec.organiser.__ne__)
            )
            fetching = fetch_receipts(session.node, found, self.run_id, self.signed_spec.organiser)
            proven = self._thread.call(fetching)
            return {} if proven is None else {str(peer): totals for peer, totals in proven.totals.items()}
        decided = self.on_loop(member.receipts.book.decided)
        return {str(peer): totals for peer, totals in decided.add_up().items()}

    def events(self) -> EventStream:
        """The events from now on, one after the other: `for event in peer.events(): …`, until the peer is closed.

        Kinds and their typed fields stand in docs/events.md. Each call makes a stream of its own. Raises `ClosedError`
        after `close`.
        """
        if self._closed:
            raise ClosedError("this peer was closed")
        stream = EventStream(self.subscribe)
        self._streams.append(stream)
        return stream

    def subscribe(self, listener: Callable[[Event], None]) -> Callable[[], None]:
        """Hear of every event, on the background thread; returns the function that ends this."""
        return self._session.events.subscribe(listener)

    def emit(self, kind: str, **fields: Value) -> None:
        """Add an event of the program's own, for displays and logs.

        Raises `ConfigurationError` if minga itself has events of this kind.
        """
        if kind in CATALOGUE:
            raise ConfigurationError(f"events of kind {kind} are minga's own; choose another name")
        self._soon(lambda: self._session.events.emit_own(kind, fields))

    def note(self, data: EventData) -> None:
        """Add an event of the catalogue; on any thread."""
        self._soon(lambda: self._session.events.emit(data))

    def on_loop(self, function: Callable[[], T]) -> T:
        """Run a short function on the background thread and return its result. Raises `ClosedError` after `close`."""
        if self._closed:
            raise ClosedError("this peer was closed")
        return self._thread.ask(function)

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the background thread and wait for its result; for the packages above this one.

        Raises `ClosedError` after `close`, and what the coroutine raises.
        """
        if self._closed:
            coroutine.close()
            raise ClosedError("this peer was closed")
        return self._thread.call(coroutine)

    @property
    def session(self) -> Session:
        """The peer's inner parts; touch them only on the background thread (`on_loop`)."""
        return self._session

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop of the background thread."""
        return self._thread.loop

    def close(self, reason: str = "") -> None:
        """Say goodbye and end the background thread; may be called twice.

        Takes about a second at most, in a Byzantine-tolerant run as long as the members need to finish the step, up to
        10 s, and as long as a checkpoint that is being written needs to be whole. It begins none: steps since the last
        one are lost if no other peer has them, unless the program calls `save_checkpoint` of its `minga.Optimizer`
        before. Raises `ConfigurationError` in a listener, which may not wait.
        """
        if self._closed:
            return
        self._thread.check_elsewhere()
        self._closed = True
        atexit.unregister(self.close)
        with contextlib.ExitStack() as rest:  # done in any case: a second Ctrl-C may break off each part
            rest.callback(self.held.close)
            for stream in self._streams:
                rest.callback(stream.close)
            rest.callback(self.checkpointer.close)
            rest.callback(self._session.disk.close)
            rest.callback(self._thread.close)
            rest.callback(self._hang_up)
            with contextlib.suppress(Exception):  # a goodbye that fails must not keep the program from ending
                self._thread.call(self._session.leave(reason), self._session.stays_s + CLOSE_S)

    def _hang_up(self) -> None:
        """Close the network, whether the goodbye came to its end or not."""
        with contextlib.suppress(Exception):
            self._thread.call(self._session.node.close(), CLOSE_S)

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close("" if kind is None else kind.__name__)

    def newest_checkpoint(self) -> StateSnapshot | None:
        """The newest intact checkpoint of this run on this machine. Raises `StorageError` if all are damaged."""
        return self.checkpointer.newest()

    # ---- for programs and packages that train

    @property
    def awaits_first_state(self) -> bool:
        """Whether this peer has to say by `begin_with` with which state the run begins."""

        def look() -> bool:
            founding = self._session.founding
            return founding is not None and founding.rules.by_organiser and founding.genesis is None

        return self.role == "monitor" and self.peer_id == self.signed_spec.organiser and self.on_loop(look)

    def begin_with(self, replica: Replica) -> None:
        """As the organiser's peer that does not train: the run begins with the state of `replica`, which is not kept.
        All peers of the run have to be able to make it, as with a recipe.
        """
        GradientPort.for_run(self._thread.loop, replica, self.spec)  # its strategy says what is shared
        digest = replica.digest()

        def sign() -> None:
            if self._session.founding is not None:
                self._session.founding.first = digest

        self.on_loop(sign)

    def _soon(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile: no program listens any more
            self._thread.loop.call_soon_threadsafe(function)

    def _later(self, seconds: float, function: Callable[[], None]) -> None:
        if seconds <= 0.0:
            self._soon(function)
            return

        def begin() -> None:
            self._thread.loop.call_later(seconds, function)

        self._soon(begin)
