"""Hugging Face Trainer as a peer: `join(trainer, link)` before `trainer.train()`.

    trainer.get_batch_samples ─▶ samples or target tokens ─┐
    trainer.training_step ─────▶ loss ─────────────────────┴▶ tally ─▶ optimizer.step() ─▶ the run
    trainer.log ◀── global step, loss and peers of the run

The Trainer keeps what is its own: data, epochs, evaluation, checkpoints and `global_step`, which counts its own
optimizer calls. The run takes the parameters, the optimizer's state and the learning-rate schedule, which advances with
the global step.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.integrations.batch_size import batch_size_of
from minga.integrations.data_order import order_sampler, shuffled_by, tell_of_data_seed
from minga.integrations.global_schedule import GlobalSchedule
from minga.integrations.joined_optimizer import JoinedOptimizer
from minga.integrations.place import RunPlace, enter
from minga.integrations.tally import Tally
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.replica.trained_record import SAMPLES, TOKENS

logger = logging.getLogger("minga.integrations")


def join(trainer: Trainer, link: Link | str | Peer | None, options: PeerOptions | None = None) -> Peer | None:
    """Let `trainer` train in the run of `link` (or of a peer that the program has): call it before `trainer.train()`.

    Optimizer, learning rate, warm-up and schedule are those of the Trainer and its arguments, the same on all peers;
    steps of the schedule are global steps, to the run's last one. Gradients are clipped after averaging, as the run
    spec says (`optimizer.max_grad_norm`), and the Trainer's own clipping is off. The data is shuffled by a seed of this
    peer's own, unless `data_seed` is set; a stream (`IterableDataset`) is put into an order of this peer's own, as far
    as its class has a way for that. The state of the run comes with the first batch, which also shows whether the
    Trainer counts samples or target tokens.

    `train()` ends when the run ends, or earlier as the arguments say; a peer that was joined here then leaves. With
    intervals in steps, the run's last state is evaluated and saved as the Trainer does at `max_steps`.
    `train(resume_from_checkpoint=...)` goes on with the Trainer's data and counters, and with the state of the run; a
    run that begins takes the state of the checkpoint. A Trainer that joined trains once.

    Returns the peer; None in processes other than the first under `torchrun`. Raises what `minga.join` raises, and
    `ConfigurationError` for Trainers that cannot take part: with DeepSpeed, FSDP, `model_init` or
    `auto_find_batch_size`.
    """
    _check(trainer)
    place = enter(link, options, is_first=trainer.args.process_index == 0)
    try:
        part = _TrainerPart(trainer, place)
    except BaseException:
        place.leave()
        raise
    trainer.add_callback(part)
    return place.peer


def _check(trainer: Trainer) -> None:
    if not isinstance(trainer, Trainer):
        raise ConfigurationError(f"trainer is a transformers.Trainer, not a {type(trainer).__name__}")
    if isinstance(getattr(trainer.optimizer, "optimizer", trainer.optimizer), JoinedOptimizer):  # Accelerate wraps it
        raise ConfigurationError("this Trainer has joined a run already")
    arguments = trainer.args
    refused = {
        "DeepSpeed, which has an optimizer of its own": trainer.is_deepspeed_enabled,
        "FSDP": trainer.is_fsdp_enabled,
        "model_init, which makes another model when training begins": trainer.model_init is not None,
        "auto_find_batch_size, which begins training several times": arguments.auto_find_batch_size,
    }
    if found := [name for name, is_used in refused.items() if is_used]:
        raise ConfigurationError(f"a Trainer cannot join a run with {found[0]}")
    if arguments.load_best_model_at_end:
        logger.warning(
            "load_best_model_at_end: when train() returns, this process will have the best model of its own "
            "evaluations, which is not the last state of the run"
        )


class _TrainerPart(TrainerCallback):  # type: ignore[misc]
    """One Trainer's part in a run."""

    def __init__(self, trainer: Trainer, place: RunPlace) -> None:
        self._trainer, self._place = trainer, place
        self._tally, self._has_ended, self._unit = Tally(), False, SAMPLES
        self._evaluated: tuple[int, ...] = ()
        self._own_batches, self._own_step, self._own_log = trainer.get_batch_samples, trainer.training_step, trainer.log
        self._own_train = trainer.train
        inner = trainer.create_optimizer()
        trainer.create_scheduler(num_training_steps=place.schedule_steps, optimizer=inner)
        self._schedule = trainer.lr_scheduler
        self.optimizer = JoinedOptimizer(inner, self._tally)
        self._take_over()

    def _take_over(self) -> None:
        trainer = self._trainer
        trainer.args = copy.copy(trainer.args)  # the script may make another Trainer with its own
        self._place.tell_of_clipping(trainer.args.max_grad_norm)
        trainer.args.max_grad_norm = 0.0
        trainer.optimizer, schedule = self.optimizer, GlobalSchedule(self.optimizer)

        def create_scheduler(*_: Any, **__: Any) -> GlobalSchedule:
            trainer.lr_scheduler = schedule
            return schedule

        trainer.create_scheduler = create_scheduler
        trainer.get_batch_samples, trainer.training_step, trainer.log = self._batches, self._step, self._log
        trainer.train = self._train
        if trainer.args.data_seed is None:
            peer = self._place.peer
            (seed,) = broadcast_object_list([0 if peer is None else peer.seed])
            trainer.args.data_seed = trainer.accelerator.dataloader_config.data_seed = seed
            trainer.train_dataset = shuffled_by(seed, trainer.train_dataset)
            own_loader = trainer.get_train_dataloader

            def get_train_dataloader() -> Any:
                loader = own_loader()
                order_sampler(seed, loader)  # samplers other than the usual one take no data_seed
                return loader

            trainer.get_train_dataloader = get_train_dataloader
        else:
            tell_of_data_seed(trainer.args.data_seed)

    # ---- in the place of the Trainer's methods

    def _train(self, *arguments: Any, **named: Any) -> Any:
        try:
            return self._own_train(*arguments, **named)
        finally:  # this process trains no longer, whatever ended it
            self._place.leave()

    def _batches(self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device) -> tuple[list[Any], Any]:
        batches, items = self._own_batches(epoch_iterator, num_batches, device)
        unit = self._unit_of(batches, items)
        if self.optimizer.joined is None and batches:
            self._begin(unit)
        elif batches and unit != self._unit:
            raise ConfigurationError(
                f"the Trainer counted {self._unit} in its batches, and counts {unit} in this one: the run has one "
                "unit, so all batches need labels, or none"
            )
        self._tally.clear()
        self._tally.begin(self._weight(batches, items))  # of all micro-batches; counted at the loss of the first
        return batches, items

    def _unit_of(self, batches: list[Any], items: torch.Tensor | int | None) -> str:
        """What the loss of these batches is a mean over. With one label for each sample there are as many of both."""
        if items is None or getattr(self._trainer, "loss_is_scaled_for_ga", None) is False:
            return SAMPLES
        labels = (batch["labels"] for batch in batches)
        return SAMPLES if all(each.numel() == len(each) for each in labels) else TOKENS

    def _weight(self, batches: list[Any], items: torch.Tensor | int | None) -> int:
        """How many of these there are: target tokens, if the Trainer counted `items`, else samples; of several
        processes, this one's share.
        """
        trainer, arguments = self._trainer, self._trainer.args
        if items is None or getattr(trainer, "loss_is_scaled_for_ga", None) is False:
            return sum(_samples_in(batch, trainer.label_names) for batch in batches)
        tokens = round(float(torch.as_tensor(items).reshape(-1)[0]))
        if not arguments.average_tokens_across_devices:
            return tokens * max(1, int(arguments.n_gpu))
        processes, own = int(arguments.world_size), int(arguments.process_index)
        return tokens // processes + (own < tokens % processes)

    def _begin(self, unit: str) -> None:
        """The model is in place, an earlier checkpoint loaded and a batch at hand: get the state of the run."""
        self._unit = unit
        wrapped = self._trainer.model_wrapped
        model = wrapped if isinstance(wrapped, DistributedDataParallel) else self._trainer.model
        self.optimizer.begin(self._place, model=model, scheduler=self._schedule, unit=unit)

    def _step(self, *arguments: Any, **named: Any) -> torch.Tensor:
        loss: torch.Tensor = self._own_step(*arguments, **named)
        self._tally.add_loss(loss)
        return loss

    def _log(self, logs: dict[str, float], *arguments: Any, **named: Any) -> None:
        self._own_log({**logs, **self.optimizer.figures()}, *arguments, **named)

    # ---- the Trainer's events

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """The run's state comes with the first batch; a Trainer takes it once."""
        self.optimizer.require_new()

    def on_step_end(
        self, arguments: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        """An optimizer call is over: end with the run, and tell it of work that is no training."""
        if self.optimizer.finished:
            self._end(arguments, state, control)
            return control
        if control.should_evaluate:
            control.should_evaluate = self._has_moved()
        if control.should_evaluate or control.should_save:
            self.optimizer.pause()
        return control

    on_epoch_end = on_step_end

    def _has_moved(self) -> bool:
        """Whether the parameters are others than at the last evaluation. An optimizer call may change nothing, as the
        others are awaited: the same loss once more would be one without improvement for early stopping.
        """
        versions = [each._version for each in self._trainer.model.parameters()]  # noqa: SLF001  (no other name for it)
        seen = (self.optimizer.global_step, *versions)
        has_moved, self._evaluated = seen != self._evaluated, seen
        return has_moved

    def _end(self, arguments: TrainingArguments, state: TrainerState, control: TrainerControl) -> None:
        """Stop as at `max_steps`: there the Trainer evaluates and saves by itself what its intervals left out."""
        control.should_training_stop = True
        if self._has_ended:  # the end of the epoch, after that of its last optimizer call
            return
        self._has_ended = True
        if arguments.eval_strategy == IntervalStrategy.STEPS and arguments.eval_delay <= state.global_step:
            control.should_evaluate = True
        if arguments.save_strategy == SaveStrategy.STEPS:
            control.should_save = True

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Say how far the run came."""
        self.optimizer.tell_of_end("the Trainer", self._place.last_step)


def _samples_in(batch: Any, label_names: Sequence[str]) -> int:
    """As many as there are labels, of which a list has one for each sample; else the length of all its tensors."""
    if isinstance(batch, Mapping) and not batch:
        return 0  # the Trainer refuses it, and says why
    found = [batch.get(name) for name in label_names] if isinstance(batch, Mapping) else []
    lengths = {len(each) for each in found if isinstance(each, list | tuple) or (torch.is_tensor(each) and each.ndim)}
    return lengths.pop() if len(lengths) == 1 else batch_size_of(batch)
