"""Each movement counts once: where a round counts without a peer, where it adopts a result, where a peer rebases."""

from __future__ import annotations

import asyncio

import pytest
import torch

from minga.averaging.allreduce.round import Round
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import Plan
from minga.training.life.member import Member
from minga.training.strategy.interface import Recovery
from tests.worlds.local_movements import Account, moving_swarm
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, offences, virtually

pytestmark = pytest.mark.promise("the-model-is-right")

AT, STEPS = 4, 9
COUNTED, UNCOUNTED = ContributionFate.COUNTED, ContributionFate.UNCOUNTED


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Account:
    account = Account()
    account.install(monkeypatch)
    return account


@pytest.mark.parametrize(
    ("takes_part", "lossy"), [(False, "codec"), (True, "sketch"), soaked(False, "sketch"), soaked(True, "codec")]
)
def test_a_round_that_adopts_a_result_counts_each_movement_once(
    takes_part: bool, lossy: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The result of step 4 is held and given up; the next attempt adopts it. One peer gave nothing to the first one,
    unless it `takes_part`; the trainers go on between both.
    """
    commit, contribution = Round.commit, Member._contribution
    idle: set[str] = set()

    def give_up_the_first(self: Round, term: int) -> None:
        if self.plan.step == AT and not self.plan.adopts:
            self.abort("it is cut off")
        else:
            commit(self, term)

    async def nothing_at_first(self: Member, plan: Plan) -> tuple[torch.Tensor | None, int, int]:
        found = await contribution(self, plan)
        return (None, 0, 0) if self._node.peer_id in idle and self.step == AT and not plan.adopts else found

    monkeypatch.setattr(Round, "commit", give_up_the_first)
    monkeypatch.setattr(Member, "_contribution", nothing_at_first)

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, STEPS)
        if not takes_part:
            idle.add(peers[2].network.peer_id)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert swarm.log.of("round.aborted")
            wanted = [COUNTED] * 3 if takes_part else [COUNTED, COUNTED, UNCOUNTED]
            assert sorted(account.fates[AT + 1], key=str) == wanted
            assert account.missing(peers) < 1e-5
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("lossy", ["codec", soaked("sketch")])
def test_a_peer_that_rebases_keeps_its_movements_and_they_count_once(lossy: str, account: Account) -> None:
    """It is cut off after a step, before it gave anything to the next one, and comes back when the others went on."""

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, 18)
        others = [peer.name for peer in peers[:2]]
        try:
            while peers[2].replica.step < AT:
                await asyncio.sleep(0.005)
            for other in others:
                swarm.internet.cut(peers[2].name, other)
            await swarm.run_until_step(AT + 6, peers=others, limit_s=120)
            for other in others:
                swarm.internet.restore(peers[2].name, other)
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert Recovery.REBASE in account.recoveries
            assert Recovery.FETCH not in account.recoveries
            assert account.missing(peers) < 1e-5
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("lossy", [soaked("codec"), "sketch"])
def test_what_others_may_have_counted_does_not_count_again(
    lossy: str, account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All commit a round but one of its members, which gave it up after it had sent everything. It fetches the state
    of the others: what is kept is no more than what was not applied.
    """
    commit = Round.commit

    def lose_the_answer(self: Round, term: int) -> None:
        if self.plan.step == AT and self.node.peer_id == self.plan.ids[-1]:  # the first one leads
            self.abort("it is cut off")
        else:
            commit(self, term)

    monkeypatch.setattr(Round, "commit", lose_the_answer)

    @virtually
    async def main() -> None:
        swarm, peers = moving_swarm(lossy, 12)
        try:
            for peer in peers:
                await peer.ended.wait()
            await assert_equal_states(swarm)
            assert Recovery.FETCH in account.recoveries
            assert Recovery.REBASE not in account.recoveries
        finally:
            await swarm.close()

    main()
