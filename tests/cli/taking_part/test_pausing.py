"""A volunteer pauses from another terminal, comes back, and leaves after a step; with real processes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.cli_run import ALONE, LOCAL, SPEC, Running, last_json, run

WORK = (*LOCAL, "--device", "cpu", "--threads", "1")


@pytest.mark.timeout(150)
def test_a_paused_peer_leaves_and_comes_back_as_one_that_was_away(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(SPEC)
    own = ("--identity", str(tmp_path / "guest.json"), "--directory", str(tmp_path / "guest"))
    with Running("host", str(path), *ALONE, "--role", "trainer", "--directory", str(tmp_path / "host")) as host:
        link = host.wait_for("link")["link"]
        assert "takes no part" in run("join", link, "--pause", "--directory", str(tmp_path / "guest")).stderr
        options = ("--max-traffic", "50GB/month", "--yes")
        with Running("join", link, *WORK, *own, *options) as guest:
            costs = guest.wait_for("costs")
            assert costs["name"] == "tiny"
            guest.wait_for("step.applied")
            paused = last_json(run("join", link, "--pause", "--directory", str(tmp_path / "guest"), "--json").stdout)
            assert (paused["paused"], paused["changed"]) == (True, True)
            assert "--resume" in guest.wait_for("paused")["why"]
            away = host.wait_for("step.applied", members=1)["step"]
            run("join", link, "--resume", "--directory", str(tmp_path / "guest"))
            guest.wait_for("resumed")
            assert guest.wait_for("sync.finished")["step"] >= away
            back = host.wait_for("step.applied", members=2)["step"]
            last = guest.finish(back + 1)
            assert last["step"] > away
        traffic = json.loads(next((tmp_path / "guest").rglob("traffic.json")).read_bytes())
        assert traffic["used_bytes"] > 0
        with Running("join", link, *WORK, *own, "--leave-after-step", str(back + 4)) as guest:
            assert guest.summary()["step"] >= back + 4
