"""Drawing codes: top-k before top-p, guidance, chance of one's own for each picture."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from minga.recipes.interface import SampleOptions
from minga.recipes.text_to_image.decoder import TextToImageDecoder
from minga.recipes.text_to_image.sampling import draw_codes, probabilities
from tests.worlds.recipe_pictures import small_shape

LOGITS = torch.log(torch.tensor([[0.4, 0.3, 0.2, 0.1]]))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SampleOptions(), [0.4, 0.3, 0.2, 0.1]),
        (SampleOptions(temperature=0.5), [16 / 30, 9 / 30, 4 / 30, 1 / 30]),
        (SampleOptions(temperature=0.0), [1, 0, 0, 0]),
        (SampleOptions(top_k=2), [4 / 7, 3 / 7, 0, 0]),
        (SampleOptions(top_k=9), [0.4, 0.3, 0.2, 0.1]),
        (SampleOptions(top_p=0.75), [4 / 9, 3 / 9, 2 / 9, 0]),
        (SampleOptions(top_p=0.0), [1, 0, 0, 0]),
        (SampleOptions(top_k=2, top_p=0.5), [1, 0, 0, 0]),  # of two, the first has 0.57; before top-k it had 0.4
    ],
)
def test_codes_are_drawn_from_the_likeliest(options: SampleOptions, expected: list[float]) -> None:
    assert probabilities(LOGITS, options)[0] == pytest.approx(expected)


def decoder() -> TextToImageDecoder:
    torch.manual_seed(0)
    model = TextToImageDecoder(small_shape())
    with torch.no_grad():
        model.logits.weight.normal_(0, 0.3)
    return model


CAPTIONS = np.array([[3, 4, 5, 0, 0], [6, 7, 0, 0, 0]])


def test_drawn_codes_follow_the_model_as_it_computes_them_in_one_pass() -> None:
    model = decoder()
    codes = draw_codes(model, CAPTIONS, SampleOptions(temperature=0))
    with torch.no_grad():
        _, logits = model.eval()(torch.from_numpy(CAPTIONS), torch.from_numpy(codes))
    assert np.array_equal(logits.argmax(dim=-1).numpy(), codes)


def test_guidance_of_one_is_no_guidance_bit_for_bit_and_more_of_it_changes_pictures() -> None:
    model = decoder()
    plain = draw_codes(model, CAPTIONS, SampleOptions(count=2, seed=3))
    assert np.array_equal(plain, draw_codes(model, CAPTIONS, SampleOptions(count=2, seed=3, guidance=1.0)))
    assert not np.array_equal(plain, draw_codes(model, CAPTIONS, SampleOptions(count=2, seed=3, guidance=4.0)))
    # Of an empty caption there is nothing to be guided by.
    empty = np.zeros_like(CAPTIONS)
    guided = draw_codes(model, empty, SampleOptions(seed=3, guidance=4.0))
    assert np.array_equal(guided, draw_codes(model, empty, SampleOptions(seed=3)))


def test_guided_logits_go_from_those_without_caption_through_those_with_it() -> None:
    model = decoder()
    codes = draw_codes(model, CAPTIONS, SampleOptions(temperature=0, guidance=3.0))
    with torch.no_grad():
        _, with_caption = model.eval()(torch.from_numpy(CAPTIONS), torch.from_numpy(codes))
        _, without = model(torch.zeros_like(torch.from_numpy(CAPTIONS)), torch.from_numpy(codes))
    guided = without + 3 * (with_caption - without)
    assert np.array_equal(guided.argmax(dim=-1).numpy(), codes)


def test_codes_that_the_image_tokenizer_does_not_have_are_never_drawn() -> None:
    model = decoder()
    with torch.no_grad():
        model.logits.bias[model.shape.text_ids + 5 :] = 50
    assert draw_codes(model, CAPTIONS, SampleOptions(count=4)).min() >= 5
    assert draw_codes(model, CAPTIONS, SampleOptions(count=4), known=5).max() < 5
