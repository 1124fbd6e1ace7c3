"""What uploads and means leave out is made up for, by every pair of codecs that comes with minga."""

from __future__ import annotations

import pytest
import torch

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.interface import CodecPair
from minga.averaging.compressors.topk import GlobalTopKCodec, GlobalTopKSettings, TopKCodec, TopKSettings
from minga.testing import PAIR_CHECKS, Violation
from minga.testing.codecs.cases import decoded_of, encoded_of
from minga.testing.pair_suite import check_mass, check_relay, check_returns

PAIRS = [
    ("topk", "gtopk"),
    ("topk(values=2bit)", "union"),
    ("randomk", "union"),
    ("topk", "float16"),
    ("int8", "gtopk"),
]


@pytest.mark.parametrize(("up", "down"), PAIRS)
def test_pairs_keep_what_they_promise(up: str, down: str) -> None:
    for check in PAIR_CHECKS:
        check(CodecPair(codec(up), codec(down)))


class Keeper(GlobalTopKCodec):
    """It leaves out of means what it does not return."""

    returns = False


class Forgetful(TopKCodec):
    """A member that reduces would count all of its own."""

    is_sparse = False


def test_the_suite_finds_a_mean_that_leaves_out_what_it_does_not_return() -> None:
    with pytest.raises(Violation, match="not what was counted"):
        check_mass(CodecPair(codec("topk"), Keeper(GlobalTopKSettings(k=8))))


def test_the_suite_finds_a_mean_that_keeps_other_than_the_largest() -> None:
    class Smallest(GlobalTopKCodec):
        def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
            return super()._encode(torch.where(source.abs() > 1, 0.0, source), raw, limit, seed)

    with pytest.raises(Violation, match="keeps smaller elements than it returns"):
        check_returns(CodecPair(codec("topk"), Smallest(GlobalTopKSettings())))


def test_the_suite_finds_a_relay_that_cuts_off_what_no_sender_takes_back() -> None:
    class OfSites(GlobalTopKCodec):
        of_sites = property(lambda self: self)  # type: ignore[assignment]

    class Silent(OfSites):
        returns = False

    for kind, found in ((OfSites, "a relay would cut off the rest"), (Silent, "a relay loses")):
        with pytest.raises(Violation, match=found):
            check_relay(CodecPair(codec("topk"), kind(GlobalTopKSettings(k=8))))


def test_the_mean_of_the_largest_is_the_largest_of_the_mean() -> None:
    """Eight peers: the result has the k largest elements of the exact sum of what was sent, in every block."""
    generator, numel, total = torch.Generator().manual_seed(3), 3 * 4096, torch.zeros(3 * 4096, dtype=torch.float64)
    accumulator = torch.zeros(numel)
    for weight in range(1, 9):
        encoded = encoded_of(codec("topk"), torch.randn(numel, generator=generator))
        codec("topk").decode_add(encoded, accumulator, float(weight))
        total += weight * decoded_of(codec("topk"), encoded, numel).double()
    made = codec("gtopk(k=100)")
    mean = decoded_of(made, encoded_of(made, accumulator / 36), numel)
    for found, exact in zip(mean.view(-1, 4096), (total / 36).view(-1, 4096), strict=True):
        wanted = set(exact.abs().topk(100).indices.tolist())
        assert set(found.nonzero().flatten().tolist()) == wanted
        assert torch.allclose(found[sorted(wanted)].double(), exact[sorted(wanted)], rtol=2.0**-10)


def test_what_reduces_counts_its_own_part_as_others_would_read_it_only_if_all_is_sparse() -> None:
    assert CodecPair(codec("topk"), codec("gtopk")).encodes_own
    assert not CodecPair(codec("topk"), codec("float16")).encodes_own
    assert not CodecPair(codec("int8"), codec("gtopk")).encodes_own
    assert not CodecPair(Forgetful(TopKSettings()), codec("union")).encodes_own


def test_a_relay_passes_on_all_that_its_site_sent() -> None:
    assert CodecPair(codec("topk"), codec("gtopk")).relay.name == "union"
    assert CodecPair(codec("topk"), codec("float16")).relay.name == "float16"
    assert CodecPair(codec("int8"), codec("float16")).relay.name == "int8"
