"""`minga sample` with a model that makes pictures: one sheet, equal for equal seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from minga.cli.commands import SampleCommand
from minga.cli.keeping import models
from minga.cli.keeping.models import run_sample
from minga.cli.terminal.context import make_context
from minga.core.errors import StorageError
from minga.recipes.initial import new_model
from minga.recipes.interface import SampleOptions
from minga.recipes.running.trained_model import TrainedModel
from tests.worlds.recipe_pictures import picture_recipe, write_pictures

PROMPTS = ("a red apple on a blue background", "wolf on a red background, small, left")


@pytest.fixture
def draw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`minga sample` on a new model, in a folder of its own."""
    recipe, files = picture_recipe(), write_pictures(tmp_path)
    trained = TrainedModel(recipe, new_model(recipe), files, 7)
    monkeypatch.setattr("minga.cli.keeping.models.from_run_folder", lambda folder: trained)
    monkeypatch.chdir(tmp_path)
    # A watch for Ctrl-C lasts to the end of the process, which here is that of the tests.
    monkeypatch.setattr("minga.cli.terminal.interrupt.Interruption.__init__", lambda self, **_: None)

    def drawn(**options: Any) -> None:
        run_sample(SampleCommand(run=str(tmp_path), prompts=PROMPTS, **options), make_context(json_output=False))

    return drawn


def test_pictures_go_to_one_sheet_and_equal_seeds_give_equal_pixels(
    draw: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sheets = []
    for name, seed in (("one.png", 3), ("two.png", 3), ("three.png", 4)):
        draw(out=tmp_path / "sheets" / name, n=1, seed=seed)
        with Image.open(tmp_path / "sheets" / name) as sheet:
            assert sheet.text["seed"] == str(seed)  # type: ignore[attr-defined]
            sheets.append(np.asarray(sheet))
    assert np.array_equal(sheets[0], sheets[1])
    assert not np.array_equal(sheets[0], sheets[2])
    assert "2 pictures by the model after step 7" in capsys.readouterr().out
    draw()
    assert (tmp_path / "samples.png").is_file()


def test_a_sheet_that_cannot_be_written_is_explained(draw: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be written"):
        draw(out=tmp_path / "file" / "grid.png")


def test_a_model_that_makes_texts_writes_no_sheet(tmp_path: Path) -> None:
    from minga.recipes.interface import Sample

    assert models._write_sheet([Sample("x", "text")], SampleOptions(), tmp_path / "grid.png") is None
    assert not list(tmp_path.iterdir())
