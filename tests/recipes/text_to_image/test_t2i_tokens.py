"""Image tokens: exact ids, a tokenizer that learns, tokenizers as files."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.shapes import draw_compositions, paint
from minga.recipes.text_to_image.tokens import (
    DESCRIPTION_FILE,
    PARAMETERS_FILE,
    FsqTokenizer,
    Pictures,
    ScalarQuantiser,
    image_tokenizer_files,
    read_image_tokenizer,
    train_fsq,
)
from tests.worlds.seeds import soaked


def pictures(count: int, seed: int) -> Pictures:
    return np.stack([paint(one, 32) for one in draw_compositions(count, np.random.default_rng(seed))])


@pytest.mark.parametrize("levels", [(8, 6, 5), (8, 8, 8), (8, 8, 4, 4), (3,), (4, 3)])
def test_each_code_is_the_code_of_its_own_values(levels: tuple[int, ...]) -> None:
    quantiser = ScalarQuantiser(levels)
    ids = torch.arange(quantiser.codes)
    values = quantiser.values(ids)
    assert torch.equal(quantiser.ids(values), ids)
    every = {tuple(each) for each in values.tolist()}
    channels = [[float(n - level // 2) for n in range(level)] for level in levels]
    assert every == set(itertools.product(*channels))
    assert quantiser.scaled(values).abs().max() <= 1


def test_quantising_reaches_all_levels_and_no_others_and_passes_gradients() -> None:
    quantiser = ScalarQuantiser((8, 6, 5))
    h = torch.linspace(-20, 20, 4001)[:, None].repeat(1, 3).requires_grad_()
    z = quantiser.quantise(h)
    assert [len(each.unique()) for each in z.detach().round().T] == [8, 6, 5]
    assert (z - z.round()).abs().max() < 1e-6
    assert int(quantiser.ids(z).min()) >= 0
    assert int(quantiser.ids(z).max()) < 240
    assert quantiser.ids(quantiser.quantise(torch.zeros(1, 3))).item() == quantiser.ids(torch.zeros(1, 3)).item()
    z.sum().backward()
    assert h.grad is not None
    assert bool((h.grad[1900:2100] > 0).all())


def test_the_tokenizer_has_the_shape_of_its_pictures() -> None:
    for halvings, side in ((2, 8), (3, 4)):
        tokenizer = FsqTokenizer((8, 6, 5), halvings)
        codes = tokenizer.encode(pictures(3, 0))
        assert codes.shape == (3, side**2)
        assert tokenizer.decode(codes).shape == (3, 32, 32, 3)
    assert sum(each.numel() for each in FsqTokenizer((8, 6, 5)).parameters()) == 339_942


@pytest.mark.parametrize(("steps", "decibels", "codes"), [(12, 8.0, 8), soaked(800, 19.0, 150)])
def test_the_tokenizer_learns_to_keep_pictures(steps: int, decibels: float, codes: int) -> None:
    generator = torch.random.get_rng_state()
    tokenizer = train_fsq(pictures(25 * steps if steps < 100 else 6000, 1), (8, 6, 5), 2, steps, 0)
    others = pictures(100, 2)
    found = tokenizer.encode(others)
    error = (tokenizer.decode(found).astype(np.float64) - others) / 255
    assert -10 * np.log10((error**2).mean()) >= decibels
    assert len(np.unique(found)) >= codes
    assert torch.equal(generator, torch.random.get_rng_state())


def write(folder: Path, files: dict[str, bytes]) -> dict[str, Path]:
    for name, body in files.items():
        (folder / name).write_bytes(body)
    return {name: folder / name for name in files}


def test_a_tokenizer_travels_as_files(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tokenizer = FsqTokenizer((4, 4), 3)
    read = read_image_tokenizer(write(tmp_path, image_tokenizer_files(tokenizer)))
    some = pictures(4, 3)
    codes = tokenizer.encode(some)
    assert np.array_equal(read.encode(some), codes)
    assert np.array_equal(read.decode(codes), tokenizer.decode(codes))
    assert read.codes == 16


def test_codes_of_a_local_tokenizer_do_not_depend_on_what_is_around(tmp_path: Path) -> None:
    torch.manual_seed(0)
    files = write(tmp_path, image_tokenizer_files(FsqTokenizer((8, 6, 5), is_local=True)))
    some = pictures(4, 3)
    moved = np.roll(some, 4, axis=2)
    for tokenizer, is_local in ((read_image_tokenizer(files), True), (FsqTokenizer((8, 6, 5)), False)):
        codes, theirs = (tokenizer.encode(each).reshape(4, 8, 8) for each in (some, moved))
        assert np.array_equal(np.roll(codes, 1, axis=2), theirs) == is_local


@pytest.mark.parametrize(
    "description",
    [
        {"kind": "fsq", "levels": [4, 4], "halvings": 9, "is_local": False},
        {"kind": "fsq", "levels": [4, 4, 4], "halvings": 2, "is_local": False},
        {"kind": "fsq", "levels": [10**9], "halvings": 2, "is_local": False},
        {"kind": "fsq", "levels": [2, 2], "halvings": 2, "is_local": False},
        {"kind": "fsq", "levels": "no", "halvings": 2, "is_local": False},
        {"kind": "fsq", "levels": [4, 4], "halvings": 2, "is_local": "no"},
        {"kind": "other", "levels": [4, 4], "halvings": 2, "is_local": False},
        {},
        [],
    ],
)
def test_damaged_tokenizers_are_refused_without_large_allocations(tmp_path: Path, description: object) -> None:
    files = write(tmp_path, image_tokenizer_files(FsqTokenizer((4, 4))))
    files[DESCRIPTION_FILE].write_text(json.dumps(description))
    with pytest.raises(ConfigurationError, match="damaged"):
        read_image_tokenizer(files)


def test_parameters_that_are_not_finite_are_refused_and_missing_ones_explained(tmp_path: Path) -> None:
    tokenizer = FsqTokenizer((4, 4))
    next(tokenizer.parameters()).data[0] = float("nan")
    files = write(tmp_path, image_tokenizer_files(tokenizer))
    with pytest.raises(ConfigurationError, match="not finite"):
        read_image_tokenizer(files)
    with pytest.raises(ConfigurationError, match="without an image tokenizer"):
        read_image_tokenizer({PARAMETERS_FILE: files[PARAMETERS_FILE]})
