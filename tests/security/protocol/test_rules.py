"""Which codecs a run with checks takes: those whose bytes every other member can make again."""

from __future__ import annotations

import pytest

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.core.errors import ConfigurationError
from minga.security.protocol.rules import Rules, SecureSettings
from tests.worlds import loudest_codec, nonzero_codec


def test_a_codec_that_draws_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="cannot make the bytes of the codec"):
        Rules.of(VectorLayout((100,), "int8(rounding=stochastic)"), SecureSettings())


@pytest.mark.parametrize(("name", "entry"), [("nonzero", nonzero_codec.ENTRY), ("loudest", loudest_codec.ENTRY)])
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
