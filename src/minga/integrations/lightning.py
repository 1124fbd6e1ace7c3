"""Lightning as a peer: `Trainer(strategy=MingaStrategy(link))`.

    on_train_batch_start ─▶ samples ─┐
    pre_backward ─────────▶ loss ────┴▶ tally ─▶ optimizer_step ─▶ the run
    training_step ◀── global step, loss and peers of the run, as logged values

The strategy of whichever of the packages `lightning` and `pytorch_lightning` the program uses. The Trainer keeps its
data, epochs, callbacks, checkpoints and `global_step`, which counts its own optimizer calls.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.integrations.batch_size import batch_size_of
from minga.integrations.data_order import order_loaders
from minga.integrations.global_schedule import GlobalSchedule
from minga.integrations.joined_optimizer import JoinedOptimizer
from minga.integrations.place import RunPlace, enter
from minga.integrations.tally import Tally
from minga.training.join import PeerOptions
from minga.training.peer import Peer

logger = logging.getLogger("minga.integrations")

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _framework(module: str) -> Any:
    """This module of the package that the program has imported, or else of one that is here."""
    loaded = [name for name in PACKAGES if name in sys.modules]
    here = loaded or [name for name in PACKAGES if find_spec(name.partition(".")[0]) is not None]
    return import_module(f"{(here or PACKAGES)[0]}.{module}")


_SingleDeviceStrategy: Any = _framework("strategies").SingleDeviceStrategy
_rank_zero_info: Any = _framework("utilities.rank_zero").rank_zero_info
_is_overridden: Any = _framework("utilities.model_helpers").is_overridden

_CLIPPED = "the run clips gradients after averaging, to optimizer.max_grad_norm of its spec; take it out of the module"


class MingaStrategy(_SingleDeviceStrategy):  # type: ignore[misc]
    """Trains on one device, in the run of `links`: a link, or the peer that the program has.

    links: for a module with several optimizers a run for each: a mapping from the attribute of the module that has the
        optimizer's parameters to the link of its run. With one entry it names the part that peers of other frameworks
        know by itself.
    options: of the peer, or peers, that `fit` joins with.
    device: None takes what the Trainer's accelerator has, the first one.
    weigh: how many samples a batch has, where that is not the length of all its tensors. It is needed where they have
        several, and where samples are not stacked: of a list of pictures of one size the length of each picture would
        be taken for the number of samples.

    The runs are joined when `fit` sets up, and left when it ends. Optimizers and schedulers are those of
    `configure_optimizers`, the same on all peers; schedulers count global steps. Gradients are clipped after averaging,
    as the run spec says (`optimizer.max_grad_norm`): the Trainer's `gradient_clip_val` is left out, and a module with
    the hook `configure_gradient_clipping`, or that calls `clip_gradients`, is refused. `fit` ends when the runs end. A
    stream (`IterableDataset`) is put into an order of this peer's own, as far as its class has a way for that.
    `fit(ckpt_path=...)` goes on with the Trainer's data and counters, and with the state of the run; a run that begins
    takes the state of the checkpoint.

    With manual optimization each step of an optimizer counts the batches that went through backward since its last
    `zero_grad`. Of several optimizers each needs that before its own backward.
    """

    strategy_name = "minga"
    optimizers: Any  # a property of the framework's class

    def __init__(
        self,
        links: Link | str | Peer | Mapping[str, Link | str | Peer],
        options: PeerOptions | None = None,
        *,
        device: torch.device | str | None = None,
        weigh: Callable[[Any], int] = batch_size_of,
        **settings: Any,
    ) -> None:
        super().__init__(device=device or "cpu", **settings)
        self._links: Mapping[str, Link | str | Peer] = links if isinstance(links, Mapping) else {"": links}
        self._options, self._device, self._weigh = options, device, weigh
        self._places: list[RunPlace] = []
        self._joined: list[JoinedOptimizer] = []
        self._parts: list[torch.nn.Module] = []
        self._schedules: list[LRScheduler | None] = []
        self._batch_size = 0
        if not self._links:
            raise ConfigurationError("MingaStrategy needs the link of a run")

    # ---- set-up

    def setup_environment(self) -> None:
        """Take the first device of the Trainer's accelerator, unless one was named."""
        if self._device is None:
            devices = self.accelerator.parse_devices(1)
            self._root_device = self.accelerator.get_parallel_devices(devices)[0]
        logger.info("this peer trains on one device, %s", self.root_device)
        super().setup_environment()

    def setup_optimizers(self, trainer: Any) -> None:
        """Join the runs, and have the optimizers of the module wait for training to begin in them.

        The runs come first: a module that asks for `estimated_stepping_batches` has the data read by what it makes.
        """
        if _is_overridden("configure_gradient_clipping", self.lightning_module):
            raise ConfigurationError(f"configure_gradient_clipping: {_CLIPPED}")
        for link in self._links.values():
            self._places.append(enter(link, self._options))
        super().setup_optimizers(trainer)
        self._parts = [_part(self.lightning_module, name) for name in self._links]
        configured: list[torch.optim.Optimizer] = list(self.optimizers)
        inner = _in_order(configured, self._parts)
        self._schedules = [self._schedule_of(optimizer) for optimizer in inner]
        joined = [JoinedOptimizer(optimizer, Tally()) for optimizer in inner]
        for config in self.lr_scheduler_configs:
            config.scheduler = GlobalSchedule(joined[inner.index(config.scheduler.optimizer)])
        if not self.lightning_module.automatic_optimization:
            for each in joined:
                each.tally.told_by = "self.manual_backward(loss)"
        self._leave_clipping(trainer)
        self.optimizers = [joined[inner.index(optimizer)] for optimizer in configured]
        self._joined = joined

    def _leave_clipping(self, trainer: Any) -> None:
        """The runs clip, and nothing else does."""
        for place in self._places:
            place.tell_of_clipping(trainer.gradient_clip_val, by_value=trainer.gradient_clip_algorithm == "value")
        self.precision_plugin._clip_gradients = _clip_nothing  # noqa: SLF001  (no other place for it)
        self.precision_plugin.clip_gradients = _refuse_to_clip

    def process_dataloader(self, dataloader: Any) -> Any:
        """Have what there is to train on come in an order of this peer's own, also where the Trainer asks for it anew.

        Right after this the Trainer begins to read, and workers may read ahead.
        """
        loader, trainer = super().process_dataloader(dataloader), self.lightning_module.trainer
        peer = self._places[0].peer if self._places else None
        if peer is not None and trainer.training:  # not, as while it trains, one to evaluate on
            order_loaders(peer.seed + trainer.current_epoch, loader)  # a new loader begins at its seed
        return loader

    def _schedule_of(self, optimizer: torch.optim.Optimizer) -> LRScheduler | None:
        configs = [config for config in self.lr_scheduler_configs if config.scheduler.optimizer is optimizer]
        if len(configs) > 1:
            raise ConfigurationError("an optimizer of a run has one learning-rate scheduler; chain them into one")
        for config in configs:
            if config.interval != "step":
                logger.warning(
                    "a scheduler counts epochs (interval='epoch'), and in a run it counts global steps, of which an "
                    "epoch may have many: make it for those, as with T_max=peer.spec.training.stop_after_steps, and "
                    "return it with interval='step'"
                )
        scheduler: LRScheduler | None = configs[0].scheduler if configs else None
        return scheduler

    def on_train_start(self) -> None:
        """Model and optimizers are in place, and a checkpoint loaded: get the state of the runs."""
        super().on_train_start()
        for optimizer, place, part, schedule in zip(
            self._joined, self._places, self._parts, self._schedules, strict=True
        ):
            optimizer.begin(place, model=part, scheduler=schedule)

    # ---- training

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        """Count the samples of this batch."""
        super().on_train_batch_start(batch, batch_idx)
        self._batch_size = self._weigh(batch)
        for optimizer in self._joined:
            optimizer.tally.begin(self._batch_size, alone=True)
            optimizer.tally.begin_part()

    def training_step(self, *arguments: Any, **named: Any) -> Any:
        """The module's own, and now and then the state of the run in its logs."""
        output = super().training_step(*arguments, **named)
        trainer = self.lightning_module.trainer
        if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
            for name, optimizer in zip(self._links, self._joined, strict=True):
                prefix = f"{name}/" if name and len(self._links) > 1 else ""
                figures = {f"{prefix}{key}": float(value) for key, value in optimizer.figures().items()}
                self.lightning_module.log_dict(figures, batch_size=max(1, self._batch_size))
        return output

    def pre_backward(self, closure_loss: torch.Tensor) -> None:
        """A micro-batch has this loss, divided by the micro-batches of a call."""
        super().pre_backward(closure_loss)
        module = self.lightning_module
        window = module.trainer.accumulate_grad_batches if module.automatic_optimization else None
        for optimizer in self._joined:
            optimizer.tally.window = window
            optimizer.tally.add_loss(closure_loss)

    def optimizer_step(self, optimizer: Any, closure: Callable[[], Any], model: Any = None, **named: Any) -> Any:
        """Take the step in the run of this optimizer; end with the runs."""
        try:
            return super().optimizer_step(optimizer, closure, model, **named)
        finally:
            optimizer.tally.clear()  # also where a gradient scaler left the step out
            if all(each.finished for each in self._joined):
                self._end(self.lightning_module.trainer)

    def _end(self, trainer: Any) -> None:
        """Stop `fit`, and say why where the framework says so of its own limits."""
        if not trainer.should_stop:
            steps = ", ".join(str(each.global_step) for each in self._joined)
            _rank_zero_info(f"`Trainer.fit` stopped: the run has reached its last step, {steps}.")
        trainer.should_stop = True

    def on_train_end(self) -> None:
        """Say how far the runs came."""
        super().on_train_end()
        for optimizer, place in zip(self._joined, self._places, strict=True):
            optimizer.tell_of_end("fit", place.last_step)

    def on_validation_start(self) -> None:
        """Tell the runs that this process evaluates for a while."""
        super().on_validation_start()
        for optimizer in self._joined:
            optimizer.pause()

    def teardown(self) -> None:
        """Leave the runs."""
        places, self._places, self._joined = self._places, [], []
        for place in places:
            place.leave()
        for replaced in ("_clip_gradients", "clip_gradients"):
            self.precision_plugin.__dict__.pop(replaced, None)
        super().teardown()


def _clip_nothing(*_: Any, **__: Any) -> None:
    """What the Trainer calls with its `gradient_clip_val`."""


def _refuse_to_clip(optimizer: Any, clip_val: float = 0.0, *_: Any, **__: Any) -> None:
    """What `clip_gradients` of a module calls."""
    del optimizer
    if clip_val > 0:
        raise ConfigurationError(f"clip_gradients: {_CLIPPED}")


def _part(module: torch.nn.Module, name: str) -> torch.nn.Module:
    """The part of the module that one run trains: all of it without a name."""
    if not name:
        return module
    try:
        return module.get_submodule(name)
    except AttributeError:
        raise ConfigurationError(f"MingaStrategy has a link for {name!r}, which the module does not have") from None


def _in_order(optimizers: list[torch.optim.Optimizer], parts: list[torch.nn.Module]) -> list[torch.optim.Optimizer]:
    """For each part its optimizer."""
    if len(optimizers) != len(parts):
        raise ConfigurationError(
            f"the module has {len(optimizers)} optimizers and MingaStrategy {len(parts)} links: each optimizer has a "
            'run of its own, as in MingaStrategy({"generator": link, "discriminator": another})'
        )
    ordered = []
    for part in parts:
        own = {id(parameter) for parameter in part.parameters()}
        fitting = [
            optimizer
            for optimizer in optimizers
            if all(id(parameter) in own for group in optimizer.param_groups for parameter in group["params"])
        ]
        if len(fitting) != 1:
            raise ConfigurationError(
                f"{len(fitting)} optimizers train parameters of {type(part).__name__} alone, not one"
            )
        ordered += fitting
    return ordered
