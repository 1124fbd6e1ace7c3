"""The run specs on the page about strategies are run specs, and runs can have them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.planner.auto_choice import with_chosen_strategy
from minga.planner.model_facts import ModelFacts
from minga.training.plugins_of_run import with_origins

TEXT = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text("utf-8")
PRESETS = dict(re.findall(r"^```toml (\S+)\n((?:.*\n)*?)```$", TEXT, re.MULTILINE))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_hosted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = ModelFacts("18M", (18_000_000,), 1e12, 512, None, "as given")  # to count a model takes a second
    monkeypatch.setattr("minga.planner.auto_choice.facts_of_recipe", lambda *_: facts)
    chosen, _ = with_chosen_strategy(RunSpec.from_toml(PRESETS[name]))
    spec = with_origins(chosen)
    for strategy, table in tomllib.loads(PRESETS[name]).get("strategy", {}).items():
        warm_start = {"synchronous_for", "synchronous_batch"}  # which are changes of strategy in the spec
        assert spec.strategy[strategy].items() >= {k: v for k, v in table.items() if k not in warm_start}.items()


@pytest.mark.parametrize("strategy", ["local", "elastic", "leader"])
def test_the_page_names_every_setting_of_a_strategy_with_its_default(strategy: str) -> None:
    table = re.split(r"^##+ ", TEXT.partition(f"\n## {strategy}\n")[2], maxsplit=1, flags=re.MULTILINE)[0]
    found = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+)`? \|", table, re.MULTILINE))
    settings = StrategyChoice(strategy).settings.model_dump(mode="json")
    assert found.keys() == settings.keys()
    for name, value in settings.items():
        said = found[name].strip('" ')
        assert said in (str(value).lower(), f"{value}".removesuffix(".0")) or value is None


def test_the_page_compares_every_strategy_of_minga_that_it_tells_of() -> None:
    named = re.findall(r"^\| `(\w+)` \| (?:it|the)", TEXT, re.MULTILINE)
    assert {"synchronous", "delayed", "local"} <= set(named) <= set(STRATEGIES.names())
