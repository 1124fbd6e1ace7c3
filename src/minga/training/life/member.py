"""A member: the life of one peer in one run, on the event loop.

    ┌─▶ synchronise (newcomers, late or diverged peers) ─┐
    │                                                    ▼
    └── out of sync ◀── form the group ──▶ seal ──▶ reduce ──▶ apply (training thread) ──▶ next step

A step, from call to call:

    training thread   `Optimizer.step` ▶ `GradientPort.add` ▶ `Strategy.micro_batch`: the gradients are in the sum;
                      ▶ `GradientPort.poll`: go on computing, wait, or do what the loop asks for
    form              `GroupFormation.form`: this peer leads (`GroupLeader.run`) or follows (`follow`). The leader says
                      at how many samples each stops, closes the group, and signs the plan: who reduces what
    seal              `GradientPort.seal` ▶ `Strategy.contribution`: the mean gradient so far, and its samples;
                      ▶ `Replica.project`: what of it is sent
    reduce            `AllReduce.reduce` ▶ `Repairer.start`: `exchange` sends each part to its root and reads the mean
                      back, `Reducer` makes the mean where this peer is the root; `QuorumCommit.run`: it counts
    apply             `Member._apply` ▶ on the training thread `Replica.expand` ▶ `GradientPort.absorb` ▶
                      `Strategy.absorb` ▶ `Replica.apply`: clipping, optimizer step, scheduler; ▶ `GradientPort.reopen`

`python -m tools.trace` prints a real one. Everything that a member knows about others it reads from the board;
everything that others need to know about it, it writes there. It does not know whether it lives in the real or the
simulated world.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

import msgspec
import torch

from minga.access.standing_orders import StandingOrders
from minga.averaging.allreduce.round import RoundOutcome, chunk_table
from minga.averaging.allreduce.service import AllReduce, RoundAbortedError
from minga.averaging.codecs.residual import ContributionFate, RoundVectors
from minga.averaging.group import GroupSettings
from minga.averaging.matchmaking.attempt import OutOfSyncError
from minga.averaging.matchmaking.former import GroupFormation
from minga.averaging.messages import Plan
from minga.averaging.planning.plan_maker import Divide
from minga.averaging.solver.planner import divide
from minga.averaging.strategy_choice import Contributors, StrategyChoice, round_batch_range
from minga.core.aio import Observers, offload, watching
from minga.core.errors import RemoteError, RunFinishedError
from minga.core.events.averaging import RoundAborted, RoundBegun, RoundReduced
from minga.core.events.training import (
    MemberCutOff,
    MemberOutOfSync,
    ParametersDrift,
    ParametersNotAveraged,
    RunAmended,
    RunFinished,
    RunPaused,
    RunRegrouped,
    StateFounded,
    StepApplied,
    SyncFinished,
)
from minga.core.refusal_code import RefusalCode
from minga.core.thread_guard import loop_bound
from minga.core.units import counted
from minga.identity.access.orders import Regroup
from minga.identity.keys.keys import Identity
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.receipts.receipts import Receipts
from minga.training.agreement.between_rounds import Amended, ParameterAverage, StrategySwitch
from minga.training.agreement.comparison import AveragingInterval, StateComparison
from minga.training.bridge.gradient_port import GradientPort
from minga.training.life.board_view import BoardView
from minga.training.life.catching_up import SYNC_PAUSE_S, CatchingUp, Download, StateWait, Synchroniser
from minga.training.life.founding import Founding
from minga.training.life.leaving import FAREWELL_S, Companions, closing
from minga.training.life.progress_publisher import ProgressPublisher
from minga.training.life.trainer_hold import TrainerHold
from minga.training.life.worth import WorthNotice
from minga.training.lineage import Lineage
from minga.training.record_kinds import StateInfo
from minga.training.replica.interface import LOOP_RATES, ReplicaInterface
from minga.training.state.snapshot import StateSnapshot

PAUSE_LOOK_S, REGROUP_LOOK_S, OVERTAKEN_PERIOD_S = 0.5, 0.5, 0.5
FLUSH_S = 1.0
"""Seconds in which the last attestation of a peer reaches others when the run is over."""
FOUNDED = "founded"
"""The name of the training thread's task after which the state that is here is the first one of the run."""
HELD = "held"
"""Goes into the fingerprint of a result that was held when its round was given up."""


logger = logging.getLogger("minga.training")


class RegroupedError(RemoteError):
    """The organisers regrouped the run: the step that was formed is another one now."""


@loop_bound
class Member:
    """Drives the steps of one peer, which leads with plans by `divide`; for `download` see `Synchroniser`."""

    stays_s: Final = 0.3
    """Longest time, in seconds, that `see_off` takes."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        board: Board,
        replica: ReplicaInterface,
        port: GradientPort,
        download: Download,
        founding: Founding,
        orders: StandingOrders,
        receipts: Receipts | None = None,
        divide: Divide = divide,
    ) -> None:
        run = founding.run
        spec, organiser = run.spec, run.organiser
        self.receipts = Receipts(node, identity) if receipts is None else receipts
        """What members attest of each other's contributions."""
        self.step = 0
        self.ready = asyncio.Event()
        """Set once the first synchronisation is over and the peer takes part in steps."""
        self.on_finished: Callable[[StateSnapshot], None] | None = None
        """Called on the loop with the state after the run's last step."""
        self.lineage = replica.lineage
        """Where this peer's state comes from; one that is not founded is no state of the run."""
        self.on_replaced: Callable[[], None] = lambda: None
        """Called on the loop when the state was fetched, so that what was served before is not what this peer has."""
        self.on_absorbed: Callable[[int], None] | None = None
        """Called on the training thread when the replica has come to a step, while no round runs."""
        self.on_step_ended = Observers[[]]()
        """Told when this peer has applied a step, or given a round up."""
        self.swarm_view = BoardView(board, node, organiser)
        self._node, self._board = node, board
        self._port, self._replica, self._founding = port, replica, founding
        self._synchroniser = Synchroniser(replica, port, download)
        interval = AveragingInterval(
            spec.averaging.average_parameters_every,
            spec.state.digest_every,
            is_useful=lambda: port.facts.shares_optimizer and not replica.rounds_alike,
        )
        self._states = StateComparison(board, replica, spec.state.digest_every, interval, organiser)
        self.vectors = RoundVectors(
            replica.layout_of,
            replica.vector.new,
            decay=spec.averaging.residual_decay,
            keeps_uncounted=port.facts.keeps_uncounted,
        )
        least_batch, largest_batch = round_batch_range(spec)
        group = GroupSettings(
            least_batch,
            self.vectors.described,
            run.aggregates,
            computes=run.computes,
            wait_in_minority=spec.network.minority == "wait",
            largest_batch_size=largest_batch,
            most_communication=spec.training.most_communication,
            organiser=organiser,
            orders=orders,
            averages_every=lambda step: self._states.choose_interval(step + 1, self.swarm_view.alike()),
            contributors=self._contributors,
            notes=self.receipts,
        )
        self._formation = GroupFormation(node, identity, group, self.swarm_view, port, divide)
        self.receipts.epoch = lambda: self.epoch
        self.receipts.last_step = lambda: self.amended.last_step(self.step)
        self._all_reduce = AllReduce(node)
        self._publisher = ProgressPublisher(
            board,
            node,
            port,
            lambda: (self.step, self._formation.batch.of(self.step)),
            client=not run.aggregates,
            vector_bytes=self.vectors.encoded_bytes,
            lineage=lambda: self.lineage,
            distance=lambda: self._formation.position.distance,
        )
        self._worth = WorthNotice(node)
        self._hold = TrainerHold(port, self.swarm_view)
        self._orders, self.amended = orders, Amended(orders, replica)
        """The organisers' amendments, as this member goes by them."""
        self._parameter_average = ParameterAverage(self._all_reduce, replica, port)
        self._switch = StrategySwitch(replica, port, self.vectors)
        self._wait = StateWait(node, founding)
        self._catching_up = CatchingUp(
            self._synchroniser, self.swarm_view, self._states, node.events, self._is_last, self._wait
        )
        self._lost: tuple[PeerId, ...] = ()
        self._companions = Companions(self.swarm_view, self._states)
        self.in_doubt = False
        """Whether this peer gave something to a round of its step that came to nothing here and may count elsewhere."""

    @property
    def view(self) -> tuple[PeerId, ...]:
        """Members of the last round, its leader first."""
        return self._formation.position.view

    def close(self, error: BaseException) -> None:
        """Let the trainer go; its next boundary raises `error`."""
        self._port.close(error)

    async def see_off(self) -> None:
        """Before this peer leaves: let others take over what it made in the last round."""
        await asyncio.gather(self._all_reduce.drain(self.stays_s), self.receipts.flush(self.stays_s))

    async def run(self, step: int = 0) -> None:
        """Live until cancelled; `step` is where the local state stands.

        After the run's last step the trainer is let go with `RunFinishedError`, but the peer goes on serving its
        state to others. Whatever is raised here also lets the trainer go, by a `ClosedError` if it is no error of
        minga's own.
        """
        self.step = step
        self._port.limit(0)  # nobody begins before a leader said how far to go
        publisher = asyncio.get_running_loop().create_task(self._publisher.run())
        try:
            await self._stand()
            await self._learn_founding()
            while not await self._is_over():
                if (regroup := self._orders.regroup(self.epoch)) is not None:
                    await self._follow_regroup(regroup)
                elif self._is_cut_off():
                    await self._stay_out()
                elif self._catching_up.is_due(self.step):
                    await self._synchronise()
                elif self._orders.is_paused(self.step):
                    self.ready.set()
                    await self._rest()
                else:
                    self.ready.set()
                    await self._take_step()
            self._node.events.emit(RunFinished(step=self.step))
            self._publisher.set_status("finished")
            if self.on_finished is not None:  # the trainer leaves, and could not be asked for the state later
                self.on_finished(await self._synchroniser.capture())
            await self._port.request("conclude", self._port.conclude)
            await self._companions.see_off(self.step)
            await self.receipts.flush(FLUSH_S)
            self._port.close(RunFinishedError(f"the run is complete after {counted(self.step, 'step')}"))
            self.ready.set()
            await self._serve_last_state()
        except Exception as error:
            self._port.close(closing(error))
            self.ready.set()
            raise
        finally:
            publisher.cancel()
            self._all_reduce.retire()

    # ---- one step

    @property
    def _result(self) -> torch.Tensor:
        """The mean of the present step's round."""
        return self.vectors.result(self.step)

    async def _take_step(self) -> None:
        """Form the group, reduce, apply. What comes to nothing leaves the state as it was: `run` goes on from there."""
        self._publisher.set_status("training")
        begun_s = asyncio.get_running_loop().time()
        try:
            plan = await self._form()
        except RegroupedError:
            return
        except OutOfSyncError as error:
            self._node.events.emit(MemberOutOfSync(step=self.step, why=error.message))
            self._catching_up.require(self.step + 1 if error.code == RefusalCode.BEHIND else 0)
            return
        await self._reduce(plan, begun_s)

    async def _form(self) -> Plan:
        """The plan of the present step. Raises `RegroupedError` if the organisers regroup the run meanwhile."""
        forming = self._formation.form(self.step, self._lost)
        if not self._orders.can_be:
            return await forming
        try:
            async with asyncio.timeout(None) as waiting:
                with watching(REGROUP_LOOK_S, lambda: self._ends_by_regroup(waiting)):
                    return await forming
        except TimeoutError:
            if waiting.expired():
                raise RegroupedError("the organisers regrouped the run") from None
            raise

    async def _reduce(self, plan: Plan, begun_s: float) -> None:
        """Seal, reduce by the plan of a step that began at `begun_s`, and apply the result if it counts."""
        planned_s = asyncio.get_running_loop().time()
        self._port.limit_next(self._limit_by(plan))
        vector, samples, weight = await self._contribution(plan)
        self._publisher.set_status("averaging")
        self._node.events.emit(
            RoundBegun(
                step=self.step,
                round=plan.round_id,
                leader=plan.members[0].peer_id,
                members=len(plan.members),
                samples=samples,
                waited_s=planned_s - begun_s,
                parts=len(plan.parts),
                sites=len(plan.sites),
                predicted_s=plan.predicted_s,
            )
        )
        self.in_doubt = self.in_doubt or (vector is not None and not plan.adopts)
        layout, residual = self.vectors.layout_of(self.step), self.vectors.residual(self.step)
        most = self._most_weight(plan)
        try:
            with watching(OVERTAKEN_PERIOD_S, lambda: self._gives_up_overtaken(plan)):
                outcome = await self._all_reduce.reduce(
                    plan, layout, vector, weight, self._result, residual, most_weight=most
                )
        except RoundAbortedError as error:
            self._node.events.emit(RoundAborted(step=self.step, why=error.message))
            self.on_step_ended.tell()
            if error.held_term is not None:  # another member may have applied it: whatever comes next has to be that
                self._formation.give_up(plan, error.held_term, await self._hash_result(HELD))
            await self._port.unseal()
            return
        self._node.events.emit(
            RoundReduced(
                step=self.step,
                round=plan.round_id,
                seconds=outcome.seconds,
                lost=len(outcome.lost),
                bytes_sent=outcome.bytes_sent,
                bytes_received=outcome.bytes_received,
            )
        )
        self._formation.commit(plan)
        given = weight if outcome.fate is ContributionFate.COUNTED else 0
        self.receipts.commit(outcome, given, self._formation.batch.of(self.step))
        self._publisher.set_status("training")  # the training thread may be long in coming to a boundary
        if outcome.is_late and not outcome.lost:
            self._node.access_link.doubt()
        self._lost = tuple(outcome.lost)
        self._companions.note(outcome)
        await self._apply(outcome, samples)
        self._formation.batch.note(plan, asyncio.get_running_loop().time() - planned_s)

    async def _contribution(self, plan: Plan) -> tuple[torch.Tensor | None, int, int]:
        """What this peer brings to a round of the present step, the samples that it has for it, and what it counts.

        What a sketch leaves out of it is kept by what it counts, and not by its samples, if these are two things.
        """
        vector, samples = await self._port.seal()
        self._hold.end()
        if plan.scores and plan.rank_of(self._node.peer_id) not in plan.contributors:
            return None, samples, 0
        size, project, weight = self._result.nbytes, self._replica.project, self._weight(plan, samples)
        layout = self.vectors.layout_of(self.step)
        sent = await offload(
            size, project, vector, weight, self.step, plan.round_id, lambda: chunk_table(layout, plan)[0]
        )
        if sent is None and vector is not None:  # it would be the same in any further attempt at the step
            await self._port.request("drop", self._port.begin_anew)
        return (None, 0, 0) if sent is None else (sent, samples, weight)

    def _weight(self, plan: Plan, samples: int) -> int:
        """What a contribution with so many samples counts; a mean of one with weight 1 is not rounded."""
        most = self._most_weight(plan)
        return samples if most is None else min(most, samples)

    def _most_weight(self, plan: Plan) -> int | None:
        """What any contribution counts at most; None where it counts its samples."""
        return 1 if plan.scores or self._port.facts.weights == "equal" else None

    def _contributors(self, step: int) -> Contributors:
        """Whose contributions the round of `step` takes."""
        return "all" if step + 1 == self.amended.last_step(self.step) else self._port.facts.contributors

    def _gives_up_overtaken(self, plan: Plan) -> bool:
        """Give a round up whose other members are done with the next one: they gave this peer up in this one.

        That shows in the steps, too: who was alone in both rounds has no more shared ones than this peer, which would
        count one more if it completed by itself what the other never heard of.
        """
        view, past = self.swarm_view, set(self.swarm_view.ahead(plan.step + 1))
        past.update(peer for peer in view.ahead(plan.step) if view.settled()[peer].step > plan.step + 1)
        if not self._formation.position.are_past(past) and self._orders.regroup(self.epoch) is None:
            return False
        self._all_reduce.give_up(plan, "its other members went on without us")
        return True

    async def _apply(self, outcome: RoundOutcome, samples: int) -> None:
        """The result counts: come to the next step by it; this peer gave `samples`."""
        plan, step, report = outcome.plan, self.step + 1, self._port.report()
        if self._states.interval.follow(plan.averages_every):
            self._node.events.emit(ParametersDrift(step=self.step, every=plan.averages_every))
        hashing = asyncio.get_running_loop().create_task(self._hash_result(plan.result_id))
        batch = self._formation.batch.of(self.step)
        if said := self.amended.enter(plan.orders, self.step):
            self._node.events.emit(RunAmended(step=self.step, changes=said))
        limit, goes_on = self._limit_by(plan), self.amended.at(step)
        self._port.cap(round_batch_range(goes_on)[1])
        compares = self._is_last(step) or (self._states.is_due(step) and bool(self.swarm_view.active()))
        strategy = StrategyChoice.of(goes_on)
        lineage = self.lineage.after(plan.result_id, plan.succession)
        with self._hold.beginning_if_behind(step):
            state = await self._advance(outcome, limit, strategy, lineage, batch=batch, compares=compares)
        fingerprint = await hashing
        self._worth.note(plan, report, batch)
        self.step, self.in_doubt = step, False
        self._take_up(lineage, fingerprint)
        if not self.swarm_view.settled():
            self._catching_up.warn_if_alone(step)
        members = len(plan.members) - len(outcome.lost)
        held_s = round(self._port.held_s(), 6)
        self._node.events.emit(StepApplied(step=step, samples=samples, members=members, batch=batch, held_s=held_s))
        self.on_step_ended.tell()
        if state is not None:
            self._states.publish(state)

    async def _advance(
        self,
        outcome: RoundOutcome,
        limit: int | None,
        strategy: StrategyChoice,
        lineage: Lineage,
        *,
        batch: int,
        compares: bool,
    ) -> StateInfo | None:
        """Have the training thread bring the replica to the next step, of this `lineage`, and go on by `strategy` with
        at most `limit` samples; where parameters are averaged, once they are. The target of this step was `batch`.

        Returns what the step led to, before that, if this peer `compares` states now or averages parameters.
        """
        plan, step, mean = outcome.plan, self.step + 1, self._result
        averages = self._states.interval.is_due(step, plan.averages_every)
        measures, measure = averages or compares, self._states.measure()
        replica, port, amended, switch = self._replica, self._port, self.amended, self._switch
        on_absorbed = self.on_absorbed
        counted_in = plan.result_id if outcome.fate is ContributionFate.COUNTED else None

        def run() -> StateInfo | None:
            if measures:
                measure.begin()
            amended.apply()
            if plan.rates:
                replica.amend({LOOP_RATES: list(plan.rates)})
            if replica.step != step - 1:
                raise RuntimeError(f"the replica is at step {replica.step}, and the round led to step {step}")
            vector = replica.expand(mean, step - 1, counted_in=counted_in)
            port.absorb(step, vector, outcome.fate, outcome.contributors, outcome.earlier, batch)
            replica.lineage = lineage
            switch.to(strategy)
            if on_absorbed is not None:
                on_absorbed(step)
            if not averages:
                port.reopen(limit)
            return measure.end() if measures else None

        state: StateInfo | None = await port.request("apply", run)
        if changed := switch.said():
            self._node.events.emit(changed)
        if averages and state is not None:
            try:
                await self._parameter_average.take(plan, state.tolerance)
            except RoundAbortedError as error:  # others may have averaged theirs: they differ by no more than before
                self._node.events.emit(ParametersNotAveraged(step=self.step, why=error.message))
            await port.request("reopen", lambda: port.reopen(limit))
        return state

    async def _hash_result(self, name: str) -> str:
        return await offload(self._result.nbytes, self._replica.fingerprint, self._result, name)

    def _limit_by(self, plan: Plan) -> int | None:
        """At how many samples this peer stops in the next step, unless the leader of that says something else; at none
        if there is no next one.
        """
        if plan.step + 1 == self.amended.last_step(self.step):
            return 0
        me = [member.peer_id for member in plan.members].index(self._node.peer_id)
        return plan.limits[me] if plan.limits else None

    # ---- paths that are broken

    def _is_cut_off(self) -> bool:
        """By what members of the last round say, as far as this peer took part in one: others may say what they like.

        Who is through has its last state to get, and an organiser's order to follow.
        """
        if self.swarm_view.is_over() or self._orders.regroup(self.epoch) is not None:
            return False
        members = {self._node.peer_id, *(self.view or self.swarm_view.active())}
        return self._node.peer_id in self.swarm_view.broken_paths(members).cut_off

    async def _stay_out(self) -> None:
        """Take part again once most of the others can be reached: until then each round would lose this peer, late."""
        self._hold.end()
        self._publisher.set_status("paused")
        self._node.events.emit(MemberCutOff(step=self.step))
        logger.warning(
            "waiting: this peer and most others cannot reach each other, and rounds would lose it. A relay in the run "
            "spec would help; `minga doctor` shows what keeps others from dialling"
        )
        while self._is_cut_off():
            await asyncio.sleep(PAUSE_LOOK_S)

    # ---- what organisers order: pauses and regroups

    async def _rest(self) -> None:
        """The organisers paused the run: hold the state, and look now and then whether it goes on."""
        self._hold.end()
        self._publisher.set_status("paused")
        self._node.events.emit(RunPaused(step=self.step, paused=True))
        while self._orders.is_paused(self.step) and not self.swarm_view.is_behind(self.step):
            await asyncio.sleep(PAUSE_LOOK_S)
            self.swarm_view.last_step = self.amended.last_step(self.step)
            if (regroup := self._orders.regroup(self.epoch)) is not None:
                await self._follow_regroup(regroup)
                return
        self._catching_up.needs_state = self.swarm_view.is_behind(self.step)
        self._node.events.emit(RunPaused(step=self.step, paused=False))

    @property
    def epoch(self) -> int:
        """That of the organisers' last regroup that this peer followed, 0 before the first; of its state, too."""
        return self.lineage.epoch

    async def _follow_regroup(self, regroup: Regroup) -> None:
        """Go on with the members that the organisers named, or come to what they have."""
        present = [PeerId(peer) for peer in regroup.present]
        has_state = self.ready.is_set() and not self._catching_up.needs_state
        is_one = has_state and self._goes_on_by(regroup)
        self._formation.regroup(regroup.epoch, sorted(present), is_one=is_one)
        self._take_up(self.lineage.in_epoch(regroup.epoch))
        self._lost = ()
        self._companions.begin_with()
        if not is_one:
            self._catching_up.require(regroup.step)
            self._catching_up.discards_state = self._node.peer_id not in present or not self.lineage.is_founded
        else:
            await self._write_lineage("regroup", self.lineage)
        self._node.events.emit(RunRegrouped(step=regroup.step, members=len(present), present=is_one))

    def _goes_on_by(self, regroup: Regroup) -> bool:
        """Whether this peer is one of those with which the run goes on, and has what they go on with."""
        return self._node.peer_id in regroup.present and self.step >= regroup.step

    async def _serve_last_state(self) -> None:
        """Until cancelled: who is through stays with those that follow a later regroup, and may need its state."""
        while True:
            if (regroup := self._orders.regroup(self.epoch)) is not None and self._goes_on_by(regroup):
                self._take_up(self.lineage.in_epoch(regroup.epoch))
            await asyncio.sleep(REGROUP_LOOK_S)

    def _ends_by_regroup(self, waiting: asyncio.Timeout) -> bool:
        """End the waiting if the organisers regrouped the run."""
        if self._orders.regroup(self.epoch) is None:
            return False
        waiting.reschedule(asyncio.get_running_loop().time())
        return True

    # ---- state

    async def _learn_founding(self) -> None:
        """Find out with which state the run begins, or found it.

        What this peer has counts only if it is a state of the run: the first one, founded with this peer, or one that
        descends from it.
        """
        me, lineage, rules = self._node.peer_id, self.lineage, self._founding.rules
        is_organiser = me == self._founding.run.organiser
        may_found = not lineage.is_founded and (is_organiser or rules.alike or not rules.by_organiser)
        state = await self._port.request("digest", self._replica.digest) if may_found else ""
        if lineage.is_founded:
            self._founding.step = max(self._founding.step, self.step)
        beginning = await self._wait.for_founding(state)
        genesis = beginning.genesis
        begins = me in genesis.founders or (not genesis.founders and not beginning.has_begun)
        if state == genesis.state and begins:
            lineage = Lineage.founded(genesis.id)
            await self._write_lineage(FOUNDED, lineage)
            self._node.events.emit(StateFounded(digest=state))
        if lineage.founding != genesis.id:  # who has no state of the run needs one, whatever else it has
            if lineage.is_founded:
                logger.warning("the state that is kept here descends from another founding of this run: it is dropped")
            self._catching_up.require()
            self._catching_up.discards_state = True
            lineage = Lineage(epoch=self.epoch)
        self._take_up(lineage)

    def _take_up(self, lineage: Lineage, previous: str = "") -> None:
        """This peer's state is of this lineage now, and a result with the fingerprint `previous` led to it, if one did;
        without a lineage this peer looks for states of the run's founding.
        """
        self.lineage = lineage
        self._formation.take_up(lineage.epoch, lineage.rounds, previous)
        founding = "" if self._founding.genesis is None else self._founding.genesis.id
        self.swarm_view.lineage = lineage if lineage.is_founded else msgspec.structs.replace(lineage, founding=founding)
        self._founding.step = max(self._founding.step, self.step)

    async def _stand(self) -> None:
        """Go by what is ordered for the present step, whose state came from the disk or from others."""
        self.amended.stand_at(self.step)
        self._port.cap(round_batch_range(self.amended.at(self.step))[1])
        await self._port.request("amend", self.amended.apply)

    async def _write_lineage(self, why: str, lineage: Lineage) -> None:
        """The state that is here is of another lineage than before."""

        def write() -> None:
            self._replica.lineage = lineage

        await self._port.request(why, write)

    async def _synchronise(self) -> None:
        """Fetch what the swarm has and this peer lacks; alone, or first of all, just go on."""
        wanted = self._catching_up.to_fetch(self.step)
        if wanted is None:
            self._hold.end_soon()
            await self._catching_up.go_without()
            return
        # Announced: a full step waits for those who fetch this state.
        self.step, standing, had_state = wanted.minimum_step, self.step, self.lineage.is_founded
        self._publisher.set_status("syncing")
        if self.ready.is_set():  # else it has nothing yet that could count
            self._hold.begin()
        begun_s, before = asyncio.get_running_loop().time(), self.swarm_view.distances(self.step)
        try:
            state = await self._catching_up.fetch(wanted, in_doubt=self.in_doubt)
        except RemoteError as error:
            self.step = standing  # what this peer has: the next fetch announces its own step
            self._hold.end_soon()
            await self._catching_up.note_failure(wanted.minimum_step, error)
            return
        self.step = state.step
        self._take_up(state.lineage.in_epoch(self.epoch))
        self.on_replaced()
        if not had_state or (self.in_doubt and self.step != standing):
            self.vectors.left_out.forget()  # it may have counted, or was left out of another state than the run's
            self.in_doubt = False
        self._formation.come_back(self.swarm_view.distances(self.step) or before)  # a cut may have come meanwhile
        await self._stand()
        if changed := self._switch.said():
            self._node.events.emit(changed)
        self._catching_up.finish(self.step)
        self._companions.begin_with({self._node.peer_id, *self.swarm_view.settled()})
        self._hold.end_soon()
        self._node.events.emit(SyncFinished(step=self.step, seconds=asyncio.get_running_loop().time() - begun_s))

    async def _is_over(self) -> bool:
        """Whether this peer has the last step, and compared it with the others of the last round, and with those that
        may have taken it by themselves.
        """
        self.swarm_view.last_step = self.amended.last_step(self.step)
        deadline = asyncio.get_running_loop().time() + FAREWELL_S
        while self._is_finished() and asyncio.get_running_loop().time() < deadline:
            await self._tell_last_state()
            if self._catching_up.is_due(self.step):
                await self._synchronise()
            elif self._companions.may_differ(self.step):
                await asyncio.sleep(SYNC_PAUSE_S)
            else:
                break
        if self._is_finished():
            self._catching_up.warn_of_end(self.step)
        return self._is_finished()

    async def _tell_last_state(self) -> None:
        """Others that wait for this peer compare, also where it has the last state from its disk or from others: else
        they would know nothing of it, or think that it is still another one.
        """
        if not self._states.has_own(self.step):
            self._states.publish(await self._port.request("measure", self._states.measure().at_rest))

    def _is_last(self, step: int) -> bool:
        return step == self.amended.last_step(self.step)

    def _is_finished(self) -> bool:
        last, is_regrouped = self.amended.last_step(self.step), self._orders.regroup(self.epoch) is not None
        return last is not None and self.step >= last and not self._catching_up.needs_state and not is_regrouped
