from __future__ import annotations

import contextlib
import json
import math
import re
import string
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, choice
from minga.core.spec.run_spec import MAX_SPEC_BYTES, RunSpec, run_id_of
from minga.core.spec.sections import FileEntry, OptimizerSection
from minga.core.spec.toml import render_section
from minga.recipes.registry import RECIPES
from minga.simulation.scenario.scenario import read_scenario

ENTRY = FileEntry(blake3="ab" * 32, size_bytes=1000, pieces="cd" * 32)


def spec(**sections: dict[str, Any]) -> RunSpec:
    return RunSpec.from_mapping({"name": "test", **sections}, "run.toml")


def recipe(**settings: Any) -> RunSpec:
    return spec(recipe={"albert": settings})


def problems(toml: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        RunSpec.from_toml(toml, "run.toml")
    return str(caught.value).split("\n")


# ---- strategies


def reals(low: float, high: float, **options: bool) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, **options)


printable = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
wholes = st.integers(1, 1000)
scalars = st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | reals(-1e300, 1e300) | printable
urls = st.text(string.ascii_lowercase, min_size=1, max_size=10).map("https://{}.example/".format)
names = st.from_regex(r"[a-z][a-z0-9_]{0,10}", fullmatch=True)
file_names = st.lists(st.from_regex(r"q[a-z0-9]{0,8}", fullmatch=True), min_size=1, max_size=3).map(
    lambda parts: "/".join(parts) + ".json"
)


tables = st.dictionaries(
    names, scalars | st.lists(scalars, max_size=3) | st.dictionaries(names, scalars, max_size=2), max_size=4
)


@st.composite
def specs(draw: st.DrawFn) -> RunSpec:
    warmup = draw(st.integers(0, 100))
    return RunSpec.from_mapping(
        {
            "name": draw(printable),
            "model": {"recipe": "digits"},
            "recipe": {"digits": draw(tables)},
            "optimizer": {
                "name": draw(st.sampled_from(["lamb", "adamw", "sgd", "lars", "larc"])),
                "learning_rate": draw(reals(0, 1000, exclude_min=True)),
                "betas": [draw(reals(0, 1, exclude_max=True)), draw(reals(0, 1, exclude_max=True))],
                "max_grad_norm": draw(st.just("off") | reals(0, 1e9, exclude_min=True)),
                "warmup_steps": warmup,
                "total_steps": draw(st.integers(max(1, warmup), 10**9)),
            },
            "training": {
                "target_batch_size": draw(st.just("auto") | st.integers(1, 2**24)),
                "seed": draw(st.integers(0, 2**63 - 1)),
                "strategy": "own",
                "stop_after_steps": draw(st.none() | wholes),
            },
            "strategy": {"own": table} if (table := draw(tables)) else {},
            "averaging": {"codec": draw(st.sampled_from(["adaptive", "int8"]))},
            "network": {"relay": draw(st.sampled_from(["none", "public"]) | st.lists(urls, min_size=1, max_size=8))},
            "files": draw(st.dictionaries(file_names, st.just(ENTRY), max_size=1)),
        }
    )


# ---- round trips and the run id


@given(specs())
def test_round_trips(original: RunSpec) -> None:
    from_toml = RunSpec.from_toml(original.to_toml())
    assert from_toml == original
    canonical = from_toml.canonical_bytes()
    assert canonical == original.canonical_bytes()
    again = RunSpec.from_canonical(canonical)
    assert again == original
    assert again.run_id == original.run_id == run_id_of(canonical)
    assert again.published() == original.published()


def test_a_name_with_a_dot_is_that_of_one_table() -> None:
    tables = {"strategy": {"my.own": {"period": 3}}, "recipe": {"my.recipe": {"width": {"hidden": 2}}}}
    plugged = spec(model={"recipe": "my.recipe"}, training={"strategy": "my.own"}, **tables)
    assert RunSpec.from_toml(plugged.to_toml()) == plugged


def test_the_example_explains_every_setting_and_holds_the_defaults() -> None:
    text = RunSpec.example_toml()
    assert RunSpec.from_toml(text) == RunSpec(name="my first run")
    for section in RunSpec.model_fields:
        model = getattr(RunSpec(name="x"), section)
        for name in getattr(type(model), "model_fields", {}):
            assert f"\n{name} = " in text or f"\n# {name} =" in text, name
    assert "None" not in text
    assert max(map(len, text.split("\n"))) <= 120


@pytest.mark.parametrize(
    ("doc", "meaning"),
    [("A Transformer for pictures.", "a Transformer for pictures"), ("GPT of any size.", "GPT of any size")],
)
def test_what_a_table_is_for_keeps_its_names(doc: str, meaning: str) -> None:
    section = type("Named", (Section,), {"__doc__": doc})
    assert render_section("recipe.named", section()) == f"\n[recipe.named]  # {meaning}\n"


def test_means_may_travel_by_a_codec_of_their_own() -> None:
    plain, apart = spec(), spec(averaging={"codec": "int8", "download_codec": "float16"})
    assert b"download_codec" not in plain.canonical_bytes()
    assert RunSpec.from_canonical(plain.canonical_bytes()).averaging.download_codec is None
    assert RunSpec.from_toml(apart.to_toml()) == RunSpec.from_canonical(apart.canonical_bytes()) == apart
    assert apart.run_id != spec(averaging={"codec": "int8"}).run_id


def test_moments_may_take_8_bits() -> None:
    plain, coded = spec(), spec(optimizer={"state_bits": 8, "state_block": 256, "debias": False})
    assert not any(name in plain.canonical_bytes() for name in (b"state_bits", b"state_block", b"debias"))
    assert RunSpec.from_toml(coded.to_toml()) == RunSpec.from_canonical(coded.canonical_bytes()) == coded
    assert coded.run_id != plain.run_id
    for wrong in ({"name": "sgd", "state_bits": 8}, {"name": "adamw", "debias": False}, {"state_bits": 16}):
        with pytest.raises(ConfigurationError):
            spec(optimizer=wrong)


def test_the_strategy_may_change_at_a_step() -> None:
    later = [{"from_step": 10, "strategy": "own"}, {"from_step": 20, "strategy": "delayed", "target_batch_size": 64}]
    plain, changing = spec(), spec(training={"strategy_changes": later}, strategy={"own": {"period": 3}})
    assert b"strategy_changes" not in plain.canonical_bytes()
    assert plain.at(7) is plain
    assert RunSpec.from_toml(changing.to_toml()) == RunSpec.from_canonical(changing.canonical_bytes()) == changing
    assert changing.run_id != spec(training={"strategy_changes": later[:1]}, strategy={"own": {"period": 3}}).run_id
    assert changing.training.strategies == ("synchronous", "own", "delayed")
    seen = [(phase.training.strategy, phase.training.target_batch_size) for phase in changing.phases]
    assert seen == [("synchronous", 4096), ("own", 4096), ("delayed", 64)]
    assert [changing.at(step).training.strategy for step in (9, 10, 19, 20)] == ["synchronous", "own", "own", "delayed"]
    amended = changing.amended({"training.strategy": "delayed", "training.strategy_changes": []})
    assert (amended.training.strategies, amended.strategy) == (("delayed",), {})


@pytest.mark.parametrize(
    ("changes", "others", "message"),
    [
        ([{"from_step": 9, "strategy": "own"}, {"from_step": 9, "strategy": "delayed"}], {}, "comes after from_step"),
        ([{"from_step": 0, "strategy": "own"}], {}, "number 1: from_step = 0: must be a whole number from 1"),
        ([{"strategy": "own"}], {}, "from_step: missing"),
        ([{"from_step": n, "strategy": "own"} for n in range(1, 18)], {}, "at most 16"),
        (
            [{"from_step": 9, "strategy": "own", "target_batch_size": 8}],
            {"training": {"target_batch_size": "auto"}},
            "cannot set it to a number",
        ),
        ([{"from_step": 9, "strategy": "own"}], {"strategy": {"owm": {"a": 1}}}, "did you mean own"),
    ],
)
def test_changes_of_the_strategy_that_make_no_sense(
    changes: list[dict[str, Any]], others: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigurationError, match=message):
        spec(**{**others, "training": {**others.get("training", {}), "strategy_changes": changes}})


def test_the_run_id_depends_on_the_content_only() -> None:
    plain = RunSpec.from_toml('name = "test"')
    spelled_out = RunSpec.from_toml(
        'name = "test"\n[optimizer]\nweight_decay = 1e-2\n[training]\ntarget_batch_size = 4_096'
    )
    assert plain.run_id == spelled_out.run_id
    assert len(plain.run_id) == 64
    assert plain.run_id != spec(training={"seed": 1}).run_id
    assert recipe(share=-0.0).run_id == recipe(share=0.0).run_id
    assert recipe(a=1, b=2).run_id == recipe(b=2, a=1).run_id
    assert recipe(a=1).run_id != recipe(a=True).run_id
    assert recipe(a=(1, 2)).run_id == recipe(a=[1, 2]).run_id


def test_the_run_id_is_pinned() -> None:
    """A change here means that running swarms and their links are lost: raise SPEC_VERSION."""
    spec = RunSpec.from_mapping({"name": "pinned", "network": {"relay": "none"}})
    assert spec.run_id == "31482c5c4ae3cc916e57d40124cdaa725176b99a385a6b7b7a94960c1ff599db"


def test_announced_addresses_stay_on_the_machine_of_the_host_and_the_page_is_published() -> None:
    network = {"announce": ["203.0.113.7:4433"], "landing_url": "https://example.org/j"}
    plain, own = RunSpec(name="x"), RunSpec.from_mapping({"name": "x", "network": network})
    published = own.published()
    assert own.network.announce == ("203.0.113.7:4433",)
    assert published.network.announce == ()
    assert published.network.landing_url == "https://example.org/j"
    assert b"announce" not in published.canonical_bytes()
    assert b"landing_url" not in plain.canonical_bytes()
    assert RunSpec.from_canonical(published.canonical_bytes()) == published
    unpaged = RunSpec.from_mapping({"name": "x", "network": {"announce": ["203.0.113.7"]}})
    assert unpaged.published().run_id == plain.run_id  # another address is no other run


def test_the_peer_that_begins_a_run_writes_where_minga_comes_from() -> None:
    wheel = "minga-0.1.0-py3-none-any.whl#sha256=" + "ab" * 32
    begun = RunSpec(name="x").begin("cd" * 32, wheel)
    assert begun.wheel == wheel
    assert RunSpec.from_canonical(begun.canonical_bytes()) == begun
    assert begun.published().begin("cd" * 32).wheel is None, "a run that begins again is of another minga"
    elsewhere = RunSpec.from_mapping({"name": "x", "network": {"source_url": "git+https://example.org/minga@v1"}})
    assert elsewhere.begin("cd" * 32, wheel).wheel is None
    assert elsewhere.published().network.source_url == "git+https://example.org/minga@v1"
    assert b"source_url" not in begun.canonical_bytes()
    assert b"wheel" not in RunSpec(name="x").canonical_bytes()
    assert "wheel =" not in RunSpec.example_toml()
    for wrong in ("minga.whl", wheel[:-1], f"../{wheel}", f"evil-{wheel}", wheel.replace("0.1.0", "0.1.0'")):
        with pytest.raises(ConfigurationError, match="wheel"):
            RunSpec.from_mapping({"name": "x", "wheel": wrong})


@pytest.mark.parametrize(
    "network",
    [
        {"announce": ["example.org"]},
        {"announce": ["0.0.0.0"]},
        {"announce": ["203.0.113.7:0"]},
        {"announce": ["203.0.113.7:65536"]},
        {"announce": ["2001:db8::7:4433x"]},
        {"announce": ["203.0.113.7"] * 5},
        {"landing_url": "http://example.org/j"},
        {"landing_url": "https://example.org/j#part"},
        {"landing_url": "https://example.org/j k"},
        {"source_url": "http://example.org/minga.whl"},
        {"source_url": "https://example.org/'; rm -rf ~; '"},
    ],
)
def test_addresses_of_the_network_section_are_checked(network: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="network"):
        RunSpec.from_mapping({"name": "x", "network": network})


def test_every_default_is_pinned() -> None:
    """Defaults are not written into a spec: another one changes what running swarms do, so raise SPEC_VERSION."""
    defaults = json.dumps(RunSpec(name="pinned").model_dump(mode="json"), sort_keys=True)
    assert blake3(defaults.encode()).hexdigest(length=8) == "7443f478dfc049dc"


def test_an_open_run_may_name_its_organisers() -> None:
    keys = ["ab" * 32, "cd" * 32]
    named = spec(security={"organisers": keys, "organisers_needed": 2})
    assert named.run_id != spec().run_id
    assert RunSpec.from_canonical(named.canonical_bytes()) == named


def test_publishing_adds_files() -> None:
    published = recipe(a=1).published({"tokenizer.json": ENTRY})
    assert published.files == {"tokenizer.json": ENTRY}
    assert published.recipe_settings == {"a": 1}
    assert published.published() == published
    with pytest.raises(ConfigurationError, match="no safe relative file name"):
        recipe().published({"../tokenizer.json": ENTRY})


# ---- bad files


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfname = "caf\xc3\xa9"\r\n[training]\r\nseed = 3\r\n')
    assert RunSpec.from_file(path).name == "caf\u00e9"
    for encoding in ("utf-16-le", "utf-16-be"):  # what PowerShell redirects to a file
        path.write_bytes('\ufeffname = "caf\u00e9"\r\n[training]\r\nseed = 3\r\n'.encode(encoding))
        assert (RunSpec.from_file(path).name, RunSpec.from_file(path).training.seed) == ("caf\u00e9", 3)
    path.write_bytes(b'name = "caf\xe9"')
    with pytest.raises(ConfigurationError, match=r"run\.toml: byte 11: not a text in UTF-8: .* PowerShell"):
        RunSpec.from_file(path)
    with pytest.raises(ConfigurationError, match=r"none\.toml: cannot be read"):
        RunSpec.from_file(tmp_path / "none.toml")
    with pytest.raises(ConfigurationError, match="cannot be read"):
        RunSpec.from_file(tmp_path)
    path.write_bytes(b"#" * (MAX_SPEC_BYTES + 5))
    with pytest.raises(ConfigurationError, match="at most"):
        RunSpec.from_file(path)


def test_all_problems_are_listed_one_a_line() -> None:
    lines = problems(
        """
        nmae = "x"
        [training]
        target_batch_size = 0
        target_batch = 4
        stop_after_steps = true
        [optimizer]
        learning_rate = nan
        betas = [0.9, 1.0]
        [checkpoints]
        keep = 2020-01-01
        [averaging]
        codec = "UINT8"
        """
    )
    assert sorted(lines) == sorted(
        [
            "run.toml: nmae: unknown key; did you mean name?",
            "run.toml: name: missing; it must be a text of 1 to 64 printable characters on one line, "
            "without blanks at its ends",
            'run.toml: training.target_batch_size = 0: must be a whole number from 1 to 16,777,216, or "auto"',
            "run.toml: training.target_batch: unknown key; did you mean target_batch_size?",
            "run.toml: training.stop_after_steps = True: must be a whole number from 1 to 1,000,000,000",
            "run.toml: optimizer.learning_rate = nan: must be a number above 0 and at most 1,000",
            "run.toml: optimizer.betas = 1.0: must be two numbers from 0 to below 1, such as [0.9, 0.999]",
            "run.toml: checkpoints.keep = datetime.date(2020, 1, 1): must be a whole number from 1 to 1,000",
            "run.toml: averaging.codec = 'UINT8': 'UINT8' is not NAME or NAME(key=value, key=value), "
            'such as "int8" or "int4(block=32)", of at most 120 characters',
        ]
    )


BAD = [
    ("name", "", "64 printable"),
    ("name", "x" * 65, "64 printable"),
    ("name", " x", "blanks at its ends"),
    ("name", "a\nb", "printable"),
    ("name", "a\u202eb", "printable"),
    ("name", 5, "64 printable"),
    ("spec_version", 0, "must be 1"),
    ("spec_version", "1", "must be 1"),
    ("spec_version", True, "must be 1"),
    ("spec_version", 4, "update minga"),
    ("spec_version", 10**4000, "update minga"),
    ("model", 5, "table of settings"),
    ("model.recipe", "G P T", "name of a recipe"),
    ("model.recipe", 5, "name of a recipe"),
    ("recipe", {"gpt": {}}, "settings of 'gpt', but model.recipe = \"albert\""),
    ("strategy", {"delaid": {}}, "settings of 'delaid', but the run's strategy is \"synchronous\""),
    ("strategy", {"synchronus": {}}, "did you mean synchronous"),
    ("strategy.synchronous", 5, "table"),
    ("strategy.synchronous", {"Bad-Key": 1}, "strategy.synchronous: 'Bad-Key' is no key"),
    ("strategy.synchronous", {"a": None}, "neither text"),
    ("recipe.albert", 5, "table"),
    ("recipe.albert", {"Bad-Key": 1}, "is no key"),
    ("recipe.albert", {"a": math.inf}, "no finite number"),
    ("recipe.albert", {"a": 2**63}, "64 bits"),
    ("recipe.albert", {"a": 10**5000}, "64 bits"),
    ("recipe.albert", {"a": None}, "neither text"),
    ("recipe.albert", {"a": "\x7f"}, "not printable"),
    ("recipe.albert", {"a": "x" * 70_000}, "the limit is 65536"),
    ("recipe.albert", {"a": [[[[[[1]]]]]]}, "more than 6 deep"),
    ("optimizer.name", "adam", '"adamw"'),
    ("optimizer.learning_rate", 0.0, "above 0"),
    ("optimizer.learning_rate", math.inf, "above 0"),
    ("optimizer.learning_rate", "1e-3", "above 0"),
    ("optimizer.learning_rate", True, "above 0"),
    ("optimizer.betas", [0.9], "two numbers"),
    ("optimizer.betas", [0.9, 0.99, 0.999], "two numbers"),
    ("optimizer.betas", 0.9, "two numbers"),
    ("optimizer.betas", ["a", "b"], "two numbers"),
    ("optimizer.epsilon", 0, "above 0"),
    ("optimizer.weight_decay", -1, "at least 0"),
    ("optimizer.momentum", 1.0, "below 1"),
    ("optimizer.max_grad_norm", "none", '"off"'),
    ("optimizer.max_grad_norm", 0, '"off"'),
    ("optimizer.schedule", "step", '"cosine"'),
    ("optimizer.warmup_steps", 125_001, "exceeds total_steps"),
    ("optimizer.total_steps", 0, "from 1"),
    ("training.target_batch_size", 2**24 + 1, "16,777,216"),
    ("training.target_batch_size", "automatic", '"auto"'),
    ("training.target_batch_size_min", 40_000, "exceeds target_batch_size_max"),
    ("training.most_communication", 1.0, "below 1"),
    ("training.strategy", "a strategy", '"delayed"'),
    ("training.seed", -1, "from 0"),
    ("training.seed", 2**63, "from 0"),
    ("training.stop_after_steps", 0, "from 1"),
    ("training.buffers", "sum", '"average"'),
    ("averaging.codec", "uint 8", '"int8"'),
    ("averaging.download_codec", "uint 8", '"int8"'),
    ("averaging.average_parameters_every", -1, "0 is as needed"),
    ("state.digest_every", 0, "from 1"),
    ("checkpoints.every_steps", -1, "after the run's last step"),
    ("checkpoints.keep", 0, "from 1"),
    ("network.relay", "some", '"public"'),
    ("network.relay", [], '"public"'),
    ("network.relay", ["http://relay.example"], "https://"),
    ("network.relay", ["https://"], "https://"),
    ("network.relay", ["https://[::1"], "relay"),
    ("network.relay", ["https://a b"], "https://"),
    ("network.relay", ["https://u:p@relay.example"], "https://"),
    ("network.relay", ["https://relay.example:99999"], "relay"),
    ("network.relay", ["https://r.example"] * 9, "1 to 8"),
    ("network.minority", "go on", '"stop"'),
    ("files", {"a": 5}, "table of settings"),
    ("files", {"a": {**ENTRY.model_dump(), "blake3": "AB" * 32}}, "files.a.blake3"),
    ("files", {"a": {**ENTRY.model_dump(), "size_bytes": -1}}, "files.a.size_bytes"),
    ("files", {"a": {"blake3": "ab" * 32, "pieces": "cd" * 32}}, "size_bytes: missing"),
    ("files", {"a": {**ENTRY.model_dump(), "mode": 7}}, "mode: unknown key"),
    ("files", {f"a{i}": ENTRY.model_dump() for i in range(65)}, "at most 64"),
    ("files", {f"a{i}": {**ENTRY.model_dump(), "size_bytes": 7 << 30} for i in range(5)}, "the limit is 34359738368"),
]


def refusal(values: dict[str, Any]) -> str:
    try:
        RunSpec.from_mapping({"name": "x", **values}, "run.toml")
    except ConfigurationError as error:
        return str(error)
    return "nothing is refused"


def test_bad_values_are_named() -> None:
    for key, value, message in BAD:
        section, _, field = key.partition(".")
        text = refusal({section: {field: value} if field else value})
        assert message in text, key
        assert re.fullmatch(rf"run\.toml: .*{section}.*", text), key
        assert len(text) < 300, key


UNSAFE = ["", ".", "..", "../a", "a/../b", "/a", "a/", "a//b", ".hidden", "a/.b", "C:a", "a\\b", "a b", "a\n", "\u00e9"]
UNSAFE += ["con", "NUL.txt", "a/com1", "a.", "a./b", "a/b/c/d/e", "x" * 101, "a*"]


def test_file_names_are_safe_everywhere_and_differ_on_every_system() -> None:
    safe = {"a", "tokenizer.json", "b/c/d/e.txt", "A-1_b.c"}
    assert spec(files=dict.fromkeys(safe, ENTRY)).files.keys() == safe
    for names in (*([name] for name in UNSAFE), ["a", "A"], ["a", "a/b"], ["A/b", "a"]):
        assert "run.toml: files" in refusal({"files": dict.fromkeys(names, ENTRY.model_dump())}), names


# ---- bad bytes


@given(st.text(max_size=200))
def test_garbage_text(text: str) -> None:
    with pytest.raises(ConfigurationError):
        RunSpec.from_toml(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(RunSpec.model_fields)), json_values)
def test_garbage_values(section: str, value: object) -> None:
    values = {"name": "x", section: value}
    with contextlib.suppress(ConfigurationError):
        assert RunSpec.from_mapping(values).canonical_bytes()


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_garbage_bytes(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        RunSpec.from_canonical(data)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "a = " + "[" * 50_000, "a = " + "9" * 6000, "name = ", 'name = "\udcff"', "a.b = 1\na = 2"],
)
def test_hostile_toml(text: str) -> None:
    with pytest.raises(ConfigurationError):
        RunSpec.from_toml(text)


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 100_000,
        b'{"a":' * 50_000,
        b"9" * 6000,
        b'{"name":"\\ud800"}',
        b" " * (MAX_SPEC_BYTES + 1),
        b"[]",
        b"\xff",
    ],
)
def test_hostile_canonical_bytes(data: bytes) -> None:
    with pytest.raises(ConfigurationError):
        RunSpec.from_canonical(data)


def test_only_the_canonical_form_is_accepted() -> None:
    good = spec(optimizer={"weight_decay": 0.5, "max_grad_norm": 2.0}).canonical_bytes()
    for bad in (
        good + b"\n",
        good.replace(b":", b": ", 1),
        good.replace(b'"name":"test"', b'"name":"test","name":"test"'),
        good.replace(b'"name":"test"', b'"name":"t\\u0065st"'),
        good.replace(b"0.5", b"0.50"),
        good.replace(b'"max_grad_norm":2.0', b'"max_grad_norm":2'),
        good.replace(b'"max_grad_norm":2.0', b'"max_grad_norm":"off"'),
        good.replace(b'"spec_version":1', b'"spec_version":1,"state":{"digest_every":10}'),
        good.replace(b',"spec_version":1', b""),
    ):
        assert bad != good
        with pytest.raises(ConfigurationError, match="canonical"):
            RunSpec.from_canonical(bad)


def test_many_problems_are_cut() -> None:
    lines = problems("\n".join(f"k{i} = 1" for i in range(200)))
    assert len(lines) == 51
    assert lines[-1] == "run.toml: and 151 more problems"


def test_the_size_is_bounded() -> None:
    later = [{"from_step": step, "strategy": f"own{step}"} for step in range(1, 6)]
    tables = {f"own{step}": {"text": "x" * 60_000} for step in range(1, 6)}
    huge = spec(training={"strategy_changes": later}, strategy=tables)
    with pytest.raises(ConfigurationError, match="limit"):
        huge.canonical_bytes()


def test_a_spec_made_in_a_program_says_what_is_wrong_in_words() -> None:
    with pytest.raises(ConfigurationError, match="run spec: trainin: unknown key; did you mean training"):
        RunSpec(name="x", trainin={})
    with pytest.raises(ConfigurationError, match=r"run spec: training\.target_batch_size"):
        RunSpec(name="x", training={"target_batch_size": 0})
    with pytest.raises(ConfigurationError, match=r"mine\.toml: name"):
        RunSpec.from_toml("name = ''", "mine.toml")


def test_a_name_that_resembles_a_known_one_is_guessed() -> None:
    with pytest.raises(ConfigurationError, match=r"must be one of .*; did you mean adamw\?"):
        RunSpec.from_mapping({"name": "x", "optimizer": {"name": "adam"}})
    with pytest.raises(ConfigurationError, match=r"'albret' is none of albert, .*; did you mean albert\?"):
        RECIPES.get("albret")
    with pytest.raises(ConfigurationError, match=r"did you mean home-150\?"):
        read_scenario("home150")


def test_a_warm_start_is_a_planned_change_from_synchronous_steps() -> None:
    rates = {"outer_learning_rate": 0.5}
    warm = spec(
        training={"strategy": "local", "target_batch_size": 4800},
        strategy={"local": {"synchronous_for": 1000, "synchronous_batch": 48, **rates}},
    )
    change = {"from_step": 21, "strategy": "local", "target_batch_size": 4800}
    plain = spec(
        training={"target_batch_size": 48, "strategy_changes": [change]},
        strategy={"local": rates},
        optimizer={"warmup_steps": 500_000, "total_steps": 12_500_000},
    )
    assert warm == plain
    assert warm.run_id == plain.run_id
    assert RunSpec.from_toml(warm.to_toml()) == RunSpec.from_canonical(warm.canonical_bytes()) == warm
    found = [warm.training.phase_at(step) for step in (0, 20, 21)]
    assert found == ["synchronous up to step 21, then local"] * 2 + ["local since step 21"]
    usual = spec(training={"strategy": "local"}, strategy={"local": {"synchronous_for": 4097}})
    assert [each.from_step for each in usual.training.strategy_changes] == [2]
    assert usual.strategy == {}


@pytest.mark.parametrize(
    ("optimizer", "rounds"),
    [
        ({}, (5000, 125_000)),
        ({"warmup_steps": 10, "total_steps": 1000}, (10, 1000)),
        ({"total_steps": 200_000}, (5000, 200_000)),
        ({"warmup_steps": 0}, (0, 125_000)),
    ],
)
def test_the_schedule_of_a_warm_start_counts_rounds_whether_written_or_not(
    optimizer: dict[str, int], rounds: tuple[int, int]
) -> None:
    tables = {
        "training": {"strategy": "local", "target_batch_size": 4800},
        "strategy": {"local": {"synchronous_for": 1000, "synchronous_batch": 48, "fragments": 2}},
    }
    found = [
        spec(**tables, optimizer=optimizer),
        RunSpec(name="test", **tables, optimizer=OptimizerSection(**optimizer)),
    ]
    found += [spec(**tables)] if not optimizer else []
    for each in found:
        steps = (each.optimizer.warmup_steps, each.optimizer.total_steps)
        assert steps == tuple(50 * count for count in rounds), "a round of a fragment has 2400 samples"
        assert RunSpec.from_canonical(each.canonical_bytes()) == found[0]


@pytest.mark.parametrize(
    ("rounds", "batch", "fragments", "stop"),
    [
        (20, 4800, 1, 21 + 20),  # 1008 samples, and 94,992 more
        (1, 1008, 1, 21),
        (2, 480, 1, 20),  # within the first phase
        (40, 4800, 2, 21 + 40),
        (421, 48, 1, 421),
    ],
)
def test_a_warm_start_leaves_a_run_the_samples_of_its_rounds(
    rounds: int, batch: int, fragments: int, stop: int
) -> None:
    table = {"synchronous_for": 1000, "synchronous_batch": 48, "fragments": fragments}
    training = {"strategy": "local", "target_batch_size": batch, "stop_after_steps": rounds}
    warm = spec(training=training, strategy={"local": table})
    assert warm.training.stop_after_steps == stop
    assert RunSpec.from_canonical(warm.canonical_bytes()) == warm
    samples = [(48 if step < 21 else batch // fragments) for step in range(stop)]
    assert sum(samples[:-1]) < rounds * (batch // fragments) <= sum(samples)


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        ({"warmup_steps": 2000, "total_steps": 1000}, r"optimizer: warmup_steps = 2000 exceeds total_steps = 1000"),
        ({"warmup_steps": 200_000}, r"optimizer: warmup_steps = 200000 exceeds total_steps = 125000"),
        ({"total_steps": 10_000_001}, r"synchronous_for: optimizer\.total_steps = 10000001 rounds .* lower total"),
    ],
)
def test_a_schedule_that_no_warm_start_can_have_is_refused_by_the_numbers_of_the_user(
    optimizer: dict[str, int], message: str
) -> None:
    training = {"strategy": "local", "target_batch_size": 4800}
    table = {"synchronous_for": 1000, "synchronous_batch": 48}
    with pytest.raises(ConfigurationError, match=message):
        spec(training=training, strategy={"local": table}, optimizer=optimizer)


@pytest.mark.parametrize(
    ("training", "table", "message"),
    [
        ({}, {"synchronous_batch": 48}, "synchronous_for has to be there"),
        ({}, {"synchronous_for": 0}, "whole numbers from 1 on"),
        ({}, {"synchronous_for": True}, "whole numbers from 1 on"),
        ({}, {"synchronous_for": 9, "synchronous_batch": "48"}, "whole numbers from 1 on"),
        ({}, {"synchronous_for": 10**9 + 1, "synchronous_batch": 1}, "at most 1,000,000,000 steps"),
        ({"target_batch_size": 10**400}, {"synchronous_for": 9}, "a number from 1 to 16,777,216"),
        ({"target_batch_size": "auto"}, {"synchronous_for": 9}, "a number from 1 to 16,777,216 as training"),
        ({"strategy": "synchronous"}, {"synchronous_for": 9}, "synchronous steps need no warm start"),
        ({"strategy_changes": [{"from_step": 9, "strategy": "delayed"}]}, {"synchronous_for": 9}, "leave it out"),
        (
            {"stop_after_steps": 10**9},
            {"synchronous_for": 10**9, "synchronous_batch": 1},
            "lower stop_after_steps or raise synchronous_batch",
        ),
    ],
)
def test_a_warm_start_that_makes_no_sense(training: dict[str, Any], table: dict[str, Any], message: str) -> None:
    training = {"strategy": "local", **training}
    with pytest.raises(ConfigurationError, match=message):
        spec(training=training, strategy={training["strategy"]: table})


def test_a_choice_that_its_annotation_does_not_enforce_is_no_class() -> None:
    with pytest.raises(TypeError, match=r"patch: a choice of \['1', '2'\]"):

        class Careless(Section):
            patch: str = choice("1", "side of a patch", "1", "2")
