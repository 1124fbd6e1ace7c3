"""The run specs on the page about strategies are run specs, and runs can have them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.training.plugins_of_run import with_origins

TEXT = (Path(__file__).parents[3] / "docs" / "strategies.md").read_text("utf-8")
PRESETS = dict(re.findall(r"^```toml (\S+)\n((?:.*\n)*?)```$", TEXT, re.MULTILINE))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_can_be_hosted(name: str) -> None:
    spec = with_origins(RunSpec.from_toml(PRESETS[name]))
    table = tomllib.loads(PRESETS[name])["strategy"][spec.training.strategy]
    assert spec.strategy[spec.training.strategy].items() >= table.items()


def test_the_page_names_every_setting_of_local_with_its_default() -> None:
    table = TEXT.partition("## local")[2].partition("### Go on")[0]
    found = dict(re.findall(r"^\| `(\w+)` \| `?([^`|]+)`? \|", table, re.MULTILINE))
    settings = StrategyChoice("local").settings.model_dump(mode="json")
    assert found.keys() == settings.keys()
    for name, value in settings.items():
        assert found[name].strip('" ') in (str(value).lower(), f"{value}".removesuffix(".0"))


def test_the_page_compares_every_strategy_of_minga_that_it_tells_of() -> None:
    named = re.findall(r"^\| `(\w+)` \| (?:it|the)", TEXT, re.MULTILINE)
    assert {"synchronous", "delayed", "local"} <= set(named) <= set(STRATEGIES.names())
