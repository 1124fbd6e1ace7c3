"""States of the paper's run: names, shared copies, files that hold no parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minga.core.errors import ConfigurationError
from minga.recipes.text_to_image.decoder.model import TextToImageDecoder
from minga.recipes.text_to_image.published_names import from_published, published_names, read_published
from minga.recipes.text_to_image.settings import TextToImageSettings
from tests.worlds.recipe_pictures import small_shape


def published(model: TextToImageDecoder) -> dict[str, torch.Tensor]:
    """The parameters as dalle-pytorch would save them, with its tables besides."""
    own = model.state_dict()
    state = {theirs: own[ours].clone() for theirs, ours in published_names(model.shape).items()}
    for name in state:
        if name.endswith("net.scale"):
            state[name] = state[name].reshape(1, 1, -1)
    return {**state, "transformer.pos_emb": torch.zeros(1, 3, 4)}


def test_a_published_state_becomes_ours_and_back(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = TextToImageDecoder(small_shape(layers=9))
    torch.save(published(model), tmp_path / "state.pt")
    found = read_published(tmp_path / "state.pt", model.shape)
    assert found.keys() == model.state_dict().keys()
    assert all(torch.equal(found[name], each) for name, each in model.state_dict().items())


def test_the_names_of_the_paper_list_shared_weights_once_for_each_layer() -> None:
    shape = TextToImageSettings(size="paper").shape()
    names = published_names(shape)
    assert len(names) == 64 * (2 * 3 + 3 + 4) + 4
    assert names["transformer.layers.blocks.4.f.net.fn.fn.fn.to_qkv.weight"] == "attentions.0.query_key_value.weight"
    assert names["transformer.layers.blocks.63.g.net.fn.fn.fn.net.3.bias"] == "feed_forwards.4.out.bias"
    with torch.device("meta"):
        assert set(names.values()) == set(TextToImageDecoder(shape).state_dict())


def test_states_of_other_models_are_refused() -> None:
    model = TextToImageDecoder(small_shape(layers=9))
    state = published(model)
    changed = dict(state)
    name = "transformer.layers.blocks.4.f.net.fn.fn.fn.to_qkv.weight"
    changed[name] = changed[name] + 1
    with pytest.raises(ConfigurationError, match="differs from other copies"):
        from_published(changed, model.shape)
    with pytest.raises(ConfigurationError, match="has no to_logits"):
        from_published({}, model.shape)
    with pytest.raises(ConfigurationError, match="values; this size needs"):
        from_published(state, small_shape(layers=9, codes=17))


class _Program:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return print, ("a stranger's program",)


def test_a_program_in_a_state_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": _Program()}, tmp_path / "state.pt")
    with pytest.raises(ConfigurationError, match="not a state"):
        read_published(tmp_path / "state.pt", small_shape())
    torch.save([1, 2], tmp_path / "state.pt")
    with pytest.raises(ConfigurationError, match="not a state"):
        read_published(tmp_path / "state.pt", small_shape())
    assert capsys.readouterr().out == ""
