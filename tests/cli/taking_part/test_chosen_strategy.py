"""Why strategy = "auto" became what it is can be asked for as long as the run's folder is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from minga.keeping.known_runs import CHOSEN_STRATEGY_FILE, ChosenStrategy
from tests.worlds.cli_run import LOCAL, Running, last_json, run

SPEC = """
name = "auto"
[model]
recipe = "custom"
[training]
strategy = "auto"
target_batch_size = 64
[network]
relay = "none"
[state]
founder = "first"
"""


def test_it_is_kept_in_the_folder_and_shown_by_status(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    key = ("--identity", str(tmp_path / "key.json"), "--directory", str(tmp_path / "runs"))
    with Running("host", str(path), *LOCAL, *key) as host:
        link = host.wait_for("link")
        chosen = next(event for event in host.events if event["event"] == "chosen_strategy")
        assert "nothing can be foreseen" in chosen["reason"]
        here = run("status", link["link"], *LOCAL, *key[2:], "--json")
        assert last_json(here.stdout)["strategy_reason"] == chosen["reason"]
        there = run("status", link["link"], *LOCAL, "--directory", str(tmp_path / "other"), "--json")
        assert "strategy_reason" not in last_json(there.stdout), "another machine does not know it"
    (Path(link["directory"]) / "history.jsonl").write_text('{"t": 1.0, "event": "step", "step": 3}\n')
    later = run("status", link["directory"], "--json")
    assert later.returncode == 0, later.stderr
    assert last_json(later.stdout)["strategy_reason"] == chosen["reason"]


@pytest.mark.parametrize("content", [b"", b"{}", b'{"strategy": 3, "reason": "x"}', b"\xff" * 100_000])
def test_a_damaged_file_is_left_out_with_a_line(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert ChosenStrategy.read(tmp_path) is None
    assert not caplog.text
    (tmp_path / CHOSEN_STRATEGY_FILE).write_bytes(content)
    assert ChosenStrategy.read(tmp_path) is None
    assert "is left out" in caplog.text


def test_it_reads_what_it_wrote(tmp_path: Path) -> None:
    chosen = ChosenStrategy("local", 'strategy = "local", overlap = true: κ is 2')
    chosen.write(tmp_path)
    assert ChosenStrategy.read(tmp_path) == chosen
