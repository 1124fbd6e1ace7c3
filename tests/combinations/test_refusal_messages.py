"""Each refusal and each caution: the rule, the settings that its message names, and what to set instead."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from documentation.combinations import Settings, run_with
from minga.averaging.codecs.registry import CODECS
from minga.averaging.quantizers.int8 import BlockwiseInt8Codec
from minga.averaging.sketches.interface import SKETCHES
from minga.averaging.strategy_choice import STRATEGIES, StrategyFacts
from minga.combinations import (
    CAUTIONS,
    REFUSALS,
    cautions,
    check_combinations,
    nearest_allowed,
    refusals,
    with_changes,
)
from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, whole
from minga.core.spec.run_spec import RunSpec
from minga.training.plugins_of_run import check_plugins
from minga.training.strategy.synchronous import Synchronous
from tests.worlds import loudest_codec, sketches

SECURE = {"security.verification": "byzantine"}
OWN = {"training.strategy": "own"}
LOUDEST = {"averaging.codec": "loudest", "averaging.download_codec": "float16"}
SKETCHED = {"averaging.sketch": "block_means"}
DOWN, DECAY = {"averaging.download_codec": "float16"}, {"averaging.residual_decay": 0.95}
PARAMETERS, MOVEMENTS, BEST = {"payload": "parameters"}, {"payload": "pseudo-gradient"}, {"contributors": "best"}
SYNCHRONOUS, NO_MEANS = {"training.strategy": "synchronous"}, {"averaging.average_parameters_every": 0}
NO_CHANGES = {"training.strategy_changes": None}


def later(strategy: str) -> Settings:
    """Another strategy from a step on."""
    return {"training.strategy_changes": [{"from_step": 9, "strategy": strategy}]}


class GivingBack(BlockwiseInt8Codec):
    """Means that leave something out, which senders take back."""

    name, returns = "giving_back", True


Facts = dict[str, Any]
CASES: tuple[tuple[str, Settings, Settings, Facts], ...] = (
    ("R2", {**SECURE, "averaging.codec": "loudest"}, {"averaging.codec": "float16"}, {}),
    ("R2", {**SECURE, "averaging.codec": "int8(rounding=stochastic)"}, {"averaging.codec": "float16"}, {}),
    ("R2", {**SECURE, **SKETCHED}, {"averaging.sketch": "identity"}, {}),
    ("R3", {**SECURE, "training.strategy": "delayed"}, SYNCHRONOUS, {}),
    ("R4", {**SECURE, **OWN}, SYNCHRONOUS, MOVEMENTS),
    ("R4", {**SECURE, **OWN}, SYNCHRONOUS, {}),
    ("R5", {**SECURE, **OWN}, SYNCHRONOUS, BEST),
    ("R6", {**OWN, "averaging.average_parameters_every": 4}, NO_MEANS, MOVEMENTS),
    ("R7", {**OWN, **LOUDEST}, {"averaging.codec": "float16"}, PARAMETERS),
    ("R7", {**OWN, **SKETCHED}, {"averaging.sketch": "identity"}, PARAMETERS),
    ("R7", {**OWN, **LOUDEST}, {"averaging.codec": "float16"}, BEST),
    (
        "R8",
        {**OWN, "model.recipe": "albert", "optimizer.name": "adamw"},
        {"optimizer.name": "sgd", "optimizer.momentum": 0.0, "optimizer.max_grad_norm": "off"},
        {"owns_optimizer": True},
    ),
    ("R9", {"averaging.codec": "int8", "averaging.download_codec": "giving_back"}, DOWN, {}),
    ("R9", {"averaging.codec": "giving_back"}, {"averaging.codec": "float16"}, {}),
    ("R9", {"averaging.codec": "loudest"}, DOWN, {}),
    (
        "R9",
        {"averaging.codec": "topk", "averaging.download_codec": "randomk"},
        {"averaging.download_codec": "gtopk"},
        {},
    ),
    ("R9", {"averaging.download_codec": "loudest"}, DOWN, {}),
    ("R10", {**SECURE, "training.target_batch_size": "auto"}, {"training.target_batch_size": 4096}, {}),
    ("R11", {**SECURE, "averaging.average_parameters_every": 5}, NO_MEANS, {}),
    ("R12", {**SECURE, **DOWN}, {"averaging.download_codec": None}, {}),
    ("R13", {**SKETCHED, "averaging.average_parameters_every": 5}, NO_MEANS, {}),
    ("R14", {**LOUDEST, **SKETCHED}, {"averaging.codec": "float16"}, {}),
    ("R15", {"averaging.codec": "int8", **DECAY}, {"averaging.residual_decay": 1.0}, {}),
    ("R16", {**SECURE, **later("synchronous")}, NO_CHANGES, {}),
    ("R7", {**later("own"), **LOUDEST}, {"averaging.codec": "float16"}, PARAMETERS),
)
"""Rule, settings of which only one thing is wrong, what to set instead, and facts of the strategy `own`."""


@pytest.fixture(autouse=True)
def _own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy, codecs and a sketch of other packages; the facts of the strategy are those of the case."""
    case = request.node.callspec.params if hasattr(request.node, "callspec") else {"facts": {}}
    facts = replace(Synchronous.facts, **case["facts"])
    monkeypatch.setitem(STRATEGIES._builtin, "own", "of another package")
    monkeypatch.setitem(STRATEGIES._loaded, "own", type("Own", (Synchronous,), {"facts": facts}))
    monkeypatch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)
    monkeypatch.setitem(CODECS._builtin, "giving_back", "of another package")
    monkeypatch.setitem(CODECS._loaded, "giving_back", GivingBack)
    monkeypatch.setitem(SKETCHES._builtin, "block_means", sketches.ENTRIES["block_means"])


@pytest.mark.parametrize(("code", "settings", "changes", "facts"), CASES)
def test_what_cannot_be_combined_is_refused_with_the_nearest_choice(
    code: str, settings: Settings, changes: Settings, facts: Facts
) -> None:
    spec = run_with(settings)
    assert code in [ruling.code for ruling in refusals(spec)]
    assert nearest_allowed(spec) == changes
    check_combinations(with_changes(spec, changes))
    with pytest.raises(ConfigurationError) as refused:
        check_plugins(spec)
    wrong, _, instead = str(refused.value).rpartition("; " if "\n" not in str(refused.value) else "\n")
    assert re.search(r"\b[a-z]+\.[a-z_]+", wrong), "it names no setting"
    assert all(key in instead for key in changes), instead


def test_each_refusal_and_each_caution_has_a_case() -> None:
    assert {code for code, *_ in CASES} == {rule.code for rule in REFUSALS}
    assert {"W1"} == {rule.code for rule in CAUTIONS}


def test_error_feedback_of_gradients_warns_of_second_moments() -> None:
    (found,) = cautions(run_with({**LOUDEST, "optimizer.name": "adamw"}))
    assert found.code == "W1"
    assert 'averaging.codec = "loudest"' in found.reason
    assert "optimizer.learning_rate" in found.reason
    (found,) = cautions(run_with({**SKETCHED, "optimizer.name": "lamb"}))
    assert 'averaging.sketch = "block_means"' in found.reason
    assert not cautions(run_with({**LOUDEST, "optimizer.name": "sgd"}))
    assert not cautions(run_with({"optimizer.name": "adamw"}))
    assert not cautions(RunSpec.from_mapping({"name": "own", "model": {"recipe": "custom"}}).amended(LOUDEST))


class Fragmented(Synchronous):
    """Has settings, from which its facts follow."""

    class Settings(Section):
        """How many parts take turns."""

        fragments: int = whole(1, 1, 100, "parts of the model")

    @classmethod
    def facts_for(cls, settings: Section) -> StrategyFacts:
        assert isinstance(settings, cls.Settings)
        return replace(cls.facts, fragments=settings.fragments)


def test_another_strategy_comes_without_the_settings_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STRATEGIES._loaded, "own", Fragmented)
    spec = RunSpec.from_mapping({"name": "x", "training": {"strategy": "own"}, "strategy": {"own": {"fragments": 3}}})
    secure = spec.amended(SECURE)
    with pytest.raises(ConfigurationError, match=r'training\.strategy = "synchronous" and leave \[strategy\.own\] out'):
        check_combinations(secure)
    check_combinations(with_changes(secure, nearest_allowed(secure)))


def test_settings_of_strategies_that_a_run_no_longer_has_go_with_them() -> None:
    spec = RunSpec.from_mapping(
        {
            "name": "x",
            "training": {"strategy_changes": [{"from_step": 9, "strategy": "local"}]},
            "strategy": {"local": {"overlap": True}},
            "security": {"verification": "byzantine"},
        }
    )
    with pytest.raises(ConfigurationError, match=r"leave training\.strategy_changes and \[strategy\.local\] out$"):
        check_combinations(spec)
    check_combinations(with_changes(spec, nearest_allowed(spec)))
