"""The largest elements of each block: exactly those, in as many bytes as the tables say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.interface import Codec, InvalidEncodingError
from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError
from minga.testing import CODEC_CHECKS
from minga.testing.codecs.cases import decoded_of, encoded_of
from minga.testing.codecs.suite import check_processes
from tests.worlds.seeds import soaked


@pytest.mark.parametrize("choice", ["topk(k=41, values=2bit)", soaked("topk(k=4096)"), "gtopk(k=1)"])
def test_conformance_with_other_settings(choice: str) -> None:
    for check in CODEC_CHECKS:
        if check is not check_processes:  # of all codecs at once elsewhere
            check(codec(choice))


def largest(source: torch.Tensor, k: int) -> torch.Tensor:
    """The k largest of each block, of equal ones those of lower index, by sorting."""
    kept = torch.zeros_like(source)
    for start in range(0, len(source), 4096):
        block = source[start : start + 4096]
        count = k if len(block) == 4096 else max(1, round(k * len(block) / 4096))
        where = start + torch.argsort(block.abs(), descending=True, stable=True)[:count]
        kept[where] = source[where]
    return kept


@given(st.integers(1, 10_000), st.integers(1, 4096), st.integers(0, 2**31), st.sampled_from([1, 3, 1000]))
def test_it_is_the_largest_of_each_block_and_the_first_of_equals(numel: int, k: int, seed: int, levels: int) -> None:
    chance = torch.Generator().manual_seed(seed)
    source = torch.randint(-levels, levels + 1, (numel,), generator=chance).float()
    made = codec(f"topk(k={k})")
    assert torch.equal(decoded_of(made, encoded_of(made, source), numel), largest(source, k))


def test_bytes_are_a_function_of_the_length_as_the_table_has_them() -> None:
    sizes = {
        (k, values): codec(f"topk(k={k}, values={values})").max_encoded_bytes(4096)
        for k in (32, 41, 64, 128)
        for values in ("float16", "2bit")
    }
    assert [sizes[k, "float16"] for k in (32, 41, 64, 128)] == [100, 126, 192, 368]
    assert [sizes[k, "2bit"] for k in (32, 41, 64, 128)] == [48, 59, 84, 148]
    assert codec("gtopk").max_encoded_bytes(4096) == 704
    assert codec("gtopk").max_encoded_bytes(0) == 0
    for choice in ("topk(k=1)", "topk", "topk(k=41, values=2bit)", "gtopk(k=4096)"):
        lengths = [codec(choice).max_encoded_bytes(numel) for numel in range(4097)]
        assert lengths == sorted(lengths)


def test_it_leaves_out_what_it_should_of_common_distributions() -> None:
    """And two bits for each value leave out little more, also of heavy tails."""
    k, wanted, chance = 64, (0.8805, 0.7845, 0.58), torch.Generator().manual_seed(4)
    normal = torch.randn(1 << 19, generator=chance)
    laplace = torch.rand(1 << 19, generator=chance).log() * torch.randn(1 << 19, generator=chance).sign()
    student = torch.randn(1 << 19, generator=chance) / torch.randn(3, 1 << 19, generator=chance).square().mean(0).sqrt()
    for source, share in zip((normal, laplace, student), wanted, strict=True):
        plain, short = (left_out(codec(f"topk(k={k}, values={values})"), source) for values in ("float16", "2bit"))
        assert plain == pytest.approx(share, abs=0.06 if source is student else 0.002)  # few values have most of it
        assert plain <= 1 - k / 4096
        assert plain < short < plain + 0.03


def left_out(made: Codec, source: torch.Tensor) -> float:
    """The share of the squared length that is left out."""
    decoded = decoded_of(made, encoded_of(made, source), source.numel())
    return float((decoded - source).square().sum() / source.square().sum())


def test_two_bits_are_exact_for_two_magnitudes_and_leave_zeros_alone() -> None:
    made, source = codec("topk(values=2bit)"), torch.zeros(4096)
    source[::64] = torch.tensor([8.0, -0.25, 0.25, -0.25]).repeat(16)
    assert torch.equal(decoded_of(made, encoded_of(made, source), 4096), source)
    alone = torch.zeros(4096)
    alone[17] = -3.0
    assert torch.equal(decoded_of(made, encoded_of(made, alone), 4096), alone)


def test_levels_that_no_encoder_makes_are_refused() -> None:
    made = codec("topk(values=2bit)")
    encoded = encoded_of(made, torch.randn(4096, generator=torch.Generator().manual_seed(1)))
    for levels in ((2.0, 1.0), (-1.0, 1.0), (0.0, float("nan")), (0.0, float("inf"))):
        encoded[-4:] = bytes(torch.tensor(levels).bfloat16().view(torch.uint8).tolist())
        with pytest.raises(InvalidEncodingError, match="levels"):
            made.decode(encoded, torch.zeros(4096))


def test_tensors_of_less_than_a_block_travel_as_float16() -> None:
    layout = VectorLayout((4095, 4096, 10, 9000), "topk")
    names = [(each.codecs.upload.name, each.codecs.download.name, each.stop) for each in layout.segments]
    dense, sparse = ("float16", "float16"), ("topk", "gtopk")
    assert names == [(*dense, 4095), (*sparse, 8191), (*dense, 8201), (*sparse, 17201)]
    assert layout.needs_residual
    assert layout.fingerprint == VectorLayout((4095, 4096, 10, 9000), "topk", "gtopk(k=256)").fingerprint


def test_a_codec_for_means_is_none_for_contributions_and_the_other_way_round() -> None:
    with pytest.raises(ConfigurationError, match="it is for means"):
        VectorLayout((5000,), "gtopk", "float16")
    with pytest.raises(ConfigurationError, match="means cannot travel"):
        VectorLayout((5000,), "topk", "topk")
    with pytest.raises(ConfigurationError, match="k = 0"):
        codec("topk(k=0)")
    with pytest.raises(ConfigurationError, match="values"):
        codec("topk(values=3bit)")


def test_no_constant_bounds_what_values_of_float16_lose() -> None:
    tiny = torch.full((4096,), 1e-30)
    for choice in ("topk", "gaussiank", "randomk"):
        made = codec(choice)
        assert not decoded_of(made, encoded_of(made, tiny), 4096).any()
        assert made.delta(4096) is None
