"""Comparing the all-reduce benchmark with scripts from outside, with stand-ins for these."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import _against

pytestmark = pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the benchmarks read /proc")

SCRIPT = """
import json, sys
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print("something else")
print(json.dumps([1]))
for number in range(int(options["--warmup"]) + int(options["--rounds"])):
    warmup = number < int(options["--warmup"])
    print(json.dumps({"round": number, "warmup": warmup, "allreduce_s": 9.0 if warmup else 2.0 + number,
                      "cpu_allreduce_s": 6.0, "others_share": 0.5 if number == 1 else 0.0, "options": options}))
print(json.dumps({"summary": True, "allreduce_s": [1, 1, 1]}))
"""


def arguments(folder: Path, **changes: Any) -> Any:
    fields = {
        "against": "hivemind,gloo",
        "against_scripts": str(folder),
        "against_python": sys.executable,
        "peers": 3,
        "mib": 5,
        "codec": "float32",
        "quiet_wait": 0.0,
    }
    return SimpleNamespace(**fields | changes)


def test_rounds_and_ratios(tmp_path: Path) -> None:
    (tmp_path / "hivemind_allreduce.py").write_text(SCRIPT)
    (rival,) = _against.rivals(arguments(tmp_path))
    rows = rival.run(arguments(tmp_path), 3)
    assert [row["round"] for row in rows] == [1, 2, 3]
    expected = {"--peers": "3", "--mib": "5", "--rounds": "3", "--warmup": "1", "--compression": "none"}
    assert rows[0]["options"].items() >= expected.items()
    ours = [{"allreduce_s": 1.5, "cpu_allreduce_s": 3.0, "others_share": 0.3}]
    ratios = _against.compare(rival, ours)
    assert ratios["time_ratio"] == 3.0  # of the undisturbed rounds, 4 and 5 s
    assert ratios["cpu_ratio"] == 2.0
    assert (ratios["rounds"], ratios["rounds_quiet"]) == (3, 2)


def test_what_is_not_there_is_skipped_with_a_note(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "hivemind_allreduce.py").write_text(SCRIPT)
    assert not _against.rivals(arguments(tmp_path, against="gloo"))
    assert not _against.rivals(arguments(tmp_path, against="hivemind", codec="bfloat16"))
    assert not _against.rivals(arguments(tmp_path, against=""))
    notes = capsys.readouterr().err
    assert "gloo is skipped" in notes
    assert "bfloat16" in notes
    with pytest.raises(SystemExit, match="horovod"):
        _against.rivals(arguments(tmp_path, against="horovod"))


def test_one_that_fails_gives_no_ratio(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "gloo_allreduce.py").write_text("raise SystemExit('no such luck')")
    (rival,) = _against.rivals(arguments(tmp_path))
    assert rival.run(arguments(tmp_path), 2) == []
    assert "no such luck" in capsys.readouterr().err
    assert _against.compare(rival, [{"allreduce_s": 1.0, "cpu_allreduce_s": 1.0, "others_share": 0.0}]) == {
        "time_ratio": None,
        "cpu_ratio": None,
        "allreduce_s": None,
        "cpu_allreduce_s": None,
        "rounds": 0,
        "rounds_quiet": 0,
    }
