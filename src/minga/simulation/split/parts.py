"""The parts of the small classifier, cut in two or three, and its samples, of which each client has its own.

Each batch of a client has a number, which travels with its activations as a tensor of its own. So the server's side can
say which batches it applied, whatever the variant, and nothing has to believe the protocol.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from minga.core.spec.run_spec import RunSpec
from minga.simulation.swarm.classification import CLASSES, HIDDEN, INPUTS, SAMPLES, Classification
from minga.split.computing.applying import BatchOutcome, BatchWork, OneTop
from minga.split.computing.parts import ModelPart, cross_entropy

CUT: Final = 16
"""Values that a client sends of each sample."""


class NumberedBottom(nn.Module):
    """The first layers; `number` is that of the batch that comes next, and goes along with the activations."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(INPUTS, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, CUT), nn.Tanh())
        self.number = 0

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Activations, [n, CUT], and the number, n times."""
        return self.layers(inputs), torch.full((len(inputs),), self.number)


class TopLayers(nn.Module):
    """The server's layers; passes over the number."""

    def __init__(self, *, has_head: bool) -> None:
        super().__init__()
        last = [] if has_head else [nn.Linear(HIDDEN, CLASSES)]
        self.layers = nn.Sequential(nn.Linear(CUT, HIDDEN), nn.GELU(), *last)

    def forward(self, activations: Tensor, number: Tensor) -> Tensor:  # noqa: ARG002
        """Logits, or what the head takes."""
        found: Tensor = self.layers(activations)
        return found


class CutTask:
    """Parts and samples of a run spec; everything that is random comes from its seed."""

    def __init__(self, spec: RunSpec) -> None:
        self.spec, self.has_head = spec, spec.split.variant == "u-shaped"
        self._task = Classification(spec)

    def bottom(self) -> NumberedBottom:
        """A client's first layers, the same for all in the beginning."""
        torch.manual_seed(self.spec.training.seed)
        return NumberedBottom()

    def head(self) -> nn.Module | None:
        """A client's last layers; None if the server has them."""
        torch.manual_seed(self.spec.training.seed + 1)
        return nn.Linear(HIDDEN, CLASSES) if self.has_head else None

    def top(self) -> TopLayers:
        """The server's layers."""
        torch.manual_seed(self.spec.training.seed + 2)
        return TopLayers(has_head=self.has_head)

    def batch(self, client: str, number: int, count: int) -> tuple[Tensor, Tensor]:
        """The samples of a client's batch, by its name: inputs and labels."""
        drawn = random.Random(f"minga split samples {self.spec.training.seed} {client} {number}")
        return self._task.samples([drawn.randrange(SAMPLES) for _ in range(count)])

    def held_out_loss(self, bottom: NumberedBottom, top: TopLayers, head: nn.Module | None) -> float:
        """The mean loss of samples that nobody trains on, by a client's parts and the server's."""
        inputs, labels = self._task.held_out()
        with torch.no_grad():
            found = top(*bottom(inputs))
            return float(cross_entropy(found if head is None else head(found), labels))


class NumberedTop(OneTop):
    """Applies as one top does, and tells `on_applied(client, number, samples)` of each batch that changed it."""

    def __init__(self, task: CutTask, layers: TopLayers, on_applied: Callable[[str, int, int], None]) -> None:
        part = ModelPart([layers], None, task.spec.optimizer, task.spec.optimizer.max_grad_norm)
        super().__init__(part, None if task.has_head else cross_entropy)
        self._on_applied, self._numbers = on_applied, dict[str, int]()

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """See `OneTop.apply`."""
        if work.kind in ("train", "forward"):
            self._numbers[work.client] = int(work.tensors[1][0])
        outcomes = super().apply(work)
        for each in outcomes:
            if each.applied:
                self._on_applied(each.work.client, self._numbers[each.work.client], each.work.samples)
        return outcomes
