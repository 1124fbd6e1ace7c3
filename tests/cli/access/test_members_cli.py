"""Runs for members by the command line, with real processes over the loopback interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.access import members
from minga.cli.commands import BanCommand
from minga.core.errors import ConfigurationError
from minga.core.files import keep
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.identity.keys.keys import Identity
from minga.identity.links.links import EntryPoint, Link
from minga.keeping.rejoin import KnownAddresses
from minga.network.interface import PeerId
from minga.training.organiser import MemberView, Organiser
from tests.worlds.cli_run import LOCAL, SPEC, Running, last_json, run

WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


def own(folder: Path, name: str) -> tuple[str, ...]:
    """Key and folder of one person."""
    return ("--identity", str(folder / f"{name}.json"), "--directory", str(folder / name))


@pytest.mark.timeout(150)
def test_admit_join_ban(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SPEC + '[security]\nadmission = "members"\n')
    with Running("host", str(path), *WORK, *own(tmp_path, "host")) as host:
        link = host.wait_for("link")["link"]
        refused = run("join", link, *WORK, *own(tmp_path, "stranger"), "--json")
        assert refused.returncode == 3
        assert "for members only" in last_json(refused.stdout)["message"]
        examined = run("doctor", link, *LOCAL)
        assert examined.returncode == 0, "the way works, and the doctor's own key need not be a member's"
        assert "This machine is not admitted" in examined.stdout
        assert "Everything that was checked works." not in examined.stdout
        made = run("admit", link, *LOCAL, *own(tmp_path, "host"), "--valid", "1h", "--json")
        assert made.returncode == 0, made.stderr
        invitation = last_json(made.stdout)["link"]
        assert Link.parse(invitation).access is not None
        with Running("join", invitation, *WORK, *own(tmp_path, "guest")) as guest:
            me = guest.wait_for("joined")["peer"]
            guest.wait_for("step.applied")
            used = run("join", invitation, *WORK, *own(tmp_path, "stranger"), "--json")
            assert "used up" in last_json(used.stdout)["message"]
            listed = last_json(run("members", link, *LOCAL, *own(tmp_path, "host"), "--json").stdout)
            assert {view["peer"] for view in listed["members"]} == {me, listed["organisers"][0]}
            banned = run("ban", link, me[:10], *LOCAL, *own(tmp_path, "host"), "--reason", "a test", "--json")
            assert (last_json(banned.stdout)["in_force"], last_json(banned.stdout)["key"]) == (True, me)
            host.wait_for("access.ended", peer=me)
            last = guest.summary()
            assert (last["ok"], "a test" in last["message"]) == (False, True)
        again = run("join", link, *WORK, *own(tmp_path, "guest"), "--json")
        assert "a test" in last_json(again.stdout)["message"]


def desk_of_members() -> Organiser:
    """A desk without a connection."""
    spec, key = RunSpec.from_mapping({"name": "x", "security": {"admission": "members"}}), Identity.generate()
    link = Link(spec.run_id, key.peer_id, (EntryPoint(key.peer_id, ("127.0.0.1:9",)),))
    ledger = AccessLedger.of_spec(spec.run_id, spec, key.peer_id)
    files = cast(Any, SimpleNamespace(keep_orders=lambda _: None))
    return Organiser(link, spec, ledger, key, files, None)


def test_a_ban_takes_the_digits_that_displays_show_of_peers_and_of_invitations(monkeypatch: pytest.MonkeyPatch) -> None:
    peer, invitation = "ab" * 32, "cd" * 32
    monkeypatch.setattr(Organiser, "members", lambda _: [MemberView(peer, "trainer", None, invitation, False)])
    desk = desk_of_members()
    assert [desk.whole_id(each[:10]) for each in (peer, invitation)] == [peer, invitation]
    with pytest.raises(ConfigurationError, match="no id that is known here begins with 0123456789"):
        desk.whole_id("0123456789")


def test_a_peer_that_has_left_is_banned_by_the_digits_that_displays_showed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that pauses, say: nobody sees it any more, and the host's folder knows where it was."""
    peer, desk = "ab" * 32, desk_of_members()
    link = Link("cd" * 32, peer, (EntryPoint(peer, ("127.0.0.1:9",)),))
    (run := tmp_path / link.run_id[:16]).mkdir()
    keep(run / f"places-{'ef' * 8}.msgpack", KnownAddresses(peers=(PeerId(peer),)))
    monkeypatch.setattr(Organiser, "members", lambda _: [])
    monkeypatch.setattr(BanCommand, "desk", lambda *_: contextlib.nullcontext(desk))
    output = SimpleNamespace(say=lambda _: None, summary=lambda **_: None)
    ban = BanCommand(link=str(link), who=peer[:10], directory=tmp_path)
    members.run_ban(ban, cast(Any, SimpleNamespace(output=output)))
    assert list(desk.ledger.barred()) == [peer]


def test_a_ban_of_what_is_neither_says_what_it_takes() -> None:
    with pytest.raises(ConfigurationError, match=r"'nobody' is no peer id, which has 64 digits .* and no invitation"):
        members.run_ban(BanCommand(link="LINK", who="nobody"), cast(Any, SimpleNamespace(output=None)))


@pytest.mark.parametrize(("guests", "says_so"), [(1, False), (2, True), (3, True)])
def test_a_ban_of_half_of_the_members_says_how_the_others_go_on(
    guests: int, says_so: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are gone at once, and what is left is no quorum; peers that look on are no members."""
    invitation, desk, lines = "cd" * 32, desk_of_members(), list[str]()
    present = [MemberView(f"{i:064x}", "trainer", None, invitation if i < guests else None, False) for i in range(4)]
    watching = [MemberView(f"{i:064x}", "monitor", None, None, False) for i in range(4, 9)]
    monkeypatch.setattr(Organiser, "members", lambda _: present + watching)
    monkeypatch.setattr(BanCommand, "desk", lambda *_: contextlib.nullcontext(desk))
    output = SimpleNamespace(say=lines.append, summary=lambda **_: None)
    members.run_ban(BanCommand(link="LINK", who=invitation), cast(Any, SimpleNamespace(output=output)))
    assert (members.BARS_MOST in lines) is says_so
    assert "minga amend LINK resume --with-present" in members.BARS_MOST


@pytest.mark.parametrize(
    ("uses", "said"),
    [
        (1, ("This link admits the first peer that joins with it until ", "Its access ends at that time, too.")),
        (5, ("This link admits the first 5 peers that join with it until ", "Their access ends at that time, too.")),
    ],
)
def test_an_invitation_is_told_by_how_many_may_come(uses: int, said: tuple[str, str]) -> None:
    desk, lines = desk_of_members(), list[str]()
    output = SimpleNamespace(say=lines.append, say_whole=lambda _: None, summary=lambda **_: None)
    members._show_link(desk.invite(uses, 3600.0), desk, cast(Any, SimpleNamespace(output=output)))
    assert all(words in "\n".join(lines) for words in said)
