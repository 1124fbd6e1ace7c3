"""As many elements of a block as there are: all that are not 0, or those beyond a threshold."""

from __future__ import annotations

import pytest
import torch

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.interface import InvalidEncodingError
from minga.testing.codecs.cases import decoded_of, encoded_of


def normal(numel: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("share", [0.0, 0.001, 0.05, 0.3, 0.8, 1.0])
def test_the_union_is_exact_as_float16_and_no_longer_than_that(share: float) -> None:
    source = normal(10_000) * (torch.rand(10_000, generator=torch.Generator().manual_seed(2)) < share)
    union, encoded = codec("union"), encoded_of(codec("union"), source)
    assert torch.equal(decoded_of(union, encoded, 10_000), source.half().float())
    assert len(encoded) <= 2 * 10_000 + 2 * 3 == union.max_encoded_bytes(10_000)
    assert share > 0.5 or len(encoded) < (0.1 + 3 * share) * 10_000


@pytest.mark.parametrize(("peers", "k", "density", "bits"), [(8, 32, 0.061, 1.4), (8, 64, 0.118, 2.5)])
def test_the_density_of_the_union_of_several_peers(peers: int, k: int, density: float, bits: float) -> None:
    """Of what is not alike, as here; of gradients that are, it is less."""
    numel, upload, total = 1 << 17, codec(f"topk(k={k})"), torch.zeros(1 << 17)
    for peer in range(peers):
        upload.decode_add(encoded_of(upload, normal(numel, peer)), total, 1.0)
    assert float((total != 0).float().mean()) == pytest.approx(density, abs=0.004)
    assert 8 * len(encoded_of(codec("union"), total)) / numel == pytest.approx(bits, rel=0.05)


def test_what_is_0_as_float16_is_not_sent() -> None:
    union, source = codec("union"), torch.tensor([2.0**-25, -(2.0**-25), 1.5 * 2.0**-25, 1e-30])
    assert len(encoded_of(union, source)) < len(encoded_of(union, torch.ones(4)))
    assert decoded_of(union, encoded_of(union, source), 4).tolist() == [0.0, 0.0, 2.0**-24, 0.0]


@pytest.mark.parametrize("broken", [b"", b"\x00", b"\x01\x00", b"\x05\x00" + bytes(8), b"\x00\x00\x00"])
def test_bytes_of_the_wrong_length_are_refused(broken: bytes) -> None:
    with pytest.raises(InvalidEncodingError):
        codec("union").decode(broken, torch.zeros(4))


@pytest.mark.parametrize("kind", ["normal", "laplace", "student", "few levels"])
def test_a_threshold_finds_about_as_many_as_it_should_and_never_many_more(kind: str) -> None:
    source = normal(1 << 18)
    chance = torch.Generator().manual_seed(3)
    if kind == "laplace":
        source = torch.rand(1 << 18, generator=chance).log() * source.sign()
    elif kind == "student":
        source = source / torch.randn(3, 1 << 18, generator=chance).square().mean(0).sqrt()
    elif kind == "few levels":
        source = source.round()
    made = codec("gaussiank(k=64)")
    decoded = decoded_of(made, encoded_of(made, source), 1 << 18)
    counts = (decoded.view(-1, 4096) != 0).sum(1)
    assert int(counts.max()) <= 85
    assert kind == "few levels" or 42 <= float(counts.float().mean()) <= 85


def test_a_block_of_equals_is_cut_by_index() -> None:
    made = codec("gaussiank(k=3)")
    decoded = decoded_of(made, encoded_of(made, torch.full((4096,), -2.0)), 4096)
    assert decoded.nonzero().flatten().tolist() == [0, 1, 2, 3]
