"""Runs that are announced in the local network by multicast DNS (RFC 6762, RFC 6763), so that nobody passes a link on.

An announcement is a DNS service whose TXT record has the name of the run and the link, in pieces. Nothing in it is
signed: every machine of the network can announce any run under any name. So what is heard is bounded and checked, and
people compare the organiser's key. Whether a link leads to the run that it names is verified when it is used.
"""

from __future__ import annotations

import ipaddress
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Final

from zeroconf import Error, InterfaceChoice, IPVersion, ServiceBrowser, ServiceInfo, Zeroconf

from minga.core.errors import ConfigurationError, LinkError
from minga.core.printable import is_printable
from minga.core.urls import is_loopback
from minga.identity.links.links import Link

SERVICE: Final = "_minga._udp.local."
LOOK_S: Final = 3.0
"""Seconds to listen: most answers come within one or two."""
ANSWER_MS: Final = 1500
MOST_RUNS: Final = 32
"""Announcements that one look takes in."""
MOST_NAME_BYTES: Final = 200
MOST_PIECES: Final = 14
"""Of a link; each is an entry of a TXT record, which has at most 255 bytes."""
PIECE_CHARACTERS: Final = 240


@dataclass(frozen=True)
class NearbyRun:
    """A run that a machine of the local network announces: the name that it gives, and the link."""

    name: str
    link: Link


class LanAnnouncement:
    """Announces a run in the local network until `close`, on the interface of the address `host` (None: on all).

    Raises `ConfigurationError` if the network refuses. Calls block for up to two seconds.
    """

    def __init__(self, name: str, host: str | None) -> None:
        self._name, self._responder = name, _open(host)
        self._announced: ServiceInfo | None = None

    def show(self, link: Link) -> None:
        """Announce this link from now on, as far as it leads to the host itself. Does nothing after `close`."""
        if self._responder.done:
            return
        entries = tuple(entry for entry in link.entries if entry.peer_id == link.organiser) or link.entries[:1]
        info = _service(self._name, replace(link, entries=entries))
        if self._announced is None:
            self._responder.register_service(info, cooperating_responders=True)  # a run's id needs no probing
        else:
            self._responder.update_service(info)
        self._announced = info

    def close(self) -> None:
        """Take the announcement back."""
        self._responder.close()


def find_runs(host: str | None, seconds: float = LOOK_S) -> list[NearbyRun]:
    """The runs that are announced, by name, after listening for some seconds; on the interface of `host`, if given.

    Raises `ConfigurationError` if the network refuses.
    """
    asking = _open(host)
    try:
        names: dict[str, None] = {}

        def hear(name: str, **_: object) -> None:
            if len(names) < MOST_RUNS:
                names[name] = None

        browser = ServiceBrowser(asking, SERVICE, handlers=[hear])
        time.sleep(seconds)
        browser.cancel()
        with ThreadPoolExecutor(MOST_RUNS) as pool:  # together, since a name may have nobody who answers
            runs = [run for run in pool.map(lambda name: _look_up(name, asking), names) if run is not None]
    finally:
        asking.close()
    by_link = {str(run.link): run for run in runs}
    return sorted(by_link.values(), key=lambda run: (run.name, run.link.run_id))


def _look_up(name: str, asking: Zeroconf) -> NearbyRun | None:
    """The run that is announced by this name, which may be none that DNS permits; None if there is none."""
    try:
        info = asking.get_service_info(SERVICE, name, ANSWER_MS)
    except Error:
        return None
    return None if info is None else _run_of(info)


def _open(host: str | None) -> Zeroconf:
    if host is None:
        interfaces: list[str] | InterfaceChoice = InterfaceChoice.All
    else:
        interfaces = ["127.0.0.1" if is_loopback(host) else host]
    version = IPVersion.V6Only if host is not None and ":" in host and not is_loopback(host) else IPVersion.V4Only
    try:
        return Zeroconf(interfaces=interfaces, ip_version=version)
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"the local network cannot be asked by multicast DNS: {error}; take part by a link instead"
        ) from error


def _service(name: str, link: Link) -> ServiceInfo:
    text = str(link)
    pieces = [text[start : start + PIECE_CHARACTERS] for start in range(0, len(text), PIECE_CHARACTERS)]
    shown = name.encode()[:MOST_NAME_BYTES].decode(errors="ignore")
    endpoints = [endpoint.rpartition(":") for entry in link.entries for endpoint in entry.direct]
    return ServiceInfo(
        SERVICE,
        f"{link.run_id[:32]}.{SERVICE}",
        addresses=[ipaddress.ip_address(ip.strip("[]")).packed for ip, _, _ in endpoints],
        port=int(endpoints[0][2]) if endpoints else 0,
        properties={"name": shown, **{f"link{number}": piece for number, piece in enumerate(pieces)}},
        server=f"minga-{link.run_id[:32]}.local.",
    )


def _run_of(info: ServiceInfo) -> NearbyRun | None:
    """The run of an announcement; None unless it is one as `LanAnnouncement` makes it."""
    found = info.properties
    pieces = []
    for number in range(MOST_PIECES):
        if (piece := found.get(f"link{number}".encode())) is None:
            break
        pieces.append(piece)
    try:
        name = (found.get(b"name") or b"").decode()
        link = Link.parse(b"".join(pieces).decode())
    except (UnicodeDecodeError, LinkError):
        return None
    is_name = 0 < len(name.encode()) <= MOST_NAME_BYTES and is_printable(name) and name == name.strip()
    return NearbyRun(name, link) if is_name else None
