"""`minga.Optimizer`: an ordinary torch optimizer whose steps are taken together with the rest of the run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, SupportsIndex, TypeVar

import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError, RunFinishedError
from minga.core.events.training import MicroBatchDropped
from minga.core.free_memory import give_back_free_memory
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.core.units import and_others
from minga.optim.arithmetic import forbid_rounded_products
from minga.optim.reproducible import ReproducibleOptimizer
from minga.optim.together import Together, members_of
from minga.receipts.book_file import BookFile
from minga.receipts.document import ReceiptFileServer
from minga.security.randomness.public_batch import PublicBatch
from minga.training.bridge.assigned_port import AssignedPort
from minga.training.bridge.gradient_port import GradientPort
from minga.training.bridge.loop_thread import settle_objects
from minga.training.bridge.thread_bridge import ThreadTask, is_watched
from minga.training.life.member import FOUNDED, Member
from minga.training.life.verified_member import VerifiedMember
from minga.training.peer import Peer
from minga.training.ranks.process_group import ProcessGroup
from minga.training.ranks.rank_replicas import RankReplica
from minga.training.ranks.sharded_replicas import ShardedReplica, make_replica, trains_shards
from minga.training.replica.buffers import OWN_BUFFERS_FILE
from minga.training.replica.schedule import FIXED_PARAMETERS, SchedulesTogether
from minga.training.replica.trained_record import SAMPLES
from minga.training.replica.update_rules import UpdateRules
from minga.training.session import Session
from minga.training.state.base import Base
from minga.training.state.snapshot import FILED_BYTES
from minga.training.status.metrics_publisher import METRICS_PERIOD_S

T = TypeVar("T")

IDLE_S = 0.02
"""Longest pause, in seconds, of a thread that nothing holds back and that has nothing to do."""
LOOK_S = 0.1
"""The same of one that waits for its step. It is woken for all that concerns the step: at each look it asks whether the
program wants to leave, and another peer the state that is here.
"""

MAX_MICRO_BATCH = 1 << 24

logger = logging.getLogger("minga.training")


class Optimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer so that it steps once per `target_batch_size` samples of all peers together.

    Call `backward()` on the mean loss of each micro-batch, then `step(samples=...)` with the number of samples in it,
    then `zero_grad()`. A call returns at once, except where the swarm's step is complete. There it takes part in the
    averaging (or, with the delayed strategy, collects the result) and applies the same update as every other peer.

    optimizer: any `torch.optim.Optimizer`, of the same class on all peers, or a list of those that train parts of one
        model, such as Muon and AdamW; their parameters are averaged as gradients in float32. A parameter without a
        gradient counts as zeros where others have one; where nobody has, it stays as it is, as with torch. Which ones
        require one is to be the same on all peers, and stays as it is when this is made: one that requires none is
        never trained, and the others always, but for steps at which they rest by `rules` (docs/trainers.md).
    peer: from `minga.join` or `minga.host`; one peer has one optimizer. If `torch.distributed` is initialised, all its
        processes are one peer: rank 0 passes the peer, the others None, and all make the same calls. Gradients are
        combined over the ranks, unless `model` is a `DistributedDataParallel` or sharded by `fully_shard`: these do
        that themselves. Of a sharded model each rank trains, sends and keeps its own shard (docs/trainers.md).
    target_batch_size: samples per global step, or "auto"; None takes the run spec's, anything else must agree with it.
    scheduler: a learning-rate scheduler of `optimizer`, or a list of those of several, advanced once per global step;
        do not step them yourself.
    model: gives the parameters their names, by which peers average them, and its buffers to the buffers policy of the
        run spec. What it has frozen, as below adapters, is the run's base: peers compare it, and the state that they
        share, download and keep in checkpoints is without it. Without a model none of that can be.
    max_grad_norm: clip the norm of the averaged gradient, by the same number on all peers; None takes the run spec's,
        or with recipe "custom" does not clip, whatever that says.
    max_grad_value: clip each element of the averaged gradient, before its norm, by the same number on all peers.
    rules: which parameters of `model` rest at a step, and what becomes of them after an update; the same on all peers.
    after_update: called once for each global step, on all peers, when the parameters are those of the new step: what
        `model` has beside them, such as an average of the weights or a target network, follows them there, by the same
        function on all peers (docs/trainers.md). It leaves alone what `optimizer` trains. A model with buffers needs
        `training.buffers = "average"` for it.
    samples_per_step: the samples of each micro-batch, or a function that is asked for them after each, for loops that
        call `step` without `samples`.
    unit: the word for what `samples` counts, as the target batch size does: "tokens" where the loss is a mean over
        target tokens. It is that of the run's first peer; one with another is refused.
    offload: update parameters in RAM, where all stays that `optimizer` keeps; this peer's own affair. The device holds
        parameters and gradients. In a peer of several processes it is refused.
    base: what `model` has frozen, as `minga.recipes.init_from.given_base` says it, where peers hold that in forms of
        their own, such as in 8 bits. What is there in the form that it says is compared with it; None goes by all that
        is there.
    is_leaving: asked at short intervals while the state is to come, or a step to which this peer gave nothing yet holds
        it back. Once it says so the constructor returns without the state, and `step` for the last time.

    The constructor returns when this peer has the swarm's current state; learning rates and other numbers of parameter
    groups are those of the run. Raises `ConfigurationError` for arguments that disagree with the run, its spec or each
    other, and `UnfitError`, one of these, where this program trains something else than the run; later too, if layers
    of `model` are replaced or added meanwhile. With `torch.amp.GradScaler`, call `scaler.step(opt, samples=...)`: a
    micro-batch that overflowed is left out, and the scale shrinks.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        peer: Peer | None,
        *,
        target_batch_size: int | str | None = None,
        scheduler: LRScheduler | Sequence[LRScheduler | None] | None = None,
        model: torch.nn.Module | None = None,
        max_grad_norm: float | None = None,
        max_grad_value: float | None = None,
        rules: UpdateRules | None = None,
        after_update: Callable[[], object] | None = None,
        samples_per_step: SupportsIndex | Callable[[], SupportsIndex] | None = None,
        unit: str = SAMPLES,
        offload: bool = False,
        base: Base | None = None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        optimizer = _as_one(optimizer)
        if any(isinstance(each, Optimizer) for each in members_of(optimizer)):
            raise ConfigurationError("this is a minga.Optimizer already; pass the torch optimizer that it wraps")
        if not isinstance(peer, Peer | None):
            raise ConfigurationError(
                f"peer is what minga.join(link) or minga.host(spec) returns, not a {type(peer).__name__}"
            )
        scheduler = _of_one(scheduler, optimizer)
        is_sharded = trains_shards(optimizer, model)
        ranks = ProcessGroup.of_this_process(has_peer=peer is not None, is_sharded=is_sharded)
        spec = _spec(ranks, peer)
        if target_batch_size not in (None, spec.training.target_batch_size):
            raise ConfigurationError(
                f"target_batch_size={target_batch_size} disagrees with the run spec, which all peers share: "
                f"{spec.training.target_batch_size}"
            )
        if spec.security.verification == "byzantine":
            _check_public(ranks, optimizer, model)
            forbid_rounded_products()
        if samples_per_step is not None and not callable(samples_per_step):
            _count(samples_per_step, "samples_per_step")
        self._samples_per_step = samples_per_step
        if offload and ranks is not None:
            raise ConfigurationError(
                "--offload: a peer of several processes keeps its state on its devices; use one process (--devices 1)"
            )
        self._replica = make_replica(
            ranks,
            spec,
            optimizer,
            is_sharded=is_sharded,
            model=model,
            scheduler=scheduler,
            max_grad_norm=_norm(max_grad_norm, spec),
            max_grad_value=None if max_grad_value is None else _positive(max_grad_value, "max_grad_value"),
            rules=rules,
            after_update=after_update,
            unit=unit,
            offload=offload,
            base=base,
        )
        if model is None:
            logger.warning(
                "minga.Optimizer was made without model=: peers compare neither what this program's model has frozen "
                "nor its buffers, and tell layers by their places in the optimizer where it was not given their names"
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner, self.scheduler, self.peer = optimizer, scheduler, peer
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self.finished = False
        """Whether the run has reached its last step; `step` does nothing from then on."""
        self.dropped_micro_batches = 0
        """Micro-batches that did not count: not finite, or too late for their step. Known to rank 0 only."""
        self.is_leaving = is_leaving
        """See the class."""
        self.last_samples = 0
        """Samples of the last micro-batch, in all processes of this peer; known to rank 0."""
        self.last_loss: float | None = None
        """Loss of the last micro-batch that counted and is known to have; known to rank 0."""
        self._port: GradientPort | AssignedPort | None = None
        if peer is not None:
            with self._failing_together():
                self._enter(peer)
            self._work_until(lambda: peer.session.is_ready or is_leaving(), gives_up=is_leaving)
        else:
            self._work_until(lambda: True)

    @property
    def global_step(self) -> int:
        """Global steps that this peer's state has seen."""
        return self._replica.step

    def step(
        self,
        closure: Callable[[], Any] | None = None,
        *,
        samples: SupportsIndex | None = None,
        loss: float | torch.Tensor | None = None,
    ) -> Any:
        """Count the gradients of one micro-batch of `samples` samples; see the class. Returns the closure's result.

        Without `samples` the number is what the constructor was told by `samples_per_step`. The gradients are taken:
        they are None afterwards. `loss` is for displays, and for strategies that compare peers by it.

        Raises the `LocalError` that ended this peer, if any; other peers' faults never surface here. Raises
        `ConfigurationError` where nothing says how many samples there were, or what the loss was if the run's strategy
        needs it, and for a loss that is no single number.
        """
        if is_watched(self):
            return self._watched_step(closure, samples=samples, loss=loss)
        return self._step(closure, samples, loss)

    step.hooked = True  # type: ignore[attr-defined]  # torch is not to wrap it, see `is_watched`

    def _step(
        self, closure: Callable[[], Any] | None, samples: SupportsIndex | None, loss: float | torch.Tensor | None
    ) -> Any:
        given = samples if samples is not None else self._samples_per_step
        _check_loss(loss)
        count = 0 if callable(given) else _count(given)
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if callable(given):
            count = _count(given(), "samples_per_step()")
        if not self.finished:
            self._add(count, loss)
        self.zero_grad()  # before any update, which must not see them a second time
        if not self.finished:
            self._work_until(lambda: True, gives_up=self.is_leaving)
        return result

    _watched_step = torch.optim.Optimizer.profile_hook_step(_step)

    def batches(self) -> Iterator[PublicBatch]:
        """The micro-batches to compute in a run with `security.verification = "byzantine"`, until the run is over.

        There no peer chooses its data: validators compute the same again to verify it. For each, call `backward()` on
        the mean loss of the samples `batch.indices(len(dataset))`, then `step(samples=batch.size)` and `zero_grad()`.
        All chance (masks, crops) has to come from `batch.number`; torch's own generator is seeded by it. The parameters
        may be those of some steps ago meanwhile. Raises `ConfigurationError` in other runs.
        """
        port = self._port
        if not isinstance(port, AssignedPort):
            raise ConfigurationError(
                'batches() is for runs with security.verification = "byzantine"; in others choose your own'
            )
        while True:
            port.want_batch()
            self._work_until(lambda: True)
            if self.finished:
                return
            try:
                yield port.next_batch()
            finally:
                if port.take_back():
                    self.zero_grad()  # what it left behind belongs to no gradient

    def follow(self, seconds: float | None = None) -> None:
        """Take part without gradients for a while (None: to the end of the run): aggregate, apply, serve state. For 0
        seconds this only says that no gradient is to be expected for now, which a rank may do without the others.

        Raises `ConfigurationError` in a run with `security.verification = "byzantine"`: there every member owes
        gradients.
        """
        if isinstance(self._port, AssignedPort):
            raise ConfigurationError(
                'follow() is not for runs with security.verification = "byzantine": there everybody owes gradients, '
                "and who computes none is taken for away; use batches()"
            )
        if self._port is not None:
            self._port.pause()
        if seconds is None or seconds > 0.0:
            self._work_until(lambda: self.finished, seconds)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the micro-batch, as with any optimizer."""
        if not set_to_none:
            self.inner.zero_grad(set_to_none=False)
            return
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def train(self) -> None:
        """Come back from `eval`; also for optimizers that have no such methods, of which it does nothing."""
        self._replica.point.come_back()

    def eval(self) -> None:
        """Bring the parameters to where they are evaluated, if the wrapped optimizer has an average of them, such as
        those of `schedulefree`. Peers go on sharing the point at which it trains.
        """
        self._replica.point.leave()

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, with the key `global_step` added."""
        return {**self.inner.state_dict(), "global_step": self.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned at this same global step, on all peers alike.

        Raises `ConfigurationError` for the state of another step, since only the swarm moves steps. Runs are resumed
        from their own checkpoints; to begin one with a given state, load it into the torch optimizer before wrapping.
        """
        step = state_dict.get("global_step", self.global_step)
        if step != self.global_step:
            raise ConfigurationError(
                f"the state is of global step {step}, and this peer is at {self.global_step}; a run resumes from its "
                "own checkpoints, and to begin one with a given state load that into the torch optimizer first"
            )
        self._replica.load_optimizer({k: v for k, v in state_dict.items() if k != "global_step"})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible once the vector that peers average is fixed; raises `ConfigurationError`."""
        if hasattr(self, "inner"):
            raise ConfigurationError(FIXED_PARAMETERS)
        super().add_param_group(param_group)

    def digest(self) -> str:
        """The digest of the present state, 64 hexadecimal digits: peers at one step that agree have equal ones. Of a
        sharded model all ranks have to call this. Raises as `save_checkpoint` does.
        """
        digest = self._with_all_ranks(self._replica.digest)
        return self._replica.known_digest if isinstance(self._replica, ShardedReplica) else digest or ""

    def save_checkpoint(self) -> None:
        """Write the present state to this peer's folder of the run, and wait until it is there. Rank 0 writes; of a
        sharded model all ranks have to call this. Raises what ended this peer if that broke off an update, as Ctrl-C
        may, and `ConfigurationError` amid one, as in a signal handler: such a state is that of no step.
        """
        if self.peer is not None or isinstance(self._replica, ShardedReplica):
            snapshot = self._with_all_ranks(self._replica.capture)
            if self.peer is not None and snapshot is not None:
                self.peer.checkpointer.save(snapshot, self._replica.own_buffers(), wait=True)

    # ---- inner workings: all on the thread that trains

    def _enter(self, peer: Peer) -> None:
        """Begin to take part, with the newest state that this machine has."""
        peer.on_loop(partial(_check_free, peer.session))  # before the checkpoint of another optimizer would not fit
        self._replica.directory = peer.directory
        checkpoint = peer.checkpointer.resume()
        if checkpoint is not None:
            self._replica.restore(checkpoint.snapshot)
            self._replica.take_buffers(checkpoint.files.get(OWN_BUFFERS_FILE, b""))
            self._replica.warn_of_new_buffers()
        elif isinstance(self._replica, RankReplica):
            self._replica.share()
        self._seen_step = self._replica.step
        self._port = (
            self._enter_secure(peer) if peer.spec.security.verification == "byzantine" else self._enter_usual(peer)
        )
        self._port.on_micro_batch = self._note

    def _enter_secure(self, peer: Peer) -> AssignedPort:
        spec, replica = peer.spec, self._replica
        size, count = spec.security.micro_batch_size, spec.micro_batches_per_member
        port = AssignedPort(peer.loop, replica.new_sum, micro_batches=count, size=size)

        def start() -> None:
            self._hold_no_free_memory(peer.session.attach_secure(replica, port, peer.directory))

        peer.held.callback(settle_objects())
        peer.on_loop(start)
        return port

    def _enter_usual(self, peer: Peer) -> GradientPort:
        """Enter with what an earlier process of this peer alone had, too."""
        session, replica = peer.session, self._replica
        port = GradientPort.for_run(peer.loop, replica, peer.spec)
        port.on_broken_sum = replica.look_closely
        replica.loop_rates.is_heard = session.peer_id == peer.signed_spec.organiser
        before = peer.checkpointer.take_up(replica, port)
        receipts_file = BookFile(peer.directory, session.peer_id, session.disk)

        def start() -> None:
            member = session.attach(replica, port, receipts_file)
            peer.checkpointer.begin(member, before)
            ReceiptFileServer(session.node, member.receipts.book, peer.signed_spec)
            self._hold_no_free_memory(member)

        peer.held.callback(settle_objects())
        peer.on_loop(start)
        return port

    def _hold_no_free_memory(self, member: Member | VerifiedMember) -> None:
        """Give what a step of a large model leaves free back to the system; for a small one that is not worth it."""
        loop = asyncio.get_running_loop()

        def give_back() -> None:
            loop.run_in_executor(None, give_back_free_memory)

        if 4 * self._replica.vector.layout.total >= FILED_BYTES:
            member.on_step_ended.add(give_back)

    def _add(self, samples: int, loss: float | torch.Tensor | None) -> None:
        loss = loss.detach() if isinstance(loss, torch.Tensor) else loss  # it may still be computed
        samples = self.last_samples = self._replica.collect(samples, loss)
        if self._port is not None:
            with self._failing_together():
                self._port.add(samples, loss)

    def _note(self, samples: int, loss: float | None, is_taken: bool) -> None:
        """It is known whether a micro-batch counts; on any thread."""
        peer = self.peer
        if peer is None:
            return
        self.last_loss = self.last_loss if loss is None else loss
        if is_taken:
            peer.metrics.count(samples, loss)
        else:
            self.dropped_micro_batches += 1
            peer.note(MicroBatchDropped(step=self.global_step, samples=samples))

    def _with_all_ranks(self, read: Callable[[], T]) -> T | None:
        """What `read` returns. If each rank holds a shard, all take part, and those other than 0 return None."""
        if not isinstance(self._replica, ShardedReplica):
            self._check_whole()
            return read()
        self._replica.settle()
        if not self._replica.leads:
            self._replica.obey()
            return None
        with self._failing_together():
            self._check_whole()
            result = read()
        self._replica.release(finished=self.finished)
        return result

    def _check_whole(self) -> None:
        if self._port is not None:
            self._port.check_whole()

    @contextlib.contextmanager
    def _failing_together(self) -> Iterator[None]:
        """Inside, what this rank fails with ends the other ranks, too."""
        try:
            yield
        except BaseException as error:
            self._replica.fail(error)
            raise

    def _work_until(
        self,
        is_done: Callable[[], bool],
        seconds: float | None = None,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Do what the swarm asks for, until nothing holds this thread back and `is_done()`, or for `seconds`, or until
        `gives_up()` while something holds it back.
        """
        self._replica.settle()
        if isinstance(self._replica, RankReplica) and not self._replica.leads:
            self.finished = self._replica.obey()
            return
        try:
            self._serve(is_done, math.inf if seconds is None else time.monotonic() + seconds, gives_up)
        except RunFinishedError:
            self.finished = True
            peer = self.peer
            if peer is not None and not peer.checkpointer.is_kept(self._replica.step):  # it was fetched from others
                self._keep(peer)
        except BaseException as error:
            self._replica.fail(error)
            raise
        self._replica.release(finished=self.finished)

    def _serve(self, is_done: Callable[[], bool], deadline: float, gives_up: Callable[[], bool]) -> None:
        if self._port is None:
            return
        waits_since_s = time.monotonic()
        while (now_s := time.monotonic()) < deadline:
            work = self._port.poll()
            if isinstance(work, ThreadTask):
                self._port.finish(work)
                if work.name == "restore" and self.peer is not None:
                    self.peer.checkpointer.forget()
                    self._replica.warn_of_new_buffers()
                elif work.name == FOUNDED and self.peer is not None:  # no other peer could begin the run again
                    self._keep(self.peer)
                self._after_step()
                waits_since_s = time.monotonic()
            elif work is None and is_done() and not self._is_complete():
                return
            elif work is None:  # not held back by the step, but by `is_done`, or by others who need the last step
                time.sleep(IDLE_S)
            elif self._port.may_leave(now_s - waits_since_s) and gives_up():
                return
            else:
                self._port.wait(min(LOOK_S, deadline - now_s))

    def _is_complete(self) -> bool:
        last = None if self.peer is None else self.peer.checkpointer.last_step
        return last is not None and self._replica.step >= last

    def _after_step(self) -> None:
        step, peer = self._replica.step, self.peer
        if step == self._seen_step or peer is None:
            return
        self._seen_step = step
        peer.metrics.publish(step, every_s=0.0 if self._is_complete() else METRICS_PERIOD_S)
        if peer.checkpointer.is_due(step):
            self._keep(peer)

    def _keep(self, peer: Peer) -> None:
        peer.checkpointer.save(self._replica.capture(), self._replica.own_buffers())


def _spec(ranks: ProcessGroup | None, peer: Peer | None) -> RunSpec:
    own = None if peer is None else peer.spec
    if ranks is not None:
        return ranks.share_spec(own)
    if own is None:
        raise ConfigurationError("a peer is needed: minga.join(link) or minga.host(spec)")
    return own


def _check_free(session: Session) -> None:
    if session.member is not None:
        raise ConfigurationError(
            "this peer already has an optimizer, and a peer has one. Give it several of one model as a list, such as "
            "minga.Optimizer([muon, adamw], peer, model=model); several models are several runs, with a peer for each"
        )
    if session.settings.role == "monitor":
        raise ConfigurationError("a monitor only watches; join with another role to train")


def _as_one(optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer]) -> torch.optim.Optimizer:
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    try:
        return Together(optimizer)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"minga.Optimizer([...]): {error}") from error


def _of_one(
    scheduler: LRScheduler | Sequence[LRScheduler | None] | None, optimizer: torch.optim.Optimizer
) -> LRScheduler | None:
    """The schedulers of optimizers that are together, or the one of one of them, as one."""
    given = [each for each in (scheduler if isinstance(scheduler, Sequence) else [scheduler]) if each is not None]
    if not isinstance(optimizer, Together) or not given or getattr(given[0], "optimizer", None) is optimizer:
        if len(given) > 1:
            raise ConfigurationError("an optimizer of a run has one learning-rate scheduler; chain them into one")
        return given[0] if given else None
    return SchedulesTogether(given, optimizer)


def _norm(max_grad_norm: float | None, spec: RunSpec) -> float | None:
    if max_grad_norm is not None:
        return _positive(max_grad_norm, "max_grad_norm")
    said = spec.optimizer.max_grad_norm
    if spec.model.recipe != "custom":
        return said
    # A custom loop's optimizer is not the run spec's, and of a spec nobody can tell whether its default was meant.
    if said not in (None, OptimizerSection().max_grad_norm):
        logger.warning(
            "the averaged gradient is not clipped: optimizer.max_grad_norm = %g of the run spec is for recipes and "
            "frameworks, and a loop of your own passes it as minga.Optimizer(..., max_grad_norm=%g), on all peers",
            said,
            said,
        )
    return None


def _positive(number: float, name: str) -> float:
    if not (math.isfinite(number) and number > 0):
        raise ConfigurationError(f"{name}={number} is no positive number")
    return number


def _check_public(ranks: ProcessGroup | None, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
    if ranks is not None:
        raise ConfigurationError('in a run with security.verification = "byzantine" each process is a peer of its own')
    if any(isinstance(each, ReproducibleOptimizer) and not each.rounds_alike for each in members_of(optimizer)):
        raise ConfigurationError(
            'in a run with security.verification = "byzantine" peers compare states bit for bit, which products of '
            "matrices on other devices do not have: pass Muon(..., exact=True)"
        )
    if model is not None and (named := [name for name, each in model.named_modules() if _is_spectral(each)]):
        raise ConfigurationError(
            f"`{named[0]}`{and_others(named)} has a spectral norm, which depends on what one peer computed before, so "
            'that others would ban it: security.verification = "byzantine" needs a model without one'
        )


def _is_spectral(module: torch.nn.Module) -> bool:
    """Whether it is one of torch's two kinds of spectral norms: a parametrization, or what has it as a hook."""
    hooks = module._forward_pre_hooks.values()  # noqa: SLF001  (torch has no other name for them)
    return any(type(each).__name__ in ("_SpectralNorm", "SpectralNorm") for each in (module, *hooks))


def _count(samples: SupportsIndex | None, name: str = "step(samples=...)") -> int:
    if samples is None:
        raise ConfigurationError(
            "step() does not know how many samples this micro-batch has: pass step(samples=...), or "
            "minga.Optimizer(..., samples_per_step=...) with their number or a function that returns it. "
            "minga.integrations counts them for Hugging Face Trainer, Accelerate and Lightning"
        )
    try:
        count = -1 if isinstance(samples, bool) else operator.index(samples)
    except TypeError:
        count = -1
    if not 1 <= count <= MAX_MICRO_BATCH:
        raise ConfigurationError(
            f"{name} needs the number of samples in this micro-batch, from 1 to {MAX_MICRO_BATCH}, got {samples!r}"
        )
    return count


def _check_loss(loss: float | torch.Tensor | None) -> None:
    if isinstance(loss, torch.Tensor):  # its value may still be computed, and is asked for later
        if loss.numel() == 1 and not loss.is_complex():
            return
        given = f"a tensor of {loss.dtype} {list(loss.shape)}"
    else:
        try:
            float(loss or 0.0)
        except (TypeError, ValueError):
            given = f"a {type(loss).__name__}"
        else:
            return
    raise ConfigurationError(f"step(loss=...) needs the mean loss of this micro-batch, one number, got {given}")
