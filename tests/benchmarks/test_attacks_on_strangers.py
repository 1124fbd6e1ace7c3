"""Runs of real processes in which one of four lies: what they train, how they are judged, and short ones of them."""

from __future__ import annotations

import queue
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks._attack_real import RECIPES, RealTold, _listen, run_real
from benchmarks.attacks import judge_real, real_extent
from minga import RunSpec
from minga.recipes import load_recipe

BANS = {"p3": (18, "WRONG_GRADIENT")}
HONEST = ("p0", "p1", "p2")


def told(figure: float, bans: dict[str, tuple[int, str]]) -> RealTold:
    return RealTold(
        bans=dict.fromkeys(HONEST, bans),
        ends=dict.fromkeys(HONEST, (60, "digest", HONEST)),
        figures={0: 0.5, 60: figure},
    )


@pytest.mark.parametrize("recipe", RECIPES)
def test_each_recipe_can_be_trained_among_strangers(recipe: str) -> None:
    extent = real_extent(recipe)
    spec = RunSpec.from_toml(extent.spec)
    assert load_recipe(spec).context.is_public
    assert (spec.security.founders, spec.training.stop_after_steps) == (extent.peers, extent.steps)


def test_an_attack_has_failed_if_the_liar_alone_is_banned_and_the_run_has_learned_nearly_as_much() -> None:
    extent, clean = real_extent("swav"), told(0.7, {})
    judged = judge_real(told(0.61, BANS), clean, extent)
    assert judged["ok"]
    assert (judged["attackers_banned"], judged["honest_banned"], judged["steps_to_ban_all"]) == (1, 0, 4)
    assert judged["kept"] == pytest.approx(0.55)
    assert not judge_real(told(0.59, BANS), clean, extent)["ok"], "it lost too much"
    assert not judge_real(told(0.7, {}), clean, extent)["ok"], "nobody was banned"
    assert not judge_real(told(0.7, {**BANS, "p1": (20, "SILENT")}), clean, extent)["ok"], "an honest one was banned"


def test_states_that_differ_are_told_apart_from_lists_that_differ() -> None:
    extent, clean, states, lists = real_extent("swav"), told(0.7, {}), told(0.7, BANS), told(0.7, BANS)
    states.ends["p1"] = (60, "another digest", HONEST)
    lists.bans["p0"] = {}
    for apart, equal in ((states, (False, True)), (lists, (True, False))):
        judged = judge_real(apart, clean, extent)
        assert (judged["equal_states"], judged["equal_lists"], judged["ok"]) == (*equal, False)


def test_who_was_away_when_the_liar_was_banned_knows_of_it_from_the_list_of_members() -> None:
    """And that it was away is told with the result."""
    heard: queue.Queue[Any] = queue.Queue()
    away = {"event": "secure.member_away", "fields": {"step": 17, "peer": "id of p0"}}
    out_of_sync = {"event": "member.out_of_sync", "fields": {"step": 17, "why": "this peer was away for too long"}}
    end = {
        "event": "finished",
        "step": 60,
        "digest": "digest",
        "members": [f"id of {name}" for name in HONEST],
        "bans": {"id of p3": [18, "WRONG_GRADIENT"]},
    }
    for name in HONEST:
        for message in (away, out_of_sync, end) if name == "p0" else (away, end):
            heard.put((SimpleNamespace(name=name), message))
    found = _listen(heard, {f"id of {name}": name for name in (*HONEST, "p3")}, list(HONEST))
    found.figures |= {0: 0.5, 60: 0.7}
    judged = judge_real(found, told(0.7, {}), real_extent("swav"))
    assert (judged["attackers_banned"], judged["honest_banned"], judged["ok"]) == (1, 0, True)
    assert judged["away"] == {"p0": {17: "this peer was away for too long"}}


def test_a_loss_that_rose_by_more_than_two_per_cent_is_an_attack_that_succeeded() -> None:
    extent = replace(real_extent("albert"), hostile=1)
    assert judge_real(told(0.407, BANS), told(0.4, {}), extent)["ok"]
    assert not judge_real(told(0.409, BANS), told(0.4, {}), extent)["ok"]


@pytest.mark.soak
@pytest.mark.parametrize("recipe", ["swav", "text-to-image", "fine-tune"])
def test_real_processes_ban_the_one_that_lies_and_go_on(recipe: str) -> None:
    extent = replace(real_extent(recipe), steps=20, attack_from=5, evaluate_every=20)
    found = run_real(extent, RECIPES[recipe].attack)
    assert set(found.bans) == set(HONEST)
    assert all(list(bans) == ["p3"] for bans in found.bans.values())
    assert len(set(found.ends.values())) == 1
    assert found.ends["p0"][0] == 20
    assert found.ends["p0"][2] == HONEST
