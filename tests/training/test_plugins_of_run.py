"""Packages that a run names: the peer that starts it records them, and no peer takes part without them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import minga
from minga.averaging.strategy_choice import STRATEGIES, StrategyFacts, facts_of, round_batch_range
from minga.core.spec.fields import Section, whole
from minga.core.spec.plugins import Origin
from minga.keeping.rejoin import SPEC_FILE
from minga.security.robust.interface import AGGREGATORS
from minga.training.plugins_of_run import check_plugins, with_origins
from minga.training.strategy.synchronous import Synchronous
from tests.worlds.plugin_packages import install, look_again

KEY = "aggregator:half_clip"
MODULE = """
from minga.security.robust.centered_clip import CenteredClip


class HalfClip(CenteredClip):
    name = "half_clip"
"""


def bring(folder: Path, patch: pytest.MonkeyPatch, version: str | None) -> None:
    """Have the package installed in this version from now on, or not at all."""
    here = folder / str(version)
    here.mkdir()
    if version is not None:
        names = {"half_clip": "half_clip:HalfClip"}
        install(here, "half-clip", version, {"minga.aggregators": names}, {"half_clip": MODULE})
        patch.syspath_prepend(str(here))
    look_again(patch, AGGREGATORS)


def spec(aggregator: str = "half_clip") -> minga.RunSpec:
    security = {"verification": "byzantine", "aggregator": aggregator}
    return minga.RunSpec.from_mapping({"name": "guard", "model": {"recipe": "custom"}, "security": security})


@pytest.fixture
def options(tmp_path: Path) -> list[minga.PeerOptions]:
    return [
        minga.PeerOptions(ephemeral=True, directory=tmp_path / f"peer-{number}", host="127.0.0.1")
        for number in range(2)
    ]


def test_the_peer_that_starts_a_run_records_the_packages_and_others_compare_them(
    tmp_path: Path, options: list[minga.PeerOptions]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bring(tmp_path, patch, "2.0")
        hosted = minga.host(spec(), options[0])
        assert hosted.spec.plugins == {KEY: Origin(package="half-clip", version="2.0")}
        assert hosted.spec.run_id == hosted.run_id
    try:
        for version, said in [
            (None, r"'half_clip' comes from half-clip 2\.0, which is not installed: pip install half-clip==2\.0"),
            ("2.1", r"half-clip 2\.0, here is half-clip 2\.1: pip install half-clip==2\.0"),
        ]:
            with pytest.MonkeyPatch.context() as patch:
                bring(tmp_path, patch, version)
                with pytest.raises(minga.ConfigurationError, match=said):
                    minga.join(hosted.link, options[1])
        minga.join(hosted.link, minga.PeerOptions("monitor", ephemeral=True, directory=tmp_path / "m")).close()
    finally:
        hosted.close()


def test_a_peer_that_knows_the_run_is_refused_before_it_asks_anybody(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        bring(tmp_path, patch, "2.0")
        kept = minga.PeerOptions(identity=tmp_path / "key", directory=tmp_path / "kept", host="127.0.0.1")
        hosted = minga.host(spec(), kept)
        link = hosted.link
        hosted.close()  # nobody can be asked any more
    assert list((tmp_path / "kept").glob(f"*/{SPEC_FILE}"))
    with pytest.raises(minga.ConfigurationError, match="which is not installed"):
        minga.join(link, kept)


def test_other_runs_do_not_ask_for_an_aggregator(tmp_path: Path) -> None:
    named = minga.RunSpec.from_mapping({"name": "guard", "security": {"aggregator": "not_installed"}})
    assert with_origins(named) == named
    check_plugins(named)


def test_the_peer_that_starts_a_run_spells_out_the_settings_of_its_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Set(Synchronous):
        class Settings(Section):
            """Two of them."""

            size: int = whole(3, 1, 9, "a size")
            shape: int = whole(4, 1, 9, "a shape")

        @classmethod
        def facts_for(cls, settings: Section) -> StrategyFacts:
            return replace(cls.facts, fragments=settings.size)  # type: ignore[attr-defined]

    monkeypatch.setitem(STRATEGIES._builtin, "set", "in this module")
    monkeypatch.setitem(STRATEGIES._loaded, "set", Set)

    def set_run(**table: Any) -> minga.RunSpec:
        return minga.RunSpec.from_mapping(
            {"name": "x", "training": {"strategy": "set", "target_batch_size": 12}, "strategy": {"set": table}}
        )

    begun = with_origins(set_run(size=2))
    assert begun.strategy == {"set": {"size": 2, "shape": 4}}
    assert minga.RunSpec.from_toml(begun.to_toml()) == begun
    assert with_origins(begun).run_id == begun.run_id != with_origins(set_run()).run_id
    assert (facts_of(begun).fragments, round_batch_range(begun)) == (2, (6, 6))
    assert round_batch_range(set_run(size=5)) == (2, 2)
    for wrong, said in (
        ({"sise": 1}, r"strategy\.set\.sise: unknown key; did you mean size\?"),
        ({"size": 10}, r"strategy\.set\.size = 10: must be a whole number from 1 to 9"),
    ):
        with pytest.raises(minga.ConfigurationError, match=said):
            check_plugins(set_run(**wrong))
