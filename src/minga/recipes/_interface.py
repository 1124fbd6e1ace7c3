"""The recipe seam: the model, the data and the loss of a run, as training sees them.

A recipe is made from a run spec and holds no training state. The organiser calls `prepare` once; the files it returns
travel with the run, so that every other method sees the same files on every peer. Batches are plain dictionaries of
tensors, which training may move to a device without knowing what they mean.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from minga.core._run_spec import RunSpec
from minga.security._data_seeds import PublicBatch

Batch = dict[str, Tensor]
"""One micro-batch: named tensors, the meaning of which only the recipe knows."""

Files = Mapping[str, Path]
"""The files that came with the run, by name; each already downloaded and checked against its digest."""


@dataclass(frozen=True)
class StreamPosition:
    """Which order of the data one stream follows.

    `peer_id` (hex) is the peer's key, `worker` the rank of the process within a peer of several processes, and
    `start_step` the global step at which the peer joined: a peer that comes back goes on with a fresh order instead of
    the samples it has already had. Equal positions give equal streams, on any machine.
    """

    peer_id: str
    worker: int = 0
    start_step: int = 0


class Recipe(ABC):
    """What a run trains, on what, and how well it does."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec = spec

    @abstractmethod
    def prepare(self) -> dict[str, bytes]:
        """Make the files that ship with the run; called once, by the organiser, who may take seconds for it.

        Raises `ConfigurationError` where the spec's data cannot be found or is too little or too much.
        """

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new float32 model on the CPU, in training mode; its parameters depend on the spec alone."""

    @abstractmethod
    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Training batches of exactly `micro_batch_size` samples, without end.

        Within one pass over the data no sample comes twice; held-out text never comes at all.
        """

    @abstractmethod
    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """The micro-batch that `batch` names, the same on every machine: for runs whose members check each other."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """The loss of a batch: a scalar that is the mean over its samples.

        Being a mean over samples, it makes the average of gradients weighted by samples equal to the gradient of the
        whole batch, however that was cut into micro-batches.
        """

    @abstractmethod
    def samples(self, batch: Batch) -> int:
        """How many samples a batch holds."""

    @abstractmethod
    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """Figures on the held-out text: the same numbers for the same weights, whoever asks and how often.

        Leaves the model as it was, and all random generators. Empty where the spec holds nothing out.
        """

    @abstractmethod
    def export(self, model: nn.Module, files: Files, directory: Path, *, step: int) -> None:
        """Write the model in the format of its own library, whole or not at all.

        Raises `StorageError` where that fails, and `ConfigurationError` if the directory already has content.
        """
