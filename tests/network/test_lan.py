"""Runs that are announced in the local network, on the loopback interface of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from zeroconf import InterfaceChoice, ServiceInfo, Zeroconf

from minga.core.errors import ConfigurationError
from minga.identity.links.links import EntryPoint, Link
from minga.network import lan
from minga.network.lan import MOST_NAME_BYTES, SERVICE, LanAnnouncement, NearbyRun, find_runs

pytestmark = pytest.mark.usefixtures("loopback_lan")

HOST = "127.0.0.1"
KEY, OTHER = "cd" * 32, "ef" * 32
LINK = Link("ab" * 32, KEY, (EntryPoint(KEY, ("192.168.1.7:4433", "[fd00::7]:4433")),))
LOOK_S = 3.0
LOOKS = 5
"""What is announced may be heard late on a busy machine."""


def announced(name: str, link: Link) -> contextlib.closing[LanAnnouncement]:
    announcement = LanAnnouncement(name, HOST)
    announcement.show(link)
    return contextlib.closing(announcement)


def found(run: NearbyRun | None, before: NearbyRun | None = None) -> bool:
    """Whether one of some looks finds this run, after those that find nothing or what was announced `before`."""
    for _ in range(LOOKS):
        runs = find_runs(HOST, LOOK_S)
        if runs == ([] if run is None else [run]):
            return True
        assert runs in ([], [before])
    return False


def test_a_run_is_found_with_its_newest_link_until_it_is_taken_back() -> None:
    others = replace(LINK, entries=(*LINK.entries, EntryPoint(OTHER, ("10.0.0.1:1",))))
    moved = replace(LINK, entries=(EntryPoint(KEY, ("192.168.1.7:4434",)),))
    with announced("Klasse 7b · größer", others) as announcement:
        first, then = (NearbyRun("Klasse 7b · größer", link) for link in (LINK, moved))
        assert found(first), "the host's own entry is enough"
        announcement.show(moved)
        assert found(then, before=first)
    assert found(None, before=then)


def test_a_link_and_a_name_of_any_length_come_through() -> None:
    entry = EntryPoint(KEY, tuple(f"[2001:db8::{i:x}]:4433" for i in range(8)), "https://" + "r" * 180)
    long = replace(LINK, entries=(entry,))
    with announced("𝄞" * 64, long):
        assert found(NearbyRun("𝄞" * (MOST_NAME_BYTES // 4), long))


@contextlib.contextmanager
def stranger(*announcements: dict[str, str | bytes]) -> Iterator[None]:
    """A machine of the network that announces what it likes."""
    responder = Zeroconf(interfaces=[HOST])
    try:
        for number, properties in enumerate(announcements):
            info = ServiceInfo(SERVICE, f"{number}.{SERVICE}", addresses=[b"\x7f\0\0\1"], port=9, properties=properties)
            responder.register_service(info, cooperating_responders=True)
        yield
    finally:
        responder.close()


def test_what_is_no_announcement_of_a_run_is_left_out() -> None:
    link = str(LINK)
    with stranger(
        {"name": "x"},
        {"link0": link},
        {"name": "\x1b[2Jx", "link0": link},
        {"name": b"\xff\xfe", "link0": link},
        {"name": "x" * (MOST_NAME_BYTES + 1), "link0": link},
        {"name": "x", "link0": link[:-1]},
        {"name": "x", "link1": link},
        {"name": "x", "link0": b"\xff" * 200},
        {"name": "sound", "link0": link[:50], "link1": link[50:]},
    ):
        assert found(NearbyRun("sound", LINK))


def test_names_that_dns_forbids_or_behind_which_nobody_answers_hold_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["a\x01b", "nobody", "nobody either", LINK.run_id[:32]]
    together, look_up = threading.Barrier(len(names), timeout=20), Zeroconf.get_service_info

    def hear(*_: object, handlers: list[Callable[..., None]]) -> Any:
        for name in names:
            handlers[0](name=f"{name}.{SERVICE}")
        return SimpleNamespace(cancel=lambda: None)

    def ask(*question: Any) -> ServiceInfo | None:
        together.wait()
        return look_up(*question)

    monkeypatch.setattr(lan, "ServiceBrowser", hear)
    monkeypatch.setattr(Zeroconf, "get_service_info", ask)
    with announced("x", LINK):
        assert [NearbyRun("x", LINK)] in (find_runs(HOST, 0.0) for _ in range(LOOKS))


def test_a_look_takes_in_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lan, "MOST_RUNS", 2)
    links = [replace(LINK, run_id=f"{number:064x}") for number in range(4)]
    with stranger(*({"name": "x", "link0": str(link)[:240], "link1": str(link)[240:]} for link in links)):
        assert len(find_runs(HOST, LOOK_S)) == 2


def test_the_interface_is_that_of_the_address_and_a_network_that_refuses_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bound to this machine, a peer says nothing to others."""
    asked: list[object] = []

    def refuse(**options: object) -> None:
        asked.append(options["interfaces"])
        raise OSError("no such device")

    monkeypatch.setattr(lan, "Zeroconf", refuse)
    for host in ("127.0.0.1", "::1", "192.168.1.7", "fd00::7", None):
        with pytest.raises(ConfigurationError, match="no such device; take part by a link instead"):
            find_runs(host)
    assert asked == [["127.0.0.1"], ["127.0.0.1"], ["192.168.1.7"], ["fd00::7"], InterfaceChoice.All]
