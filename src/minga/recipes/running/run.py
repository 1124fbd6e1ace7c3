"""A run as a recipe describes it, on this machine: model, optimizer and data put together, and the training loop."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from minga.averaging.strategy_choice import smallest_round
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.optim.arithmetic import is_out_of_memory
from minga.recipes.init_from import given_base, load_initial
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Files, Loss, Recipe, StreamPosition
from minga.recipes.registry import check_published, load_recipe
from minga.recipes.running.devices import choose_device
from minga.recipes.running.micro_batch import (
    ACCELERATOR_MICRO_BATCH,
    CPU_MICRO_BATCH,
    MadeUpPasses,
    RememberedSizes,
    check_wished,
    release,
    size_of_all,
)
from minga.recipes.running.precision import choose_precision
from minga.training.optimizer import Optimizer
from minga.training.peer import Peer
from minga.training.replica.build_optimizer import build_optimizer, kept_bytes
from minga.training.replica.replica import Replica

logger = logging.getLogger("minga.recipes")

StepReport = Callable[[int, int, float], None]
"""Called after each micro-batch with the global step, its samples in all processes of this peer, and its loss. Where an
accelerator still computes that, it is the loss of one before, and NaN before any is known.
"""


class Work(msgspec.Struct, frozen=True):
    """How the processes of a peer compute.

    device: "auto" (an accelerator if there is one), "cpu", "cuda", "cuda:1", "mps", ….
    devices: how many processes, or "all" GPUs; see `devices.py`.
    micro_batch: samples per backward pass; None searches for what suits the device (`micro_batch.py`), never above the
        run's target batch size. Where the run says how many, for all peers, anything else is refused.
    precision: "auto", "float32", "bfloat16" or "float16", see `precision.py`.
    data: own files, or globs, to train on instead of the run's; which kinds of file the recipe says.
    threads: of all processes together on the CPU, None for what PyTorch takes.
    checkpoint_activations: compute activations again in the backward pass instead of keeping them.
    compiled: let PyTorch compile the model.
    offload: update parameters in RAM, where the optimizer's state stays.
    base_bits: how the base of the run is held, if not as the run says.
    """

    device: str = "auto"
    devices: str = "all"
    micro_batch: int | None = None
    precision: str = "auto"
    data: tuple[str, ...] = ()
    threads: int | None = None
    checkpoint_activations: bool = False
    compiled: bool = False
    offload: bool = False
    base_bits: int | None = None

    def check(self, recipe: Recipe[Any], names: Collection[str]) -> None:
        """Raise `ConfigurationError` for own data, or a compiled model, that a run of this recipe does not take, as far
        as it shows without the files of the run, which have these `names`.
        """
        if recipe.context.is_public and self.data:
            raise ConfigurationError(
                "--data: in this run all train on the same data, so that each can check the others"
            )
        if recipe.context.is_public and self.compiled:
            raise ConfigurationError(
                "--compile: in this run all compute in the same order, so that each can check the others"
            )
        if self.data:
            recipe.check_own_data(self.data, names)


@dataclass(frozen=True)
class FurtherRank:
    """What a process of a peer knows of it, except rank 0, which has the `Peer`; see `local_ranks.py`."""

    spec: RunSpec
    files: Files
    directory: Path
    peer_id: str
    role: str
    rank: int


class RecipeRun:
    """This machine's copy of what a run trains, or that of one of its devices.

    work: how it computes, on `work.device`.
    ranks: processes of this peer; each makes the same calls.
    meet: called when all is there but what the ranks do together, which has to make one `torch.distributed` group of
        them: a rank that fails before then keeps no other one waiting.
    is_leaving: asked at short intervals while the state comes; once it says so, the constructor waits no more.

    The constructor returns once the model has the swarm's current state. Raises `ConfigurationError` for a device that
    is not there, a precision that it or the run does not allow, or a recipe without a model of its own.
    """

    def __init__(
        self,
        peer: Peer | FurtherRank,
        work: Work = Work(),  # noqa: B008  a value
        *,
        ranks: int = 1,
        meet: Callable[[], None] = lambda: None,
        is_leaving: Callable[[], bool] = lambda: False,
    ) -> None:
        self.peer = peer
        self._rank, self._ranks = (peer.rank if isinstance(peer, FurtherRank) else 0), ranks
        spec = peer.spec
        check_published(spec)
        self.files: Files = dict(peer.files)
        self.recipe: Recipe[Any] = load_recipe(spec)
        self._is_public = self.recipe.context.is_public
        work.check(self.recipe, self.files)
        if work.data:
            of_rank = f"-{self._rank}" if self._rank else ""  # ranks prepare at the same time
            folder = peer.directory / f"own-data-{peer.peer_id[:10]}{of_rank}"
            self.recipe, self.files = self.recipe.own_data(self.files, work.data, folder)
        if work.base_bits is not None:
            self.recipe = self.recipe.own_base(work.base_bits)
        self.device = choose_device(work.device)
        self.precision = choose_precision(work.precision, self.device, spec)
        self.model: nn.Module = first_model(self.recipe, peer.files, self.device)
        if work.checkpoint_activations:
            self.recipe.checkpoint_activations(self.model)
        if work.compiled:
            self.recipe.compile_model(self.model)
        self._of_run = size_of_all(self.recipe)
        self._is_fixed = self._of_run is not None or work.micro_batch is not None
        self._remembered = RememberedSizes(peer.directory)
        self._halvings = 0  # after each the data comes in another order, so that no sample counts twice
        self.micro_batch_size = self._choose_micro_batch(work)
        inner, scheduler = build_optimizer(spec.optimizer, self.model, self.recipe.decayed, run=spec)
        base = given_base(self.model, peer.files)
        meet()
        self.optimizer = Optimizer(
            inner,
            peer if isinstance(peer, Peer) else None,
            scheduler=scheduler,
            model=self.model,
            rules=self.recipe,
            offload=work.offload,
            base=base,
            is_leaving=is_leaving,
        )

    @property
    def step(self) -> int:
        """Global steps that the model has seen."""
        return self.optimizer.global_step

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self.optimizer.finished

    def train(self, is_over: Callable[[int], bool], report: StepReport) -> None:
        """Train until the run is finished or `is_over(step)`, which is asked after each micro-batch, and while this
        peer is told to compute nothing.

        If the device runs out of memory, micro-batches are half as large from then on. Raises `ConfigurationError` if
        their size is fixed, if there is no memory for a single sample, or if the recipe's batches end.
        """
        batches = self._batches()
        leaves = False

        def is_leaving() -> bool:
            nonlocal leaves
            leaves = leaves or is_over(self.step)
            return leaves

        self.optimizer.is_leaving = is_leaving
        while not self.finished and not is_leaving():
            batch = next(batches, None)
            if is_leaving() or (batch is None and self.finished):  # to wait for a batch may have taken a step
                return
            if batch is None:
                raise ConfigurationError(
                    f"the recipe {self.peer.spec.model.recipe} has no more batches at step {self.step}: `batches` has "
                    "to go on without end, pass after pass over the data"
                )
            samples = self.recipe.samples(batch)
            loss = self._backward_if_it_fits(batch)
            if loss is None:  # what was computed before, this peer has; of this batch nothing counts
                self._halve()
                batches = self._batches()
                continue
            self.optimizer.step(samples=samples, loss=loss)
            self.optimizer.zero_grad()
            known = self.optimizer.last_loss
            report(self.step, self.optimizer.last_samples, math.nan if known is None else known)

    def follow(self, is_over: Callable[[int], bool], between: Callable[[], None], *, seconds: float = 0.25) -> None:
        """Apply the swarm's steps without computing gradients, until the run is finished or `is_over(step)`.

        About every `seconds` the model is at rest and `between` is called; it must be quick, since others may wait.
        """
        while not self.finished and not is_over(self.step):
            self.optimizer.follow(seconds)
            between()

    def _batches(self) -> Iterator[Batch]:
        if self._is_public:
            return (self.recipe.public_batch(self.files, batch) for batch in self.optimizer.batches())
        position = StreamPosition(
            self.peer.peer_id, worker=self._rank + self._ranks * self._halvings, start_step=self.step
        )
        return self.recipe.batches(self.files, position, self.micro_batch_size)

    def _choose_micro_batch(self, work: Work) -> int:
        if work.micro_batch is not None:
            check_wished(work.micro_batch, self.peer.spec, self.recipe)
        if (chosen := self._of_run or work.micro_batch) is not None:
            return chosen
        most = smallest_round(self.peer.spec)
        if self.device.type == "cpu" or self.peer.role not in ("trainer", "client"):
            return min(CPU_MICRO_BATCH, most)
        start = self._remembered.get(str(self.device)) or ACCELERATOR_MICRO_BATCH
        moments = 0 if work.offload else kept_bytes(self.model, self.peer.spec.optimizer)
        total = 0 if work.offload else sum(each.numel() for each in self.model.parameters() if each.requires_grad)
        share = 4 * -(-total // self._ranks)  # of the sum, in one of several processes
        passes = MadeUpPasses(self.recipe, self.model, self.device, self.precision)
        size = passes.fit(start, most, moments=moments, total=share)
        self._remembered.keep(str(self.device), size)
        return size

    def _halve(self) -> None:
        """The device ran out of memory."""
        release(self.device)
        self.optimizer.zero_grad()
        if self._is_fixed or self.micro_batch_size == 1:
            smaller = f"; try --micro-batch {self.micro_batch_size // 2}" if self.micro_batch_size > 1 else ""
            raise ConfigurationError(
                f"{self.device} has too little memory for a micro-batch of {self.micro_batch_size} samples"
                f"{'' if self._of_run is not None else smaller}"
            )
        self.micro_batch_size //= 2
        self._halvings += 1
        self._remembered.keep(str(self.device), self.micro_batch_size)
        logger.warning("%s ran out of memory: micro-batches have %d samples now", self.device, self.micro_batch_size)

    def _backward_if_it_fits(self, batch: Batch) -> torch.Tensor | None:
        """The loss of a batch, the gradients of which are there then; None if the device has too little memory."""
        try:
            return self._backward(batch)
        except Exception as error:  # devices have no class of errors in common
            if not is_out_of_memory(error):
                raise
        return None

    def _backward(self, batch: Batch) -> torch.Tensor:
        on_device = {name: tensor.to(self.device) for name, tensor in batch.items()}
        with self.precision.autocast():
            loss = self.recipe.loss(self.model, on_device)
        self.precision.backward(loss.total if isinstance(loss, Loss) else loss, self.optimizer)
        return self.recipe.reported_loss(loss).detach()


def begin_run(peer: Peer) -> None:
    """As the organiser's peer, which does not train: have the run begin with the state that its recipe gives all."""
    spec, recipe = peer.spec, load_recipe(peer.spec)
    model = first_model(recipe, peer.files)
    inner, scheduler = build_optimizer(spec.optimizer, model, recipe.decayed, run=spec)
    clipping, base = spec.optimizer.max_grad_norm, given_base(model, peer.files)
    peer.begin_with(
        Replica(spec, inner, model=model, scheduler=scheduler, max_grad_norm=clipping, rules=recipe, base=base)
    )


def first_model(recipe: Recipe[Any], files: Files, device: torch.device | None = None) -> nn.Module:
    """The model with which a run of this recipe begins: on the `device` where it is to be trained, or on the CPU."""
    model = recipe.load_model(files, device)
    if model is None:
        model = new_model(recipe)
        load_initial(model, files)
        model = model if device is None else model.to(device)
    recipe.constrain(model, 0)
    return model
