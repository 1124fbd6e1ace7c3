"""SplitFed v1: in each round a copy of the top for each client, then their average.

A copy begins as the average of the round before, and takes a step for each batch of its client. With n_j the samples of
client j that were applied in the round, and n their sum, the average is the sum of n_j / n times copy j: of parameters,
of floating-point buffers, and of what the optimizers keep for each parameter. What is a count or a setting (steps,
learning rates) is that of the copy that has taken most steps.

A round ends when a client that took part in it sends the first batch of its next one: clients say with each batch how
many averagings their own part has seen, and each client's number is compared with its own earlier ones only. A batch
that is late counts in the round of now, and so do the samples of a client that died in the round.

Paper: Thapa et al., "SplitFed: When Federated Learning Meets Split Learning" (arXiv 2004.12088), algorithm of v1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch import nn

from minga.core.errors import ConfigurationError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import OptimizerSection
from minga.optim.arithmetic import is_out_of_memory
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork, OneTop
from minga.split.computing.parts import LossFunction, ModelPart, OptimizerChoice
from minga.split.wire.messages import Kind
from minga.training.optimizer import Optimizer
from minga.training.peer import Peer
from minga.training.state.snapshot import StateSnapshot

MAX_COPIES: Final = 64
"""Clients of one round; further ones wait for the next."""


@dataclass
class _Copy:
    top: OneTop
    round: int
    """That of its client, which the next one of it ends."""
    batches: int = 0
    samples: int = 0


class TopCopies(Applying):
    """A copy of `part` for each client and round; `part` itself is the average of the last round."""

    kinds: Collection[Kind] = ("predict", "train")

    def __init__(self, part: ModelPart, loss: LossFunction, *, max_copies: int = MAX_COPIES) -> None:
        super().__init__(part)
        self._loss, self._max_copies = loss, max_copies
        self._average = OneTop(part, loss)
        self._copies: dict[str, _Copy] = {}
        self._before: dict[str, int] = {}
        """The rounds of the clients when the last round ended."""

    @property
    def steps(self) -> int:
        """Steps that all copies have taken, one for each batch."""
        return self.part.steps + sum(each.batches for each in self._copies.values())

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Always answers at once; predictions are those of the last round's average."""
        if work.kind == "predict":
            return self._average.apply(work)
        mine, round = self._copies.get(work.client), work.place.round
        if mine is not None and round > mine.round:
            self.settle()
            mine = None
        if mine is None:
            if len(self._copies) >= self._max_copies:
                why = f"{self._max_copies} clients have copies in this round already"
                return [BatchOutcome(work, refusal=RejectedError(why, code=RefusalCode.BUSY))]
            # A batch of the round before, which another client ended, is one of this round, and the next one ends
            # nothing. Nor does that of a client that was not there: who knows whether it comes in time.
            round = max(round, self._before.get(work.client, round if self._before else -1) + 1)
            try:
                copied = self.part.copied()
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                why = f"{self.part.device} has too little memory for another client's copy at present"
                return [BatchOutcome(work, refusal=RejectedError(why, code=RefusalCode.BUSY))]
            mine = self._copies[work.client] = _Copy(OneTop(copied, self._loss), round)
        (outcome,) = mine.top.apply(work)
        if outcome.applied:
            mine.batches += 1
            mine.samples += work.samples
        return [outcome]

    def settle(self) -> None:
        """The present round ends."""
        counted = {client: each for client, each in self._copies.items() if each.samples}
        if counted:
            first = max(counted, key=lambda client: (counted[client].batches, client))
            states = {client: each.top.part.capture() for client, each in counted.items()}
            weights = {client: each.samples for client, each in counted.items()}
            self.part.restore(average(states, weights, first, self.steps))
        self._before = {client: each.round for client, each in self._copies.items()}
        self._copies.clear()

    def half_done(self) -> Collection[str]:
        """Nobody: the batches of a client count whether it comes back or not."""
        return ()

    def drop(self, client: str) -> Sequence[BatchOutcome]:  # noqa: ARG002
        """Nothing waits for a client."""
        return []


def average(states: dict[str, StateSnapshot], weights: dict[str, int], first: str, steps: int) -> StateSnapshot:
    """The mean of states by weights, after so many steps; what cannot be averaged is that of `first`."""
    main = states[first]
    made = StateSnapshot(steps, main.tensors, main.scalars, main.buffer.clone())
    found = {
        client: {entry.name: tensor for entry, tensor in state.named_tensors()} for client, state in states.items()
    }
    for entry, target in made.named_tensors():
        is_count = entry.name.startswith("optimizer/") and not entry.shape
        if is_count or not target.is_floating_point():
            continue
        has = [client for client in sorted(found) if entry.name in found[client]]
        total = sum(weights[client] for client in has)
        mean = torch.zeros(entry.shape, dtype=torch.float64)
        for client in has:
            mean += found[client][entry.name].double() * (weights[client] / total)
        target.copy_(mean)
    return made


# ---- SplitFed's clients: their part of the model is averaged between them, by the ordinary averaging of the run.
#
# Each batch is a micro-batch of `minga.Optimizer`, so groups, plans, weights by samples, and what happens when a
# client dies are those of any run. By the strategy "local" clients take steps of their own between two averagings of
# the parameters; by "synchronous" they average gradients, which for plain SGD and one batch a round is the same.


class AveragedPart(ModelPart):
    """A client's part, averaged with those of the other clients of the run of `peer`; all begin with equal parameters.

    Made and used on the thread that trains. Raises `ConfigurationError` for a part that has nothing to train.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizer: OptimizerChoice | None,
        section: OptimizerSection,
        max_grad_norm: float | None,
        peer: Peer,
    ) -> None:
        super().__init__(modules, optimizer, section, max_grad_norm)
        if self.optimizer is None:
            raise ConfigurationError("a client's part that has nothing to train cannot be averaged")
        model = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        self._averaging = Optimizer(
            self.optimizer, peer, model=model, scheduler=self.scheduler, max_grad_norm=self.max_grad_norm
        )
        self.steps = self.round  # at least so many led to the parameters that it begins with

    @property
    def round(self) -> int:
        """The run's global step: rounds of averaging that this part has seen."""
        return self._averaging.global_step

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self._averaging.finished

    def step(self, samples: int = 1, loss: float | None = None) -> None:
        """Let the gradients of so many samples count in the round; waits where the round has to be averaged first."""
        self._averaging.step(samples=samples, loss=loss)
        self.steps += 1

    def save(self, path: Path, beside: Mapping[str, torch.Tensor] | None = None) -> None:  # noqa: ARG002
        """Write a checkpoint of the last round to the folder of the peer: the clients may all leave, and this one come
        again before others.
        """
        if self.round:
            self._averaging.save_checkpoint()

    def load(self, path: Path) -> Mapping[str, torch.Tensor] | None:  # noqa: ARG002
        """It has gone on from the state of the run when it was made, and a file of its own would be older."""
        return {} if self.round else None
