"""An exported trunk is judged by simple classifiers on its features."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from minga.core.errors import ConfigurationError
from minga.recipes import new_model
from minga.recipes.exported import PROVENANCE_FILE
from minga.recipes.swav.recipe import SwavRecipe
from minga.recipes.task_report import TaskOptions, TaskReport
from tests.worlds.swav_world import made_up, small_run


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, float]]:
    """A model on digits, and the figures of its run."""
    folder = tmp_path_factory.mktemp("run")
    case, files = small_run(folder / "files")
    recipe = case.recipe()
    model = new_model(recipe)
    recipe.export(model, files, folder / "model", recipe.provenance(3))
    return folder / "model", recipe.evaluate(model, files)


def judged(model: Path, task: str, **options: object) -> TaskReport:
    return SwavRecipe.judge(str(model), TaskOptions(task, **{"runs": 3, **options}), lambda _: None)  # type: ignore[arg-type]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures in a folder for each of three classes."""
    found = made_up(90)
    for number, (picture, label) in enumerate(zip(found.pictures, found.labels.tolist(), strict=True)):
        path = tmp_path / "pictures" / f"class{label}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture.permute(1, 2, 0).numpy()).save(path)
    return tmp_path / "pictures"


def test_the_tasks_find_what_the_run_found_on_its_own_pictures(exported: tuple[Path, dict[str, float]]) -> None:
    model, figures = exported
    for task, figure in (("linear-probe", "heldout_probe_accuracy"), ("knn", "heldout_knn_accuracy")):
        report = judged(model, task)
        assert report.trained["accuracy"].mean == pytest.approx(figures[figure], abs=1e-6)
        assert report.trained["accuracy"].deviation == 0.0
        assert report.from_scratch["accuracy"].deviation > 0.0, "each run has another trunk from scratch"
        assert report.raw is not None
        assert report.raw["accuracy"].mean > 0.8, "digits can be told by their pixels"
        assert (report.data, report.runs) == ("digits", 3)
        json.dumps(report.as_json())


def test_pictures_of_a_folder_are_seen_as_the_model_sees_pictures(
    exported: tuple[Path, dict[str, float]], folder: Path
) -> None:
    model, _ = exported
    report = judged(model, "linear-probe", data=str(folder), training_examples=40)
    assert report.examples == 40
    assert 0.0 <= report.trained["accuracy"].mean <= 1.0
    coloured, files = small_run(folder.parent / "run", data={"source": "folder", "folder": str(folder)})
    recipe = coloured.recipe()
    recipe.export(new_model(recipe), files, folder.parent / "coloured", recipe.provenance(1))
    with pytest.raises(ConfigurationError, match="--data: name pictures with classes"):
        judged(folder.parent / "coloured", "knn")
    report = judged(folder.parent / "coloured", "knn", data=str(folder))
    assert report.trained["accuracy"].mean > 0.9, "the classes differ by colour"
    assert str(folder) not in (folder.parent / "coloured" / PROVENANCE_FILE).read_text()
    assert judged(folder.parent / "coloured", "linear-probe", data="digits", training_examples=200).examples == 200


def test_what_is_no_export_or_has_no_classes_is_refused(
    exported: tuple[Path, dict[str, float]], tmp_path: Path
) -> None:
    model, _ = exported
    with pytest.raises(ConfigurationError, match="no such folder; `minga export` writes one"):
        judged(tmp_path / "nothing", "knn")
    with pytest.raises(ConfigurationError, match=r"has no minga\.json"):
        judged(tmp_path, "knn")
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(20):
        noise = np.random.default_rng(number).integers(0, 256, (9, 9, 3), dtype=np.uint8)
        Image.fromarray(noise).save(pictures / f"{number}.png")
    with pytest.raises(ConfigurationError, match="two classes at least"):
        judged(model, "knn", data=str(pictures))
    broken = tmp_path / "broken"
    shutil.copytree(model, broken)
    (broken / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(ConfigurationError, match="not the trunk of this model"):
        judged(broken, "knn")
    for content, words in (("{", "not what an export writes"), ('{"recipe": "swav", "settings": {"size": 3}}', "size")):
        (broken / PROVENANCE_FILE).write_text(content)
        with pytest.raises(ConfigurationError, match=words):
            judged(broken, "knn")
