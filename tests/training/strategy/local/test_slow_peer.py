"""A peer whose micro-batches take longer than whole rounds of the others: what it moves counts in later rounds."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.allreduce.service import AllReduce
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.strategy.interface import Recovery
from minga.training.strategy.local import Local
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, vector_replica, virtually

STEPS = 14


@pytest.mark.parametrize(("slow_s", "fast_s"), [soaked(16.0, 1.0), (4.8, 0.3), soaked(32.0, 2.0)])
@pytest.mark.parametrize("kind", [{}, soaked({"fragments": 2})])
def test_what_a_peer_of_a_sixteenth_of_the_speed_moves_counts_in_later_rounds(
    kind: dict[str, Any], slow_s: float, fast_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With speeds 1 : 16 : 16 a round is over after a quarter of its micro-batch, so all of them end without it."""
    counted: dict[str, int] = defaultdict(int)
    recoveries: list[Recovery] = []
    reduce, missed = AllReduce.reduce, Local.missed

    async def noted(
        self: AllReduce, plan: Plan, layout: Any, local: Any, weight: int, *rest: Any, **named: Any
    ) -> RoundOutcome:
        outcome = await reduce(self, plan, layout, local, weight, *rest, **named)
        counted[self._node.peer_id] += weight if outcome.fate is ContributionFate.COUNTED else 0
        return outcome

    def recovered(self: Local, rounds: int) -> Recovery:
        recoveries.append(missed(self, rounds))
        return recoveries[-1]

    monkeypatch.setattr(AllReduce, "reduce", noted)
    monkeypatch.setattr(Local, "missed", recovered)

    @virtually
    async def main() -> None:
        fragments = kind.get("fragments", 1)
        training = {"strategy": "local", "stop_after_steps": STEPS}
        spec = make_spec(8 * fragments, training=training, strategy={"local": {"overlap": True, **kind}})
        swarm = Swarm(spec, make_replica=vector_replica(9_000, fragments), gradient=pull, seed=3)
        slow, *fast = (
            swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, seconds)) for seconds in (slow_s, fast_s, fast_s)
        )
        try:
            for peer in (slow, *fast):
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert slow.samples_done >= STEPS // 7
            if fragments == 1:
                assert counted[slow.network.peer_id] >= slow.samples_done - 1, "all but the last one under way"
            else:
                assert counted[slow.network.peer_id] >= slow.samples_done // 2, "one of two fragments each time"
            assert set(recoveries) == {Recovery.REBASE}
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()
