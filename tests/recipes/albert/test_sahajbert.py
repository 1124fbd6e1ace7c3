"""sahajBERT: ALBERT on a mixture of Bengali texts."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.interface import Recipe, StreamPosition
from minga.recipes.registry import load_recipe, published
from minga.recipes.text.corpus import unpack_documents
from minga.testing import RECIPE_CHECKS, RecipeCase
from minga.testing.recipe_suite import check_demo, check_prepare, check_settings
from tests.worlds.seeds import soaked

D = "\u0964"
OF_ITS_OWN = (check_settings, check_prepare, check_demo)
"""All else is ALBERT's code, on which the suite is tried."""
WORDS = ["আমি", "তুমি", "সে", "ভাত", "মাছ", "বাড়ি", "নদী", "গাছ", "পাখি", "আকাশ", "খাই", "যাই", "দেখি", "বসি"]


def sentences(seed: int, count: int) -> list[str]:
    draw = np.random.default_rng(seed)
    return [" ".join(draw.choice(WORDS, size=int(draw.integers(4, 9)))) + D for _ in range(count)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sources of 80 documents of ten sentences, and one document in English."""
    path = tmp_path_factory.mktemp("bengali")
    for number, name in enumerate(("news", "wiki")):
        texts = [f"{name} {i}| " + " ".join(sentences(1000 * number + i, 10)) for i in range(80)]
        rows = [
            json.dumps({"text": text}) for text in [*texts, "This one is written in Latin letters. It is left out."]
        ]
        (path / f"{name}.jsonl").write_text("\n".join(rows), "utf-8")
    return path


def settings(folder: Path, **changes: Any) -> dict[str, Any]:
    sources = [
        {"files": [str(folder / f"{name}.jsonl")], "weight": weight, "script": "Bengali"}
        for name, weight in (("news", 0.77), ("wiki", 0.23))
    ]
    data = {"source": "mixture", "language": "bn", "sources": sources, "shuffle_buffer": 50, "heldout_fraction": 0.1}
    return {"max_length": 32, "vocabulary_size": 200, "data": data, **changes}


def recipe(table: dict[str, Any], **security: Any) -> Recipe[Any]:
    return load_recipe(spec(table, **security))


def spec(table: dict[str, Any], **security: Any) -> RunSpec:
    tables = {"name": "sahaj", "model": {"recipe": "sahajbert"}, "recipe": {"sahajbert": table}}
    return RunSpec.from_mapping({**tables, **security})


def write(folder: Path, prepared: dict[str, bytes]) -> dict[str, Path]:
    for name, body in prepared.items():
        (folder / name).write_bytes(body)
    return {name: folder / name for name in prepared}


@pytest.mark.parametrize("check", [soaked(each) if each not in OF_ITS_OWN else each for each in RECIPE_CHECKS])
def test_it_keeps_what_recipes_promise(check: Any, folder: Path, checked: Path) -> None:
    small = {"hidden_size": 32, "num_hidden_layers": 1, "intermediate_size": 64, "embedding_size": 16}
    check(RecipeCase("sahajbert", settings(folder, overrides=small)), checked)


def test_a_mixture_that_travels_is_drawn_once_for_all(folder: Path, tmp_path: Path) -> None:
    made = recipe(settings(folder))
    prepared = made.prepare()
    assert sorted(prepared) == ["heldout.jsonl.gz", "tokenizer.json", "training.jsonl.gz"]
    files = write(tmp_path, dict(prepared))
    documents, heldout = (list(unpack_documents(files[name])) for name in ("training.jsonl.gz", "heldout.jsonl.gz"))
    assert sum(text.startswith("news") for text in documents) / len(documents) == pytest.approx(0.77, abs=0.1)
    assert not any("Latin" in text for text in documents)
    assert not set(documents) & set(heldout)
    tokenizer = Tokenizer.from_file(str(files["tokenizer.json"]))
    unknown = tokenizer.token_to_id("<unk>")
    for text in sentences(1, 50):
        ids = tokenizer.encode(text).ids
        assert unknown not in ids, "the text has the characters of the training text"
        assert tokenizer.decode(ids).strip() == text
    assert tokenizer.encode("নদী|").ids == tokenizer.encode(f"নদী{D}").ids, "a reader need not know our spelling"


def test_with_a_data_set_of_the_hub_the_other_sources_travel_and_each_peer_mixes(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"hub {number}{D} " + " ".join(sentences(number, 10)) for number in range(150)]
    hub = datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset(3)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: hub)
    table = settings(folder)
    table["data"]["sources"][0] = {"source": "hub", "name": "owner/name", "weight": 0.77}
    made = recipe(table)
    files = write(tmp_path, dict(made.prepare()))
    assert sorted(files) == ["heldout.jsonl.gz", "source-1.jsonl.gz", "tokenizer.json"]
    heldout = set(unpack_documents(files["heldout.jsonl.gz"]))
    drawn = list(islice(made.drawn(files, 3), 2000))  # type: ignore[attr-defined]
    assert sum(text.startswith("hub") for text in drawn) / 2000 == pytest.approx(0.77, abs=0.04)
    assert not heldout & set(drawn)
    assert any(text.startswith("hub") for text in heldout)
    batch = next(iter(made.batches(files, StreamPosition("ab" * 32), 4)))
    assert batch["input_ids"].shape[0] == 4
    checked = {"security": {"verification": "byzantine", "micro_batch_size": 4}, "training": {"target_batch_size": 16}}
    with pytest.raises(ConfigurationError, match="must not name a data set of the hub"):
        recipe(table, **checked)


def test_the_organisers_paths_are_not_published(folder: Path) -> None:
    assert str(folder).encode() not in published(spec(settings(folder))).canonical_bytes()


def test_a_mixture_needs_its_sources_and_other_text_has_none() -> None:
    with pytest.raises(ConfigurationError, match="mixture"):
        recipe({"data": {"source": "mixture", "sources": []}})
    with pytest.raises(ConfigurationError, match="mixture"):
        recipe({"data": {"source": "bible", "sources": [{"source": "bible"}]}})


def test_refusals_name_the_setting_of_this_recipe_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"^recipe\.sahajbert\.overrides\.hidden_sise: "):
        published(spec({"overrides": {"hidden_sise": 3}}))
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(ConfigurationError, match=r"^recipe\.sahajbert\.config_from = .*: model_type = 'bert': "):
        published(spec({"config_from": str(tmp_path)}))
