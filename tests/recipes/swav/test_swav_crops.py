"""Crops: boxes within bounds, the same on every machine, and pixels that stay pixels."""

from __future__ import annotations

import colorsys
import json

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance

from minga.recipes.swav import crops
from minga.recipes.swav.crops import (
    RATIOS,
    CropRule,
    FileCropper,
    blur,
    crop_arrays,
    crop_boxes,
    crop_picture,
    jitter,
    make_grey,
)
from tests.worlds import forked
from tests.worlds.swav_world import made_up


@pytest.mark.parametrize(("height", "width"), [(28, 28), (375, 500), (10, 200), (1, 1)])
def test_boxes_lie_within_the_picture_and_have_the_area_and_ratio_asked_for(height: int, width: int) -> None:
    boxes = crop_boxes(np.random.default_rng(1), 2000, height, width, 0.3, 0.9)
    tops, lefts, heights, widths = boxes.T
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (tops + heights <= height).all()
    assert (lefts + widths <= width).all()
    if height == 375:
        areas = heights * widths / (height * width)
        assert 0.28 < areas.min() < 0.32
        assert 0.85 < areas.max() < 0.92
        assert 0.5 < areas.mean() < 0.6, "large ones do not fit so often"
        assert (widths / heights).min() > 0.74
        assert (widths / heights).max() < 1.35


def test_ratios_are_evenly_spaced_in_their_logarithms() -> None:
    np.testing.assert_allclose(RATIOS, (4 / 3) ** (np.arange(33) / 16 - 1), atol=5e-5)


def test_a_crop_of_everything_is_the_picture_flipped_or_not() -> None:
    pictures = made_up(40).pictures
    crops = crop_arrays(pictures, CropRule(12, 1.0, 1.0, 0.5, 0.0, 0.0), np.random.default_rng(0))
    whole = crop_boxes(np.random.default_rng(0), 40, 12, 12, 1.0, 1.0)[:, 2:].min(axis=1) == 12
    assert whole.any()
    coloured = crops.float().std(dim=1).amax(dim=(1, 2)) > 0  # others were made grey
    kinds = set()
    for picture, crop, is_whole in zip(pictures[coloured], crops[coloured], whole[coloured.numpy()], strict=True):
        if is_whole:
            kinds.add("same" if torch.equal(crop, picture) else "flipped")
            assert torch.equal(crop, picture) or torch.equal(crop, picture.flip(2))
    assert kinds == {"same", "flipped"}


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_are_the_same_with_any_number_of_threads(channels: int) -> None:
    pictures, found = made_up(64, channels=channels).pictures, []
    threads = torch.get_num_threads()
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(crop_arrays(pictures, CropRule(10, 0.2, 0.8, 0.5, 0.8, 0.5), np.random.default_rng(3)))
    finally:
        torch.set_num_threads(threads)
    assert (found[0].dtype, tuple(found[0].shape)) == (torch.uint8, (64, channels, 10, 10))
    assert torch.equal(*found)


SCRIPT = """
import hashlib, json, sys, numpy as np, torch
from minga.recipes.swav.crops import CropRule, crop_arrays
from tests.worlds.swav_world import made_up

torch.set_num_threads(int(sys.argv[1]))
digests = {}
for side in (8, 12, 28):
    for channels in (1, 3):
        pictures = made_up(1500, side=side, channels=channels).pictures
        for amount in (0.0, 0.8):  # with changes of colour, and without, which may hide others
            crops = crop_arrays(pictures, CropRule(16, 0.3, 1.0, 0.5, amount, amount), np.random.default_rng(0))
            digests[f"{side} {channels} {amount}"] = hashlib.sha256(crops.numpy().tobytes()).hexdigest()
print(json.dumps({"width": torch.backends.cpu.get_cpu_capability(), "digests": digests}))
"""


@pytest.mark.promise("when-members-are-hostile")
def test_crops_are_the_same_with_any_vector_width() -> None:
    """Peers that verify each other ban one whose gradient is not that of the crops that they make for it."""
    told = [
        json.loads(run("-c", SCRIPT, threads).stdout)
        for run, threads in ((forked.run, "1"), (forked.run_otherwise, "2"))
    ]
    if told[0]["width"] == told[1]["width"]:
        pytest.skip("this processor has one vector width")
    assert told[0]["digests"] == told[1]["digests"]


def test_jitter_of_strength_0_changes_nothing_and_leaves_a_fifth_alone() -> None:
    pictures = made_up(200).pictures.float()
    still = pictures.clone()
    jitter(still, np.random.default_rng(0), 0.0)
    assert (still - pictures).abs().max() < 0.01
    moved = pictures.clone()
    jitter(moved, np.random.default_rng(0), 0.8)
    same = (moved == pictures).flatten(1).all(dim=1).float().mean().item()
    assert 0.12 < same < 0.28
    assert moved.min() >= 0.0
    assert moved.max() <= 255.0


def test_grey_pictures_have_no_colour_and_a_fifth_become_grey() -> None:
    pictures = made_up(400).pictures.float()
    make_grey(pictures, np.random.default_rng(2))
    grey = (pictures[:, 0] == pictures[:, 1]).flatten(1).all(dim=1).float().mean().item()
    assert 0.14 < grey < 0.26


def test_a_blur_keeps_the_sum_and_evens_neighbours_out() -> None:
    pictures = made_up(50, side=64).pictures.float()
    blurred = pictures.clone()
    blur(blurred, np.random.default_rng(0), 1.0)
    before, after = (each.diff(dim=3).abs().mean() for each in (pictures, blurred))
    assert after < 0.95 * before
    assert blurred.mean().item() == pytest.approx(pictures.mean().item(), abs=0.5)


@pytest.mark.parametrize(("number", "kind"), list(enumerate(("_brightness", "_contrast", "_saturation"))))
@pytest.mark.parametrize("factor", [0.3, 1.0, 1.7])
def test_changes_of_arrays_are_those_of_pillow(number: int, kind: str, factor: float) -> None:
    pictures = made_up(3, side=20).pictures
    ours = getattr(crops, kind)(pictures.float(), torch.full((3, 1, 1, 1), factor))
    change = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[number]
    for picture, found in zip(pictures, ours, strict=True):
        theirs = np.asarray(change(Image.fromarray(picture.permute(1, 2, 0).numpy())).enhance(factor))
        assert np.abs(theirs.transpose(2, 0, 1) - found.numpy()).max() <= 2.0


def test_hues_turn_as_in_the_standard_library() -> None:
    pictures = made_up(3, side=4).pictures.float()
    ours = crops._hue(pictures, torch.tensor([-0.2, 0.0, 0.15]).view(-1, 1, 1, 1))
    for picture, found, turn in zip(pictures, ours, (-0.2, 0.0, 0.15), strict=True):
        for place in np.ndindex(4, 4):
            hue, saturation, value = colorsys.rgb_to_hsv(*(picture[(slice(None), *place)] / 255.0).tolist())
            expected = colorsys.hsv_to_rgb((hue + turn) % 1.0, saturation, value)
            np.testing.assert_allclose(found[(slice(None), *place)].numpy() / 255.0, expected, atol=1e-5)


def test_enlarged_boxes_are_those_of_pillow() -> None:
    coarse = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 3, 5, 5), dtype=np.uint8))
    smooth = torch.nn.functional.interpolate(coarse.float(), size=(24, 24), mode="bilinear").round()
    boxes = np.array([[3, 5, 12, 10], [0, 0, 16, 16]])
    ours = crops._resample(smooth, boxes, np.array([False, True]), 20)
    for number, (top, left, height, width) in enumerate(boxes.tolist()):
        whole = Image.fromarray(smooth[number].permute(1, 2, 0).to(torch.uint8).numpy())
        box = (left, top, left + width, top + height)
        theirs = np.asarray(whole.resize((20, 20), Image.Resampling.BILINEAR, box=box)).transpose(2, 0, 1)
        found = ours[number].flip(2) if number else ours[number]
        apart = np.abs(theirs - found.numpy())[:, 1:-1, 1:-1]  # at the border one of them sees beyond the box
        assert apart.mean() < 1.0
        assert apart.max() < 6.0


@pytest.mark.parametrize("jitter", [0.0, 0.8])
def test_crops_of_files_are_drawn_by_their_seed_alone(jitter: float) -> None:
    picture = Image.fromarray(made_up(1, side=60).pictures[0].permute(1, 2, 0).numpy())
    rule = CropRule(20, 0.2, 0.5, 0.5, jitter, 0.5)
    found = [np.asarray(crop_picture(picture, rule, seed)).tobytes() for seed in (1, 1, 2)]
    assert found[0] == found[1] != found[2]
    cropper = FileCropper()
    crops = cropper.crop([picture] * 5, rule, np.random.default_rng(1))
    assert (tuple(crops.shape), crops.dtype) == ((5, 3, 20, 20), torch.uint8)
    assert torch.equal(crops, cropper.crop([picture] * 5, rule, np.random.default_rng(1)))
