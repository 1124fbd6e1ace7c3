"""Each refusal and each caution: its message, in the words of the run spec, and what to set instead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
NEEDS = 'security.verification = "byzantine" needs '
OWN = {"training.strategy": "own"}
LOUDEST = {"averaging.codec": "loudest", "averaging.download_codec": "float16"}
SKETCHED = {"averaging.sketch": "block_means"}
PARAMETERS, MOVEMENTS = {"payload": "parameters"}, {"payload": "pseudo-gradient"}
SYNCHRONOUS = 'set training.strategy = "synchronous"'


class GivingBack(BlockwiseInt8Codec):
    """Means that leave something out, which senders take back."""

    name, returns = "giving_back", True


@dataclass(frozen=True)
class Case:
    """A run of which only one thing is wrong; `facts` are those of its own strategy."""

    code: str
    settings: Settings
    message: str
    facts: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case(
        "R2",
        {**SECURE, "averaging.codec": "loudest"},
        NEEDS + 'a codec without private state, not averaging.codec = "loudest": nobody could recompute a '
        'contribution that holds a residual\naveraging.codec = "loudest" leaves out of the means what nobody would '
        'make up for later: it is for contributions\nfor all of this: set averaging.codec = "float16"',
    ),
    Case(
        "R2",
        {**SECURE, "averaging.codec": "int8(rounding=stochastic)"},
        NEEDS + "a codec of fixed size whose bytes others can make again, not averaging.codec = "
        '"int8(rounding=stochastic)"; set averaging.codec = "float16"',
    ),
    Case(
        "R2",
        {**SECURE, **SKETCHED},
        NEEDS + 'whole gradients, which members check, not averaging.sketch = "block_means"; set averaging.sketch = '
        '"identity"',
    ),
    Case(
        "R3",
        {**SECURE, "training.strategy": "delayed"},
        NEEDS + 'a strategy whose peers wait for each round, not training.strategy = "delayed": members check the '
        f"gradients of the step that they take; {SYNCHRONOUS}",
    ),
    Case(
        "R4",
        {**SECURE, **OWN},
        NEEDS + 'contributions that any member can recompute, not those of training.strategy = "own": its peers step '
        f"with private optimizer moments; {SYNCHRONOUS}",
        MOVEMENTS,
    ),
    Case(
        "R4",
        {**SECURE, **OWN},
        NEEDS + f'contributions that any member can recompute, not those of training.strategy = "own"; {SYNCHRONOUS}',
    ),
    Case(
        "R5",
        {**SECURE, **OWN},
        NEEDS
        + 'contributions that any member can recompute, not those of training.strategy = "own"\n'
        + NEEDS
        + 'several contributions a round, not training.strategy = "own": of one there is nothing to clip or to '
        f"compare\nfor all of this: {SYNCHRONOUS}",
        {"contributors": "best"},
    ),
    Case(
        "R6",
        {**OWN, "averaging.average_parameters_every": 4},
        "averaging.average_parameters_every = 4 needs a strategy that shares gradients: with training.strategy = "
        '"own" peers share their parameters in every round; set averaging.average_parameters_every = 0',
        MOVEMENTS,
    ),
    Case(
        "R7",
        {**OWN, **LOUDEST},
        'training.strategy = "own" sends parameters, of which averaging.codec = "loudest" would send a part; set '
        'averaging.codec = "float16"',
        PARAMETERS,
    ),
    Case(
        "R7",
        {**OWN, **SKETCHED},
        'training.strategy = "own" sends parameters, of which averaging.sketch = "block_means" would send a part; set '
        'averaging.sketch = "identity"',
        PARAMETERS,
    ),
    Case(
        "R7",
        {**OWN, **LOUDEST},
        'training.strategy = "own" sends one peer\'s parameters once, of which averaging.codec = "loudest" would send '
        'a part; set averaging.codec = "float16"',
        {"contributors": "best"},
    ),
    Case(
        "R8",
        {**OWN, "model.recipe": "albert", "optimizer.name": "adamw"},
        'training.strategy = "own" brings its own optimizer, which needs gradient descent without momentum and '
        'clipping, not optimizer.name = "adamw" as it is set; set optimizer.name = "sgd", optimizer.momentum = 0.0 and '
        'optimizer.max_grad_norm = "off"',
        {"owns_optimizer": True},
    ),
    Case(
        "R9",
        {"averaging.codec": "int8", "averaging.download_codec": "giving_back"},
        'averaging.download_codec = "giving_back" gives back to senders what means left out, which needs an '
        'averaging.codec with a residual, such as "topk", not averaging.codec = "int8"; set '
        'averaging.download_codec = "float16"',
    ),
    Case(
        "R9",
        {"averaging.codec": "giving_back"},
        'averaging.codec = "giving_back" leaves out what senders take back by the mean: it is for means, not '
        'contributions; set averaging.codec = "float16"',
    ),
    Case(
        "R9",
        {**OWN, "training.target_batch_size": 4097},
        'training.target_batch_size = 4097 is not a multiple of the 3 fragments of training.strategy = "own"; set '
        "training.target_batch_size = 4098",
        {"fragments": 3},
    ),
    Case(
        "R9",
        {**OWN, "training.target_batch_size": 1},
        'training.target_batch_size = 1 is not a multiple of the 3 fragments of training.strategy = "own"; set '
        "training.target_batch_size = 3",
        {"fragments": 3},
    ),
    Case(
        "R9",
        {"averaging.codec": "loudest"},
        'averaging.codec = "loudest" leaves out of the means what nobody would make up for later: it is for '
        'contributions; set averaging.download_codec = "float16"',
    ),
    Case(
        "R9",
        {"averaging.codec": "topk", "averaging.download_codec": "randomk"},
        'averaging.download_codec = "randomk" leaves out of the means what nobody would make up for later: it is for '
        'contributions; set averaging.download_codec = "gtopk"',
    ),
    Case(
        "R9",
        {"averaging.download_codec": "loudest"},
        'averaging.download_codec = "loudest" leaves out of the means what nobody would make up for later: it is for '
        'contributions; set averaging.download_codec = "float16"',
    ),
    Case(
        "R10",
        {**SECURE, "training.target_batch_size": "auto"},
        NEEDS + 'a number, not training.target_batch_size = "auto", since all members compute equally much; set '
        "training.target_batch_size = 4096",
    ),
    Case(
        "R11",
        {**SECURE, "averaging.average_parameters_every": 5},
        NEEDS + "parameters that members compute, not averaging.average_parameters_every = 5; set "
        "averaging.average_parameters_every = 0",
    ),
    Case(
        "R12",
        {**SECURE, "averaging.download_codec": "float16"},
        NEEDS + 'one codec for both directions, not averaging.download_codec = "float16"; leave '
        "averaging.download_codec out",
    ),
    Case(
        "R13",
        {**SKETCHED, "averaging.average_parameters_every": 5},
        "averaging.average_parameters_every = 5 needs rounds that are planned for whole vectors, not for "
        'averaging.sketch = "block_means"; set averaging.average_parameters_every = 0',
    ),
    Case(
        "R15",
        {"averaging.codec": "int8", "averaging.residual_decay": 0.95},
        'averaging.residual_decay = 0.95 is for residuals, and averaging.codec = "int8" leaves none; set '
        "averaging.residual_decay = 1.0",
    ),
    Case(
        "R15",
        {**SKETCHED, "averaging.codec": "int8", "averaging.residual_decay": 0.95, "averaging.warmup_rounds": 10},
        'averaging.warmup_rounds = 10 is for codecs that leave something out, not averaging.codec = "int8"; set '
        "averaging.warmup_rounds = 0",
    ),
    Case(
        "R14",
        {**LOUDEST, **SKETCHED},
        'averaging.codec = "loudest" and averaging.sketch = "block_means" both leave something out: one of them can '
        'be made up for; set averaging.codec = "float16"',
    ),
)


LATER = {"training.strategy_changes": [{"from_step": 9, "strategy": "own"}]}
CASES += (
    Case(
        "R16",
        {**SECURE, "training.strategy_changes": [{"from_step": 9, "strategy": "synchronous"}]},
        NEEDS
        + "one strategy to the end of the run, not training.strategy_changes; leave training.strategy_changes out",
    ),
    Case(
        "R7",
        {**LATER, **LOUDEST},
        'training.strategy = "own" sends parameters, of which averaging.codec = "loudest" would send a part; set '
        'averaging.codec = "float16"',
        PARAMETERS,
    ),
    Case(
        "R9",
        {"training.strategy_changes": [{"from_step": 9, "strategy": "own", "target_batch_size": 50}]},
        'training.target_batch_size = 50 is not a multiple of the 3 fragments of training.strategy = "own"; leave '
        "training.strategy_changes out",
        {"fragments": 3},
    ),
)
"""The last ones are of strategies that come later in the run."""


@pytest.fixture(autouse=True)
def _own(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A strategy, codecs and a sketch of other packages; the facts of the strategy are those of the case."""
    case = request.node.callspec.params.get("case") if hasattr(request.node, "callspec") else None
    facts = replace(Synchronous.facts, **(case.facts if case else {}))
    monkeypatch.setitem(STRATEGIES._builtin, "own", "of another package")
    monkeypatch.setitem(STRATEGIES._loaded, "own", type("Own", (Synchronous,), {"facts": facts}))
    monkeypatch.setitem(CODECS._builtin, "loudest", loudest_codec.ENTRY)
    monkeypatch.setitem(CODECS._builtin, "giving_back", "of another package")
    monkeypatch.setitem(CODECS._loaded, "giving_back", GivingBack)
    monkeypatch.setitem(SKETCHES._builtin, "block_means", sketches.ENTRIES["block_means"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.code}-{len(case.message)}")
def test_what_cannot_be_combined_is_refused_with_the_nearest_choice(case: Case) -> None:
    spec = run_with(case.settings)
    assert case.code in [ruling.code for ruling in refusals(spec)]
    with pytest.raises(ConfigurationError) as caught:
        check_plugins(spec)
    assert str(caught.value) == case.message
    check_combinations(with_changes(spec, nearest_allowed(spec)))


def test_each_refusal_and_each_caution_has_a_case() -> None:
    assert {case.code for case in CASES} == {rule.code for rule in REFUSALS}
    assert {"W1"} == {rule.code for rule in CAUTIONS}


def test_error_feedback_of_gradients_warns_of_second_moments() -> None:
    (found,) = cautions(run_with({**LOUDEST, "optimizer.name": "adamw"}))
    assert found.code == "W1"
    assert found.reason == (
        'averaging.codec = "loudest" sends old gradients in lumps, which make the second moments of optimizer.name = '
        '"adamw" grow: lower optimizer.learning_rate, or take a strategy whose peers step on their own'
    )
    (found,) = cautions(run_with({**SKETCHED, "optimizer.name": "lamb"}))
    assert found.reason.startswith('averaging.sketch = "block_means" sends old gradients in lumps')
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
    with pytest.raises(ConfigurationError, match=r"of the 3 fragments.*set training\.target_batch_size = 4095"):
        check_combinations(spec)
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
