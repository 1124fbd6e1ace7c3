"""The hops from this machine into a run: authority and entries of the link, clock, version, run spec, packages, access.

May this machine take part in the run? Its own key and addresses count, though the doctor enters with another key. A
peer of this machine may hold the key at the moment, so the doctor enters as a monitor for which the key vouches. In a
run for members that shows whether the key is admitted. The organisers' orders, which every peer passes on, show whether
the key or an address of this machine is banned; so the doctor gets them and judges as every member does.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from minga.access.access_files import AccessFiles
from minga.access.admission import Admission
from minga.access.standing_orders import OrderExchange
from minga.cli.diagnosing.machine import Check, Finding, room_for
from minga.core.errors import ConfigurationError, MingaError, RejectedError, RemoteError
from minga.core.events.bus import EventBus
from minga.core.refusal_code import RefusalCause, RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.core.units import format_duration
from minga.identity.access.ledger import AccessBannedError, AccessLedger, NoAccessError
from minga.identity.access.token import Token
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.keeping.choice_of_key import to_join
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder
from minga.network.interface import Address, PeerId
from minga.network.iroh.network import IrohNetwork, NetworkSettings
from minga.network.rpc.node import Node
from minga.network.rpc.run_clock import MAX_CORRECTION_S, RunClock
from minga.recipes.registry import check_installed
from minga.training.own_access import RunAccess
from minga.training.plugins_of_run import check_plugins
from minga.training.transfer.run_files import fetch_run_spec

MAX_CLOCK_OFFSET_S = 60.0
TIMEOUT_S = 1.0
"""Seconds that a plain datagram may take."""

SET_CLOCK = "set the clock of this machine; let it follow a time server"

WATCH_S = 3600
"""For how long, in seconds, the doctor may look on: for a while also if the clock of this machine is behind."""

BANNED_ADVICE = "ask the organiser, who banned it and may admit you again"

_REFUSALS = {
    RefusalCode.RUN: "the peer takes part in another run by now: ask the organiser for a fresh link",
    RefusalCode.VERSION: "update minga on the older side, and start it again",
    RefusalCode.CLOCK: SET_CLOCK,
    RefusalCode.CUT_OFF: "the peer has cut this machine off for a while: wait a minute and try again",
    RefusalCode.ACCESS: "ask the organiser, who can admit you",
    RefusalCode.BANNED: BANNED_ADVICE,
    RefusalCode.ORDERS: "that peer does not know the organisers who admitted you: ask them for a link by another peer",
    RefusalCode.FULL: "the peer has as many connections as it takes: try again later, or ask for another link",
}
_OTHER_REFUSALS = {
    RefusalCause.LOCAL: "ask the organiser why",
    RefusalCause.REMOTE: "ask the organiser why",
    RefusalCause.OVER: "ask the organiser for a fresh link",
    RefusalCause.TEMPORARY: "wait a minute and try again",
}


async def check_entries(link: Link, host: str | None, own: OwnAccess, directory: Path | None) -> AsyncIterator[Check]:
    """Try every entry at once, then say what that means for joining with the key and addresses of this machine, where
    runs lie in `directory`.
    """
    doctor = Identity.generate()
    relays = tuple(dict.fromkeys(entry.relay for entry in link.entries if entry.relay is not None))
    network = await IrohNetwork.open(doctor.seed, NetworkSettings(relay=relays or "none", host=host, dialable=False))
    addresses = [Address(PeerId(entry.peer_id), entry.direct, entry.relay) for entry in link.entries]
    admission = own.admission(link, doctor, RunClock.of(network, addresses))
    node = Node(
        network,
        run_id=link.run_id,
        role="monitor",
        lookup=lambda _: None,
        events=EventBus(asyncio.get_running_loop().time),
        authorizer=admission,
        clock=admission.clock,
    )
    node.start()
    try:
        outcomes = await asyncio.gather(*(_try_entry(node, entry, link, own) for entry in link.entries))
        reached = [PeerId(entry.peer_id) for entry, each in zip(link.entries, outcomes, strict=True) if each.connected]
        works = any(each.ok for each in outcomes)
        for entry, each in zip(link.entries, outcomes, strict=True):
            who = "organiser" if entry.peer_id == link.organiser else f"peer {entry.peer_id[:10]}"
            yield Check(f"entry by {who}", works, each.detail, each.advice)
        if not reached:
            return
        if all(peer != link.organiser for peer in reached):
            yield Check("organiser", True, "does not answer, but the run goes on without", "nothing needs to be done")
        yield _clock(node)
        hop, spec = await _run_spec(node, link, reached)
        yield hop
        if spec is None:
            return
        ledger = AccessLedger.of_spec(link.run_id, spec, link.organiser)
        yield Check("access", *await own.check(node, admission, ledger, reached))
        if spec.plugins:
            yield await asyncio.to_thread(packages, spec)
        if (found := await asyncio.to_thread(room_for, spec, directory)) is not None:
            yield Check("memory and disk for the run", *found)
    finally:
        with contextlib.suppress(MingaError):
            await node.close()


async def check_authority(link: Link) -> AsyncIterator[Check]:
    """Ask the authority that the link names, if it names one, how people log in there."""
    if link.authority is None:
        return
    from minga.login.client import AuthorityClient

    client = AuthorityClient(link.authority, link.run_id, attempts=1)
    try:
        offer = await client.offer()
    except RemoteError as error:
        advice = "nobody can log in at present: try again later, or tell the organiser"
        yield Check("authority", False, error.message, advice)
    else:
        yield Check("authority", True, f"{link.authority} answers; people log in by {offer.provider}")
    finally:
        await client.close()


class _Outcome(NamedTuple):
    """`ok`: the way to this entry works; `connected`: and the doctor may ask there for more."""

    connected: bool
    ok: bool
    detail: str
    advice: str


async def _try_entry(node: Node, entry: EntryPoint, link: Link, own: OwnAccess) -> _Outcome:
    address = Address(PeerId(entry.peer_id), entry.direct, entry.relay)
    try:
        connection = await node.dial(address)
    except RejectedError as error:
        if own.joins_otherwise(link, error):
            return _Outcome(False, True, *_not_admitted(link, own))
        return _Outcome(False, False, error.message, _REFUSALS.get(error.code, _OTHER_REFUSALS[error.code.cause]))
    except RemoteError as error:
        if not entry.direct:
            advice = "the relay or the peer behind it does not answer: ask for a fresh link"
            return _Outcome(False, False, error.message, advice)
        detail, advice = await asyncio.to_thread(probe, entry.direct[0])
        return _Outcome(False, False, f"nobody answers at {', '.join(entry.direct[:3])}: {detail}", advice)
    facts = connection.facts()
    trip = f", {facts.round_trip_s * 1000:.1f} ms there and back" if facts.round_trip_s is not None else ""
    return _Outcome(True, True, f"answers, {facts.path} path{trip}", "")


def _not_admitted(link: Link, own: OwnAccess) -> tuple[str, str]:
    """What it means, and what to do, that a run for members does not know this machine."""
    if link.authority is not None:
        return "answers. This run is for members: people log in when they join", ""
    if own.identity is None:
        return "answers. This machine is not admitted", "type `minga join LINK`: it says which id the organiser needs"
    return "answers. This machine is not admitted", f"send its id to the organiser: {own.identity.peer_id}"


def _clock(node: Node) -> Check:
    offset_s = node.clock.correction_s
    right = abs(offset_s) <= MAX_CLOCK_OFFSET_S
    direction = "behind" if offset_s > 0 else "ahead of"
    detail = f"{format_duration(abs(offset_s))} {direction} the run's; up to {format_duration(MAX_CORRECTION_S)} work"
    told = detail if abs(offset_s) >= 1.0 else "agrees with the run's"
    return Check("clock", right, told, "" if right else SET_CLOCK)


def packages(spec: RunSpec) -> Check:
    """Whether this machine has what the run takes from packages of other authors, in the versions of the run."""
    try:
        check_installed(spec)
        check_plugins(spec)
    except ConfigurationError as error:
        return Check("packages of the run", False, str(error), "install it only if you trust its author: it is code")
    brought = sorted({str(origin) for origin in spec.plugins.values()})
    return Check("packages of the run", True, f"{', '.join(brought)}: installed")


async def _run_spec(node: Node, link: Link, reached: list[PeerId]) -> tuple[Check, RunSpec | None]:
    name = "run spec"
    try:
        found: list[RunSpec] = []
        await fetch_run_spec(
            node, reached, lambda signed, peer: found.append(signed.verify(link.run_id, link.organiser, peer=peer))
        )
    except ConfigurationError as error:
        return Check(name, False, str(error), "update minga here, and start it again"), None
    except RemoteError as error:
        return Check(name, False, str(error), "ask the organiser for a fresh link"), None
    return Check(name, True, f"{found[-1].name}, readable by this version"), found[-1]


def probe(endpoint: str) -> tuple[str, str]:
    """What lies at an `ip:port` that did not answer, and what to do: (detail, advice).

    A machine that is up but has nobody at the port usually says so; a firewall or a machine that is off says nothing.
    """
    host, _, port = endpoint.rpartition(":")
    host = host.strip("[]").split("%")[0]
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(TIMEOUT_S)
            sock.connect((host, int(port)))
            sock.send(b"minga")
            sock.recv(16)
    except ConnectionError:
        return "the machine is there, but nothing listens at this port", (
            "the peer has stopped or uses another port now: ask the organiser to start the host again, or for a fresh "
            "link"
        )
    except TimeoutError:
        return "packets vanish on the way", (
            "the machine is off, or a firewall drops UDP: try from another network, or ask the organiser for a run "
            "with relays"
        )
    except (OSError, ValueError, OverflowError) as error:
        why = getattr(error, "strerror", None) or str(error)
        return f"no way there from this machine ({why})", "check the network connection of this machine"
    return "something other than this peer answers there", "ask the organiser for a fresh link"


# ---- may this machine take part in the run?


@dataclass(frozen=True)
class OwnAccess:
    """The key of this machine (None: there is none yet), the token that it would show, and its `ip:port` endpoints."""

    identity: Identity | None
    token: Token | None
    endpoints: tuple[str, ...]

    @classmethod
    def of_this_machine(
        cls, link: Link, identity: Path | None, directory: Path | None, endpoints: Sequence[str]
    ) -> OwnAccess:
        """Read key and token as `minga join` does. Raises `LinkError` if the link admits another peer."""
        runs = runs_folder(directory)
        own = Identity.expected(identity, to_join(runs, link) if identity is None else None)
        if own is None:  # if it cannot be read, the check of the key file says why
            return cls(None, None, tuple(endpoints))
        access = RunAccess(AccessFiles(runs / link.run_id[:FOLDER_DIGITS]), link, keeps=False)
        return cls(own, access.token(own.peer_id, time.time()), tuple(endpoints))

    def admission(self, link: Link, doctor: Identity, clock: RunClock) -> Admission:
        """What the doctor's own peer shows to others; it judges them by `clock`."""
        token = None
        if self.identity is not None:
            expires = int(time.time()) + WATCH_S
            token = Token.for_watcher(link.run_id, self.identity, self.token, doctor.peer_id, expires)
        return Admission(PeerId(doctor.peer_id), clock, token)

    def joins_otherwise(self, link: Link, refused: RejectedError) -> bool:
        """Whether `minga join` has another way in than the one that a peer refused to the doctor."""
        return refused.code is RefusalCode.ACCESS and (self.token is None or link.authority is not None)

    async def check(self, node: Node, admission: Admission, ledger: AccessLedger, reached: Sequence[PeerId]) -> Finding:
        """Get the orders from the first peer that tells them, and judge."""
        admission.enforce(ledger)
        exchange = OrderExchange(node, admission, ledger)
        why = ""
        for peer in reached:
            try:
                await exchange.exchange(peer)
                return self.judge(ledger, admission.clock.now())
            except RemoteError as error:
                why = error.message
        return True, f"not known, as no peer tells the organisers' orders: {why}", ""

    def judge(self, ledger: AccessLedger, now_s: float) -> Finding:
        """What the orders say of this machine; `now_s` is in Unix seconds."""
        own_id = "" if self.identity is None else self.identity.peer_id
        try:
            ledger.check_address(own_id, self.endpoints, now_s)
            if self.identity is not None:
                ledger.check(self.token, own_id, now_s)
        except AccessBannedError as error:
            return False, str(error), BANNED_ADVICE
        except NoAccessError as error:
            return False, str(error), "ask the organiser, who can admit you"
        return True, "neither key nor address of this machine is banned", ""
