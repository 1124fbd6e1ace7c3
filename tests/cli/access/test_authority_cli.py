"""The authority by the command line over the loopback interface: processes for what goes on while others come."""

from __future__ import annotations

import json
from html import unescape
from pathlib import Path
from urllib.request import urlopen

import pytest

from minga.authority.app import AuthorityServer
from minga.core.wheel import own_wheel
from minga.identity.links.links import Link
from tests.worlds.authority_tools import CODES, invitation_link, people
from tests.worlds.cli_run import LOCAL, SPEC, Running, call, last_json

WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


def own(folder: Path, name: str) -> tuple[str, ...]:
    """Key and folder of one person."""
    return ("--identity", str(folder / f"{name}.json"), "--directory", str(folder / name))


@pytest.mark.timeout(150)
def test_log_in_train_and_be_taken_off_the_list(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec, allow, code = tmp_path / "run.toml", tmp_path / "allow.toml", tmp_path / "code"
    spec.write_text(SPEC + '[security]\nadmission = "members"\n')
    allow.write_text(people("alice"))
    code.write_text(CODES["alice"] + "\n")
    with Running("host", str(spec), *WORK, *own(tmp_path, "host")) as host:
        link = host.wait_for("link")["link"]
        power = (*LOCAL, *own(tmp_path, "host"))
        assert call("admit", link, *power, "--uses", "50", "--json") == 0
        invitation = last_json(capfd.readouterr().out)["link"]
        with Running("authority", invitation, "--allow", str(allow), "--listen", "127.0.0.1:0") as authority:
            told = authority.wait_for("authority")
            public = told["link"]
            assert Link.parse(public).access is None
            gives_newcomers_a_page_and_minga(told["url"], public)
            wrong = ("--login", "bob", "--secret", str(code))
            assert call("join", public, *WORK, *own(tmp_path, "guest"), *wrong, "--json") == 3
            assert "code is wrong" in last_json(capfd.readouterr().out)["message"]
            login = ("--login", "alice", "--secret", str(code))
            with Running("join", public, *WORK, *own(tmp_path, "guest"), *login) as guest:
                assert guest.wait_for("login")["name"] == "alice"
                me = guest.wait_for("joined")["peer"]
                assert authority.wait_for("authority.issued")["peer"] == me
                guest.wait_for("step.applied")
                assert call("members", link, *power, "--json") == 0
                listed = last_json(capfd.readouterr().out)
                assert {"alice"} == {view["name"] for view in listed["members"] if view["peer"] == me}
                assert call("ban", link, me, *power, "--json") == 0
                capfd.readouterr()
                assert "access to the run has ended" in guest.summary()["message"]
        roster = json.loads((tmp_path / "allow.roster.json").read_text())
        assert {seat["name"] for seat in roster["seats"].values()} == {"alice"}


def gives_newcomers_a_page_and_minga(url: str, link: str) -> None:
    wheel = own_wheel()
    assert wheel is not None
    with urlopen(url) as answer:
        page = unescape(answer.read().decode())
    assert f"minga[data] @ {url}/{wheel.reference}" in page
    assert f"minga join {link}" in page
    with urlopen(f"{url}/{wheel.name}") as answer:
        assert answer.read() == wheel.data


def test_the_operator_is_told_once_that_the_invitation_admits_nobody(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(AuthorityServer):
        async def run(self) -> None:
            for code, why in (("login", "a"), ("invitation", "it is used up"), ("invitation", "it is used up")):
                self._tell("authority.refused", address="192.0.2.1", code=code, why=why)

    monkeypatch.setattr("minga.authority.app.AuthorityServer", Refusing)
    (tmp_path / "allow.toml").write_text(people("alice"))
    at = ("--listen", "127.0.0.1:0")
    assert call("authority", str(invitation_link()), "--allow", str(tmp_path / "allow.toml"), *at) == 0
    written = "".join(capfd.readouterr())
    assert (written.count("refused"), written.count("refused: it is used up.")) == (1, 1)


def test_new_codes_and_mistakes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert call("authority", "--new-code", "alice", "--json") == 0
    (tmp_path / "allow.toml").write_text(last_json(capfd.readouterr().out)["lines"])
    assert call("authority", "--json") == 2
    capfd.readouterr()
    assert call("authority", "minga1abc", "--allow", str(tmp_path / "allow.toml"), "--json") == 2
    assert last_json(capfd.readouterr().out)["error"] == "LinkError"
