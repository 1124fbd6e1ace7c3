"""Makes scripted faults happen to virtual hosts, lies of peers among them."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event, EventBus
from minga.network.bandwidth.access_link import AccessRates
from minga.network.virtual.internet import Nat, VirtualInternet
from minga.network.virtual.paths import relay_url
from minga.simulation.attacks.interface import Lie, lie
from minga.simulation.faults.script import EMITTER, OPPOSITES, AtEvent, AtTime, Fault
from minga.training.session import Session
from minga.training.state.manifest import CHUNK_BYTES, Manifest, build_manifest
from minga.training.state.snapshot import StateSnapshot

Resolve = Callable[[str, str | None, Event | None], str | None]
"""`resolve(role, emitter, event)`: the peer in that role now (`emitter` and `event` are None for a fault at a time)."""

logger = logging.getLogger("minga.faults")


class FaultRecord(NamedTuple):
    """What was done: loop time, the fault, and the peers that its roles stood for; `ended` when it was undone."""

    time: float
    fault: Fault
    peers: tuple[str, ...]
    ended: bool


class FaultDriver:
    """Carries out the faults of a script on the running loop.

    `resolve` finds who has a role; a name that it does not know (None) and that was attached stands for itself. While
    nobody has the role, a fault that waits for an event goes on waiting, and one at a time is skipped with a warning.
    `on_record` hears of everything that is done.
    """

    def __init__(
        self,
        faults: Iterable[Fault],
        target: VirtualFaults,
        resolve: Resolve | None = None,
        on_record: Callable[[FaultRecord], None] | None = None,
    ) -> None:
        self.records: list[FaultRecord] = []
        """What was done so far, in order."""
        self._faults = list(faults)
        self._target = target
        self._resolve = resolve or (lambda role, emitter, event: None)  # noqa: ARG005
        self._on_record = on_record or (lambda record: None)  # noqa: ARG005
        self._peers: dict[str, Callable[[], None]] = {}
        self._waiting: list[Fault] = []
        self._timers: set[asyncio.TimerHandle] = set()
        self._undo: dict[int, Callable[[], None]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        # Timers must not belong to the peer during whose event they are set, or its stall would stop its own end.
        self._context = contextvars.Context()

    @property
    def pending(self) -> tuple[Fault, ...]:
        """Faults that wait for their time or event, and those for which nobody was there at their time."""
        return tuple(self._waiting)

    def attach(self, peer: str, events: EventBus | None = None) -> None:
        """Make a peer known by name, and listen to its events if it has a bus here; a restarted peer comes again."""
        if detach := self._peers.get(peer):
            detach()
        self._peers[peer] = events.subscribe(lambda event: self.on_event(peer, event)) if events else lambda: None

    def start(self) -> None:
        """Begin to count time on the running loop, and to act."""
        if self._loop is not None:
            raise ConfigurationError("a fault script can be started only once")
        self._loop = asyncio.get_running_loop()
        for fault in self._faults:
            if isinstance(fault.trigger, AtEvent) or fault.trigger.seconds > 0:
                self._waiting.append(fault)
            if isinstance(fault.trigger, AtTime):
                if fault.trigger.seconds > 0:
                    self._later(fault.trigger.seconds, lambda fault=fault: self._fire(fault, None, None))  # type: ignore[misc]
                else:
                    self._fire(fault, None, None)

    def strike(self, fault: Fault) -> None:
        """Do something now that is in no script, to peers that are called by their names."""
        self._fire(fault, None, None)

    def on_event(self, peer: str, event: Event) -> None:
        """An event of a peer, attached with a bus or without."""
        if self._loop is None:
            return
        for fault in list(self._waiting):
            trigger = fault.trigger
            if isinstance(trigger, AtTime) or fault not in self._waiting or not trigger.matches(event):
                continue
            if trigger.emitter is not None and self._who(trigger.emitter, peer, event) != peer:
                continue
            self._fire(fault, peer, event)

    def close(self) -> None:
        """Undo what would have ended by itself later, and do nothing more."""
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        self._waiting.clear()
        undo, self._undo = self._undo, {}
        for undo_one in undo.values():
            undo_one()
        for detach in self._peers.values():
            detach()
        self._peers.clear()

    def _who(self, role: str, emitter: str | None, event: Event | None) -> str | None:
        if role == EMITTER:
            return emitter
        return self._resolve(role, emitter, event) or (role if role in self._peers else None)

    def _fire(self, fault: Fault, emitter: str | None, event: Event | None) -> None:
        found = tuple(self._who(role, emitter, event) for role in fault.peers)
        peers = tuple(peer for peer in found if peer is not None)
        if len(peers) < len(found):
            if event is None:
                if fault not in self._waiting:
                    self._waiting.append(fault)
                logger.warning("skipped `%s`: nobody is %s", fault, fault.peers[found.index(None)])
            return
        if fault in self._waiting:
            self._waiting.remove(fault)
        self._record(fault, peers, ended=False)
        self._target.do(fault, peers)
        if fault.for_s is not None:
            number = len(self.records)
            self._undo[number] = lambda: self._end(fault, peers)
            self._later(fault.for_s, lambda: self._undo.pop(number)())

    def _end(self, fault: Fault, peers: tuple[str, ...]) -> None:
        self._record(fault, peers, ended=True)
        self._target.undo(fault, peers)

    def _record(self, fault: Fault, peers: tuple[str, ...], *, ended: bool) -> None:
        loop = self._loop or asyncio.get_running_loop()
        self.records.append(FaultRecord(loop.time(), fault, peers, ended))
        self._on_record(self.records[-1])

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        loop = self._loop or asyncio.get_running_loop()

        def due() -> None:
            self._timers.discard(timer)
            action()

        timer = loop.call_later(seconds, due, context=self._context)
        self._timers.add(timer)


class VirtualFaults:
    """Faults on the hosts of a virtual internet. `lie` is for the code that runs on them, hence a callback.

    Doing something twice, or to a dead host, does no harm.
    """

    def __init__(self, internet: VirtualInternet, lie: Callable[[str, str | None], None] | None = None) -> None:
        self._internet, self._lie = internet, lie

    def do(self, fault: Fault, names: tuple[str, ...]) -> None:
        """Let the fault happen to these hosts, or relays. Raises `ConfigurationError` if no liar was installed."""
        internet, name = self._internet, names[0]
        match fault.action:
            case "kill":
                internet.kill(name)
            case "stall":
                internet.stall(name)
            case "resume":
                internet.resume(name)
            case "drop_link":
                internet.cut(*names)
            case "restore_link":
                internet.restore(*names)
            case "slow_link":
                internet.set_rate(name, *self._rates(name, fault.bytes_per_s))
            case "stop_relay":
                internet.stop_relay(relay_url(name))
            case "start_relay":
                internet.start_relay(relay_url(name))
            case "open_nat":
                internet.set_nat(name, Nat.ONE_TO_ONE)
            case "lie":
                if self._lie is None:
                    raise ConfigurationError("this simulation has no peers that can lie")
                self._lie(name, fault.behaviour)

    def undo(self, fault: Fault, names: tuple[str, ...]) -> None:
        """End a fault that can last: lines get the rates of their settings again, and liars are honest."""
        action = OPPOSITES.get(fault.action, fault.action)
        self.do(replace(fault, action=action, bytes_per_s=None, behaviour=None), names)

    def _rates(self, name: str, most: float | None) -> tuple[float | None, float | None]:
        """Those of a host's line, up first, of which neither is more than `most`."""
        settings = self._internet.hosts[name].settings
        up, down = (
            min((rate for rate in (own, most) if rate is not None), default=None)
            for own in (settings.up_bytes_per_s, settings.down_bytes_per_s)
        )
        return up, down


# ---- Lying peers: honest ones with one method replaced, since honest code need not know that lies exist.
#
#     false-rates   claims `BOAST` times what its line carries, to be given a larger part of the vector
#     false-state   serves peers that fetch the state one with a flipped bit in each chunk, under the true digest
#
# Both are found out by what peers do in any run. What hostile members of a byzantine run do is in
# `simulation/attacks/gradient_attacks.py` and others.


BOAST: Final = 10.0


class LyingPeers:
    """Makes peers lie, and honest again; `session_of` finds a peer's session by its name."""

    def __init__(self, session_of: Callable[[str], Session]) -> None:
        self._session_of = session_of
        self._lies: dict[str, tuple[str, Callable[[], None]]] = {}

    def lie(self, peer: str, behaviour: str | None) -> None:
        """Let a peer lie in this way and no other; None makes it honest."""
        chosen = None if behaviour is None else lie(behaviour)()
        if told := self._lies.pop(peer, None):
            _, undo = told
            undo()
        if behaviour is not None and chosen is not None:
            self._lies[peer] = behaviour, chosen.begin(self._session_of(peer))

    def renew(self, peer: str) -> None:
        """Let a peer that has another session lie as before, if it did."""
        if told := self._lies.pop(peer, None):
            behaviour, _ = told
            self.lie(peer, behaviour)


class FalseRates(Lie):
    """Claims `BOAST` times what its line carries."""

    def begin(self, session: Session) -> Callable[[], None]:
        """In all that it tells others of its rates."""
        lines = session.node.access_link
        honest = lines.rates

        def rates() -> AccessRates:
            true = honest()
            return replace(true, upload=_times(true.upload), download=_times(true.download))

        lines.rates = rates  # type: ignore[method-assign]

        def undo() -> None:
            lines.rates = honest  # type: ignore[method-assign]

        return undo


class FalseState(Lie):
    """Serves a state with a flipped bit in each chunk, under the true digest."""

    def begin(self, session: Session) -> Callable[[], None]:
        """From the next state on that it offers."""
        server = session.state_server
        honest = server.publish

        def publish(snapshot: StateSnapshot, manifest: Manifest | None = None, *, stays: bool = False) -> None:
            buffer = snapshot.buffer.clone()
            buffer[::CHUNK_BYTES] ^= 1
            honest(replace(snapshot, buffer=buffer), manifest or build_manifest(snapshot), stays=stays)

        server.publish = publish  # type: ignore[method-assign]

        def undo() -> None:
            server.publish = honest  # type: ignore[method-assign]
            server.withdraw()

        return undo


def _times(rate: float | None) -> float | None:
    return None if rate is None else BOAST * rate
