"""This peer's copy of what is trained: model, optimizer and scheduler, as the rounds see it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3
from torch.optim.lr_scheduler import LRScheduler

from minga.access.standing_orders import NORM, RATE
from minga.averaging.codecs.layout import Cut, VectorLayout
from minga.averaging.codecs.residual import Residuals
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.averaging.sketches.interface import make_sketch
from minga.averaging.sketches.projection import RoundProjections
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim.norms import TINY_NORM, clip_by_global_norm, global_norm
from minga.optim.shards import local
from minga.training.lineage import Lineage
from minga.training.replica.accelerator import Accelerator, DeviceAccess, LateVerdict, WriteMarks
from minga.training.replica.buffers import OwnBuffers, SharedBuffers
from minga.training.replica.build_optimizer import (
    check_model,
    check_optimizer,
    check_plain_descent,
    rounds_alike,
    set_learning_rate,
)
from minga.training.replica.flat_vector import ParameterVector
from minga.training.replica.gradient_sum import DeviceSum, GradientSum
from minga.training.replica.host_memory import HostMemory
from minga.training.replica.interface import LOOP_RATES, LoopReport
from minga.training.replica.schedule import UNKNOWN, LoopRates, Schedule
from minga.training.replica.trained_record import SAMPLES, ModelWatch, TrainedRecord, record_of, trained_parameters
from minga.training.replica.training_point import TrainingPoint
from minga.training.replica.update_rules import RuledModel, UpdateRules
from minga.training.replica.value_watch import ValueWatch
from minga.training.state.base import Base, check_base
from minga.training.state.manifest import Manifest
from minga.training.state.scalars import strategy_of
from minga.training.state.sketch import Sketch, sketch_of
from minga.training.state.snapshot import StateSnapshot
from minga.training.state.state_dict import TrainingState
from minga.training.state.tensor_access import TensorAccess

logger = logging.getLogger("minga.training")

FIRST_STEPS: Final = 3
"""Steps of a peer of which it tells the others a sketch of its first micro-batch."""

EMPTY_IN_ROW: Final = 10
"""Micro-batches in a row without any gradient, after which the program is stopped; one or two may be so by chance."""


class Replica:
    """Applies averaged vectors to a model exactly as every other peer does. Use it on one thread only.

    `model` gives names and buffers; without it the state has the optimizer's parameters only. What is frozen is the
    base, of which the state has the hashes (`training/state/base.py`); those of `base`, if it is given, where what is
    here has another form, and the rest has to be what `base` says. `rules` are followed at each update, and
    `after_update` is called after it. `unit` is the word for what is counted. With `offload` updates are made in RAM,
    see `host_memory.py`.
    Micro-batches are added up on an accelerator if all parameters are on one, and else in RAM.
    One that only `reads` takes any state of its model, whatever optimizer trained it. Raises `ConfigurationError` for
    an optimizer, model or scheduler that cannot be driven by averaged gradients alone.
    """

    def __init__(
        self,
        spec: RunSpec,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        scheduler: LRScheduler | None = None,
        max_grad_norm: float | None = None,
        max_grad_value: float | None = None,
        rules: UpdateRules | None = None,
        after_update: Callable[[], object] | None = None,
        unit: str = SAMPLES,
        offload: bool = False,
        base: Base | None = None,
        reads: bool = False,
    ) -> None:
        check_optimizer(optimizer)
        check_model(model, optimizer)
        self._schedule = Schedule(scheduler, optimizer, spec.training.stop_after_steps)
        for name in spec.training.strategies:
            if StrategyChoice.of(spec, name).facts.owns_optimizer:
                check_plain_descent(name, optimizer, is_clipped=max_grad_norm is not None or max_grad_value is not None)
        self.optimizer, self.scheduler = optimizer, scheduler
        self.max_grad_norm, self._max_grad_value = max_grad_norm, max_grad_value
        self._own_max_grad_norm = max_grad_norm
        self.point = TrainingPoint(optimizer)
        """Whether the program evaluates."""
        self._ruled = RuledModel(rules, model)
        self._after_update = after_update
        self.step = 0
        """Global steps that this state has seen."""
        self.trains = ""
        """What stands for the record of what trains here; see `ReplicaInterface`."""
        self.lineage = Lineage()
        """Where this state comes from."""
        self.directory: Path | None = None
        """Where copies of a large state lie while they are served or written; None: in memory."""
        averaged = spec.training.buffers == "average"
        self._buffers = SharedBuffers(model if averaged else None)
        self._own_buffers = OwnBuffers(None if averaged else model)
        self._is_verified = spec.security.verification == "byzantine"
        if self._is_verified and self._buffers.averaged:
            raise ConfigurationError(
                "the buffers of this model move with what one peer computed before, which others cannot check: "
                'security.verification = "byzantine" needs training.buffers = "local" for it. Register constants with '
                "persistent=False, which neither setting concerns"
            )
        if after_update is not None and (own := self._own_buffers.named()):
            raise ConfigurationError(
                f'the model has buffers, such as {next(iter(own))}, and with training.buffers = "local" no state has '
                "them: what after_update= makes with them would differ between peers, and after a restart. Register "
                'constants with persistent=False, and set training.buffers = "average" if it has others; a '
                "Byzantine-tolerant run also needs norms without running statistics"
            )
        self.vector = self._new_vector(optimizer, spec, model)
        accelerator = None if offload else Accelerator.of([local(each) for each in self.vector.parameters()])
        self.vector.accelerator = accelerator if self._adds_on(accelerator) else None
        if max_grad_value is not None and self._clips_own:
            raise ConfigurationError(
                f'max_grad_value= clips the mean, and the codec "{spec.averaging.codec}" leaves out of it what comes '
                "later: pass max_grad_norm=, or take a codec that sends everything"
            )
        sketch = make_sketch(spec.averaging.sketch, self.vector.layout.head)
        decay = spec.averaging.residual_decay
        self._projections = RoundProjections(sketch, whole=self.vector.layout, decay=decay)
        access = self._new_access(accelerator)
        self._state = TrainingState(
            optimizer,
            model=model,
            scheduler=scheduler,
            include_buffers=averaged,
            basis=sketch.basis(),
            access=access,
        )
        self._record: TrainedRecord | None = None
        self._state.base = base or {}
        if not reads:
            record = record_of(
                optimizer,
                model,
                scheduler,
                access,
                max_grad_norm=max_grad_norm,
                max_grad_value=max_grad_value,
                unit=unit,
                holds_frozen=after_update is not None or (spec.state.share_base and base is None),
                base=base,
            )
            self._record = record = self._agreed(record)
            check_base(base or {}, record.base)
            self._state.base, self._state.trains = record.base, record.written()
            self.trains = record.digest(self._state.model_entries())
        trained = trained_parameters(optimizer, model)
        self._watch = ModelWatch(self._state.model_tensors(), trained, self._state.base, access)
        self._is_taken_over = False  # whether the state came from elsewhere before
        self._first_strategy = spec.training.strategy
        self.loop_rates = LoopRates(optimizer, has_schedule=scheduler is not None)
        """What the program's loop does to the numbers of the optimizer."""
        self._loss: torch.Tensor | None = None  # of the present micro-batch, where the sum of gradients is
        self._first: Sketch = ()
        self._first_step: int | None = UNKNOWN  # the last of those of which the first micro-batch is told
        self._firsts = 0
        self._looked_at: int | None = None  # the last step of which a micro-batch was looked at
        self._is_told_of_clipping = False
        self._empty_in_row, self._is_told_of_empty = 0, False
        self.vector.quick = True
        self._host = HostMemory(optimizer) if offload else None
        self.vector.in_ram = None if self._host is None else self._host.values
        self._values = ValueWatch(self.vector.parameters(), accelerator)
        self._written = WriteMarks(self.vector.parameters())

    @property
    def rounds_alike(self) -> bool:
        """Whether the optimizer is one of `minga.optim`, with settings that give equal bits everywhere."""
        return rounds_alike(self.optimizer)

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector that the round of `step` averages. Any thread may ask."""
        return self._projections.layout_of(step)

    def define_fragments(self, fragments: Sequence[VectorLayout], tensors: Sequence[Sequence[int]]) -> None:
        """Average vectors of these layouts in turn, in the place of the whole one; see `ReplicaInterface`."""
        self._projections.divide(fragments, tensors)

    def project(
        self, vector: torch.Tensor | None, weight: int, step: int, round_id: str, cut: Cut | None = None
    ) -> torch.Tensor | None:
        """What this peer gives to a round of `step`, for its mean gradient, which counts `weight`. On any thread."""
        return self._projections.contribution(vector, weight, step, round_id, cut)

    def expand(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The mean gradient that the mean of the round of `step` stands for, which counts; see `RoundProjections`."""
        return self._projections.absorb(mean, step, counted_in=counted_in)

    @property
    def left_out(self) -> Residuals:
        """What the sketch left out so far."""
        return self._projections.left_out

    def collect(self, samples: int, loss: float | torch.Tensor | None = None) -> int:
        """A micro-batch of `samples` samples is ready: how many does it have in all processes of this peer?

        Where gradients are added up in RAM this returns when they are computed to the end: to add them then takes no
        time worth mention. Elsewhere an accelerator is not waited for, and a `loss` that is there is fetched with the
        verdict.

        Raises `ConfigurationError` if its gradients are those of the point that is evaluated, or of what other peers
        cannot verify, or if there were none at all for some micro-batches.
        """
        if self.point.is_away:
            raise ConfigurationError(
                "step() after optimizer.eval(): gradients are taken where the optimizer trains, and parameters are "
                "where they are evaluated. Call optimizer.train() before the next forward pass"
            )
        if self._is_verified:
            self._own_buffers.check_norms()
        self._look_for_gradients()
        self.look_at_loop()
        self.vector.wait()
        there = None if self.accelerator is None else self.accelerator.device
        self._loss = loss if isinstance(loss, torch.Tensor) and loss.device == there else None
        return samples

    @property
    def accelerator(self) -> Accelerator | None:
        """Where micro-batches are added up; None is in RAM."""
        return self.vector.accelerator

    def new_sum(self) -> GradientSum:
        """A sum of gradients, which is 0; see `ReplicaInterface`."""
        return GradientSum(self) if self.accelerator is None else DeviceSum(self, self.accelerator, self.vector.numel)

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:
        """Add the present mean gradients, `weight` times, to a vector in RAM; False if they are not finite."""
        self.drop_frozen()
        return self.vector.accumulate(vector, weight)

    def accumulate_there(self, accelerator: Accelerator, vector: torch.Tensor, weight: float) -> LateVerdict:
        """Add them to a vector on the accelerator; see `ParameterVector`."""
        self.drop_frozen()
        return self.vector.accumulate_there(accelerator, vector, weight, self.take_loss())

    def take_loss(self) -> torch.Tensor | None:
        """The loss of the present micro-batch if it is on an accelerator, for once."""
        loss, self._loss = self._loss, None
        return loss

    def sum_in_ram(self) -> None:
        """The device has no memory for sums of gradients: from now on they are made in RAM."""
        if self.vector.accelerator is not None:
            logger.warning(
                "%s lacks the memory for a sum of gradients (%.1f GB): they are added up in RAM instead, so that each "
                "micro-batch waits for a copy; smaller micro-batches leave room for it",
                self.vector.accelerator.device,
                4e-9 * self.vector.numel,
            )
            self.vector.accelerator = None

    def drop_frozen(self) -> None:
        """Forget the present gradients of parameters that rest at this step."""
        self._ruled.drop_frozen(self.step)

    def look_closely(self) -> None:
        """Look at every gradient before it is added from now on: a sum was not finite. Any thread may call it."""
        self.vector.quick = False

    def settle(self) -> None:
        """The program has done with the model what it wanted: bring it to where the optimizer has its parameters."""

    @contextmanager
    def _reading(self) -> Iterator[None]:
        with self.point.here(), nullcontext() if self._host is None else self._host.read():
            yield

    @contextmanager
    def _changing(self, *, with_gradients: bool = False) -> Iterator[None]:
        host = nullcontext() if self._host is None else self._host.change(with_gradients=with_gradients)
        with self.point.here():
            with host:
                yield
            self._values.note()
        self._written.mark()

    def release(self, *, finished: bool) -> None:
        """Nothing is left to do for the swarm until the next micro-batch: the peer's other processes may go on too."""

    def fail(self, error: BaseException) -> None:
        """This peer ends with `error`: so must its other processes."""

    def zero_grad(self) -> None:
        """Forget the present gradients."""
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None

    def fingerprint(self, mean: torch.Tensor, round_id: str) -> str:  # noqa: ARG002  (the numbers say it all)
        """32 hexadecimal digits by which peers tell whether they apply the same numbers; about 1 ms for each 4 MB."""
        return blake3(as_bytes(mean)).hexdigest(length=16)

    def clip_own(self, mean: torch.Tensor) -> float:
        """Scale this peer's mean gradient down, if that is done before rounds; see `ReplicaInterface`."""
        if self.max_grad_norm is None or not self._clips_own:
            return 1.0
        gradients = mean[: self.vector.parameters_numel]
        factor = min(1.0, self.max_grad_norm / (global_norm([gradients]) + TINY_NORM))
        if factor < 1.0:
            gradients.mul_(factor)
        return factor

    @property
    def _clips_own(self) -> bool:
        """Whether contributions are clipped, and not their mean: of what was saved up for many rounds a mean has lumps,
        and what clipping cuts of these no peer would take back. Means by `powersgd` are hardly longer than gradients,
        and clipped as without it: from single gradients, longer than their mean, clipping would cut far more.
        """
        return self.vector.layout.needs_residual

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step that leads to `step`: gradients from `mean`, clipping, rules, scheduler."""
        self.zero_grad()  # of parameters that are not in the vector, too
        self._look_at_values()
        with self._changing():
            self.vector.load(mean)
            self._ruled.drop_frozen(step - 1)
            if not self._clips_own:
                self._clip()
            self._state.step_optimizer()
            self._end_step(step)
            self.vector.wait_for_load()
        self._follow_update()

    def _clip(self) -> None:
        """Clip the gradients by which the optimizer is about to step."""
        if self._max_grad_value is not None:
            for parameter in self.vector.parameters():
                if parameter.grad is not None:
                    local(parameter.grad).clamp_(-self._max_grad_value, self._max_grad_value)
        if self.max_grad_norm is not None:
            clip_by_global_norm(self.vector.parameters(), self.max_grad_norm)

    def amend(self, changes: Mapping[str, Any]) -> None:
        """Go by other settings of the optimizer from now on; see `ReplicaInterface`."""
        if LOOP_RATES not in changes:  # what was amended before may be void now
            norm = changes.get(NORM, self._own_max_grad_norm)
            self.max_grad_norm = None if norm in (None, "off") else float(norm)
            self.loop_rates.go_by_order(is_ordered=RATE in changes)
        if (rate := changes.get(RATE)) is not None:
            set_learning_rate(self.optimizer, self.scheduler, float(rate))
            self.loop_rates.keep()
        if LOOP_RATES in changes:
            self.loop_rates.give(changes[LOOP_RATES])

    def inner_step(self) -> bool:
        """Take an optimizer step of this peer alone by the present gradients, clipped; see `ReplicaInterface`.

        Such a step cannot be undone, so all gradients are looked at before.
        """
        self.look_closely()
        self.drop_frozen()
        self.vector.densify()
        if not self.vector.is_finite():
            return False
        with self._changing(with_gradients=True):
            return self._step_alone()

    def step_by(self, gradients: torch.Tensor) -> bool:
        """The same by the gradients in a vector; averaged buffers stay this peer's."""
        self.zero_grad()
        with self._changing():
            self.vector.load_gradients(gradients)
            self.drop_frozen()
            is_taken = self._step_alone()
            self.vector.wait_for_load()
        self.zero_grad()  # the next backward pass is not to add to them
        return is_taken

    def _step_alone(self) -> bool:
        self._clip()
        if counts := sorted(self.loop_rates.changed_by(self.optimizer.step)):
            raise ConfigurationError(
                f"{type(self.optimizer).__name__} changes {counts[0]} of its parameter groups at each step, and all "
                "peers share these numbers, while each takes steps of its own in a strategy such as "
                f'"{self.strategy}": take another optimizer, or training.strategy = "synchronous"'
            )
        self._ruled.constrain(self.step)
        return True

    def adopt(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """Come to global step `step` with these parameters; see `ReplicaInterface`."""
        found = values
        self._look_at_values()
        with self._changing():
            self.vector.adopt(values)
            self._end_step(step)
            if self._ruled.has_rules:
                found = self.vector.read_values()
                found = torch.where(found == self.vector.rounded(values), values, found)
        self._follow_update()
        return found

    def _end_step(self, step: int) -> None:
        self._watch.look(self._ruled.resting(step - 1))
        self._ruled.constrain(step)
        self.loop_rates.judge(step - 1)
        self._schedule.advance()
        self.loop_rates.keep()
        self.zero_grad()
        self.step = step

    def _follow_update(self) -> None:
        """Let the program change what the optimizer does not train, once a global step."""
        if self._after_update is not None:
            with self.point.here():
                self._after_update()
            self._buffers.rebase()

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors of model and optimizer by their names in checkpoints, but the base."""
        return self._state.tensors()

    def moments(self) -> dict[str, torch.Tensor]:
        """What the optimizer keeps for its parameters; see `ReplicaInterface`."""
        return self._state.moments()

    @property
    def strategy(self) -> str:
        """The name of the strategy that goes on from this state."""
        return self._state.strategy or self._first_strategy

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:
        """Have another strategy go on from this state; see `ReplicaInterface`."""
        self._state.strategy = None if strategy == self._first_strategy else strategy
        self._projections.begin_anew(keeps_uncounted=keeps_uncounted)

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """Have the state consist of the tensors that `shared` returns; see `ReplicaInterface`."""
        self._state.define_shared(shared, optimizer=optimizer)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some of `tensors` back."""
        with self._changing():
            self._state.put(tensors)

    def named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:
        """The parameters of such a vector by their names in checkpoints, in their own dtypes."""
        names = self._state.names()
        parameters = self.vector.parameters()
        parts = zip(parameters, torch.split(vector, list(self.vector.layout.numels)), strict=False)
        return {names[id(parameter)]: part.view(parameter.shape).to(parameter.dtype) for parameter, part in parts}

    @property
    def moved(self) -> Sequence[torch.Tensor]:
        """What averaged buffers had moved when the last micro-batch ended; see `ReplicaInterface`."""
        return self._buffers.moved

    def move_buffers(self, moved: torch.Tensor | None = None) -> None:
        """Have averaged buffers stand so far from where the last global step left them."""
        with self.point.here():
            self._buffers.move(moved)

    def read_values(self) -> torch.Tensor:
        """The parameters as a vector, and what averaged buffers moved (float32, flat, CPU).

        The training thread may be amid a micro-batch: parameters stay where they are.
        """
        self._written.follow()
        with self.point.here():
            return self.vector.read_values()

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """What `read_values` gives after such a vector was written."""
        return self.vector.rounded(values)

    def write_values(self, values: torch.Tensor) -> None:
        """Set the parameters from such a vector."""
        with self._changing():
            self.vector.write_values(values)

    def strategy_tensors(self) -> Mapping[str, torch.Tensor]:
        """Those of the state that was restored before a strategy said what is shared, for once."""
        return self._state.take_strategy_tensors()

    def capture(self) -> StateSnapshot:
        """A copy of the whole shared state after the last step, in CPU memory or in a file."""
        self._check_model()
        with self._reading(), self._buffers.at_base():
            return self._state.capture(self.step, self.directory).of(self.lineage)

    def capture_all(self) -> StateSnapshot:
        """The same of all that is here, whatever is shared."""
        self._check_model()
        with self._reading(), self._buffers.at_base(), self._state.unshared():
            return self._state.capture(self.step, self.directory).of(self.lineage)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds. Raises `ConfigurationError` if it is of another model or optimizer."""
        self.check(snapshot)
        if self._record is not None and not self._is_taken_over and not self.point.has_two:
            self._record.tell_of_numbers(snapshot.scalars, self.optimizer.param_groups)
        self._is_taken_over = True
        with self._changing():
            self._state.restore(snapshot)
        self._buffers.rebase()
        self.zero_grad()
        self.step, self.lineage = snapshot.step, snapshot.lineage
        self._schedule.note()
        self.loop_rates.begin_anew()

    def own_buffers(self) -> bytes:
        """What `training.buffers = "local"` leaves to this peer alone, for `take_buffers`; empty if that is nothing."""
        return self._own_buffers.written()

    def take_buffers(self, written: bytes) -> None:
        """Go on with the `own_buffers` that were written with the state that is here."""
        self._own_buffers.take(written)

    def warn_of_new_buffers(self) -> None:
        """Say, once, if the state that is here was trained, and this peer's own running statistics were not."""
        if self.step > 0:
            self._own_buffers.warn_of_new()

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Have the optimizer load what its `state_dict` returned, where it keeps its state."""
        with self._reading():
            self.optimizer.load_state_dict(state)
        check_optimizer(self.optimizer)  # it may have made a state of its own
        self.loop_rates.keep()

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Refuse a state of another model, optimizer or strategy; see `ReplicaInterface`."""
        self._check_model()
        if self._record is None:
            self._state.read_base(state.scalars)
        self._state.check_model(state)
        if self._record is not None:
            self._record.check(state.scalars)
        self._state.check(state)
        if named := strategy_of(state.scalars):
            STRATEGIES.get(named)

    @property
    def loop(self) -> LoopReport:
        """See `ReplicaInterface`."""
        return LoopReport(self.loop_rates.wanted, self._first)

    def look_at_loop(self) -> None:
        """A micro-batch ended: take note of it if it is the first of a step, and put back what the loop did to learning
        rates. Raises `ConfigurationError` if it advanced the scheduler, or sets other rates than the run's again, which
        would differ between peers.
        """
        self._schedule.check()
        self.loop_rates.look(self.step)
        self._values.hear()
        if self._looked_at != self.step:
            self._looked_at = self.step
            self._look_at_values()
        if self._first_step != self.step and self._first_step is not None:
            self._firsts += 1
            self._first = self.vector.sample() if self._firsts <= FIRST_STEPS else ()
            self._warn_of_clipping()
            self._first_step = self.step if self._firsts <= FIRST_STEPS else None

    def _look_at_values(self) -> None:
        if not self.point.is_away:
            self._values.look()

    def _look_for_gradients(self) -> None:
        """A micro-batch without any gradient counts as zeros for its samples, which no program means."""
        if self.vector.has_gradients() or self._ruled.resting(self.step):
            self._empty_in_row = 0
            return
        self._empty_in_row += 1
        words = (
            "step() found no gradient at all, so that its samples count as zeros: call it after backward(), and "
            "zero_grad() after it"
        )
        if self._empty_in_row >= EMPTY_IN_ROW:
            raise ConfigurationError(f"{EMPTY_IN_ROW} times in a row {words}")
        if not self._is_told_of_empty:
            self._is_told_of_empty = True
            logger.warning("%s", words)

    def _warn_of_clipping(self) -> None:
        if not self._is_told_of_clipping and (found := self.vector.clipped()):
            self._is_told_of_clipping = True
            logger.warning(
                "the program clips gradients before step(), it seems by %s: that clips the micro-batches of this peer, "
                "and not the mean of all peers. Leave it out, and pass minga.Optimizer(..., max_grad_norm=NUMBER) or "
                "max_grad_value=NUMBER, which clip the averaged gradient, on all peers alike",
                found,
            )

    def sketch(self) -> Sketch:
        """That of the parameters, as float32."""
        with self._reading():
            return sketch_of(self.vector.parameters())

    def digest(self) -> str:
        """The state digest, by which peers compare: the hash of the manifest."""
        self._check_model()
        with self._reading(), self._buffers.at_base():
            return self._state.digest(self.step)

    def _new_vector(
        self, optimizer: torch.optim.Optimizer, spec: RunSpec, model: torch.nn.Module | None
    ) -> ParameterVector:
        codecs = spec.averaging.codec, spec.averaging.download_codec
        return ParameterVector(optimizer, self._buffers, *codecs, model=model)

    def _adds_on(self, accelerator: Accelerator | None) -> bool:
        """Whether micro-batches are added up there; None is no accelerator."""
        return accelerator is not None

    def _new_access(self, accelerator: Accelerator | None) -> TensorAccess:
        return TensorAccess() if accelerator is None else DeviceAccess(accelerator)

    def _agreed(self, record: TrainedRecord) -> TrainedRecord:
        """This process's record, as all processes of this peer have it."""
        return record

    def _check_model(self) -> None:
        """Look what the program did to the model meanwhile, before its state is read for others or for the disk."""
        if self._record is not None:
            self._watch.check(self._state.model_tensors())
