"""Crops of pictures, changed at random, with all chance from NumPy: of small pictures of one size all at once, of
picture files one by one; and batches of crops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import repeat
from typing import Final

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, ImageEnhance, ImageFilter
from torch import Tensor

from minga.recipes.data.hold_out import content_rank
from minga.recipes.data.order import epoch_seed, shuffled, shuffled_blocks, streamed
from minga.recipes.images.loading import open_picture
from minga.recipes.interface import Batch, Files, StreamPosition
from minga.recipes.swav.pictures import EncodedSet, encoded_pictures
from minga.recipes.swav.settings import ImageData, SwavSettings


@dataclass(frozen=True)
class CropRule:
    """How crops are made.

    side: in pixels.
    low, high: the share of a picture's area that a crop shows.
    flip: share of the crops that are mirrored.
    jitter: strength of the changes of brightness, contrast and saturation, from 0 to 1; the hue has a quarter of it.
    blur: share of the crops that are blurred.
    """

    side: int
    low: float
    high: float
    flip: float
    jitter: float
    blur: float


# ---- Which parts of pictures crops show: boxes of random area, shape and place, in whole pixels.
#
# Equal on every machine: chance is NumPy's, and of all functions only the square root is used, which every processor
# rounds alike. So the ratios of a crop's sides, evenly spaced in their logarithms, are a table.


RATIOS: Final = np.array(
    [
        (0.7500, 0.7636, 0.7775, 0.7916, 0.8059, 0.8205, 0.8354, 0.8506, 0.8660, 0.8817, 0.8977),
        (0.9140, 0.9306, 0.9475, 0.9647, 0.9822, 1.0000, 1.0181, 1.0366, 1.0554, 1.0746, 1.0941),
        (1.1139, 1.1341, 1.1547, 1.1756, 1.1970, 1.2187, 1.2408, 1.2633, 1.2862, 1.3096, 1.3333),
    ]
).ravel()
"""Width by height, from 3/4 to 4/3."""

ATTEMPTS: Final = 10


def crop_boxes(
    chance: np.random.Generator, count: int, height: int, width: int, low: float, high: float
) -> npt.NDArray[np.int64]:
    """Boxes int64 [count, 4]: top, left, height and width within a picture of the given size.

    The area is uniform from `low` to `high` of the picture's. A box that does not fit is drawn again, ten times at
    most; then the largest centred box of an allowed ratio is taken.
    """
    shape = (ATTEMPTS, count)
    areas = (low + (high - low) * chance.random(shape)) * (height * width)
    ratios = RATIOS[chance.integers(0, len(RATIOS), shape)]
    heights, widths = (np.rint(np.sqrt(each)).astype(np.int64) for each in (areas / ratios, areas * ratios))
    fits = (heights >= 1) & (heights <= height) & (widths >= 1) & (widths <= width)
    first, every = fits.argmax(axis=0), np.arange(count)
    found = fits[first, every]
    tallest, widest = _largest(height, width)
    high_side = np.where(found, heights[first, every], tallest)
    wide_side = np.where(found, widths[first, every], widest)
    tops = np.where(found, chance.integers(0, height - high_side + 1), (height - tallest) // 2)
    lefts = np.where(found, chance.integers(0, width - wide_side + 1), (width - widest) // 2)
    return np.stack([tops, lefts, high_side, wide_side], axis=1)


def _largest(height: int, width: int) -> tuple[int, int]:
    """The largest height and width of a box whose ratio is allowed."""
    return min(height, max(1, width * 4 // 3)), min(width, max(1, height * 4 // 3))


# ---- Changes of colour on many pictures at once: brightness, contrast, saturation, hue, grey and blur.
#
# Pictures are float32 [n, c, s, s] from 0 to 255, grey (c = 1) or red, green, blue (c = 3). Which pictures change, by
# how much and in which order is drawn by NumPy beforehand.


JITTERED: Final = 0.8
GREYED: Final = 0.2
HUE_SHARE: Final = 0.25
"""Shares of the pictures that are jittered and made grey, and of the jitter's strength that the hue has."""

BLUR_LOW, BLUR_HIGH, BLUR_SIDE = 0.1, 2.0, 224
"""Radius of the blur, in pixels of a picture of 224 pixels; smaller pictures are blurred by proportionally less."""

_WEIGHTS: Final = (0.299, 0.587, 0.114)


def jitter(pictures: Tensor, chance: np.random.Generator, strength: float) -> None:
    """Change four pictures of five, in place: brightness, contrast, saturation and hue, in a random order."""
    count = len(pictures)
    chosen = chance.random(count) < JITTERED
    moves = 2.0 * chance.random((4, count)) - 1.0
    order = chance.random((4, count)).argsort(axis=0)
    factors = torch.from_numpy((1.0 + strength * moves[:3]).astype(np.float32))
    turns = torch.from_numpy((HUE_SHARE * strength * moves[3]).astype(np.float32))
    changes: list[tuple[Callable[[Tensor, Tensor], Tensor], Tensor]] = [
        (_brightness, factors[0]),
        (_contrast, factors[1]),
        (_saturation, factors[2]),
        (_hue, turns),
    ]
    for place in range(4):
        for number, (change, amounts) in enumerate(changes[: 4 if pictures.shape[1] == 3 else 2]):
            rows = torch.from_numpy(np.flatnonzero(chosen & (order[place] == number)))
            if len(rows):
                pictures[rows] = change(pictures[rows], amounts[rows].view(-1, 1, 1, 1))


def make_grey(pictures: Tensor, chance: np.random.Generator) -> None:
    """Take the colours out of one picture of five, in place."""
    rows = torch.from_numpy(np.flatnonzero(chance.random(len(pictures)) < GREYED))
    if pictures.shape[1] == 3 and len(rows):
        pictures[rows] = _grey(pictures[rows]).expand(-1, 3, -1, -1)


def blur(pictures: Tensor, chance: np.random.Generator, share: float) -> None:
    """Blur a share of pictures of at most 64 pixels a side by three taps a direction, in place."""
    count, side = len(pictures), pictures.shape[-1]
    chosen = chance.random(count) < share
    radii = (BLUR_LOW + (BLUR_HIGH - BLUR_LOW) * chance.random(count)) * (side / BLUR_SIDE)
    rows = np.flatnonzero(chosen)
    if len(rows):
        # exp(-1/2r²) to 0.2 %, as the 1024th power of 1 - 1/2048r²: libraries differ in the last bits of exp.
        taps = np.maximum(1.0 - 1.0 / (2048.0 * np.square(radii[rows])), 0.0)
        for _ in range(10):
            taps *= taps
        side_weight = torch.from_numpy((taps / (1.0 + 2.0 * taps)).astype(np.float32)).view(-1, 1, 1, 1)
        part = pictures[torch.from_numpy(rows)]
        for dim in (2, 3):
            part = part + side_weight * (_neighbours(part, dim) - 2.0 * part)
        pictures[torch.from_numpy(rows)] = part


def _neighbours(pictures: Tensor, dim: int) -> Tensor:
    """The sum of both neighbours of each pixel along a dimension; at the border a pixel is its own."""
    size = pictures.shape[dim]
    before = torch.cat([pictures.narrow(dim, 0, 1), pictures.narrow(dim, 0, size - 1)], dim)
    after = torch.cat([pictures.narrow(dim, 1, size - 1), pictures.narrow(dim, size - 1, 1)], dim)
    return before + after


def _grey(pictures: Tensor) -> Tensor:
    if pictures.shape[1] == 1:
        return pictures
    red, green, blue = (pictures[:, channel : channel + 1] * weight for channel, weight in enumerate(_WEIGHTS))
    return red + green + blue


def _brightness(pictures: Tensor, factor: Tensor) -> Tensor:
    return (pictures * factor).clamp_(0.0, 255.0)


def _contrast(pictures: Tensor, factor: Tensor) -> Tensor:
    levels = _grey(pictures).round().to(torch.int64)  # whole numbers have one sum, however many threads add them up
    mean = (levels.sum(dim=(1, 2, 3), keepdim=True) // levels[0].numel()).float()
    return (mean + (pictures - mean) * factor).clamp_(0.0, 255.0)


def _saturation(pictures: Tensor, factor: Tensor) -> Tensor:
    grey = _grey(pictures)
    return (grey + (pictures - grey) * factor).clamp_(0.0, 255.0)


def _hue(pictures: Tensor, turn: Tensor) -> Tensor:
    """Turn the circle of hues by `turn` of its length; value and chroma stay."""
    red, green, blue = torch.split(pictures, 1, dim=1)
    value, chroma = pictures.amax(1, keepdim=True), pictures.amax(1, keepdim=True) - pictures.amin(1, keepdim=True)
    safe = torch.where(chroma > 0, chroma, torch.ones_like(chroma))
    sixths = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, (blue - red) / safe + 2.0, (red - green) / safe + 4.0),
    )
    sixths = sixths + 6.0 * turn
    found = []
    for place in (5.0, 3.0, 1.0):
        along = torch.remainder(sixths + place, 6.0)
        found.append(value - chroma * torch.minimum(along, 4.0 - along).clamp(0.0, 1.0))
    return torch.cat(found, dim=1)


# ---- Crops of small pictures of one size, all at once, as tensor arithmetic.
#
# Equal on every machine, since peers that verify each other make each other's crops again. All arithmetic is
# elementwise and rounds once an operation (see `minga.optim.arithmetic`). The kernels of torch that scale pictures do
# not: whether they fuse operations depends on the processor's vector width.


def crop_arrays(pictures: Tensor, rule: CropRule, chance: np.random.Generator) -> Tensor:
    """One crop of each picture of uint8 [n, c, h, w], uint8 [n, c, side, side]: mirrored at times, changed in
    colour, made grey and blurred at times.
    """
    count, _, height, width = pictures.shape
    boxes = crop_boxes(chance, count, height, width, rule.low, rule.high)
    flipped = chance.random(count) < rule.flip
    crops = _resample(pictures, boxes, flipped, rule.side)
    if rule.jitter > 0:
        jitter(crops, chance, rule.jitter)
    make_grey(crops, chance)
    if rule.blur > 0:
        blur(crops, chance, rule.blur)
    return crops.round_().clamp_(0.0, 255.0).to(torch.uint8)


def _resample(pictures: Tensor, boxes: npt.NDArray[np.int64], flipped: npt.NDArray[np.bool_], side: int) -> Tensor:
    """The boxes of [n, c, h, w] scaled to `side` pixels, float32, between four neighbours each."""
    count, channels, height, width = pictures.shape
    steps = (np.arange(side) + 0.5) / side
    tops, lefts, heights, widths = (boxes[:, place, None].astype(np.float64) for place in range(4))
    above, below, down = _between(tops + heights * steps, height)
    left, right, along = _between(lefts + widths * np.where(flipped[:, None], 1.0 - steps, steps), width)
    lines = pictures.reshape(-1, width)
    begins = torch.arange(0, len(lines), height, device="cpu").view(count, channels, 1)
    upper, lower = (lines[begins + each[:, None]].float() for each in (above, below))
    rows = _mixed(upper, lower, down[:, None, :, None])
    shape = (count, channels, side, side)
    before, behind = (rows.gather(3, each[:, None, None].expand(shape)) for each in (left, right))
    return _mixed(before, behind, along[:, None, None])


def _between(places: npt.NDArray[np.float64], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """The pixels before and behind each place along a side of `size` pixels, and the share of the latter, float32."""
    centred = (places - 0.5).clip(0.0, size - 1.0)
    before = np.floor(centred)
    shares = torch.from_numpy((centred - before).astype(np.float32))
    first = torch.from_numpy(before.astype(np.int64))
    return first, (first + 1).clamp_(max=size - 1), shares


def _mixed(first: Tensor, second: Tensor, share: Tensor) -> Tensor:
    """The first with a share of the second, in the latter's memory. Fused operations (`lerp`) would round otherwise."""
    return second.sub_(first).mul_(share).add_(first)


# ---- Crops of picture files, one by one, by Pillow, on several threads: it lets other threads run while it computes.


THREADS: Final = 4


class FileCropper:
    """Decodes pictures and cuts crops out of them; the threads end with the object."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="minga-pictures")

    def decode(self, bodies: Sequence[bytes]) -> list[Image.Image]:
        """The pictures in files. Raises `ConfigurationError` for what is none."""
        return list(self._pool.map(open_picture, bodies))

    def crop(self, pictures: Sequence[Image.Image], rule: CropRule, chance: np.random.Generator) -> Tensor:
        """One crop of each picture, uint8 [n, 3, side, side]; chance of one picture does not depend on the others."""
        seeds = chance.integers(0, 2**63, len(pictures)).tolist()
        crops = self._pool.map(lambda picture, seed: crop_picture(picture, rule, seed), pictures, seeds)
        return torch.from_numpy(np.stack([np.asarray(crop) for crop in crops])).permute(0, 3, 1, 2).contiguous()


def crop_picture(picture: Image.Image, rule: CropRule, seed: int) -> Image.Image:
    """A crop of an RGB picture: mirrored, jittered, made grey and blurred at times."""
    chance = np.random.default_rng(seed)
    top, left, height, width = crop_boxes(chance, 1, picture.height, picture.width, rule.low, rule.high)[0].tolist()
    box = (left, top, left + width, top + height)
    crop = picture.resize((rule.side, rule.side), Image.Resampling.BILINEAR, box=box)
    draws, order = chance.random(9).tolist(), chance.permutation(4).tolist()
    if draws[0] < rule.flip:
        crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    if draws[1] < JITTERED and rule.jitter > 0:
        for number in order:
            crop = _change(crop, number, 2.0 * draws[2 + number] - 1.0, rule.jitter)
    if draws[6] < GREYED:
        crop = crop.convert("L").convert("RGB")
    if draws[7] < rule.blur:
        radius = (BLUR_LOW + (BLUR_HIGH - BLUR_LOW) * draws[8]) * rule.side / BLUR_SIDE
        crop = crop.filter(ImageFilter.GaussianBlur(radius))
    return crop


def _change(crop: Image.Image, number: int, move: float, strength: float) -> Image.Image:
    """Brightness, contrast, saturation or hue, by `number`, moved by -1 to 1 times the strength."""
    if number < 3:
        kinds = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        return kinds[number](crop).enhance(1.0 + strength * move)
    hues = np.array(crop.convert("HSV"))
    hues[..., 0] += np.uint8(round(HUE_SHARE * strength * move * 256) % 256)  # hues are a circle of 256
    return Image.fromarray(hues, "HSV").convert("RGB")


# ---- Batches: for each kind of crops one tensor, all pictures of its first crop before its second one.


Cropper = Callable[[CropRule, np.random.Generator], Tensor]
"""Makes one crop, by a rule, of each picture of a micro-batch: uint8 [n, c, s, s]."""


def crop_names(settings: SwavSettings) -> list[str]:
    """The names of the tensors of a batch, one for each kind of crops."""
    return [f"crops_{index}" for index in range(len(settings.crops))]


def crop_rules(settings: SwavSettings) -> list[CropRule]:
    """How the crops of each kind are made."""
    flip, jitter, blur = settings.flip, settings.jitter, settings.blur
    return [CropRule(side, low, high, flip, jitter, blur) for _, side, low, high in settings.crops]


def make_batch(settings: SwavSettings, crop: Cropper, chance: np.random.Generator) -> Batch:
    """A batch of n pictures: `crops_i` uint8 [count · n, c, s, s] for each kind i."""
    kinds = zip(crop_names(settings), settings.crops, crop_rules(settings), strict=True)
    return {name: torch.cat([crop(rule, chance) for _ in range(count)]) for name, (count, *_), rule in kinds}


def array_batch(settings: SwavSettings, pictures: Tensor, chance: np.random.Generator) -> Batch:
    """A batch of pictures uint8 [n, c, h, w]."""
    return make_batch(settings, lambda rule, own: crop_arrays(pictures, rule, own), chance)


def file_batches(
    settings: SwavSettings, files: Files, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[Batch]:
    """Endless batches of picture files: those that travelled with the run, or those of a streamed source."""
    data, cropper = settings.data, FileCropper()
    for bodies, chance in _file_order(data, files, run_seed, position, micro_batch_size):
        pictures = cropper.decode(bodies)
        yield make_batch(settings, lambda rule, own, some=pictures: cropper.crop(some, rule, own), chance)  # type: ignore[misc]


def _file_order(
    data: ImageData, files: Files, run_seed: int, position: StreamPosition, micro_batch_size: int
) -> Iterator[tuple[list[bytes], np.random.Generator]]:
    if data.source == "folder":
        stored = EncodedSet(files)
        for rows, chance in shuffled(len(stored), run_seed, position, micro_batch_size):
            yield [stored.body(row) for row in rows.tolist()], chance
        return

    def open_pass(epoch: int) -> Iterator[bytes]:
        seed = epoch_seed(run_seed, position, epoch)
        bodies = (picture.body for picture in encoded_pictures(data, order=seed))
        kept = (body for body in bodies if content_rank(body) >= data.heldout_fraction)
        return shuffled_blocks(kept, data.shuffle_buffer, repeat(np.random.default_rng(seed)))

    empty = "data: the data set has no pictures to train on"
    yield from streamed(open_pass, run_seed, position, micro_batch_size, empty)


def synthetic_batch(settings: SwavSettings, size: int) -> Batch:
    """A batch of noise, the same each time."""
    chance = np.random.default_rng(0)
    channels = settings.data.channels
    return {
        name: torch.from_numpy(chance.integers(0, 256, (count * size, channels, side, side), dtype=np.uint8))
        for name, (count, side, *_) in zip(crop_names(settings), settings.crops, strict=True)
    }
