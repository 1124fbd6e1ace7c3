"""Pictures of one size, of a folder and of a data set: split, prepared, streamed, and trained on."""

from __future__ import annotations

import io
import itertools
import tarfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes import StreamPosition, new_model
from minga.recipes.swav.pictures import (
    SHARD_BYTES,
    UNLABELLED,
    EncodedSet,
    PictureSet,
    digit_pictures,
    encoded_pictures,
    own_pictures,
    pack_files,
    read_pictures,
    split_pictures,
)
from minga.recipes.swav.settings import ImageData
from minga.testing import RecipeCase
from tests.worlds.swav_world import SMALL, made_up

COUNT = 36
ALICE = StreamPosition("a" * 64)


def encoded() -> list[tuple[bytes, int]]:
    """Pictures of 20 x 24 pixels as PNG, with one of three classes each."""
    found = []
    for picture, label in zip(made_up(COUNT, side=24).pictures.numpy(), itertools.cycle(range(3))):
        body = io.BytesIO()
        Image.fromarray(picture.transpose(1, 2, 0)[:20]).save(body, "PNG")
        found.append((body.getvalue(), label))
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one folder for each class."""
    found = tmp_path_factory.mktemp("pictures")
    for number, (body, label) in enumerate(encoded()):
        place = found / f"class{label}" / f"{number}.png"
        place.parent.mkdir(exist_ok=True)
        place.write_bytes(body)
    return found


def case_of(**data: Any) -> RecipeCase:
    return RecipeCase("swav", {**SMALL, "data": {"heldout_fraction": 0.25, **data}})


def trained_once(case: RecipeCase, files: dict[str, Path]) -> dict[str, torch.Tensor]:
    """A batch of the case, on which the loss was computed, once it was seen that another peer gets another one."""
    recipe = case.recipe()
    batch, again = (next(iter(case.recipe().batches(files, ALICE, 8))) for _ in range(2))
    other = next(iter(recipe.batches(files, StreamPosition("b" * 64), 8)))
    assert all(torch.equal(batch[name], again[name]) for name in batch)
    assert not torch.equal(batch["crops_0"], other["crops_0"])
    assert [tuple(each.shape) for each in batch.values()] == [(16, 3, 16, 16), (8, 3, 8, 8)]
    assert bool(recipe.total_loss(new_model(recipe), batch).isfinite())
    return batch


@pytest.mark.parametrize("packed_size", [0, 16])
def test_a_file_that_is_no_picture_is_named(tmp_path: Path, packed_size: int) -> None:
    (tmp_path / "class").mkdir()
    for number in range(3):
        Image.new("RGB", (16, 16), (number, 0, 0)).save(tmp_path / "class" / f"{number}.png")
    bad = tmp_path / "class" / "bad.png"
    bad.write_bytes(b"")
    with pytest.raises(ConfigurationError, match=rf"{bad.name}': not a picture that can be read"):
        case_of(source="folder", folder=str(tmp_path), packed_size=packed_size, heldout_fraction=0.0).recipe().prepare()


@pytest.mark.parametrize("headers", [{"GNU.sparse.major": "1", "GNU.sparse.minor": "0"}, {"size": "-5"}])
def test_tar_files_with_hostile_headers_are_refused(headers: dict[str, str], tmp_path: Path) -> None:
    info, path = tarfile.TarInfo("a.img"), tmp_path / "a.tar"
    info.pax_headers = headers
    with tarfile.open(path, mode="w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(info)
    with pytest.raises(ConfigurationError, match=r"not a tar file|a picture has not"):
        EncodedSet({"pictures-0000.tar": path})


def test_a_folder_travels_as_squares(folder: Path, tmp_path: Path) -> None:
    case = case_of(source="folder", folder=str(folder), packed_size=16)
    files = case.files(tmp_path)
    assert set(files) == {"images.safetensors", "heldout.safetensors"}
    assert len(case.recipe().inputs()) == COUNT
    trained_once(case, files)
    figures = case.recipe().evaluate(new_model(case.recipe()), files)
    assert figures["heldout_probe_accuracy"] > 0.6, "the classes differ by colour"


def test_a_folder_travels_as_files(folder: Path, tmp_path: Path) -> None:
    case = case_of(source="folder", folder=str(folder), packed_size=0)
    files = case.files(tmp_path)
    assert set(files) == {"pictures-0000.tar", "probe.safetensors", "heldout.safetensors"}
    stored = EncodedSet(files)
    bodies = {body for body, _ in encoded()}
    assert {stored.body(number) for number in range(len(stored))} < bodies
    trained_once(case, files)
    assert "heldout_probe_accuracy" in case.recipe().evaluate(new_model(case.recipe()), files)
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(b"no tar file at all" * 100)
    for broken in ({"pictures-0000.tar": damaged}, {}):
        with pytest.raises(ConfigurationError, match=r"not a tar file|without pictures"):
            next(iter(case.recipe().batches(broken, ALICE, 8)))


def test_a_data_set_of_the_hub_is_streamed_by_each_peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    asked: list[dict[str, Any]] = []

    def load(path: str, **named: Any) -> Any:
        asked.append({"path": path, **named})
        rows = [{"photo": {"bytes": body, "path": None}, "kind": f"class {label}"} for body, label in encoded()]
        features = datasets.Features({"photo": datasets.Image(), "kind": datasets.Value("string")})
        return datasets.Dataset.from_list(rows, features=features).to_iterable_dataset()

    monkeypatch.setattr(datasets, "load_dataset", load)
    case = case_of(
        source="hub", name="owner/photos", image_column="photo", label_column="kind", revision="main", shuffle_buffer=16
    )
    files = case.files(tmp_path)
    assert set(files) == {"probe.safetensors", "heldout.safetensors"}
    trained_once(case, files)
    assert "heldout_probe_accuracy" in case.recipe().evaluate(new_model(case.recipe()), files)
    assert asked[0] == {
        "path": "owner/photos",
        "name": None,
        "revision": "main",
        "split": "train",
        "streaming": True,
    }
    with pytest.raises(ConfigurationError, match="no such column; there are: photo, kind"):
        case_of(source="hub", name="owner/photos").recipe().prepare()


@pytest.mark.parametrize("source", [{"source": "digits"}, {"source": "folder", "packed_size": 0}])
def test_a_peer_trains_on_a_folder_of_its_own(
    source: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minga.recipes.swav.pictures.digit_pictures", lambda: made_up(90, side=8, channels=1))
    is_packed = source["source"] == "digits"
    if not is_packed:
        source = {**source, "folder": str(folder)}
    case = case_of(**source)
    files = case.files(tmp_path)
    recipe, own = case.recipe().own_data(files, [str(folder)], tmp_path / "own")
    batch = next(iter(recipe.batches(own, ALICE, 8)))
    assert tuple(batch["crops_0"].shape) == (16, 1 if is_packed else 3, 16, 16)
    model = new_model(recipe)
    assert recipe.evaluate(model, own) == case.recipe().evaluate(model, files)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError):
        case.recipe().own_data(files, [str(tmp_path / "empty")], tmp_path / "own")


def test_pictures_held_out_for_all_are_not_trained_on(folder: Path, tmp_path: Path) -> None:
    case = case_of(source="folder", folder=str(folder), packed_size=16)
    files = case.files(tmp_path)
    _, own = case.recipe().own_data(files, [str(folder)], tmp_path / "own")
    sets = [read_pictures(each["images.safetensors"], 3) for each in (files, own)]
    assert len(sets[0]) == len(sets[1]) < COUNT


def test_picture_files_of_a_peer_take_the_place_of_all_of_the_run(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run has more tar files than the peer; what is held out is left out though its files are others."""
    monkeypatch.setattr("minga.recipes.swav.pictures.SHARD_BYTES", 6000)
    case = case_of(source="folder", folder=str(folder), packed_size=0)
    files = case.files(tmp_path)
    shards = [name for name in files if name.startswith("pictures-")]
    assert len(shards) > 2
    (tmp_path / "few").mkdir()
    for number in range(2):
        Image.new("RGB", (30, 30), (200, number, 0)).save(tmp_path / "few" / f"{number}.png")
    _, own = case.recipe().own_data(files, [str(tmp_path / "few")], tmp_path / "own")
    assert len(EncodedSet(own)) == 2

    for path in folder.rglob("*.png"):
        with Image.open(path) as picture:
            picture.save(tmp_path / "few" / f"again{path.stem}.bmp")
    _, own = case.recipe().own_data(files, [str(tmp_path / "few")], tmp_path / "all")
    assert len(EncodedSet(own)) == 2 + len(EncodedSet(files)) < 2 + COUNT
    (tmp_path / "out").mkdir()
    heldout = read_pictures(files["heldout.safetensors"], 3).pictures[0].permute(1, 2, 0).numpy()
    Image.fromarray(heldout).save(tmp_path / "out" / "one.png")
    with pytest.raises(ConfigurationError, match="all its pictures are held out"):
        case.recipe().own_data(files, [str(tmp_path / "out")], tmp_path / "none")


@pytest.mark.parametrize(
    "names",
    [
        ("car/{}.png", "train/{}.png", "boat/{}.png"),
        ("car/train_{}.png", "car/test_{}.png", "boat/val-{}.png"),
        ("train/car/{}.png", "test/car/{}.png", "validation/boat/{}.png"),
        ("car [v2]/test{}.png", "boat/{}.png"),
    ],
)
def test_all_pictures_of_a_folder_are_taken_whatever_their_names(names: tuple[str, ...], tmp_path: Path) -> None:
    root, wanted = tmp_path / ".pictures [2]", Counter[str]()
    for place, name in enumerate(names):
        for number in range(3):
            path = root / name.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), (number, place, 0)).save(path)
            wanted[path.parent.name] += 1
    for found in (encoded_pictures(ImageData(source="folder", folder=str(root))), own_pictures([str(root)])):
        labels = Counter(each.label for each in found)
        assert sorted(labels.values()) == sorted(wanted.values())
        assert UNLABELLED not in labels


def test_a_folder_without_pictures_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no such folder"):
        case_of(source="folder", folder=str(tmp_path / "none")).recipe().prepare()
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "broken.png").write_bytes(b"\x89PNG no picture")
    with pytest.raises(ConfigurationError, match="not a picture that can be read"):
        case_of(source="folder", folder=str(tmp_path), packed_size=16).recipe().prepare()


def test_pictures_are_packed_into_several_files_and_equal_ones_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SHARD_BYTES < 256 << 20
    monkeypatch.setattr("minga.recipes.swav.pictures.SHARD_BYTES", 100)
    bodies = [bytes([number]) * 45 for number in range(5)]
    shards = pack_files(bodies)
    assert shards == pack_files(bodies)
    assert list(shards) == [f"pictures-{number:04d}.tar" for number in range(3)]
    files = {name: tmp_path / name for name in shards}
    for name, body in shards.items():
        files[name].write_bytes(body)
    stored = EncodedSet(files)
    assert [stored.body(number) for number in range(len(stored))] == bodies


def test_digits_of_scikit_learn() -> None:
    found = digit_pictures()
    assert (tuple(found.pictures.shape), found.pictures.dtype) == ((1797, 1, 8, 8), torch.uint8)
    assert int(found.pictures.max()) == 255
    assert sorted(set(found.labels.tolist())) == list(range(10))


def test_no_picture_both_trains_and_is_held_out() -> None:
    found = made_up(200)
    twice = PictureSet(torch.cat([found.pictures] * 2), torch.cat([found.labels] * 2))
    training, heldout = split_pictures(twice, 0.2)
    sides = [{picture.numpy().tobytes() for picture in side.pictures} for side in (training, heldout)]
    assert not sides[0] & sides[1]
    assert len(training) + len(heldout) == 400
    assert 60 < len(heldout) < 100
    everything, nothing = split_pictures(found, 0.0)
    assert (len(everything), len(nothing)) == (200, 0)


def test_files_of_pictures_are_read_back_and_others_refused(tmp_path: Path) -> None:
    found, path = made_up(5, channels=1), tmp_path / "some.safetensors"
    path.write_bytes(found.pack())
    again = read_pictures(path, 1)
    assert torch.equal(again.pictures, found.pictures)
    assert torch.equal(again.labels, found.labels)
    with pytest.raises(ConfigurationError, match="with 3 channels"):
        read_pictures(path, 3)
    path.write_bytes(PictureSet(found.pictures, found.labels - 9).pack())
    with pytest.raises(ConfigurationError, match="labels"):
        read_pictures(path, 1)
    for wrong in (PictureSet(found.pictures.float(), found.labels), PictureSet(found.pictures, found.labels[:2])):
        path.write_bytes(wrong.pack())
        with pytest.raises(ConfigurationError, match="not a file of labelled pictures"):
            read_pictures(path, 1)
    path.write_bytes(b"\x00" * 40)
    with pytest.raises(ConfigurationError, match="not a file of pictures"):
        read_pictures(path, 1)
    with pytest.raises((StorageError, ConfigurationError)):
        read_pictures(tmp_path / "missing", 1)
