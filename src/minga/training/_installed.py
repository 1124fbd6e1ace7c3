"""Whether this machine has what a run names: codecs and a strategy may come from packages of others."""

from __future__ import annotations

from minga.averaging._codec_choice import check_codec_choice
from minga.averaging._strategy_choice import check_strategy_choice
from minga.core._run_spec import RunSpec


def require_installed(spec: RunSpec) -> None:
    """Raise `ConfigurationError` for a name in `spec` that no installed package brings."""
    check_codec_choice(spec.averaging.codec)
    check_strategy_choice(spec.training.strategy)
