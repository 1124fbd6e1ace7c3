"""A run as a recipe describes it, on this machine: model, optimizer and data put together, and the training loop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn

from minga.core.errors import ConfigurationError
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Files, Recipe, StreamPosition
from minga.recipes.registry import check_published, load_recipe
from minga.training.optimizer import Optimizer
from minga.training.peer import Peer
from minga.training.replica.build_optimizer import build_optimizer

CPU_MICRO_BATCH, ACCELERATOR_MICRO_BATCH = 16, 64

StepReport = Callable[[int, int, float], None]
"""Called after each micro-batch with the global step, its samples and its loss."""


class RecipeRun:
    """This machine's copy of what a run trains.

    device: "auto" (an accelerator if there is one), "cpu", "cuda", "cuda:1", "mps", ….
    micro_batch_size: samples per backward pass; None chooses by device, never above the run's target batch size.
    data: own files, or globs, to train on instead of the run's; which kinds of file the recipe says.

    The constructor returns once the model has the swarm's current state. Raises `ConfigurationError` for a device that
    is not there or a recipe without a model of its own.
    """

    def __init__(
        self, peer: Peer, *, device: str = "auto", micro_batch_size: int | None = None, data: Sequence[str] = ()
    ) -> None:
        self.peer = peer
        spec = peer.spec
        check_published(spec)
        self.files: Files = dict(peer.files)
        self.recipe: Recipe[Any] = load_recipe(spec)
        self._is_public = spec.security.mode == "byzantine"
        if data and self._is_public:
            raise ConfigurationError(
                "--data: in this run all train on the same data, so that each can check the others"
            )
        if data:
            folder = peer.directory / f"own-data-{peer.peer_id[:10]}"
            self.recipe, self.files = self.recipe.own_data(self.files, data, folder)
        self.device = choose_device(device)
        smallest_step, _ = peer.spec.training.batch_range
        self.micro_batch_size = (
            _public_micro_batch_size(micro_batch_size, spec.security.micro_batch_size)
            if self._is_public
            else _micro_batch_size(self.device, micro_batch_size, smallest_step)
        )
        self.model: nn.Module = new_model(self.recipe).to(self.device)
        inner, scheduler = build_optimizer(peer.spec.optimizer, self.model)
        self.optimizer = Optimizer(inner, peer, scheduler=scheduler, model=self.model)

    @property
    def step(self) -> int:
        """Global steps that the model has seen."""
        return self.optimizer.global_step

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self.optimizer.finished

    def train(self, is_over: Callable[[int], bool], report: StepReport) -> None:
        """Train until the run is finished or `is_over(step)`, which is asked after each micro-batch.

        Raises `ConfigurationError` if the device has too little memory for a micro-batch.
        """
        batches = self._batches()
        while not self.finished and not is_over(self.step):
            batch = next(batches, None)
            if batch is None or is_over(self.step):  # to wait for a batch may have taken a step
                return
            samples = self.recipe.samples(batch)
            try:
                loss = self._backward(batch)
            except torch.OutOfMemoryError as error:
                raise ConfigurationError(
                    f"{self.device} has too little memory for a micro-batch of {self.micro_batch_size} samples; "
                    f"try --micro-batch {max(1, self.micro_batch_size // 2)}"
                ) from error
            self.optimizer.step(samples=samples, loss=loss)
            self.optimizer.zero_grad()
            report(self.step, samples, loss)

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
        position = StreamPosition(self.peer.peer_id, start_step=self.step)
        return self.recipe.batches(self.files, position, self.micro_batch_size)

    def _backward(self, batch: Batch) -> float:
        loss = self.recipe.loss(self.model, {name: tensor.to(self.device) for name, tensor in batch.items()})
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.item())


def choose_device(name: str) -> torch.device:
    """The device called `name`, checked by using it; "auto" is the best one there is."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        why = str(error).strip().split("\n")[0][:160]
        raise ConfigurationError(f"--device {name}: this machine cannot use it ({why}); try --device auto") from error
    return device


def _public_micro_batch_size(wished: int | None, size: int) -> int:
    if wished not in (None, size):
        raise ConfigurationError(f"--micro-batch {wished}: in this run all compute {size} samples at once")
    return size


def _micro_batch_size(device: torch.device, wished: int | None, target_batch_size: int) -> int:
    if wished is None:
        wished = CPU_MICRO_BATCH if device.type == "cpu" else ACCELERATOR_MICRO_BATCH
        return min(wished, target_batch_size)
    if not 1 <= wished <= target_batch_size:
        raise ConfigurationError(
            f"--micro-batch {wished}: it must be from 1 to the run's target batch size, {target_batch_size}"
        )
    return wished
