"""Settings that the organisers change while a run goes on, in virtual time: no step ever mixes two values."""

from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.access.admission import MAX_INVALID
from minga.access.standing_orders import OrderExchange, StandingOrders, check_changes
from minga.averaging.clocking.batch_size import BatchSize
from minga.averaging.group import GroupSettings
from minga.averaging.messages import Accepted
from minga.core.errors import ConfigurationError, ProtocolError
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger, InvalidOrderError
from minga.identity.access.orders import MAX_AMENDMENTS, Amendment
from minga.identity.keys.keys import Identity
from minga.network.gossip.board import Item
from minga.network.interface import PeerId
from minga.network.virtual.internet import EPOCH_S
from minga.optim.together import Together
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm, small_replica
from minga.training.agreement.between_rounds import Amended
from minga.training.life.member import Member
from minga.training.record_kinds import Progress
from minga.training.replica.build_optimizer import set_learning_rate
from minga.training.replica.interface import LOOP_RATES
from minga.training.replica.replica import Replica
from minga.training.replica.schedule import SchedulesTogether
from minga.training.status.run_status import live_work
from tests.worlds.reduce_world import one_vector
from tests.worlds.swarm_tools import (
    assert_equal_states,
    assert_one_group_per_step,
    grow,
    make_spec,
    offences,
    pull,
    vector_replica,
)
from tests.worlds.swarm_tools import virtually as virtually_for

pytestmark = pytest.mark.promise("who-may-take-part")

ORGANISER, SECOND = (Identity.from_seed(bytes([i]) * 32) for i in (200, 201))
NOW = int(EPOCH_S)
virtually = functools.partial(virtually_for, limit_s=900.0)
RATE, NORM = "optimizer.learning_rate", "optimizer.max_grad_norm"


def amendment(spec: RunSpec, number: int, from_step: int, signer: Identity = ORGANISER, **changes: str) -> Amendment:
    said = tuple((key.replace("__", "."), value) for key, value in changes.items())
    return Amendment(bytes.fromhex(spec.run_id), 0, NOW, (), number, from_step, said).signed_by(signer)


def tell(peer: SimulatedPeer, *orders: Amendment) -> None:
    assert peer.session.admission.take(orders) == []


def rate_of(peer: SimulatedPeer) -> float:
    assert isinstance(peer.replica, Replica)
    return float(peer.replica.optimizer.param_groups[0]["lr"])


def amended(swarm: Swarm, kind: str = "run.amended") -> dict[str, list[tuple[int, str]]]:
    """By peer: from which step on it went by which changes."""
    found: dict[str, list[tuple[int, str]]] = {}
    for logged in swarm.log.of(kind):
        fields = logged.event.fields
        found.setdefault(logged.peer, []).append((int(str(fields["step"])), str(fields["changes"])))
    return found


def forgetful(peer: SimulatedPeer) -> list[PeerId]:
    """Let no amendment reach a peer by gossip, so that it has to ask its leader; the leaders that it asked."""
    admission, standing, asked = peer.session.admission, peer.session.orders, list[PeerId]()
    assert standing is not None
    take, fetch = admission.take, standing._fetch
    assert fetch is not None

    def without(orders: Iterable[Any]) -> list[InvalidOrderError]:
        return take([order for order in orders if not isinstance(order, Amendment)])

    async def ask(leader: PeerId) -> None:
        asked.append(leader)
        admission.take = take  # type: ignore[method-assign]
        await fetch(leader)
        admission.take = without  # type: ignore[method-assign]

    admission.take = without  # type: ignore[method-assign]
    standing._fetch = ask
    return asked


@virtually
async def test_all_members_change_at_one_step_by_the_highest_numbers_whichever_came_first_under_churn() -> None:
    swarm = Swarm(make_spec(48), organiser=ORGANISER)
    grow(swarm, 5, random.Random(4))
    await swarm.run_until_step(2)
    peers = list(swarm.peers.values())
    asked = forgetful(peers[4])
    tell(peers[0], amendment(swarm.spec, 2, 5, optimizer__learning_rate="0.5", training__target_batch_size="96"))
    tell(peers[1], amendment(swarm.spec, 3, 5, optimizer__learning_rate="0.025"))
    await swarm.run_until_step(6)
    swarm.internet.kill(peers[2].network)
    tell(peers[3], amendment(swarm.spec, 1, 3, optimizer__learning_rate="0.125"))  # overruled before it came
    assert {tuple(steps) for steps in amended(swarm).values()} == {
        ((5, f"{RATE} = 0.025, training.target_batch_size = 96"),)
    }
    assert asked  # the orders did not reach it otherwise
    newcomer = swarm.add()
    await swarm.run_until_step(11)
    assert {rate_of(peer) for peer in swarm.alive()} == {0.025}
    batches = {
        int(str(e.event.fields["step"])): int(str(e.event.fields["batch"])) for e in swarm.log.of("step.applied")
    }
    assert (batches[4], batches[10]) == (48, 96)
    assert newcomer.replica.step >= 11
    await assert_equal_states(swarm)
    assert_one_group_per_step(swarm)
    assert offences(swarm) == []
    await swarm.close()


@virtually
async def test_a_paused_run_holds_its_state_and_goes_on_and_stops_when_told() -> None:
    swarm = Swarm(make_spec(32), organiser=ORGANISER)
    grow(swarm, 3, random.Random(5))
    await swarm.run_until_step(2)
    peers = list(swarm.peers.values())
    tell(peers[1], amendment(swarm.spec, 1, 4, paused="true"))
    await swarm.run_until_step(4)
    begun = len(swarm.log.of("round.begun"))
    newcomer = swarm.add()
    await asyncio.sleep(15.0)  # far longer than a step, or than it takes to give up who is silent
    assert {peer.replica.step for peer in swarm.alive()} == {4}
    assert len(swarm.log.of("round.begun")) == begun
    assert all(len(peer.session.node.connected()) >= 1 for peer in swarm.alive())
    await assert_equal_states(swarm)
    assert newcomer.session.member is not None
    tell(peers[0], amendment(swarm.spec, 2, 0, paused="false"))
    await swarm.run_until_step(7)
    step = max(peer.replica.step for peer in swarm.alive())
    tell(peers[2], amendment(swarm.spec, 3, step + 1, training__stop_after_steps=str(step + 2)))
    for peer in list(swarm.alive()):
        await peer.ended.wait()
        assert (peer.error, peer.replica.step) == (None, step + 2)
    assert len(set(swarm.digests().values())) == 1
    await swarm.close()


# ---- rules


@virtually
async def test_members_refuse_a_plan_by_an_order_for_later_steps() -> None:
    """A leader says which orders are in force; it moves none of them."""
    swarm = Swarm(make_spec(32), organiser=ORGANISER)
    grow(swarm, 3, random.Random(4))
    await swarm.run_until_step(2)
    late = amendment(swarm.spec, 1, 1000, optimizer__learning_rate="0.5")
    for peer in swarm.peers.values():
        tell(peer, late)
    hostile = next(iter(swarm.peers.values()))
    standing = hostile.session.orders
    assert standing is not None
    standing.due = lambda _: (late.id,)  # type: ignore[method-assign]
    await swarm.run_until_step(5)
    assert not [peer for peer in amended(swarm) if peer != hostile.name]
    honest = [peer for peer in swarm.peers.values() if peer is not hostile]
    assert 0.5 not in {rate_of(peer) for peer in honest}
    assert all(peer.replica.step >= 5 for peer in honest)
    with pytest.raises(ProtocolError, match="for later steps"):
        await standing.obtain([late.id], "00" * 32, 999)
    await standing.obtain([late.id], "00" * 32, 1000)
    await swarm.close()


@virtually
async def test_of_forged_orders_a_few_are_looked_at() -> None:
    swarm = Swarm(make_spec(32), organiser=ORGANISER)
    grow(swarm, 2, random.Random(4))
    await swarm.run_until_step(1)
    one, _ = swarm.peers.values()
    stranger = [amendment(swarm.spec, number, 0, SECOND, paused="true") for number in range(1, 4 * MAX_INVALID)]
    assert len(one.session.admission.take(stranger)) == MAX_INVALID
    await swarm.close()


@virtually
async def test_a_result_that_is_adopted_brings_the_amendments_of_the_attempt_that_made_it() -> None:
    swarm = Swarm(make_spec(32), organiser=ORGANISER)
    grow(swarm, 3, random.Random(6))
    await swarm.run_until_step(2)
    peers = list(swarm.peers.values())
    old = amendment(swarm.spec, 1, 0, optimizer__learning_rate="0.05")
    tell(peers[0], old)
    member = peers[0].session.member
    assert isinstance(member, Member)
    formation = member._formation
    held = Accepted(1, peers[0].network.peer_id, 0, "ab" * 16, "cd" * 16, (old.id,))
    formation.position = formation.position.holding(held, (peers[0].network.peer_id,))
    assert formation._attempt.join().accepted == held
    await swarm.close()


def standing(spec: RunSpec, *orders: Amendment) -> StandingOrders:
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    for order in orders:
        ledger.take(order)
    return StandingOrders(spec, ledger)


@virtually
async def test_what_is_due_is_what_no_higher_number_overrules() -> None:
    spec = make_spec(16)
    one = amendment(spec, 1, 3, optimizer__learning_rate="0.5", paused="true")
    two = amendment(spec, 2, 5, optimizer__learning_rate="0.25")
    three = amendment(spec, 3, 5, paused="false")
    orders = standing(spec, three, two, one)
    assert [orders.due(step) for step in (2, 3, 5)] == [(), (one.id,), (two.id, three.id)]
    assert orders.changes(orders.due(5), 5) == {RATE: 0.25, "paused": False}
    assert [orders.is_paused(step) for step in (2, 4, 5)] == [False, True, False]
    assert orders.spec(orders.due(4), 4).optimizer.learning_rate == 0.5
    nonsense = amendment(spec, 4, 0, optimizer__learning_rate="-1", training__seed="7", checkpoints__keep="{")
    assert standing(spec, nonsense).changes([nonsense.id], 0) == {}


@virtually
async def test_a_plan_by_fewer_orders_than_are_due_here_is_what_a_newcomer_goes_by_in_all_it_does() -> None:
    spec = make_spec(8)
    orders = standing(spec, amendment(spec, 1, 2, training__stop_after_steps="4"))
    amends = Amended(orders, small_replica(spec))
    amends.stand_at(3)
    assert amends.now.training.stop_after_steps == amends.last_step(3) == 4
    amends.enter((), 3)  # its leader has not heard of the order yet
    assert amends.now.training.stop_after_steps is amends.last_step(4) is None


def test_clipping_is_that_of_the_program_again_once_the_amendment_of_it_is_void() -> None:
    """As after the key of its organiser was revoked: a peer that comes later never heard of it."""
    spec = make_spec(16)
    order = amendment(spec, 1, 2, optimizer__max_grad_norm="0.5")
    replica = small_replica(spec)
    amends = Amended(standing(spec, order), replica)
    norms = []
    for orders in ((), (order.id,), (order.id,), ()):
        amends.enter(orders, 2)
        amends.apply()
        replica.amend({LOOP_RATES: [0.1]})
        norms.append(replica.max_grad_norm)
    assert norms == [None, 0.5, 0.5, None]


def test_an_amended_rate_is_not_undone_by_loops_that_set_their_own(caplog: pytest.LogCaptureFixture) -> None:
    replica = small_replica(make_spec(16))
    (group,) = replica.optimizer.param_groups
    replica.loop_rates.is_heard = True

    def round_by_loop(rate: float) -> list[float]:
        """What the loop sets, what the peer says of it, and by what the round is taken that has it."""
        group["lr"] = rate
        replica.look_at_loop()
        said = list(replica.loop.rates)
        replica.amend({LOOP_RATES: [rate]})
        replica.adopt(replica.read_values(), replica.step + 1)
        return [*said, float(group["lr"])]

    assert round_by_loop(0.2) == [0.2, 0.2]
    replica.amend({RATE: 0.03})
    assert [round_by_loop(0.2) for _ in range(3)] == [[0.03]] * 3
    assert caplog.text.count("the organisers amended it: their order counts") == 1
    replica.amend({})
    assert round_by_loop(0.2) == [0.2, 0.2]


def test_a_peer_that_comes_to_a_state_with_an_amended_rate_lets_no_loop_set_another_one() -> None:
    spec = make_spec(16, model={"recipe": "custom"})
    order, replica = amendment(spec, 1, 0, optimizer__learning_rate="0.03"), small_replica(spec)
    (group,) = replica.optimizer.param_groups
    amends = Amended(standing(spec, order), replica)
    amends.enter((order.id,), 2)
    amends.apply()
    for step in (3, 4):
        amends.stand_at(step)
        amends.apply()
        for rate in (0.09, 0.08, 0.07):
            group["lr"] = rate
            replica.look_at_loop()
            assert group["lr"] == 0.03


def test_signs_are_not_clipped_in_the_round_that_leads_from_them_to_another_strategy() -> None:
    """The plan of that round has the order already, and the round is still taken by the old strategy."""
    changes = [{"from_step": 3, "strategy": "demo"}]
    spec = make_spec(16, model={"recipe": "custom"}, training={"strategy_changes": changes})
    norm = amendment(spec, 1, 0, optimizer__max_grad_norm="0.5")
    away = amendment(spec, 2, 6, training__strategy='"synchronous"')
    orders, replica = standing(spec, norm, away), small_replica(spec)
    amends, norms, said = Amended(orders, replica), [], list[str]()
    for step in range(1, 8):
        said.append(amends.enter(orders.due(step), step))
        amends.apply()
        norms.append(replica.max_grad_norm)
        replica.hand_over(amends.at(step + 1).training.strategy, keeps_uncounted=False)
    assert norms == [0.5, 0.5, None, None, None, 0.5, 0.5]
    back = "training.strategy = synchronous"
    assert said == [f"{NORM} = 0.5", "", "", "", back, f"{NORM} = 0.5, {back}", ""]


def test_the_desk_judges_an_order_for_a_step_that_is_past_by_the_round_that_is_next() -> None:
    changes = [{"from_step": 3, "strategy": "demo"}]
    spec = make_spec(16, model={"recipe": "custom"}, training={"strategy_changes": changes})
    order = amendment(spec, 1, 0, optimizer__max_grad_norm="0.5")
    assert standing(spec).check(order, 2).optimizer.max_grad_norm == 0.5
    with pytest.raises(ConfigurationError, match=r'leave optimizer\.max_grad_norm "off"'):
        standing(spec).check(order, 4)


@pytest.mark.parametrize(("step", "from_step"), [(60, 0), (40, 60), (60, 60)])
def test_a_run_ends_at_no_step_that_is_past_when_its_end_is_ordered(step: int, from_step: int) -> None:
    """Who took the last round went on for another one, and who fetched its state was through."""
    spec = make_spec(16)
    for last in ("60", "1"):
        with pytest.raises(ConfigurationError, match="can end after step 61 at the earliest"):
            standing(spec).check(amendment(spec, 1, from_step, training__stop_after_steps=last), step)
    later = amendment(spec, 1, from_step, training__stop_after_steps="61")
    assert standing(spec).check(later, step).training.stop_after_steps == 61
    ended = standing(spec, amendment(spec, 1, 0, training__stop_after_steps="1"))
    other = amendment(spec, 2, from_step, optimizer__learning_rate="0.5")
    assert ended.check(other, step).training.stop_after_steps == 1, "that there is such an order is no fault of another"


def test_the_run_spec_is_made_once_for_all_rounds_of_the_same_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, made = make_spec(16), list[int]()
    amend = RunSpec.amended

    def counting(of: RunSpec, changes: dict[str, Any]) -> RunSpec:
        made.append(1)
        return amend(of, changes)

    monkeypatch.setattr(RunSpec, "amended", counting)
    one, two = (amendment(spec, number, 3, optimizer__learning_rate=f"0.{number}") for number in (1, 2))
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    orders = StandingOrders(spec, ledger)
    assert orders.spec((one.id,), 3).optimizer.learning_rate == spec.optimizer.learning_rate, "not known yet"
    for order in (one, two):
        ledger.take(order)
    assert orders.spec((one.id,), 3).optimizer.learning_rate == 0.1
    first = len(made)
    for step in range(3, 30):
        assert not orders.is_paused(step)
        assert orders.changes(orders.due(step), step) == {RATE: 0.2}
        assert orders.spec(orders.due(step), step).optimizer.learning_rate == 0.2
    assert len(made) <= first + 2
    ledger.amendments.keep(lambda each: each.id != two.id)
    assert orders.changes(orders.due(30), 30) == {RATE: 0.1}


@virtually
async def test_a_newcomer_clips_its_own_steps_as_the_others_do_from_the_first_one_on() -> None:
    """With local steps the first plan comes when it has taken many of them; and so it is at a peer that comes back."""
    norms: dict[str, list[float | None]] = {}

    def gradient(peer: SimulatedPeer, samples: int) -> float:
        assert isinstance(peer.replica, Replica)
        norms.setdefault(peer.name, []).append(peer.replica.max_grad_norm)
        return pull(peer, samples)

    spec = make_spec(96, training={"strategy": "local"})
    swarm = Swarm(spec, organiser=ORGANISER, make_replica=vector_replica(8), gradient=gradient, checkpoint_every=1)
    grow(swarm, 3, random.Random(3))
    await swarm.run_until_step(1)
    for peer in swarm.peers.values():
        tell(peer, amendment(swarm.spec, 1, 2, optimizer__max_grad_norm="0.5"))
    await swarm.run_until_step(4)
    leaver = sorted(swarm.peers)[1]
    swarm.internet.kill(swarm.peers[leaver].network)
    newcomer = swarm.add()
    await swarm.run_until_step(6)
    before = len(norms[leaver])
    swarm.restart(leaver)
    await swarm.run_until_step(8)
    assert set(norms[newcomer.name]) == {0.5}
    assert set(norms[leaver][before:]) == {0.5}
    await swarm.close()


def test_a_peer_that_comes_back_and_one_that_looks_on_go_by_the_batch_that_is_due() -> None:
    spec, told = make_spec(8), [Item(PeerId("a" * 64), Progress(6, 0, 0.0, "training", target_batch_size=64), 1.0)]
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    assert ledger.take(amendment(spec, 1, 5, training__target_batch_size="64"))
    board: Any = SimpleNamespace(items=lambda kind: told if kind is Progress else [], get=lambda *_: None)
    assert live_work(board, spec, ledger)[1].batch == 64
    batch = BatchSize(GroupSettings(8, one_vector(1), True, orders=StandingOrders(spec, ledger)))
    assert [batch.of(step) for step in (4, 6)] == [8, 64]


def test_orders_are_signed_counted_and_of_this_run() -> None:
    keys = sorted([ORGANISER.peer_id, SECOND.peer_id])
    spec = make_spec(16, security={"organisers": keys, "organisers_needed": 2})
    ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
    alone = amendment(spec, 1, 0, paused="true")
    with pytest.raises(InvalidOrderError, match="1 of the 2 organisers"):
        ledger.take(alone)
    assert ledger.take(alone.signed_by(SECOND))
    assert not ledger.take(alone.signed_by(SECOND))
    with pytest.raises(InvalidOrderError, match="another run"):
        ledger.take(amendment(make_spec(17), 1, 0, paused="true"))
    for number in range(2, MAX_AMENDMENTS + 1):
        ledger.take(amendment(spec, number, 0, paused="true").signed_by(SECOND))
    with pytest.raises(InvalidOrderError, match="at most"):
        ledger.take(amendment(spec, 999, 0, paused="true").signed_by(SECOND))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"network.relay": "none"},
            r"network\.relay cannot change .*: a peer opens its network .*These can: opt",
        ),
        ({"training.learning_rate": 0.1}, r"did you mean optimizer\.learning_rate"),
        ({"optimizer.learning_rate": -1.0}, "learning_rate"),
        ({"training.target_batch_size": "auto"}, "from number to number"),
        ({"paused": 1}, "true or false"),
    ],
)
def test_what_cannot_change_says_so_by_name(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        check_changes(make_spec(16), changes, 0)


def test_a_strategy_with_an_optimizer_of_its_own_takes_over_only_where_it_was_foreseen() -> None:
    """The program of each peer has the optimizer, and it is looked at when that begins."""
    unforeseen = make_spec(16, model={"recipe": "custom"})
    with pytest.raises(ConfigurationError, match=r'"demo" brings its own .* training\.strategy_changes'):
        check_changes(unforeseen, {"training.strategy": "demo"}, 5)
    later = [{"from_step": 10**6, "strategy": "demo"}]
    foreseen = make_spec(16, model={"recipe": "custom"}, training={"strategy_changes": later})
    check_changes(foreseen, {"training.strategy": "demo", NORM: "off"}, 5)
    check_changes(foreseen, {NORM: 1.0}, 10**6 - 1)
    with pytest.raises(ConfigurationError, match=r'leave optimizer\.max_grad_norm "off"'):
        check_changes(foreseen, {NORM: 1.0}, 10**6)


def test_a_verified_run_cannot_be_amended() -> None:
    with pytest.raises(ConfigurationError, match="without a leader"):
        check_changes(make_spec(16, security={"verification": "byzantine"}), {RATE: 0.1}, 0)


def cyclic_groups(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.CyclicLR(optimizer, [0.0, 0.1, 0.2], [0.0, 0.2, 0.4], cycle_momentum=False)


@pytest.mark.parametrize("schedule", [None, cyclic_groups])
def test_a_group_that_rests_at_a_rate_of_0_goes_on_resting(schedule: Any) -> None:
    groups = [{"params": [torch.nn.Parameter(torch.zeros(2))], "lr": rate} for rate in (0.0, 0.2, 0.4)]
    optimizer = torch.optim.SGD(groups)
    scheduler = None if schedule is None else schedule(optimizer)
    before = [group["lr"] for group in optimizer.param_groups]
    for _ in range(2):
        set_learning_rate(optimizer, scheduler, 0.1)
        assert [group["lr"] for group in optimizer.param_groups] == [0.5 * rate for rate in before]


def floor(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 6, eta_min=0.01)


def restarts(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 3, eta_min=0.01)


def average(optimizer: torch.optim.Optimizer) -> LRScheduler:
    return torch.optim.swa_utils.SWALR(optimizer, 0.02, anneal_epochs=5)


@pytest.mark.parametrize("schedule", [None, floor, restarts, average])
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["number", "tensor"])
def test_an_amended_rate_changes_all_rates_of_a_schedule_and_each_once(schedule: Any, rate: Any) -> None:
    """A rate that is a tensor is one and the same in all groups."""

    def course(amended: float | None) -> list[list[float]]:
        groups = [{"params": [torch.nn.Parameter(torch.zeros(2))]} for _ in range(3)]
        optimizer = torch.optim.SGD(groups, lr=rate + 0.0)
        scheduler = None if schedule is None else schedule(optimizer)
        rates = []
        for step in range(8):
            if step == 3 and amended is not None:
                set_learning_rate(optimizer, scheduler, amended)
            rates.append([float(group["lr"]) for group in optimizer.param_groups])
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
        return rates

    plain, changed = course(None), course(0.3)
    assert changed[:3] == plain[:3]
    for before, after in zip(plain[3:], changed[3:], strict=True):
        assert after == pytest.approx([3 * each for each in before], rel=1e-5)


def one_cycle(optimizer: torch.optim.Optimizer, peak: float) -> LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=10)


def cyclic(optimizer: torch.optim.Optimizer, peak: float) -> LRScheduler:
    return torch.optim.lr_scheduler.CyclicLR(optimizer, peak / 4, peak, step_size_up=3, cycle_momentum=False)


def cyclic_at_first(optimizer: torch.optim.Optimizer, peak: float) -> LRScheduler:
    parts = [cyclic(optimizer, peak), torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, [5])


@pytest.mark.parametrize("at", [0, 3, 7])
@pytest.mark.parametrize("schedule", [one_cycle, cyclic, cyclic_at_first])
def test_a_schedule_that_keeps_its_peak_elsewhere_has_the_amended_one(
    at: int, schedule: Callable[[torch.optim.Optimizer, float], LRScheduler]
) -> None:
    def course(peak: float, amended: float | None = None) -> list[float]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
        scheduler = schedule(optimizer, peak)
        rates = []
        for step in range(10):
            if step == at and amended is not None:
                set_learning_rate(optimizer, scheduler, amended)
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            if step < 9:
                scheduler.step()
        return rates

    changed, wanted = course(0.1, 0.03), course(0.03)
    assert changed[at:] == pytest.approx(wanted[at:])
    assert changed[:at] == course(0.1)[:at]
    assert course(0.1, 0.1) == course(0.1)


@pytest.mark.parametrize("at", [0, 2, 5])
def test_schedules_of_optimizers_that_are_together_have_the_amended_rate_after_their_warmup_too(at: int) -> None:
    def warmed(optimizer: torch.optim.Optimizer) -> LRScheduler:
        warmup = torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3)
        rest = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (step + 1))
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warmup, rest], [3])

    def course(rate: float, amended: float) -> list[list[float]]:
        members = [torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=each) for each in (rate, 2 * rate)]
        optimizer = Together(members)
        scheduler = SchedulesTogether([warmed(each) for each in members], optimizer)
        rates = []
        for step in range(8):
            if step == at:
                set_learning_rate(optimizer, scheduler, amended)
            rates.append([group["lr"] for group in optimizer.param_groups])
            optimizer.step()
            scheduler.step()
        return rates

    for changed, wanted in zip(course(0.1, 0.03)[at:], course(0.03, 0.03)[at:], strict=True):
        assert changed == pytest.approx(wanted)


def test_bounds_that_move_together_are_changed_together() -> None:
    """Of two bounds the one that comes first may go only with the other one, whichever way they move."""
    batch = {"target_batch_size": "auto", "target_batch_size_min": 10, "target_batch_size_max": 100}
    spec = make_spec(16).amended({f"training.{key}": value for key, value in batch.items()})
    for least, most in ((2, 5), (500, 1000)):
        order = amendment(
            spec, 1, 0, training__target_batch_size_max=str(most), training__target_batch_size_min=str(least)
        )
        orders = standing(spec, order)
        assert orders.batch_range([order.id], 3) == (least, most)


@virtually
async def test_a_member_that_missed_the_last_round_ends_with_the_others() -> None:
    """It has the state of the last step, and the order, but no plan that said so."""
    swarm = Swarm(make_spec(32), organiser=ORGANISER)
    grow(swarm, 4, random.Random(8))
    await swarm.run_until_step(3)
    peers = list(swarm.peers.values())
    away, others = peers[3], peers[:3]
    step = max(peer.replica.step for peer in peers)
    for peer in peers:
        tell(peer, amendment(swarm.spec, 1, step + 3, training__stop_after_steps=str(step + 4)))
    await swarm.run_until_step(step + 1)
    for other in others:
        swarm.internet.cut(away.network, other.network)
    for peer in others:
        await peer.ended.wait()
    for other in others:
        swarm.internet.restore(away.network, other.network)
    await asyncio.wait_for(away.ended.wait(), 300.0)
    assert (away.error, away.replica.step) == (None, step + 4)
    assert len(set(swarm.digests().values())) == 1
    await swarm.close()


def test_peers_that_hold_an_order_with_other_signatures_hold_the_same() -> None:
    """Else they would send each other all orders for ever: of two copies each keeps the one that came first."""
    third = Identity.from_seed(bytes([202]) * 32)
    keys = sorted(key.peer_id for key in (ORGANISER, SECOND, third))
    spec = make_spec(16, security={"organisers": keys, "organisers_needed": 2})
    once = amendment(spec, 1, 0, paused="true").signed_by(SECOND)
    digests = set()
    for order in (once, once.signed_by(third), once.signed_by(Identity.from_seed(bytes([9]) * 32))):
        ledger = AccessLedger.of_spec(spec.run_id, spec, ORGANISER.peer_id)
        assert ledger.take(order)
        assert not ledger.take(once)
        exchange = object.__new__(OrderExchange)
        exchange._ledger = ledger
        digests.add(exchange._digest())
    assert len(digests) == 1
