"""Ready examples: samples, and networks that are cut."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import EXAMPLES, example_samples


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_finite_and_fit_their_network(name: str) -> None:
    samples = example_samples(name)
    network = CutNetwork(CutShape(tuple(samples.inputs.shape[1:]), samples.classes))
    assert network(samples.inputs[:5]).shape == (5, samples.classes)
    assert sorted(samples.labels.unique().tolist()) == list(range(samples.classes))
    if samples.picture:
        assert (float(samples.inputs.min()), float(samples.inputs.max())) == (0.0, 1.0)
    else:
        torch.testing.assert_close(samples.inputs.mean(0), torch.zeros(samples.inputs.shape[1]), atol=1e-4, rtol=0.0)


def test_networks_are_cut_where_their_shape_says() -> None:
    shape = CutShape((1, 8, 8), 10, channels=(4, 6), bottom=(20,), top=(12,), has_head=True)
    network, pictures = CutNetwork(shape), torch.rand(3, 1, 8, 8)
    assert network.bottom(pictures).shape == (3, network.cut_width) == (3, 20)
    assert network.top(network.bottom(pictures)).shape == (3, 12)
    assert isinstance(network.head, nn.Linear)
    assert network(pictures).shape == (3, 10)
    assert CutNetwork(replace(shape, bottom=(), has_head=False)).cut_width == 6 * 4 * 4
    for wrong in (replace(shape, sample=(64,)), replace(shape, top=()), replace(shape, channels=(), bottom=())):
        with pytest.raises(ValueError, match=r"no pictures|at least one layer"):
            CutNetwork(wrong)


def test_an_example_that_is_not_there_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is no example"):
        example_samples("mnist")
