"""Runs that begin with the parameters of a model have its tokenizers, by which all else is made."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
import torch
from safetensors.numpy import load, load_file
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError
from minga.core.files import Content, store
from minga.core.spec.run_spec import RunSpec
from minga.recipes.init_from import INITIAL_FILE, prepared_files
from minga.recipes.initial import new_model
from minga.recipes.model_files import files_of_model
from minga.recipes.registry import load_recipe, published
from minga.recipes.text.corpus import HELDOUT_FILE
from minga.recipes.text.samples import TOKENS_FILE
from minga.recipes.text.tokenizer import TOKENIZER_FILE
from minga.recipes.text_to_image.data import picture_sets
from minga.recipes.text_to_image.prepare import TRAINING_FILE
from minga.recipes.text_to_image.tokens import PARAMETERS_FILE, read_image_tokenizer
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from minga.training.state.state_dict import MODEL
from tests.worlds.language_models import SMALL
from tests.worlds.recipe_pictures import SMALL as SMALL_PICTURES
from tests.worlds.recipe_text import GENESIS

PLACES = ("run", "checkpoint", "export", "its file")
LANGUAGE: Mapping[str, Mapping[str, Any]] = {
    "causal-lm": {"tokenizer": "train:wordpiece", "overrides": {**SMALL, "head_dim": 8}},
    "masked-lm": {"tokenizer": "train:bpe", "overrides": SMALL},
}


def spec_of(recipe: str, settings: Mapping[str, Any], init_from: Path | None = None) -> RunSpec:
    model = {"recipe": recipe, **({} if init_from is None else {"init_from": str(init_from)})}
    return RunSpec.from_mapping({"name": "x", "model": model, "recipe": {recipe: settings}})


def begun(recipe: str, settings: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """A run, as it lies on a disk, and an export of it: the places to begin from."""
    spec, run = spec_of(recipe, settings), folder / "run"
    contents = prepared_files(spec)
    files = {name: store(run / "files" / name, content_of(each)) for name, each in contents.items()}
    entries = (TensorEntry(f"{MODEL}weight", "float32", (1,)),)
    snapshot = StateSnapshot(1, entries, {}, torch.zeros(16, dtype=torch.uint8))
    checkpoint = CheckpointStore(run / "checkpoints").save(snapshot)
    made, export = load_recipe(spec), folder / "export"
    made.export(new_model(made), {n: f for n, f in files.items() if "heldout" not in n}, export, made.provenance(1))
    return {"run": run, "checkpoint": checkpoint, "export": export, "its file": export / "model.safetensors"}


def content_of(given: Content) -> bytes:
    return given.read_bytes() if isinstance(given, Path) else given


def words_of(given: Content) -> dict[str, int]:
    found: dict[str, int] = Tokenizer.from_str(content_of(given).decode()).get_vocab()
    return found


@pytest.mark.parametrize("recipe", LANGUAGE)
def test_text_is_cut_by_the_tokenizer_that_the_parameters_belong_to(recipe: str, tmp_path: Path) -> None:
    lines = (f"Zebras quaff {number} jugs. Foxes vex hymns. Jackdaws love quartz." for number in range(90))
    other = store(tmp_path / "other.jsonl", "\n".join(json.dumps({"text": each}) for each in lines).encode())
    usual = {"max_length": 32, "vocabulary_size": 400, **LANGUAGE[recipe]}
    text = {"source": "files", "heldout_fraction": 0.1}
    places = begun(recipe, {**usual, "data": {**text, "files": [str(GENESIS)]}}, tmp_path)
    own = words_of(places["run"] / "files" / TOKENIZER_FILE)
    settings = {**usual, "data": {**text, "files": [str(other)]}}
    new = prepared_files(spec_of(recipe, settings))
    assert words_of(new[TOKENIZER_FILE]) != own
    unnamed = {name: each for name, each in settings.items() if name != "tokenizer"}
    every = list(zip(PLACES, (settings, unnamed) * 2, strict=True))
    for place, said in every if recipe == "causal-lm" else every[1:2]:
        spec = spec_of(recipe, said, places[place])
        files = prepared_files(spec)
        assert words_of(files[TOKENIZER_FILE]) == own, place
        assert set(files) == {*new, INITIAL_FILE}
        assert content_of(files[HELDOUT_FILE]) == content_of(new[HELDOUT_FILE])
        if TOKENS_FILE in files:
            assert published(spec).recipe_settings["tokenizer"] == "from:run"
            assert load_recipe(published(spec)).published_settings().vocabulary_size == 400
            tokens = load(content_of(files[TOKENS_FILE]))["tokens"]
            read = Tokenizer.from_str(content_of(files[TOKENIZER_FILE]).decode())
            assert "quaff" in read.decode(tokens[:60].tolist()).lower(), place


def test_a_tokenizer_that_the_settings_name_comes_before_that_of_the_parameters(tmp_path: Path) -> None:
    usual = {"max_length": 32, "vocabulary_size": 400, **LANGUAGE["causal-lm"]}
    settings = {**usual, "data": {"source": "files", "files": [str(GENESIS)]}}
    places = begun("causal-lm", settings, tmp_path)
    made = prepared_files(spec_of("causal-lm", {**settings, "tokenizer": "train:bpe"}))
    store(tmp_path / "named" / TOKENIZER_FILE, content_of(made[TOKENIZER_FILE]))
    named = {**settings, "tokenizer": f"from:{tmp_path / 'named'}"}
    files = prepared_files(spec_of("causal-lm", named, places["run"]))
    assert words_of(files[TOKENIZER_FILE]) == words_of(made[TOKENIZER_FILE])


def test_pictures_become_codes_by_the_tokenizers_that_the_parameters_belong_to(tmp_path: Path) -> None:
    source = begun("text-to-image", SMALL_PICTURES, tmp_path)
    other = {**SMALL_PICTURES, "tokenizer_steps": 2, "data": {**SMALL_PICTURES["data"], "colours": 4}}
    for place in ("run", "export"):
        spec = spec_of("text-to-image", other, source[place])
        files = prepared_files(spec)
        kept = {name: store(tmp_path / place / "new" / name, content_of(each)) for name, each in files.items()}
        for name in (TOKENIZER_FILE, PARAMETERS_FILE):
            assert content_of(kept[name]) == content_of(source["run"] / "files" / name), (place, name)
    tokenizer, pictures = (
        read_image_tokenizer(kept),
        picture_sets(load_recipe(spec).settings.data, 32, spec.training.seed)[0],
    )
    codes = load_file(kept[TRAINING_FILE])["codes"]
    assert np.array_equal(codes, tokenizer.encode(pictures.some(range(len(pictures)))))


def test_files_of_a_model_of_the_hub_are_asked_for_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store(tmp_path / "a.json", b"{}")
    asked: list[tuple[str, str | None, list[str]]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.append((name, revision, allow_patterns))
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    for _ in range(2):
        found = files_of_model("owner/of-files@v1", {"a.json": "a.json", "b.json": "b.json"})
        assert found == {"a.json": tmp_path / "a.json"}
    assert asked == [("owner/of-files", "v1", ["a.json", "b.json"])]


def test_a_model_without_its_tokenizer_is_no_reason_to_train_one(tmp_path: Path) -> None:
    store(tmp_path / "config.json", b'{"model_type": "llama"}')
    spec = spec_of("causal-lm", {"data": {"source": "files", "files": [str(GENESIS)]}}, tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no tokenizer\.json"):
        published(spec)
