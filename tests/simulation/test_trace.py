"""`python -m tools.trace`: one step as a sequence of calls and messages."""

from __future__ import annotations

import pytest

from tools import trace

ACTORS = (
    "training/bridge/gradient_port.py  GradientPort.add",
    "averaging/matchmaking/former.py  GroupFormation.form",
    "averaging/matchmaking/leader.py  GroupLeader.run",
    "averaging/planning/plan_maker.py  PlanMaker.plan",
    "averaging/allreduce/round.py  Round.run",
    "averaging/allreduce/sender.py  exchange",
    "averaging/allreduce/reducer.py  Reducer.attend",
    "averaging/allreduce/repair.py  Repairer.run",
    "training/replica/replica.py  Replica.apply",
)


def test_a_step_is_shown_from_the_gradient_to_the_replica(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main([]) == 0
    said = capsys.readouterr().out
    rows = [" ".join(row.split()) for row in said.splitlines()]
    assert len(rows) <= 92
    assert rows[0].startswith("Step 3 of 4 simulated trainers, led by peer-")
    for actor in ACTORS:
        assert any(" ".join(actor.split()) in row for row in rows), actor
    assert len({row.split()[1] for row in rows[2:]}) == 2
    (plan,) = [row for row in rows if "SignedPlan" in row]
    assert plan.count("peer-") == 4  # its leader, and whom it goes to
    shown_ms = [float(row.split()[0]) for row in rows[2:]]
    assert shown_ms == sorted(shown_ms)
    (joins,) = [row for row in rows if "rpc group.join" in row]
    leader = rows[0].split(", led by ")[1].split(":")[0]
    assert joins.endswith(f"→ {leader}")


def test_all_calls_of_a_peer_can_be_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert trace.main(["--all", "--seed", "1", "--peer", "peer-1"]) == 0
    rows = [row.split() for row in capsys.readouterr().out.splitlines()[2:]]
    assert len(rows) > 125
    assert {row[1] for row in rows} == {"peer-1"}
    with pytest.raises(SystemExit):
        trace.main(["--peer", "peer-9"])
    assert "peer-9" in capsys.readouterr().err
