"""Where pairs come from: shapes, folders, data sets; what is taken, what is held out, and what a picture shows."""

from __future__ import annotations

import io
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from PIL import Image

from minga.core.errors import ConfigurationError
from minga.recipes.data.hub import opened
from minga.recipes.images import source
from minga.recipes.interface import StreamPosition
from minga.recipes.text_to_image.data import caption_of_row, codes_of_row, picture_sets
from minga.recipes.text_to_image.pairs import read_pairs
from minga.recipes.text_to_image.prepare import HELDOUT_FILE, SHAPE_TOKENIZER, TRAINING_FILE
from minga.recipes.text_to_image.recipe import TextToImageRecipe
from minga.recipes.text_to_image.settings import ImageTextData, ImageTextFilters
from minga.recipes.text_to_image.shapes import (
    COLOURS,
    Composition,
    draw_compositions,
    judge,
    paint,
    seen_in,
    told_by,
    words_of,
)
from minga.recipes.text_to_image.tokens import DESCRIPTION_FILE, PARAMETERS_FILE, read_image_tokenizer
from tests.worlds.recipe_pictures import picture_recipe, write_pictures

ALICE, BOB = "a1" * 32, "b0" * 32


def test_compositions_show_what_their_captions_say() -> None:
    for colour, size, place in itertools.product(COLOURS, ("small", "large"), ("left", "right", "top", "bottom")):
        one = Composition("green square" if colour != "green" else "red square", colour, size, place)
        picture = paint(one, 32)
        assert picture.shape == (32, 32, 3)
        assert seen_in(picture) == (colour, size, place)
        assert words_of(picture) == one.caption
        assert told_by(one.caption) == one
    assert seen_in(paint(Composition("red square", "blue", "small", "center"), 32))[2] == "center"
    assert told_by("a wolf on the moon") is None
    assert told_by("wolf on a red background, large, left") is None


def test_a_judge_that_finds_no_labels_gives_no_figures() -> None:
    picture = np.zeros((1, 32, 32, 3), dtype=np.uint8)
    assert judge(picture, ["a wolf"]) == {}
    found = judge(picture, ["red bar on a black background, small, center"])
    assert found == {"background": 1.0, "position": 1.0, "size": 1.0, "drawing": 0.0}


def test_compositions_are_drawn_evenly_and_never_on_their_own_colour() -> None:
    made = draw_compositions(4000, np.random.default_rng(0), colours=4)
    assert set(Counter(one.colour for one in made)) == set(list(COLOURS)[:4])
    assert len({one.shape for one in made}) == 48
    assert all(one.shape.partition(" ")[0] != one.colour for one in made)
    for counts in (Counter(one.place for one in made), Counter(one.size for one in made)):
        assert max(counts.values()) < 1.3 * min(counts.values())


def test_shapes_are_told_by_their_pictures_and_by_what_the_demo_makes_codes_of_them() -> None:
    data = ImageTextData(source="shapes", compositions=300, colours=4, sizes=1, places=1, heldout_fraction=0.1)
    training, heldout = picture_sets(data, 32, seed=0)
    assert not set(training.captions) & set(heldout.captions), "no held-out combination is trained on"
    again, _ = picture_sets(data, 32, seed=0)
    assert again.captions == training.captions
    pictures = training.some(range(len(training)))
    assert judge(pictures, training.captions) == dict.fromkeys(("background", "position", "size", "drawing"), 1.0)
    assert words_of(np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)) == ""
    names = (DESCRIPTION_FILE, PARAMETERS_FILE)
    tokenizer = read_image_tokenizer({name: SHAPE_TOKENIZER / name for name in names})
    found = judge(tokenizer.decode(tokenizer.encode(pictures[:64])), training.captions[:64])
    assert found["drawing"] > 0.95
    assert found["background"] == 1.0


def picture_folder(folder: Path, count: int = 30) -> Path:
    folder.mkdir(exist_ok=True)
    lines = ["file_name,caption"]
    random = np.random.default_rng(0)
    for number in range(count):
        pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.png")
        lines.append(f'{number}.png,"picture {number} of noise, grey"')
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", "utf-8")
    return folder


def test_a_folder_of_pictures_becomes_a_run(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures")
    data = {"source": "folder", "folder": str(folder), "heldout_fraction": 0.1}
    recipe = picture_recipe(data=data)
    own = tmp_path / "files"
    own.mkdir()
    files = write_pictures(own, recipe.prepare())
    batch = next(picture_recipe(data={**data, "folder": ""}).batches(files, StreamPosition(ALICE), 4))
    assert batch["codes"].shape == (4, 64)
    assert (batch["captions"] > 0).any(dim=1).all()
    figures = recipe.evaluate(recipe.build_model(), files)
    assert set(figures) == {"heldout_image_loss", "heldout_text_loss"}  # such captions say no colour
    assert set(recipe.inputs()) == {folder / "metadata.csv", *folder.glob("*.png")}
    (own / "tokenizer.json").touch()
    given = picture_recipe(data=data, tokenizer=f"from:{own}")
    assert set(given.inputs()) == {own / "tokenizer.json", *recipe.inputs()}


def test_blank_lines_among_the_metadata_count_for_nothing(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures", 6)
    (folder / "metadata.csv").unlink()
    lines = [json.dumps({"file_name": f"{number}.png", "caption": f"number {number}"}) for number in range(6)]
    (folder / "metadata.jsonl").write_text("\n\n".join([*lines, "\n"]), "utf-8")
    training, heldout = picture_sets(ImageTextData(source="folder", folder=str(folder), heldout_fraction=0.2), 32, 0)
    assert {*training.captions, *heldout.captions} == {f"number {number}" for number in range(6)}
    (folder / "metadata.jsonl").write_text(f"{lines[0]}\n\n{{", "utf-8")
    with pytest.raises(ConfigurationError, match=r"metadata\.jsonl, line 3: not JSON"):
        picture_sets(ImageTextData(source="folder", folder=str(folder)), 32, 0)


@pytest.mark.parametrize("captions", ["metadata", "text files"])
def test_pictures_that_are_left_out_are_told_of(
    captions: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = picture_folder(tmp_path / "pictures", 12)
    Image.new("RGB", (90, 30)).save(folder / "3.png")
    if captions == "metadata":
        lines = (folder / "metadata.csv").read_text("utf-8").replace('"picture 5 of noise, grey"', "\u732b")
        (folder / "metadata.csv").write_text(lines, "utf-8")
    else:
        (folder / "metadata.csv").unlink()
        for number in {*range(12)} - {5}:
            (folder / f"{number}.txt").write_text(f"noise number {number}")
    data = ImageTextData(source="folder", folder=str(folder), heldout_fraction=0.2)
    picture_sets(data, 32, 0)
    assert "of the first 12 pictures 10 are taken" in caplog.text
    for beyond in (2, 10):  # the third by number, and by name
        (folder / f"{beyond}.png").write_bytes(b"nobody opens it")
    picture_sets(data.model_copy(update={"most_pictures": 2}), 32, 0)
    assert "of the first 2 pictures 2 are taken" in caplog.text


def test_captions_may_lie_in_text_files_beside_their_pictures(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures", 6)
    (folder / "metadata.csv").unlink()
    for number in range(1, 6):  # the first has no caption
        (folder / f"{number}.txt").write_text(f"noise\n  number {number}\n", "utf-8")
    training, heldout = picture_sets(ImageTextData(source="folder", folder=str(folder), heldout_fraction=0.2), 32, 0)
    assert {*training.captions, *heldout.captions} == {f"noise number {number}" for number in range(1, 6)}


def test_a_peer_trains_on_a_folder_of_its_own(tmp_path: Path) -> None:
    files = write_pictures(tmp_path)
    folder = picture_folder(tmp_path / "pictures", 10)
    recipe, own = picture_recipe().own_data(files, [str(folder)], tmp_path / "own")
    pairs = read_pairs(own[TRAINING_FILE], picture_recipe().settings.shape())
    assert len(pairs) == 10
    batch = next(recipe.batches(own, StreamPosition(ALICE), 4))
    assert [tuple(batch[name].shape) for name in ("captions", "codes")] == [(4, 12), (4, 64)]
    assert (batch["captions"] > 0).any(dim=1).all()
    model = recipe.build_model()
    assert recipe.evaluate(model, own) == picture_recipe().evaluate(model, files)


def test_own_pictures_that_are_held_out_for_all_are_not_trained_on(tmp_path: Path) -> None:
    folder = picture_folder(tmp_path / "pictures")
    settings = {"data": {"source": "folder", "folder": str(folder), "heldout_fraction": 0.2}}
    (tmp_path / "files").mkdir()
    files = write_pictures(tmp_path / "files", picture_recipe(**settings).prepare())
    recipe, own = picture_recipe(**settings).own_data(files, [str(folder)], tmp_path / "own")
    assert isinstance(recipe, TextToImageRecipe)
    sets = [recipe._pairs(each, TRAINING_FILE) for each in (files, own)]
    assert len(sets[0]) == len(sets[1]) < 30


def test_own_pictures_that_cannot_be_used_are_explained(tmp_path: Path) -> None:
    files = write_pictures(tmp_path)
    recipe = picture_recipe()
    with pytest.raises(ConfigurationError, match="no such folder"):
        recipe.own_data(files, [str(tmp_path / "nothing")], tmp_path / "own")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match=r"no NAME\.txt beside a picture"):
        recipe.own_data(files, [str(tmp_path / "empty")], tmp_path / "own")
    codes_only = {name: path for name, path in files.items() if not name.startswith("image_tokenizer")}
    with pytest.raises(ConfigurationError, match="no image tokenizer"):
        recipe.own_data(codes_only, [str(picture_folder(tmp_path / "pictures", 2))], tmp_path / "own")
    with pytest.raises(ConfigurationError, match="no image tokenizer"):
        recipe.check_own_data([str(tmp_path / "pictures")], codes_only)
    recipe.check_own_data([str(tmp_path / "pictures")], files)
    assert not (tmp_path / "own").exists()


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("file_name,caption\n../a.png,hello\n", "no picture in this folder"),
        ("file_name,caption\n/etc/a.png,hello\n", "no picture in this folder"),
        ("file_name,caption\nsecret.txt,hello\n", "no picture in this folder"),
        ("file_name,caption\nmissing.png,hello\n", "not a picture"),
        ("file_name,words\n0.png,hello\n", "there is no such column"),
        ("caption\nhello\n", "has no file_name"),
        ("file_name,caption\n0.png,x\n", "no picture that passes"),
    ],
)
def test_folders_that_cannot_be_used_are_explained(tmp_path: Path, lines: str, words: str) -> None:
    folder = picture_folder(tmp_path / "pictures", 1)
    (folder / "metadata.csv").write_text(lines, "utf-8")
    with pytest.raises(ConfigurationError, match=words):
        picture_sets(ImageTextData(source="folder", folder=str(folder)), 32, 0)
    (folder / "metadata.csv").unlink()
    with pytest.raises(ConfigurationError, match=r"has no metadata\.csv"):
        picture_sets(ImageTextData(source="folder", folder=str(folder)), 32, 0)


def coded_set(count: int = 60) -> Any:
    """A data set in ten parts with captions, sizes, marks and codes as int16 bytes."""
    random = np.random.default_rng(0)
    rows = {
        "caption": [f"thing {number}" for number in range(count)],
        "NSFW": ["UNLIKELY" if number % 3 else "LIKELY" for number in range(count)],
        "original_width": [100] * count,
        "original_height": [100 if number % 2 else 300 for number in range(count)],
        "code": [random.integers(0, 256, 64).astype("<i2").tobytes() for _ in range(count)],
    }
    return datasets.Dataset.from_dict(rows).to_iterable_dataset(num_shards=10)


def test_each_peer_streams_codes_in_an_order_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = coded_set()
    monkeypatch.setattr(source, "open_hub", lambda *_: found)
    data = {
        "source": "hub",
        "name": "owner/pairs",
        "code_column": "code",
        "shuffle_buffer": 16,
        "heldout_fraction": 0.2,
    }
    recipe = picture_recipe(data=data)
    own = tmp_path / "files"
    own.mkdir()
    files = write_pictures(own, recipe.prepare())
    assert TRAINING_FILE not in files
    heldout = {codes.tobytes() for codes in recipe._pairs(files, HELDOUT_FILE).codes.astype(np.int64)}
    assert 4 <= len(heldout) <= 25
    epoch = 60 - len(heldout)

    def first(peer: str) -> list[bytes]:
        stream = recipe.batches(files, StreamPosition(peer), 1)
        return [batch["codes"].numpy().tobytes() for batch in itertools.islice(stream, 2 * epoch)]

    ours, theirs = first(ALICE), first(BOB)
    assert ours == first(ALICE)
    assert set(ours[:16]) != set(theirs[:16])  # they begin in other parts of the data set
    assert len(set(ours[:epoch])) == epoch  # no pair twice in an epoch
    assert set(ours[:epoch]) == set(ours[epoch:]) == set(theirs[:epoch])
    assert ours[:epoch] != ours[epoch:]
    assert not set(ours) & heldout
    sizes = [len(each["codes"]) for each in itertools.islice(recipe.batches(files, StreamPosition(ALICE), 7), 20)]
    assert sizes == [7] * 20


def test_the_first_held_out_pictures_are_of_the_whole_folder(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for name, number in itertools.product(("cat", "dog"), range(200)):
        picture = random.integers(0, 255, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(picture).save(tmp_path / f"{name}{number:03d}.png")
        (tmp_path / f"{name}{number:03d}.txt").write_text(f"a {name}")
    data = ImageTextData(source="folder", folder=str(tmp_path), heldout_fraction=0.4)
    _, heldout = picture_sets(data, 8, 0)
    assert 20 < sum(each == "a cat" for each in heldout.captions[:80]) < 60


def test_pictures_of_a_data_set_are_decoded_by_us(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = []
    for number in range(12):
        body = io.BytesIO()
        Image.new("RGB", (30 if number else 90, 30), (number * 20, 0, 0)).save(body, "PNG")
        bodies.append({"bytes": body.getvalue(), "path": None})
    rows = {"image": bodies, "caption": [f"picture {number}" for number in range(12)]}
    features = datasets.Features({"image": datasets.Image(), "caption": datasets.Value("string")})
    path = tmp_path / "pictures.parquet"
    datasets.Dataset.from_dict(rows, features=features).to_parquet(path)
    found = opened("x", "parquet", data_files=[str(path)], split="train")
    monkeypatch.setattr(source, "open_hub", lambda *_: found)
    data = ImageTextData(source="hub", name="owner/pictures", heldout_fraction=0.1)
    training, heldout = picture_sets(data, 16, 0)
    assert len(training) + len(heldout) == 11  # one is three times as wide as high
    assert training.picture(0).shape == (16, 16, 3)
    broken = datasets.Dataset.from_dict({**rows, "image": [{"bytes": b"junk", "path": None}] * 12}, features=features)
    broken.to_parquet(path)
    with pytest.raises(ConfigurationError, match="not a picture"):
        picture_sets(data, 16, 0)


ROW: dict[str, Any] = {"caption": " a  wolf\n", "NSFW": "UNLIKELY", "w": 10, "h": 20, "code": [1, 2, 3, 4]}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "a wolf"),
        ({"caption": None}, None),
        ({"caption": "ab"}, None),
        ({"NSFW": "LIKELY"}, None),
        ({"h": 21}, None),
        ({"w": 0}, None),
        ({"w": None}, None),
    ],
)
def test_rows_are_taken_by_caption_shape_and_marks(changes: dict[str, Any], expected: str | None) -> None:
    filters = ImageTextFilters(require=("NSFW=UNLIKELY",))
    data = ImageTextData(width_column="w", height_column="h", filters=filters)
    assert caption_of_row({**ROW, **changes}, data) == expected


@pytest.mark.parametrize(
    "code",
    [[1, 2, 3], [1, 2, 3, 99], [-1, 2, 3, 4], [1.5, 2, 3, 4], "four", None, b"\x01\x00", {"a": 1}, [[1, 2], [3]]],
)
def test_codes_of_another_kind_are_refused(code: object) -> None:
    data = ImageTextData(source="hub", name="a/b", code_column="code")
    with pytest.raises(ConfigurationError, match="a picture has 4 codes below 16"):
        codes_of_row({**ROW, "code": code}, data, 4, 16)
    assert codes_of_row(ROW, data, 4, 16).tolist() == [1, 2, 3, 4]
    assert codes_of_row({"code": np.array([1, 2, 3, 15], "<i2").tobytes()}, data, 4, 16).tolist() == [1, 2, 3, 15]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"source": "hub"}, "needs name"),
        ({"source": "shapes", "folder": "x"}, "folder is for"),
        ({"source": "folder", "name": "owner/name"}, "are for source"),
    ],
)
def test_settings_of_sources_that_contradict_themselves_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        picture_recipe(data=settings)
