"""Partitions, and members that die in doubt: no two histories may both go on, and those with a quorum do go on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from minga.averaging.messages import Plan, SignedPlan
from minga.averaging.planning.signed_plan import sign_plan
from minga.core.errors import MinorityError
from minga.core.events.averaging import GroupMinority
from minga.core.events.bus import Event
from minga.identity.keys.keys import Identity
from minga.network.virtual.internet import HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.status.last_problem import MAX_REASON_LETTERS
from tests.worlds.partition_play import Verdict, play, stall_s
from tests.worlds.seeds import seeds, soaked
from tests.worlds.swarm_tools import assert_equal_states, assert_one_group_per_step, make_spec, same_step, virtually

pytestmark = pytest.mark.promise("no-silent-fork")

FORKED_BEFORE = (23, *map(soaked, (272, 14, 18, 30, 33, 43)))
"""Seeds in which two histories went on before rounds were committed by the members of the round before."""

STOOD_STILL = (150, soaked(175), soaked(116))
"""Seeds that left peers in doubt: a member was past a step for which too few were left, or had given its round up."""


def test_of_one_step_alone_no_stall_can_be_told() -> None:
    assert stall_s([(1.0, "one"), (8.0, "two"), (8.0, "three")], 10.0, 25.0) is None


@pytest.mark.parametrize("seed", [*FORKED_BEFORE, *STOOD_STILL])
def test_one_history_goes_on_and_all_come_back_to_it(seed: int) -> None:
    verdict: Verdict = play(seed)
    assert (verdict.forked_at, verdict.stood_still, verdict.errors) == (None, (), [])


def swarm_of(count: int, seed: int) -> Swarm:
    swarm = Swarm(make_spec(8 * count), seed=seed)
    for _ in range(count):
        swarm.add(HostSettings(latency_s=0.03), TrainerSettings(4, 0.2, jitter=0.1))
    return swarm


@virtually
async def test_members_of_which_most_were_started_anew_go_on_once_all_are_back() -> None:
    """Not before: who is missing may have taken the step with those that ended."""
    swarm = Swarm(make_spec(24), seed=3, checkpoint_every=1)
    for _ in range(3):
        swarm.add(HostSettings(latency_s=0.03), TrainerSettings(4, 0.2, jitter=0.1))
    await swarm.run_until_step(5)
    for name in ("peer-0", "peer-1"):
        swarm.internet.kill(name)
    await asyncio.sleep(5.0)
    swarm.restart("peer-0")
    await asyncio.sleep(20.0)
    step = swarm.peers["peer-2"].replica.step
    assert swarm.peers["peer-0"].replica.step == step <= 6
    swarm.restart("peer-1")
    await swarm.run_until_step(step + 5, limit_s=30.0)
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    await swarm.close()


async def kill_half(swarm: Swarm, survives: Callable[[SimulatedPeer, Event], bool]) -> list[SimulatedPeer]:
    """At the beginning of a round kill half of the peers in one moment, first those that do not have to survive."""
    begun: asyncio.Future[Event] = asyncio.get_running_loop().create_future()

    def hear(event: Event) -> None:
        if event.kind == "round.begun" and event.fields["step"] == 4 and not begun.done():
            begun.set_result(event)

    for peer in swarm.peers.values():
        peer.session.events.subscribe(hear)
    event = await begun
    peers = sorted(swarm.peers.values(), key=lambda peer: survives(peer, event))
    for peer in peers[: len(peers) // 2]:
        swarm.internet.kill(peer.name)
    return peers[len(peers) // 2 :]


@pytest.mark.parametrize("seed", seeds(1, of=2))
@virtually
async def test_half_of_six_goes_on_with_the_organiser_though_the_leader_died(seed: int) -> None:
    swarm = swarm_of(6, seed)
    organiser = next(iter(swarm.peers.values()))  # the first peer signs the run
    living = await kill_half(swarm, lambda peer, event: peer is organiser)
    step = max(peer.replica.step for peer in living)
    await swarm.run_until_step(step + 4, limit_s=120)
    await assert_equal_states(swarm, [peer.name for peer in living])
    assert_one_group_per_step(swarm)
    await swarm.close()


@virtually
async def test_half_without_the_organiser_waits_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    swarm = swarm_of(4, 3)
    organiser = next(iter(swarm.peers.values()))
    living = await kill_half(swarm, lambda peer, event: peer is not organiser)
    await asyncio.sleep(10.0)
    step = max(peer.replica.step for peer in living)
    await asyncio.sleep(20.0)
    assert max(peer.replica.step for peer in living) == step
    told = swarm.log.of("group.minority")
    assert {logged.peer for logged in told} == {peer.name for peer in living}
    for logged in told:
        assert isinstance(logged.event.data, GroupMinority)
        assert logged.event.data.why.endswith("minga amend LINK resume --with-present")
        assert len(logged.event.data.why) < MAX_REASON_LETTERS, "displays would cut it off"
    await swarm.close()
    assert caplog.text.count("waiting: only 2 of the 4 members of the last round") == 2


@pytest.mark.parametrize("clients", [1, 3])
@virtually
async def test_clients_without_the_only_peer_that_can_be_dialled_stop_where_the_run_says_so(clients: int) -> None:
    """They see nobody who could lead, so none of them leads."""
    swarm = Swarm(make_spec(16, network={"minority": "stop"}), seed=3)
    host = swarm.add(HostSettings(), TrainerSettings(4, 0.3))
    for _ in range(clients):
        swarm.add(HostSettings(dialable=False), TrainerSettings(4, 0.3))
    await swarm.run_until_step(3)
    swarm.internet.kill(host.name)
    await asyncio.sleep(60.0)
    errors = [peer.error for peer in swarm.alive()]
    assert len(errors) == clients
    assert all(isinstance(error, MinorityError) for error in errors), errors
    assert f"only 1 of the {clients + 1} members" in str(errors[0])
    await swarm.close()


@pytest.mark.parametrize("delay_s", [0.12, *map(soaked, (0.0, 0.02, 0.04, 0.06, 0.08, 0.1, 0.14))])
@virtually
async def test_a_coordinator_that_dies_while_a_round_is_committed_leaves_one_result(delay_s: float) -> None:
    swarm = swarm_of(5, 1)
    leaders: list[str] = []
    applied: dict[int, set[str]] = {}

    def watch(peer: SimulatedPeer) -> None:
        def hear(event: Event) -> None:
            if event.kind == "step.applied":
                applied.setdefault(peer.replica.step, set()).add(peer.replica.digest())
                if peer.replica.step == 5 and not leaders:
                    leaders.append(next(p.name for p in swarm.peers.values() if p.network.peer_id == leader[0]))
                    asyncio.get_running_loop().call_later(delay_s, lambda: swarm.internet.kill(leaders[0]))
            elif event.kind == "round.begun":
                leader[:] = [str(event.fields["leader"])]

        peer.session.events.subscribe(hear)

    leader: list[str] = []
    for peer in swarm.peers.values():
        watch(peer)
    await swarm.run_until_step(5, limit_s=120)
    living = [peer.name for peer in swarm.alive()]
    await same_step(swarm, living)
    await swarm.run_until_step(9, limit_s=120)
    assert [step for step, states in applied.items() if len(states) > 1] == []
    await swarm.close()


@pytest.mark.parametrize(
    ("happens", "after_s", "seconds", "steps"),
    [("cut", 0.1, 3.0, 2), ("cut", 0.52, 2.0, 2), ("stall", 0.52, 2.0, 2), ("cut", 0.1, 3.0, 3), ("cut", 0.1, 5.0, 3)],
)
@virtually
async def test_two_that_take_the_last_steps_each_alone_end_with_one_state(
    happens: str, after_s: float, seconds: float, steps: int
) -> None:
    swarm = Swarm(make_spec(16, digest_every=10, training={"stop_after_steps": steps}), seed=5)
    first, second = (swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 0.25)) for _ in range(2))
    while min(first.replica.step, second.replica.step) < 1:
        await asyncio.sleep(0.01)
    await asyncio.sleep(after_s)
    if happens == "cut":
        swarm.internet.cut(first.name, second.name)
        await asyncio.sleep(seconds)
        swarm.internet.restore(first.name, second.name)
    else:
        swarm.internet.stall(second.name)
        await asyncio.sleep(seconds)
        swarm.internet.resume(second.name)
    await swarm.run_until_step(steps, limit_s=60)
    await asyncio.sleep(10)
    alone = [event for event in swarm.log.of("step.applied") if event.event.fields["members"] == 1]
    assert alone, "the fault has to fall into the last steps"
    assert len(set(swarm.digests([first.name, second.name]).values())) == 1
    assert len(swarm.log.of("sync.finished")) <= 2, "one gives way, and fetches the state once"
    await swarm.close()


@virtually
async def test_a_newcomer_that_is_cut_off_before_its_first_round_ends_with_the_state_of_the_other() -> None:
    swarm = Swarm(make_spec(16, digest_every=10, training={"stop_after_steps": 3}), seed=5)
    first = swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 0.25))
    await swarm.run_until_step(2, limit_s=60)
    second = swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 0.25))
    while not swarm.log.of("sync.finished"):
        await asyncio.sleep(0.01)
    swarm.internet.cut(first.name, second.name)
    await asyncio.sleep(5.0)
    swarm.internet.restore(first.name, second.name)
    await swarm.run_until_step(3, limit_s=60)
    await asyncio.sleep(10)
    assert {event.event.fields["members"] for event in swarm.log.of("step.applied")} == {1}, "both were alone"
    assert len(set(swarm.digests().values())) == 1
    await swarm.close()


async def joined(swarm: Swarm, names: Sequence[str], entries: Sequence[SimulatedPeer] = ()) -> None:
    """Have newcomers of these names fetch the state, one after the other, from all or only through the `entries`."""
    addresses = [peer.network.address for peer in entries] or None
    for name in names:
        newcomer = swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 3.0), name=name, entries=addresses)
        for peer in swarm.alive() if entries else ():
            if peer not in (*entries, newcomer):
                swarm.internet.cut(peer.name, name)
        await asyncio.sleep(1.0)
    while not all(swarm.peers[name].session.is_ready for name in names):
        await asyncio.sleep(0.05)


@pytest.mark.parametrize(("members", "seed"), [(1, 1), *(soaked(3, seed) for seed in (1, 2, 3))])
@virtually
async def test_newcomers_behind_a_cut_take_no_step_however_many_they_are(members: int, seed: int) -> None:
    swarm = Swarm(make_spec(64), seed=seed)
    old = [swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 3.0)) for _ in range(members)]
    await swarm.run_until_step(2)
    await joined(swarm, ("first", "second"))
    step, newcomers = old[0].replica.step, [swarm.peers[name] for name in ("first", "second")]
    assert {peer.replica.step for peer in newcomers} == {step}, "no step may end before the cut"
    for peer in old:
        for newcomer in newcomers:
            swarm.internet.cut(peer.name, newcomer.name)
    await joined(swarm, ("third", "fourth", "fifth"), newcomers)  # they know only newcomers
    newcomers += [swarm.peers[name] for name in ("third", "fourth", "fifth")]
    await swarm.run_until_step(step + 2, peers=[peer.name for peer in old])
    assert {peer.replica.step for peer in newcomers} == {step}
    assert swarm.log.of("group.minority")
    for peer in old:
        for newcomer in newcomers:
            swarm.internet.restore(peer.name, newcomer.name)
    await swarm.run_until_step(step + 3)
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    await swarm.close()


@pytest.mark.parametrize("says_goodbye", [True, False])
@virtually
async def test_newcomers_go_on_after_the_only_member_said_goodbye_or_came_back(says_goodbye: bool) -> None:
    swarm = Swarm(make_spec(64), seed=1, checkpoint_every=1)
    host = swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 3.0), name="host")
    await swarm.run_until_step(2)
    await joined(swarm, ("first", "second"))
    step = host.replica.step
    if says_goodbye:
        await host.session.close()
    else:
        swarm.internet.kill("host")
        await asyncio.sleep(60.0)
        assert {peer.replica.step for peer in swarm.alive()} == {step}
        swarm.restart("host")
    await swarm.run_until_step(step + 2, limit_s=400.0)
    await assert_equal_states(swarm)
    await swarm.close()


@pytest.mark.parametrize("seed", [3, *map(soaked, (1, 2))])
@virtually
async def test_of_two_one_that_stops_as_it_leads_takes_no_step_by_itself_that_displaces_those_of_the_other(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other never hears of the plan, and goes on alone."""
    swarm = swarm_of(2, seed)
    await swarm.run_until_step(5)
    led: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def sign_and_stop(plan: Plan, identity: Identity) -> SignedPlan:
        if len(plan.members) == 2 and not led.done():
            led.set_result(swarm.name_of(identity.peer_id))
            swarm.internet.stall(led.result())
        return sign_plan(plan, identity)

    monkeypatch.setattr("minga.averaging.matchmaking.former.sign_plan", sign_and_stop)
    stopped = await led
    (other,) = (peer for name, peer in swarm.peers.items() if name != stopped)
    await asyncio.sleep(30.0)
    alone = other.replica.step
    assert alone > swarm.peers[stopped].replica.step + 2
    swarm.internet.resume(stopped)
    await asyncio.sleep(20.0)
    assert min(peer.replica.step for peer in swarm.alive()) > alone
    await assert_equal_states(swarm)
    await swarm.close()


@virtually
async def test_one_that_comes_back_with_the_last_state_tells_it_to_the_one_that_waits_for_it() -> None:
    swarm = Swarm(make_spec(16, digest_every=10, training={"stop_after_steps": 2}), seed=5, checkpoint_every=1)
    first, second = (swarm.add(HostSettings(latency_s=0.005), TrainerSettings(4, 0.25)) for _ in range(2))
    await swarm.run_until_step(1, limit_s=60)
    await asyncio.sleep(0.1)
    swarm.internet.cut(first.name, second.name)
    await swarm.run_until_step(2, limit_s=60)
    swarm.internet.kill(first.network)
    await asyncio.sleep(1.0)
    swarm.internet.restore(first.name, second.name)
    assert len(set(swarm.digests([first.name, second.name]).values())) == 2
    swarm.restart(first.name)
    await asyncio.sleep(4.0)
    assert len(swarm.log.of("run.finished")) == 2, "nobody waits for what was told"
    assert len(set(swarm.digests().values())) == 1
    await swarm.close()
