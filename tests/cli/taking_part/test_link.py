"""What `minga host` says of its link, and the page that it writes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minga.cli.taking_part import link as link_module
from minga.cli.taking_part.link import (
    HOST_GONE_S,
    HostLink,
    HostWatch,
    reach_lines,
    relay_line,
    who_can_join,
    write_landing_page,
)
from minga.core.errors import StorageError
from minga.core.events.bus import EventData
from minga.core.events.network import AddressChanged, AddressSeen, PeerConnected
from minga.core.spec.run_spec import RunSpec
from minga.core.wheel import own_wheel
from minga.dashboard.joining import COLAB, JoinFacts, Source, ways_to_join
from minga.identity.links.links import EntryPoint, Link
from minga.network.interface import Address, PeerId

RUN, ORGANISER, OTHER = "1f" * 32, "2e" * 32, "3d" * 32
PUBLIC, NONE = RunSpec(name="x"), RunSpec.from_mapping({"name": "x", "network": {"relay": "none"}})


def link(*direct: str, relay: str | None = None) -> Link:
    return Link(RUN, ORGANISER, (EntryPoint(ORGANISER, direct, relay),))


def said(made: Link, spec: RunSpec, bound_to: str | None = None) -> str:
    return "\n".join((who_can_join(made), *reach_lines(made, spec, bound_to)))


def test_a_link_with_private_addresses_only_is_not_for_anyone_and_says_how_to_widen_it() -> None:
    text = said(link("192.168.1.5:4433", "127.0.0.1:4433"), PUBLIC)
    assert "nyone" not in text
    assert "good for this local network" in text
    assert "No relay answers" in text
    assert "--port 4433 --announce" in text
    assert "No relay answers" not in said(link("192.168.1.5:4433"), NONE)


def test_a_link_for_this_machine_speaks_of_no_relay() -> None:
    text = said(link("127.0.0.1:4433"), PUBLIC, "127.0.0.1")
    assert "good for this machine" in text
    assert "elay" not in text
    assert relay_line(PUBLIC, "127.0.0.1") == relay_line(NONE, None) == ""
    assert "public" in relay_line(PUBLIC, None)


def test_a_link_for_the_internet_names_the_relay_or_the_address_that_has_to_be_reachable() -> None:
    assert "https://relay.example" in said(link("192.168.1.5:1", relay="https://relay.example"), PUBLIC)
    text = said(link("93.184.216.34:4433", "192.168.1.5:4433"), NONE)
    assert "Anyone who has this link" in text
    assert "93.184.216.34:4433" in text


class Hosted:
    """What a link watch needs of a peer: an address that changes, events, and peers that dial back."""

    def __init__(self, *direct: str, relay: str | None = None) -> None:
        self.address = Address(PeerId(ORGANISER), direct, relay)
        self.public: bool | None = None
        self.listener: Callable[[Any], None] = lambda _: None
        self.session = SimpleNamespace(node=self, reachability=self)

    def subscribe(self, listener: Callable[[Any], None]) -> None:
        self.listener = listener

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coroutine)

    def on_loop(self, function: Callable[[], None]) -> None:
        function()

    @property
    def link(self) -> Link:
        return link(*self.address.direct, relay=self.address.relay)

    async def check_public(self) -> bool | None:
        return self.public

    async def check_relay(self) -> bool | None:
        return None if self.address.relay is None else True

    def emit(self, data: EventData) -> None:
        self.listener(SimpleNamespace(data=data))


class Said:
    """The output of a command."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.lines: list[str] = []
        self.event = lambda kind, **fields: self.events.append((kind, fields))
        self.say = self.lines.append


def test_a_link_is_shown_again_when_more_of_the_address_is_known_and_only_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hosted: Any = Hosted("192.168.1.5:4433")
    said_later: Any = Said()
    shown: list[Link] = []
    watch = HostLink(hosted, said_later)
    monkeypatch.setattr(watch, "show", shown.append)
    hosted.emit(AddressChanged(direct=[], relay=None))
    assert shown == []  # the first link was not printed yet
    watch.watch()
    hosted.emit(AddressChanged(direct=list(hosted.address.direct), relay=None))
    assert shown == []
    hosted.public = True
    hosted.address = Address(PeerId(ORGANISER), ("93.184.216.34:4433", "192.168.1.5:4433"), "https://relay.example")
    hosted.emit(AddressChanged(direct=list(hosted.address.direct), relay=None))
    assert shown == [hosted.link]
    assert [kind for kind, _ in said_later.events] == ["link_updated", "link_checked", "link_checked"]
    assert said_later.events[0][1]["reach"] == "internet"
    assert "good for the internet" in said_later.lines[0]


def test_an_address_at_which_nobody_gets_in_is_told_with_the_port_to_forward() -> None:
    hosted: Any = Hosted("192.168.1.5:4433")
    said_later: Any = Said()
    HostLink(hosted, said_later).watch()
    hosted.emit(AddressSeen(endpoint="93.184.216.34:61000", reached=False))
    assert "Forward UDP port 4433" in said_later.lines[0]
    assert "--announce 93.184.216.34:4433" in said_later.lines[0]


@pytest.mark.parametrize(("admission", "is_shown"), [("open", True), ("members", False)])
def test_a_joiner_hears_once_that_the_host_is_gone_and_gets_a_link_for_others(
    admission: str, is_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, printed = [0.0], list[str]()
    monkeypatch.setattr(link_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    joined: Any = Hosted("192.168.1.7:4433")
    joined.spec = RunSpec.from_mapping({"name": "x", "security": {"admission": admission}})
    output: Any = Said()
    output.say_whole = printed.append
    watch = HostWatch(joined, output, said=False)

    def look(seconds: float, *peers: str, complete: bool = False) -> None:
        now[0] += seconds
        known = [SimpleNamespace(peer_id=peer, is_self=peer == RUN) for peer in peers]
        seen: Any = SimpleNamespace(is_complete=complete, peers=known)
        watch.look(seen)

    look(100.0, ORGANISER, RUN)
    look(HOST_GONE_S - 1.0, RUN, OTHER)
    assert output.lines == []
    look(2.0, RUN, OTHER)
    look(100.0, RUN, OTHER)
    reach = " Peers in this local network can join the run by this link:" if is_shown else ""
    assert output.lines == [f"The host of this run is gone. The run goes on with the peers that are here.{reach}"]
    assert printed == ([f"minga join {joined.link}"] if is_shown else [])
    assert [kind for kind, _ in output.events] == ["host_gone"]
    look(1.0, ORGANISER, RUN)
    look(HOST_GONE_S + 1.0, RUN, OTHER)
    assert len(output.lines) == 2, "it was back, and is gone again"
    look(HOST_GONE_S + 1.0, ORGANISER, RUN)
    look(HOST_GONE_S + 1.0, RUN)
    assert output.lines[2].startswith("No other peer answers. Until one does, this machine trains alone if ")
    look(100.0, RUN, OTHER, complete=True)
    look(HOST_GONE_S + 1.0, RUN, OTHER, complete=True)
    assert len(output.lines) == 3, "a run that is complete needs no newcomers"


def test_the_first_peer_that_can_tell_tries_the_public_address() -> None:
    hosted: Any = Hosted("93.184.216.34:4433")
    said_later: Any = Said()
    HostLink(hosted, said_later).watch()
    for answer in (None, False, True):
        hosted.public = answer
        hosted.emit(PeerConnected(peer=RUN, path="direct"))
    assert [fields["reached"] for _, fields in said_later.events] == [False]


class Loads(HTMLParser):
    """Collects what a page would load, what it leads to, its tags and its text."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.leads_to: list[str] = []
        self.tags: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = self.leads_to if tag == "a" else self.loaded
        found += [value or "" for name, value in attrs if name in ("src", "href", "data", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


def written(folder: Path, spec: RunSpec, made: Link) -> Loads:
    write_landing_page(folder / "j.html", spec, made)
    found = Loads()
    found.feed((folder / "j.html").read_text("utf-8"))
    return found


def test_the_page_loads_nothing_escapes_everything_and_shows_every_way_to_join(tmp_path: Path) -> None:
    wheel, made = own_wheel(), link("93.184.216.34:4433")
    assert wheel is not None
    spec = RunSpec(name="</h1><img src=x onerror=alert(1)>&").begin(ORGANISER, wheel.reference)
    found = written(tmp_path, spec, made)
    page = (tmp_path / "j.html").read_text("utf-8")
    assert found.loaded == []
    assert found.leads_to == ["j.ipynb", COLAB]
    assert "img" not in found.tags
    assert found.tags.count("script") == 1
    assert "default-src &#x27;none&#x27;" in page
    for way in ("Linux", "Linux, with an NVIDIA GPU", "macOS", "Windows, in WSL", "Windows, without WSL", "Docker"):
        assert re.search(f"<summary><strong>{way}", page), way
    assert found.text.count(f"minga join {made}") == 7  # once for those who have minga
    assert "as the organiser has signed it" in found.text
    assert RUN in found.text
    assert ORGANISER in found.text


def test_the_page_and_what_it_hands_out_lie_side_by_side(tmp_path: Path) -> None:
    """The commands name the place of the file, or the run's page; the page's script puts its own address in."""
    wheel, made = own_wheel(), link("93.184.216.34:4433")
    assert wheel is not None
    found = written(tmp_path, PUBLIC, made)
    assert f"minga[data] @ {tmp_path.as_uri()}/{wheel.reference}'" in found.text
    assert (tmp_path / wheel.name).read_bytes() == wheel.data
    assert str(made) in (tmp_path / "j.ipynb").read_text("utf-8")
    assert f'<span class="base">{tmp_path.as_uri()}/</span>' in (tmp_path / "j.html").read_text("utf-8")
    network = {"landing_url": "https://example.org/runs/j"}
    found = written(tmp_path / "paged", RunSpec.from_mapping({"name": "x", "network": network}), made)
    assert f"minga[data] @ https://example.org/runs/{wheel.reference}'" in found.text
    network = {"source_url": "git+https://example.org/minga@v1"}
    found = written(tmp_path / "elsewhere", RunSpec.from_mapping({"name": "x", "network": network}), made)
    assert "minga[data] @ git+https://example.org/minga@v1'" in found.text
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == ["j.html", "j.ipynb"]


def test_each_way_says_what_it_downloads_and_takes_no_gpu_build_unasked() -> None:
    ways = ways_to_join(Source("http://192.0.2.7/", "minga-1.whl#sha256=ab"), "minga join LINK")
    assert all(re.search("[0-9] [MG]B", way.note) for way in ways)
    for way in ways:
        installs = [line for line in way.commands if "minga[data]" in line]
        assert len(installs) == 1, way.title
        if "NVIDIA" not in way.title and way.title != "macOS":  # where pip's own choice is the one to take
            first = next(line for line in way.commands if "install torch" in line)
            assert "--index-url https://download.pytorch.org/whl/c" in first, way.title


def test_each_kind_of_run_is_joined_in_its_own_way() -> None:
    made = link("93.184.216.34:4433")
    split = RunSpec.from_mapping({"name": "x", "model": {"recipe": "split"}, "split": {"variant": "u-shaped"}})
    custom = RunSpec.from_mapping({"name": "x", "model": {"recipe": "custom"}})
    found = [JoinFacts.of(spec, made) for spec in (PUBLIC, split, custom)]
    assert [facts.command for facts in found] == [
        f"minga join {made}",
        f"minga join {made}",
        f"python PROGRAM.py {made}",
    ]
    assert [facts.notebook_link for facts in found] == [str(made), None, None]


def test_the_page_of_a_run_for_members_holds_no_link(tmp_path: Path) -> None:
    spec = RunSpec.from_mapping({"name": "x", "security": {"admission": "members"}})
    found = written(tmp_path, spec, link("93.184.216.34:4433"))
    page = (tmp_path / "j.html").read_text("utf-8")
    assert "minga1" not in page.replace("minga1[a-z2-7]", "").replace("/^minga1", "")
    assert "invitation" in found.text
    assert not list(tmp_path.glob("*.ipynb"))


def test_a_page_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(StorageError, match="folder"):
        write_landing_page(tmp_path / "folder", PUBLIC, link("127.0.0.1:1"))
