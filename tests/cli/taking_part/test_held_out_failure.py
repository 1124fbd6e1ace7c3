"""The figures on held-out data fail, as those of a recipe of another package may."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from minga.cli.taking_part import session
from minga.cli.taking_part.session import HeldOut
from minga.cli.terminal.output import Output
from minga.core.spec.run_spec import RunSpec
from minga.monitor.history import History
from minga.recipes import load_recipe, new_model
from tests.worlds.extension_world import install_extras


def test_a_failure_before_the_first_figures_is_raised_and_a_later_one_told_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install_extras(tmp_path, monkeypatch)
    monkeypatch.setattr(session, "FIRST_PERIOD_S", 0.0)
    monkeypatch.setattr(session, "SHARE", 1e9)
    spec = RunSpec.from_mapping({"name": "x", "model": {"recipe": "corners"}})
    recipe = load_recipe(spec)
    fails = True

    def evaluate(*_: Any) -> dict[str, float]:
        if fails:
            raise RuntimeError("the shapes do not fit")
        return {"heldout_accuracy": 0.5}

    monkeypatch.setattr(type(recipe), "evaluate", evaluate)
    run: Any = SimpleNamespace(
        peer=SimpleNamespace(spec=spec), files={}, model=new_model(recipe), recipe=recipe, step=0
    )
    shown = HeldOut(run, Output(json_output=False), History(None, most_remembered=0))
    with caplog.at_level(logging.WARNING, "minga"):
        shown.if_due()
        shown._evaluator.wait()
        shown.if_due()
    assert "of step 0: the shapes do not fit" in caplog.text, "training goes on, also before the first figures"
    run.step = 1
    with pytest.raises(RuntimeError, match="do not fit"):
        shown.now()
    fails, run.step = False, 2
    shown.now()
    fails, run.step = True, 3
    with caplog.at_level(logging.WARNING, "minga"):
        shown.now()
    assert "of step 3: the shapes do not fit" in caplog.text
    assert shown.latest["step"] == 2
    fails, run.step = False, 4
    shown.if_due()
    shown.now()
    assert shown.latest["step"] == 4
