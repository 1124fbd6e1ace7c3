"""Amending an open run by the command line, with real processes over the loopback interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.access import amend
from minga.cli.access.amend import parse_changes
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.identity.keys.keys import Identity
from minga.training.access.standing_orders import StandingOrders
from minga.training.organiser import Organiser
from tests.cli.access.test_members_cli import WORK, own
from tests.worlds.cli_run import LOCAL, SPEC, Running, last_json, run


@pytest.mark.timeout(150)
def test_amend_pause_resume_ban_and_stop_an_open_run(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    desk = (*LOCAL, *own(tmp_path, "host"), "--json")
    with Running("host", str(path), *WORK, *own(tmp_path, "host")) as host:
        link = host.wait_for("link")["link"]
        with Running("join", link, *WORK, *own(tmp_path, "guest")) as guest:
            me = guest.wait_for("joined")["peer"]
            guest.wait_for("step.applied")
            refused = run("amend", link, "network.relay=none", *desk)
            assert "network.relay cannot change" in last_json(refused.stdout)["message"]
            made = last_json(run("amend", link, "optimizer.learning_rate=0.01", "--at-step", "2", *desk).stdout)
            assert (made["ok"], made["number"], made["told"]) == (True, 1, True)
            assert guest.wait_for("run.amended")["changes"] == "optimizer.learning_rate = 0.01"
            assert last_json(run("pause", link, *desk).stdout)["changes"] == {"paused": "true"}
            guest.wait_for("run.paused", paused=True)
            status = last_json(run("status", link, *LOCAL, "--directory", str(tmp_path / "look"), "--json").stdout)
            assert (status["paused"], [each["number"] for each in status["amendments"]]) == (True, [1, 2])
            assert last_json(run("resume", link, *desk).stdout)["from_step"] == 0
            guest.wait_for("run.paused", paused=False)
            banned = last_json(run("ban", link, me, *desk).stdout)
            assert (banned["in_force"], banned["range"]) == (True, None)
            host.wait_for("access.ended", peer=me)
            assert not guest.summary()["ok"]
        examined = last_json(run("doctor", link, *LOCAL, *own(tmp_path, "guest"), "--json").stdout)
        assert (examined["ok"], examined["failed"]) == (False, "access")
        assert "barred this peer from the run" in examined["detail"]
        alone = last_json(run("resume", link, "--with-present", *desk).stdout)
        assert (alone["in_force"], len(alone["members"])) == (True, 1)
        assert host.wait_for("run.regrouped", present=True)["members"] == 1
        assert last_json(run("stop", link, *desk).stdout)["ok"]


def test_changes_are_read_as_toml_or_as_words() -> None:
    found = parse_changes(["training.target_batch_size=512", "optimizer.max_grad_norm = off", "paused=true"])
    assert found == {"training.target_batch_size": 512, "optimizer.max_grad_norm": "off", "paused": True}
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        parse_changes(["training.target_batch_size"])


def test_a_stop_ends_a_pause_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused run comes to no later step at which the pause could end."""
    key, spec = Identity.generate(), RunSpec.from_mapping({"name": "paused"})
    ledger = AccessLedger.of_spec(spec.run_id, spec, key.peer_id)

    class Desk(Organiser):
        def step_ahead(self, seconds: float = 0.0) -> int:
            return 7 if not ledger.amendments.due(10) else 10

    desk = Desk(cast(Any, None), spec, ledger, key, cast(Any, SimpleNamespace(keep_orders=lambda _: None)), None)
    monkeypatch.setattr(amend, "_enter", lambda *_: contextlib.nullcontext(desk))
    context = cast(Any, SimpleNamespace(output=SimpleNamespace(say=lambda _: None, summary=lambda **_: None)))
    options, orders = amend.AmendOptions(), StandingOrders(spec, ledger)
    amend.run_pause("", options, cast(Any, None), context)
    assert orders.is_paused(7)
    amend.run_stop("", options, cast(Any, None), context)
    assert not orders.is_paused(7)
    assert orders.spec(orders.due(9)).training.stop_after_steps == 10
