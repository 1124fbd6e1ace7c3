"""Data sets of a hub are those of one commit: in what is prepared, what is published and streamed."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import huggingface_hub
import pytest

from minga.cli.taking_part import host as host_module
from minga.core.errors import ConfigurationError
from minga.core.files import store
from minga.core.spec.run_spec import RunSpec
from minga.recipes.data_source import DataSource
from minga.recipes.init_from import prepared_files
from minga.recipes.registry import check_published, pinned, published
from minga.recipes.text.corpus import HELDOUT_FILE, unpack_documents
from tests.worlds.cli_run import run
from tests.worlds.recipe_text import GENESIS

OWN = "e" * 40
FILES = {"source": "files", "files": [str(GENESIS)]}
DATA: dict[str, dict[str, Any]] = {
    "causal-lm": {"source": "datasets", "name": "owner/texts"},
    "masked-lm": {"source": "mixture", "sources": [FILES, {"source": "hub", "name": "owner/texts"}]},
    "albert": {"source": "datasets", "name": "owner/texts", "revision": "refs/convert/parquet"},
    "fine-tune": {"source": "mixture", "sources": [{"source": "hub", "name": "owner/texts", "revision": "v1"}]},
    "swav": {"source": "hub", "name": "owner/texts"},
    "text-to-image": {"source": "hub", "name": "owner/texts", "code_column": "codes"},
}


class Hub:
    """A hub of data sets of text, whose branches go on."""

    def __init__(self) -> None:
        self.day = 1
        self.asked: list[tuple[str, str | None]] = []

    def commit(self, revision: str | None) -> str:
        return f"{self.day:02}{(revision or 'main').encode().hex():0<38}"[:40]

    def dataset_info(self, name: str, *, revision: str | None) -> Any:
        self.asked.append((name, revision))
        return SimpleNamespace(sha=self.commit(revision))

    def load_dataset(self, path: str, *, revision: str | None, **_: Any) -> Any:
        assert path == "owner/texts"
        day = self.day if revision is None else int(revision[:2])
        rows = [{"text": f"On day {day} the hub said text {number}. Nobody asked why."} for number in range(300)]
        return datasets.Dataset.from_list(rows).to_iterable_dataset()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Hub:
    found = Hub()
    monkeypatch.setattr(huggingface_hub, "dataset_info", found.dataset_info)
    monkeypatch.setattr(datasets, "load_dataset", found.load_dataset)
    return found


def spec_of(recipe: str, data: dict[str, Any], **settings: Any) -> RunSpec:
    table = {recipe: {**settings, "data": data}}
    return RunSpec.from_mapping({"name": "x", "model": {"recipe": recipe}, "recipe": table})


@pytest.mark.parametrize("recipe", DATA)
def test_each_data_set_is_named_by_its_commit(recipe: str, hub: Hub) -> None:
    spec = spec_of(recipe, DATA[recipe])
    found = pinned(spec)
    data = found.recipe_settings["data"]
    (place,) = [each for each in (data, *data.get("sources", ())) if each.get("name")]
    said = [each for each in (DATA[recipe], *DATA[recipe].get("sources", ())) if each.get("name")]
    assert place["revision"] == hub.commit(said[0].get("revision"))
    assert {**place, **said[0]} == {**place, "revision": said[0].get("revision", place["revision"])}
    hub.asked.clear()
    assert pinned(found) == found
    if recipe != "fine-tune":  # which has no base here
        check_published(published(found))
    assert not hub.asked, "a commit stays"


@pytest.mark.parametrize("recipe", ["causal-lm", "masked-lm"])
def test_rows_of_the_commit_are_prepared_though_the_data_set_has_others_by_then(
    recipe: str, hub: Hub, tmp_path: Path
) -> None:
    data = {**DATA[recipe], "heldout_fraction": 0.1}
    spec = pinned(spec_of(recipe, data, max_length=32, vocabulary_size=400, tokenizer="train:bpe"))
    hub.day = 2
    path = store(tmp_path / HELDOUT_FILE, prepared_files(spec)[HELDOUT_FILE])
    texts = [each for each in unpack_documents(path) if "the hub said" in each.lower()]
    assert texts
    assert all("on day 1 " in each.lower() for each in texts)


def test_a_spec_without_data_sets_of_a_hub_stays_as_it_is(hub: Hub) -> None:
    for spec in (spec_of("causal-lm", FILES), RunSpec.from_mapping({"name": "x", "model": {"recipe": "custom"}})):
        assert pinned(spec) is spec
    assert not hub.asked


@pytest.mark.parametrize("found", [None, "main"])
def test_a_hub_that_does_not_say_the_commit_is_named(found: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(name: str, *, revision: str | None) -> Any:
        if found is None:
            raise OSError(f"no line to {name} at {revision}\nfor url")
        return SimpleNamespace(sha=found)

    monkeypatch.setattr(huggingface_hub, "dataset_info", answer)
    with pytest.raises(ConfigurationError, match=r"does not say which commit its newest one is: (no line to|it says)"):
        pinned(spec_of("causal-lm", DATA["causal-lm"]))
    own = spec_of("causal-lm", {**DATA["causal-lm"], "revision": OWN})
    assert pinned(own) == own, "nobody is asked"


def test_a_host_publishes_the_commit_that_it_prepared(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, seen = tmp_path / "run.toml", list[RunSpec]()
    path.write_text(
        'name = "x"\n[model]\nrecipe = "causal-lm"\n[recipe.causal-lm]\ndata.source = "datasets"\n'
        'data.name = "owner/texts"\n[network]\nrelay = "none"\n'
    )

    def prepare(spec: RunSpec) -> Any:
        seen.append(spec)
        return {}

    def begin(spec: RunSpec, *_: Any, **__: Any) -> Any:
        seen.append(spec)
        raise ConfigurationError("seen enough")

    monkeypatch.setattr(host_module, "prepared_files", prepare)
    monkeypatch.setattr(host_module, "host", begin)
    assert "seen enough" in run("host", str(path), "--directory", str(tmp_path)).stderr
    assert [each.recipe_settings["data"]["revision"] for each in seen] == [hub.commit(None)] * 2


def test_a_source_that_a_recipe_describes_by_no_words_is_called_by_its_name() -> None:
    """The data of a recipe from elsewhere have sources of their own; the export ended with a KeyError."""
    assert DataSource(source="own").in_words() == "own"
