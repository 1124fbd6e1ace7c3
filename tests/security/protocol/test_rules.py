"""Which codecs a run with checks takes: those whose bytes every other member can make again."""

from __future__ import annotations

import pytest
import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.quantizers.int8 import BlockwiseInt8Codec
from minga.core.errors import ConfigurationError
from minga.security.protocol.rules import Rules
from minga.security.protocol.settings import SecureSettings
from tests.worlds import loudest_codec, nonzero_codec


class RandomlyRounded(BlockwiseInt8Codec):
    """As int8, but with chance in it that others do not have."""

    name, recomputable = "random", False

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        return super()._encode(source + 1e-3 * torch.rand_like(source), raw, limit, seed)


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("random", f"{__name__}:RandomlyRounded"),
        ("nonzero", nonzero_codec.ENTRY),
        ("loudest", loudest_codec.ENTRY),
    ],
)
def test_a_codec_that_others_cannot_recompute_is_refused(
    name: str, entry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CODECS._builtin, name, entry)
    with pytest.raises(ConfigurationError, match=f'cannot make the bytes of the codec "{name}" again'):
        Rules.of(VectorLayout((100,), name, "float32"), SecureSettings())


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "int8", "adaptive"])
def test_those_of_minga_are_taken(name: str) -> None:
    layout = VectorLayout((100, 70_000), name)
    assert Rules.of(layout, SecureSettings()).layout == layout
