"""The door of a whole swarm: a program that does not fit is refused with words on both sides, and holds nobody up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest
import torch

from minga.core.errors import UnfitError
from minga.core.spec.run_spec import RunSpec
from minga.network.virtual.internet import HostSettings
from minga.optim import SGD
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training import session
from minga.training.agreement.comparison import is_same
from minga.training.record_kinds import MAX_WHY_CHARACTERS, Progress, StateInfo, Unfit
from minga.training.replica.replica import Replica
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import assert_equal_states, make_spec, offences, pull, virtually

pytestmark = pytest.mark.promise("all-peers-train-the-same")

TOKENS_REFUSED = "the run counts samples, this program counts tokens"


def replicas(
    *units: str, width: int = 6, kind: type[torch.optim.Optimizer] = SGD, other: int | None = None
) -> Callable[..., Replica]:
    """One after the other, each that counts what its unit says; that of number `other` begins with other weights."""
    left = list(units)

    def make(spec: RunSpec) -> Replica:
        torch.manual_seed(2 if len(units) - len(left) == other else 1)
        model = torch.nn.Sequential(torch.nn.Linear(width, 3), torch.nn.Linear(3, 2))
        return Replica(spec, kind(model.parameters(), lr=0.1), model=model, unit=left.pop(0))

    return make


def add(swarm: Swarm, seconds: float = 0.1) -> SimulatedPeer:
    return swarm.add(HostSettings(latency_s=0.02), TrainerSettings(1, seconds))


@pytest.mark.parametrize("verification", ["none", "byzantine"])
def test_an_unfit_newcomer_hears_why_as_the_others_do_and_no_step_waits_for_it(verification: str) -> None:
    """It stayed "syncing" for the others as long as its program lived, and each step waited 2 s for it."""

    @virtually
    async def main() -> None:
        security = {"verification": verification, **({"founders": 2} if verification == "byzantine" else {})}
        spec = make_spec(4, security=security)
        swarm = Swarm(spec, seed=3, make_replica=replicas("samples", "samples", "tokens"), gradient=pull)
        peers = [add(swarm) for _ in range(2)]
        try:
            await swarm.run_until_step(3, limit_s=200)
            misfit = add(swarm)
            await asyncio.wait_for(misfit.ended.wait(), 60)
            assert isinstance(misfit.error, UnfitError)
            assert TOKENS_REFUSED in str(misfit.error)
            assert misfit.session.board.get(misfit.session.peer_id, Progress) is None
            assert misfit.replica.step == 0
            await asyncio.sleep(1)
            told = {(each.peer, str(each.event.fields["why"])) for each in swarm.log.of("member.unfit")}
            assert told == {(peer.name, str(misfit.error)[:MAX_WHY_CHARACTERS]) for peer in peers}
            begun, before = asyncio.get_running_loop().time(), peers[0].replica.step
            names = [peer.name for peer in peers]
            await swarm.run_until_step(before + 5, limit_s=100, peers=names)
            assert not offences(swarm)
            if verification == "none":
                assert asyncio.get_running_loop().time() - begun < 5
                await assert_equal_states(swarm, names)
        finally:
            await swarm.close()

    main()


@pytest.mark.parametrize("differs", [soaked("unit"), "weights"])
def test_founders_that_would_begin_with_something_else_than_the_organiser_are_told(differs: str) -> None:
    """They all waited for a third that is like them, and nobody knew for what. Who trains something else ends; who has
    other weights waits, and comes in once the others have begun.
    """

    @virtually
    async def main() -> None:
        spec = make_spec(6, security={"verification": "byzantine", "founders": 3, "probation_steps": 2})
        units = ("samples", "tokens" if differs == "unit" else "samples", "samples", "samples")
        swarm = Swarm(spec, seed=3, make_replica=replicas(*units, other=1 if differs == "weights" else None))
        organiser, odd, other = [add(swarm) for _ in range(3)]
        try:
            await asyncio.sleep(8.0)
            told = [str(each.event.fields["why"]) for each in swarm.log.of("state.awaited")]
            if differs == "unit":
                assert isinstance(odd.error, UnfitError)
                assert TOKENS_REFUSED in str(odd.error)
                assert {each.peer for each in swarm.log.of("member.unfit")} == {organiser.name, other.name}
                assert told == []
            else:
                start = f"peer {organiser.network.peer_id[:10]} would begin the run with another state"
                assert [why.startswith(start) and "its parameters have other values" in why for why in told] == [True]
            assert {peer.replica.step for peer in swarm.alive()} == {0}
            last = add(swarm)
            trains = [organiser, other, last] if differs == "unit" else [organiser, odd, other, last]
            await swarm.run_until_step(3, limit_s=200, peers=[peer.name for peer in trains])
            assert not offences(swarm)
        finally:
            await swarm.close()

    main()


def test_peers_whose_states_differ_by_rounding_alone_are_others_where_they_train_something_else() -> None:
    """Optimizers that round differently let a digest differ; what the peers train has to be the same all the same."""
    one = StateInfo(3, "1" * 64, (1.0, 2.0), 0.5, "a" * 32)
    assert is_same(one, StateInfo(3, "2" * 64, (1.0, 2.1), 0.5, "a" * 32))
    assert not is_same(one, StateInfo(3, "2" * 64, (1.0, 2.1), 0.5, "b" * 32))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_peers_tell_what_they_train_wherever_they_compare_by_more_than_digests(
    kind: type[torch.optim.Optimizer],
) -> None:
    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(4), seed=3, make_replica=replicas("samples", "samples", kind=kind), gradient=pull)
        peers = [add(swarm) for _ in range(2)]
        try:
            await swarm.run_until_step(3, limit_s=200)
            told = [peer.session.board.get(peer.session.peer_id, StateInfo) for peer in peers]
            assert [each.trains for each in told if each is not None] == [peer.replica.trains for peer in peers]
            assert len(peers[0].replica.trains) == 32
        finally:
            await swarm.close()

    main()


def test_what_others_say_of_themselves_is_bounded_and_commands_no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "MOST_UNFIT_TOLD", 5)

    @virtually
    async def main() -> None:
        swarm = Swarm(make_spec(4), seed=3, make_replica=replicas("samples", "samples"), gradient=pull)
        peers = [add(swarm, 1.0) for _ in range(2)]
        try:
            await swarm.run_until_step(2, limit_s=200)
            for number in range(20):
                peers[1].session.board.put(Unfit(f"{number}\x1b[2J\n" + "x" * 300))
                await asyncio.sleep(0.15)
            heard = [each for each in swarm.log.of("member.unfit") if each.peer == peers[0].name]
            assert len(heard) == 5
            assert all(str(each.event.fields["why"]).isprintable() for each in heard)
        finally:
            await swarm.close()

    main()
