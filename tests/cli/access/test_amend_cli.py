"""Amending an open run by the command line, with real processes over the loopback interface."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.access.standing_orders import PAUSED, StandingOrders
from minga.cli.access import amend
from minga.cli.access.amend import parse_changes
from minga.cli.commands import AmendCommand
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger, PublicOrder, draft_amendment
from minga.identity.access.orders import MAX_AMENDMENTS, MAX_RANGES
from minga.identity.keys.keys import Identity
from minga.training.organiser import Organiser
from minga.training.record_kinds import Progress
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
            made = last_json(run("amend", link, "pause", *desk).stdout)
            assert (made["ok"], made["number"], made["told"], made["changes"]) == (True, 1, True, {"paused": "true"})
            guest.wait_for("run.paused", paused=True)
            status = last_json(run("status", link, *LOCAL, "--directory", str(tmp_path / "look"), "--json").stdout)
            assert (status["paused"], [each["number"] for each in status["amendments"]]) == (True, [1])
            assert status["samples_per_second"] == 0.0, "a peer's record still has its last speed"
            assert last_json(run("amend", link, "resume", *desk).stdout)["from_step"] == 0
            guest.wait_for("run.paused", paused=False)
            banned = last_json(run("ban", link, me, *desk).stdout)
            assert (banned["in_force"], banned["range"]) == (True, None)
            host.wait_for("access.ended", peer=me)
            assert not guest.summary()["ok"]
        examined = last_json(run("doctor", link, *LOCAL, *own(tmp_path, "guest"), "--json").stdout)
        assert (examined["ok"], examined["failed"]) == (False, "access")
        assert "barred this peer from the run" in examined["detail"]
        alone = last_json(run("amend", link, "resume", "--with-present", *desk).stdout)
        assert (alone["in_force"], len(alone["members"])) == (True, 1)
        assert host.wait_for("run.regrouped", present=True)["members"] == 1
        stopped = last_json(run("amend", link, "stop", *desk).stdout)
        assert stopped["ok"]


class Paused(Organiser):
    """A desk without a connection."""

    def step_ahead(self, seconds: float = 0.0) -> int:
        return 10


def desk_of(spec: RunSpec, kind: type[Organiser] = Paused) -> tuple[Organiser, AccessLedger]:
    key = Identity.generate()
    ledger = AccessLedger.of_spec(spec.run_id, spec, key.peer_id)
    files = cast(Any, SimpleNamespace(keep_orders=lambda _: None))
    return kind(cast(Any, None), spec, ledger, key, files, None), ledger


def test_an_amendment_is_checked_against_what_others_have_changed() -> None:
    auto = {"target_batch_size": "auto", "target_batch_size_min": 10, "target_batch_size_max": 1000}
    desk, ledger = desk_of(RunSpec.from_mapping({"name": "amended", "training": auto}))
    least = "training.target_batch_size_min"
    with pytest.raises(ConfigurationError, match="exceeds"):
        desk.amend({least: 2000}, 5)
    desk.put_in_force(desk.amend({"training.target_batch_size_max": 4000}, 5))
    assert desk.put_in_force(desk.amend({least: 2000}, 5))[1]
    with pytest.raises(ConfigurationError, match="exceeds"):
        desk.amend({least: 2000}, 4)  # before the other one
    with pytest.raises(ConfigurationError, match="exceeds"):
        desk.amend({"training.target_batch_size_max": 1000}, 6)
    assert len(list(ledger.amendments)) == 2


def test_an_order_that_no_ledger_takes_is_not_told_to_be_in_force() -> None:
    desk, ledger = desk_of(RunSpec(name="long"))
    rate = "optimizer.learning_rate"
    for _ in range(MAX_AMENDMENTS - 1):
        ledger.amendments.take(draft_amendment(ledger, {rate: 0.5}, 0, 1))
    with pytest.raises(ConfigurationError, match="no other could end the pause"):
        desk.amend({PAUSED: True}, 5)
    assert desk.put_in_force(desk.amend({PAUSED: False}, 0))[1]
    with pytest.raises(ConfigurationError, match="no peer would take this order: a run has at most 200 amendments"):
        desk.put_in_force(desk.amend({rate: 0.25}, 6))
    for i in range(MAX_RANGES):
        assert desk.bar_range(f"203.0.{i}.0/24", 600.0, "")[2]
    with pytest.raises(ConfigurationError, match="at most 100 ranges at a time"):
        desk.bar_range("198.51.100.0/24", 900.0, "")


class AtPeer(Organiser):
    """A desk at a peer that sees the run at step 30, and others at `steps`."""

    ahead = 33

    def __init__(self, spec: RunSpec, *steps: int, key: Identity | None = None) -> None:
        status = SimpleNamespace(step=30, peers=())
        told = [SimpleNamespace(payload=Progress(step, 0, 0.0, "training")) for step in (30, *steps)]
        session = SimpleNamespace(board=SimpleNamespace(items=lambda _: told), ledger=None)
        peer = SimpleNamespace(status=lambda: status, on_loop=lambda function: function(), session=session)
        files = cast(Any, SimpleNamespace(keep_orders=lambda _: None))
        key, organisers = key or Identity.generate(), spec.security.organisers
        ledger = AccessLedger.of_spec(spec.run_id, spec, organisers[0] if organisers else key.peer_id)
        super().__init__(cast(Any, None), spec, ledger, key, files, cast(Any, peer))

    def hear(self) -> None:
        pass

    def step_ahead(self, seconds: float = 0.0) -> int:
        return self.ahead

    def _issue(self, order: PublicOrder) -> None:
        self.ledger.take(order)


def told_by(
    desk: Organiser, monkeypatch: pytest.MonkeyPatch, *changes: str, **options: Any
) -> tuple[list[str], dict[str, object]]:
    """What `minga amend` says at this desk, and its summary."""
    monkeypatch.setattr(AmendCommand, "desk", lambda *_: contextlib.nullcontext(desk))
    lines, last = list[str](), dict[str, object]()
    context = cast(Any, SimpleNamespace(output=SimpleNamespace(say=lines.append, summary=last.update)))
    amend.run_amend(AmendCommand(link="", changes=changes, **options), context)
    return lines, last


RATE = "optimizer.learning_rate=0.1"
PLAIN = RunSpec.from_mapping({"name": "plain"})


@pytest.mark.parametrize("options", [{}, {"at_step": 40}])
def test_a_run_that_is_complete_takes_no_order(options: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    ending = RunSpec.from_mapping({"name": "short", "training": {"stop_after_steps": 30}})
    desk = AtPeer(ending)
    for change in (RATE, "pause", "stop") if options else (RATE, "pause", "stop", "resume"):
        with pytest.raises(ConfigurationError, match=r"its last step, 30\. Nothing is left to amend"):
            told_by(desk, monkeypatch, change, **options)
    assert not list(desk.ledger.amendments)


def test_a_stop_is_at_no_step_that_is_past_before_all_hear_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = AtPeer(PLAIN)
    with pytest.raises(ConfigurationError, match="name step 33 or a later one"):
        told_by(desk, monkeypatch, "stop", at_step=32)
    with pytest.raises(ConfigurationError, match="name step 33 or a later one"):
        told_by(desk, monkeypatch, "training.stop_after_steps=32", at_step=0)
    assert not list(desk.ledger.amendments)
    assert told_by(desk, monkeypatch, "stop", at_step=33)[1]["in_force"]


def test_a_stop_that_waited_too_long_for_signatures_is_not_put_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members would have had two last steps."""
    one, two = Identity.from_seed(bytes(32)), Identity.from_seed(b"\1" * 32)
    both = {"organisers": [one.peer_id, two.peer_id], "organisers_needed": 2}
    spec = RunSpec.from_mapping({"name": "both", "security": both})
    first, second = AtPeer(spec, key=one), AtPeer(spec, key=two)
    with pytest.raises(ConfigurationError, match="--at-step"):
        told_by(first, monkeypatch, "stop", order=tmp_path / "soon")
    for last in (35, 36):
        assert not told_by(first, monkeypatch, "stop", at_step=last, order=tmp_path / str(last))[1]["in_force"]
    second.ahead = 36
    with pytest.raises(ConfigurationError, match="name step 36 or a later one"):
        told_by(second, monkeypatch, order=tmp_path / "35")
    assert told_by(second, monkeypatch, order=tmp_path / "36")[1]["in_force"]
    assert [dict(each.changes)["training.stop_after_steps"] for each in second.ledger.amendments] == ["36"]


def test_one_member_that_claims_a_later_step_keeps_no_order_from_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ending = RunSpec.from_mapping({"name": "long", "training": {"stop_after_steps": 1000}})
    desk = AtPeer(ending, 31, 10**6)
    assert told_by(desk, monkeypatch, "pause")[1]["in_force"] is not None


def test_an_order_that_nobody_hears_is_kept_and_says_how_to_withdraw_it(monkeypatch: pytest.MonkeyPatch) -> None:
    desk, ledger = desk_of(PLAIN)
    (line,), last = told_by(desk, monkeypatch, "pause")
    assert "takes effect when you start the host again" in line
    assert "`minga amend LINK resume` withdraws a pause" in line
    assert last["told"] is False
    orders = StandingOrders(PLAIN, ledger)
    assert orders.is_paused(10)
    told_by(desk, monkeypatch, "resume")
    assert not orders.is_paused(10)


def test_changes_are_read_as_toml_or_as_words() -> None:
    found = parse_changes(["training.target_batch_size=512", "optimizer.max_grad_norm = off", "paused=true"])
    assert found == {"training.target_batch_size": 512, "optimizer.max_grad_norm": "off", "paused": True}
    with pytest.raises(ConfigurationError, match="KEY=VALUE"):
        parse_changes(["training.target_batch_size"])


def test_a_stop_ends_a_pause_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paused run comes to no later step at which the pause could end."""
    spec = RunSpec.from_mapping({"name": "paused"})

    class Desk(Organiser):
        def step_ahead(self, seconds: float = 0.0) -> int:
            return 7 if not self.ledger.amendments.due(10) else 10

    desk, ledger = desk_of(spec, Desk)
    orders = StandingOrders(spec, ledger)
    told_by(desk, monkeypatch, "pause")
    assert orders.is_paused(7)
    told_by(desk, monkeypatch, "stop")
    assert not orders.is_paused(7)
    assert orders.spec(orders.due(9), 9).training.stop_after_steps == 10


def test_another_strategy_has_to_go_with_the_rest_of_the_run_and_with_what_peers_have_installed() -> None:
    spec = RunSpec.from_mapping({"name": "x", "averaging": {"codec": "topk(k=41)"}, "optimizer": {"name": "adamw"}})
    desk, ledger = desk_of(spec, Organiser)
    order = desk.amend({"training.strategy": "delayed", "training.target_batch_size": 512}, 20)
    assert ledger.amendments.take(order)
    orders = StandingOrders(spec, ledger)
    assert orders.due(18) == ()
    assert orders.spec(orders.due(19), 19).at(20).training.strategy == "delayed", "in the plan of the round before"
    for changes, said in (
        ({"training.strategy": "leader"}, "leader"),
        ({"training.strategy": "demo"}, "demo"),
        ({"training.strategy": "nothing"}, "nothing"),
        ({"training.strategy": "delayed", "optimizer.learning_rate": 0.1}, "one after the other"),
        ({"training.strategy_changes": []}, "amend training.strategy"),
        ({"training.strategy": "local", "strategy.local.outer_learning_rate": 0.4}, "strategy_changes, if need be"),
        ({"strategy.local": {"overlap": True}}, "tables of the run spec"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            desk.amend(changes, 30)


def test_an_amendment_takes_the_settings_of_a_strategy_that_is_planned_for_a_step_that_never_comes() -> None:
    training = {"strategy_changes": [{"from_step": 1_000_000, "strategy": "local"}]}
    table = {"local": {"outer_learning_rate": 0.4}}
    spec = RunSpec.from_mapping({"name": "x", "training": training, "strategy": table})
    desk, ledger = desk_of(spec, Organiser)
    assert ledger.amendments.take(desk.amend({"training.strategy": "local"}, 20))
    orders = StandingOrders(spec, ledger)
    changed = orders.spec(orders.due(20), 20).at(20)
    assert (changed.training.strategy, changed.strategy) == ("local", table)


NORM, STRATEGY = "optimizer.max_grad_norm", "training.strategy"


def foreseeing() -> RunSpec:
    """A run whose peers were told from the beginning that demo may take over."""
    training = {"strategy_changes": [{"from_step": 1_000_000, "strategy": "demo"}]}
    return RunSpec.from_mapping({"name": "foreseen", "model": {"recipe": "custom"}, "training": training})


def signed(desk: Organiser, changes: dict[str, Any], step: int) -> None:
    desk.put_in_force(desk.amend(changes, step))


def obeyed(desk: Organiser, spec: RunSpec, step: int) -> dict[str, Any]:
    """What peers with the desk's orders go by in the round of `step`."""
    orders = StandingOrders(spec, desk.ledger)
    return orders.changes(orders.due(step), step)


def test_the_desk_signs_no_strategy_that_peers_would_drop_for_the_clipping_that_is_in_force() -> None:
    spec = foreseeing()
    desk, _ = desk_of(spec)
    signed(desk, {NORM: 0.5}, 5)
    with pytest.raises(ConfigurationError, match=r'leave optimizer\.max_grad_norm "off"'):
        desk.amend({STRATEGY: "demo"}, 20)
    signed(desk, {NORM: "off"}, 20)
    with pytest.raises(ConfigurationError, match="leave"):
        desk.amend({STRATEGY: "demo"}, 20)  # the plan of round 19 says so already, and that round still clips
    signed(desk, {STRATEGY: "demo"}, 21)
    with pytest.raises(ConfigurationError, match="leave"):
        desk.amend({NORM: 0.5}, 10)  # it would hold from 20 on, too
    assert [obeyed(desk, spec, step) for step in (5, 20)] == [{NORM: 0.5}, {NORM: "off", STRATEGY: "demo"}]


def test_the_desk_does_not_complete_an_order_that_peers_would_drop_by_now() -> None:
    optimizer = {"name": "sgd", "momentum": 0.0, "max_grad_norm": "off"}
    spec = RunSpec.from_mapping({"name": "plain", "optimizer": optimizer, "averaging": {"codec": "int8"}})
    desk, _ = desk_of(spec)
    begun = desk.amend({STRATEGY: "demo"}, 20)
    signed(desk, {NORM: 0.5}, 5)
    with pytest.raises(ConfigurationError, match=r'leave optimizer\.max_grad_norm "off"'):
        desk.put_in_force(begun)
    assert obeyed(desk, spec, 20) == {NORM: 0.5}


def test_a_strategy_that_was_foreseen_can_take_over_after_another_one() -> None:
    spec = foreseeing()
    desk, _ = desk_of(spec)
    signed(desk, {STRATEGY: "delayed"}, 5)
    signed(desk, {STRATEGY: "demo"}, 10)
    assert [obeyed(desk, spec, step) for step in (4, 9)] == [{STRATEGY: "delayed"}, {STRATEGY: "demo"}]


def test_clipping_can_change_while_a_strategy_that_has_none_is_only_foreseen() -> None:
    spec = foreseeing()
    desk, _ = desk_of(spec)
    signed(desk, {NORM: 0.5}, 5)
    signed(desk, {NORM: 0.25}, 10)
    assert [obeyed(desk, spec, step) for step in (5, 10)] == [{NORM: 0.5}, {NORM: 0.25}]
    with pytest.raises(ConfigurationError, match="leave"):
        desk.amend({NORM: 0.5}, 1_000_000)


def test_the_desk_signs_nothing_for_which_peers_would_drop_a_later_order() -> None:
    spec = foreseeing()
    desk, _ = desk_of(spec)
    signed(desk, {NORM: 0.5}, 100)
    with pytest.raises(ConfigurationError, match="leave"):
        desk.amend({STRATEGY: "demo"}, 50)
    signed(desk, {STRATEGY: "delayed"}, 50)
    assert obeyed(desk, spec, 100) == {NORM: 0.5, STRATEGY: "delayed"}


def test_a_value_that_no_setting_has_is_refused_in_words() -> None:
    desk, _ = desk_of(PLAIN)
    with pytest.raises(ConfigurationError, match="no setting has such a value"):
        desk.amend(parse_changes(["optimizer.learning_rate=2024-01-01"]), 5)
