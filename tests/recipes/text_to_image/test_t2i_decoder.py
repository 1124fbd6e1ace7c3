"""The decoder: counts of parameters, who sees whom, reversible gradients, one token at a time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.decoder import (
    Attends,
    DecoderShape,
    TextToImageDecoder,
    attention_mask,
    rotary_angles,
    rotate,
    shift_tokens,
)
from minga.recipes.text_to_image.reversible import ReversibleLayer, run_plain, run_reversible
from minga.recipes.text_to_image.sampling import IncrementalDecoder
from minga.recipes.text_to_image.settings import TextToImageSettings
from tests.worlds.recipe_pictures import small_shape

KINDS: tuple[Attends, ...] = ("row", "column", "convolution")


def model_of(shape: DecoderShape, **options: Any) -> TextToImageDecoder:
    torch.manual_seed(0)
    model = TextToImageDecoder(shape, **options)
    with torch.no_grad():  # as after some training: each branch weighs
        for name, parameter in model.named_parameters():
            if name.endswith("scale"):
                parameter.fill_(0.5)
    return model


def inputs(shape: DecoderShape, count: int = 2) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1)
    captions = torch.randint(1, shape.vocabulary, (count, shape.text_length), generator=random)
    captions[0, -2:] = 0
    return captions, torch.randint(0, shape.codes, (count, shape.image_length), generator=random)


@pytest.mark.parametrize(
    ("size", "parameters"),
    [("tiny", 1_622_296), ("small", 6_467_104), ("base", 25_832_512), ("paper", 125_894_244)],
)
def test_each_size_has_exactly_its_number_of_parameters(size: Any, parameters: int) -> None:
    with torch.device("meta"):
        model = TextToImageDecoder(TextToImageSettings(size=size).shape())
    assert sum(each.numel() for each in model.parameters()) == parameters


@pytest.mark.parametrize("changes", [{"width": 30}, {"heads": 8}, {"grid": 1}, {"layers": 0}, {"codes": 0}])
def test_shapes_that_no_decoder_can_have_are_refused(changes: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        small_shape(**changes)


SEES: dict[Attends, Callable[[int, int, int, int], bool]] = {
    "row": lambda row, column, other_row, other_column: row == other_row,
    "column": lambda row, column, other_row, other_column: column == other_column,
    "convolution": lambda row, column, other_row, other_column: (
        abs(row - other_row) <= 2 and abs(column - other_column) <= 2
    ),
}


@pytest.mark.parametrize("attends", KINDS)
def test_a_mask_is_the_rule_applied_to_each_pair_of_positions(attends: Attends) -> None:
    shape = small_shape(grid=7)
    mask, text = attention_mask(shape, attends), shape.text_length + 1
    for query in range(shape.positions):
        for key in range(shape.positions):
            if key > query:
                expected = False
            elif key < text:
                expected = True
            elif query < text:
                expected = False
            else:
                expected = SEES[attends](*divmod(query - text, shape.grid), *divmod(key - text, shape.grid))
            assert bool(mask[query, key]) == expected, (query, key)


def test_a_token_changes_only_predictions_after_it() -> None:
    shape = small_shape()
    model = model_of(shape).eval()
    captions, codes = inputs(shape, 1)
    captions[captions == 0] = 7
    text, image = model(captions, codes)
    for place in range(shape.text_length):
        changed = captions.clone()
        changed[0, place] = captions[0, place] % (shape.vocabulary - 1) + 1
        other_text, other_image = model(changed, codes)
        same = (other_text == text).all(dim=-1)[0]
        assert same[: place + 1].all()
        assert not same[place + 1 :].any()
        assert not (other_image == image).all(dim=-1).any()
    for place in range(shape.image_length):
        changed = codes.clone()
        changed[0, place] = (codes[0, place] + 1) % shape.codes
        other_text, other_image = model(captions, changed)
        assert torch.equal(other_text, text)
        same = (other_image == image).all(dim=-1)[0]
        assert same[: place + 1].all()
        assert place + 1 == shape.image_length or not same[place + 1]


def test_padding_is_another_token_at_each_position() -> None:
    shape = small_shape()
    labels = TextToImageDecoder(shape).labels(torch.tensor([[3, 0, 5, 0, 0]]))
    assert labels.tolist() == [[3, 21, 5, 23, 24]]


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("layers", [1, 13])
def test_reversible_gradients_are_those_of_ordinary_differentiation(dropout: float, layers: int) -> None:
    shape = small_shape(dropout=dropout, layers=layers)
    model = model_of(shape)
    found: list[dict[str, Tensor]] = []
    for reversible in (True, False):
        model.is_reversible = reversible
        model.zero_grad()
        torch.manual_seed(5)
        text, image = model(*inputs(shape))
        (text.sin().sum() + image.square().sum()).backward()
        found.append({name: each.grad.clone() for name, each in model.named_parameters() if each.grad is not None})
        drawn = torch.rand(1)  # neither way disturbs what torch draws next
        found[-1]["drawn"] = drawn
    ours, plain = found
    assert ours.keys() == plain.keys()
    for name in plain:
        assert (ours[name] - plain[name]).abs().max() <= 1e-5 * max(1.0, float(plain[name].abs().max())), name


def test_reversible_layers_draw_the_same_masks_again_where_a_device_has_a_generator_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own, linear = torch.Generator(), nn.Linear(8, 8)
    monkeypatch.setattr(torch.cpu, "get_rng_state", lambda _: own.get_state(), raising=False)  # as of MPS and XPU
    monkeypatch.setattr(torch.cpu, "set_rng_state", lambda state, _: own.set_state(state), raising=False)

    def drop(x: Tensor) -> Tensor:
        return linear(x).tanh() * (torch.rand(x.shape, generator=own) < 0.5)

    weights = tuple(linear.parameters())
    layers = [ReversibleLayer(drop, drop, weights, weights, is_random=True)] * 2
    found = []
    for run in (run_plain, run_reversible):
        own.manual_seed(9)
        gradients = torch.autograd.grad(run(layers, torch.ones(4, 8)).square().sum(), weights)
        found.append([*gradients, torch.rand(1, generator=own)])
    assert all(torch.allclose(*pair, atol=1e-5) for pair in zip(*found, strict=True))


def test_reversible_gradients_keep_the_types_of_autocast() -> None:
    shape = small_shape()
    model = model_of(shape)
    found = []
    for reversible in (True, False):
        model.is_reversible = reversible
        with torch.autocast("cpu", dtype=torch.bfloat16):
            text, image = model(*inputs(shape))
        parameters = list(model.parameters())
        found.append(torch.autograd.grad(text.float().sin().sum() + image.float().sum(), parameters))
    for ours, plain in zip(*found, strict=True):
        assert ours.dtype == torch.float32
        assert (ours - plain).norm() <= 0.05 * plain.norm() + 1e-3


def kept_elements(layers: int, *, reversible: bool) -> int:
    """Elements of the distinct tensors that a forward pass keeps, parameters aside."""
    model = TextToImageDecoder(small_shape(layers=layers), is_reversible=reversible)
    own = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes() // 4
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        text, image = model(*inputs(model.shape))
        loss = text.sum() + image.sum()
    assert loss.requires_grad
    return sum(kept.values())


def test_what_reversible_layers_keep_does_not_grow_with_their_number() -> None:
    assert kept_elements(32, reversible=True) <= 1.3 * kept_elements(8, reversible=True)
    assert kept_elements(32, reversible=False) >= 3 * kept_elements(8, reversible=False)


@pytest.mark.parametrize("grid", [4, 6])
def test_one_token_at_a_time_gives_the_logits_of_the_whole(grid: int) -> None:
    shape = small_shape(grid=grid)
    model = model_of(shape).eval()
    captions, codes = inputs(shape, 3)
    with torch.no_grad():
        _, whole = model(captions, codes)
        decoder = IncrementalDecoder(model, captions)
        for place in range(shape.image_length):
            assert (decoder.next_logits - whole[:, place]).abs().max() <= 1e-5
            if place + 1 < shape.image_length:
                decoder.push(codes[:, place])
        with pytest.raises(ValueError, match="complete"):
            decoder.push(codes[:, -1])


def test_token_shift_takes_channels_from_the_neighbours() -> None:
    shape = small_shape(width=8, heads=1)
    x = torch.arange(1.0, shape.positions + 1)[:, None].repeat(1, 8)[None]
    shifted, first = shift_tokens(x, shape)[0], shape.prefix
    assert shifted[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert shifted[3].tolist() == [3, 3, 3, 3, 4, 4, 4, 4]
    assert shifted[first].tolist() == [0, 0, 0, 0, *[first + 1] * 4]  # the first of the picture: nothing before it
    own = first + 5  # in the second row and column; a row has four
    assert shifted[own].tolist() == [own - 3, own - 3, own, own, *[own + 1] * 4]
    assert torch.equal(shift_tokens(x[:, : shape.prefix + 3], shape), shift_tokens(x, shape)[:, : shape.prefix + 3])


def test_rotary_angles_have_three_axes_and_rotation_keeps_lengths() -> None:
    shape = TextToImageSettings(size="paper").shape()
    angles = rotary_angles(shape)
    assert angles.shape == (1280, 30)  # 60 of 64 channels
    assert angles[3, :2].tolist() == pytest.approx([3.0, 3 * 10_000 ** (-2 / 21)])
    assert angles[257, 0] == 8192
    assert angles[257, 10].item() == pytest.approx(-math.pi)  # the first row is at -1, its lowest frequency is pi
    assert angles[257 + 31, 29].item() == pytest.approx(5 * math.pi)  # the last column at 1, its highest 5 pi
    assert angles[0, 20].item() == pytest.approx(-10 * math.pi)
    x = torch.randn(2, 1280, 64, generator=torch.Generator().manual_seed(0))
    turned = rotate(x, angles.cos(), angles.sin())
    assert torch.equal(turned[..., 60:], x[..., 60:])
    assert (turned.norm(dim=-1) - x.norm(dim=-1)).abs().max() < 1e-4
