"""Training of a cut model in one process, by the gradients that client and server would exchange."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.split.examples.subject import LeakageSubject
from minga.split.leakage.no_peek import Penalty
from minga.split.leakage.settings import LeakageSettings


@dataclass(frozen=True)
class TrainedParts:
    """The two parts in evaluation mode."""

    bottom: nn.Module
    rest: nn.Module

    def activations(self, inputs: Tensor) -> Tensor:
        """What the client would send of inputs, without gradient."""
        with torch.no_grad():
            found: Tensor = self.bottom(inputs)
        return found

    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """The share of the samples that are recognised."""
        with torch.no_grad():
            return float((self.rest(self.activations(inputs)).argmax(1) == labels).float().mean())


def epoch(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """The rows of each batch of one pass in random order; a last one of a single sample is left out."""
    return (rows for rows in torch.split(torch.randperm(count, generator=generator), batch_size) if len(rows) > 1)


def train_parts(
    subject: LeakageSubject, rows: Tensor, settings: LeakageSettings, penalty: Penalty | None, seed: int
) -> TrainedParts:
    """New parts, trained on the samples `rows`; equal seeds begin with equal parameters and see equal batches."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bottom, rest = subject.new_parts()
        inputs, labels = subject.inputs[rows], subject.labels[rows]
        optimizer = torch.optim.Adam([*bottom.parameters(), *rest.parameters()], lr=settings.learning_rate)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(settings.epochs):
            for chosen in epoch(len(rows), settings.batch_size, generator):
                optimizer.zero_grad()
                _backward(bottom, rest, inputs[chosen], labels[chosen], penalty)
                optimizer.step()
    return TrainedParts(bottom.eval(), rest.eval())


def _backward(bottom: nn.Module, rest: nn.Module, inputs: Tensor, labels: Tensor, penalty: Penalty | None) -> None:
    activations = bottom(inputs)
    sent = activations.detach().requires_grad_()
    functional.cross_entropy(rest(sent), labels).backward()  # type: ignore[no-untyped-call]
    roots, gradients = [activations], [sent.grad]
    if penalty is not None:
        roots.append(penalty(inputs, activations))
        gradients.append(None)
    torch.autograd.backward(roots, gradients)
