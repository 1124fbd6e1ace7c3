"""The applying seam: what a server does with the batches of its clients; `OneTop` is the plain way.

An implementation computes and does nothing else: no clock, no network, one call at a time, all on one thread. It may
answer a batch at once, or keep it until those of other clients are there: `apply` returns what became of it, and of
others that waited for it.
"""

from __future__ import annotations

import contextlib
import traceback
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from minga.averaging.codecs.interface import is_finite
from minga.core.errors import LocalError, NonFiniteError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.optim.arithmetic import is_out_of_memory
from minga.split.computing.parts import KeptBuffers, LossFunction, ModelPart, Tensors, as_tensors, as_value
from minga.split.wire.messages import EXACT, MAX_LOSS, NOWHERE, BatchPlace, Kind
from minga.training.replica.accelerator import wait_for
from minga.training.replica.draws import draws, replaying


@dataclass(frozen=True, eq=False)
class BatchWork:
    """One request of a client, decoded and checked: `tensors` are activations or gradients, `labels` come with "train"
    alone; all in CPU memory. `ticket` is its own among all of a server.
    """

    ticket: int
    client: str
    kind: Kind
    tensors: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...] = ()
    wants_gradients: bool = True
    place: BatchPlace = NOWHERE
    digest: str = ""

    @property
    def samples(self) -> int:
        """The samples of the batch: the length of the first axis of the first tensor; 0 of what is no batch."""
        return 0 if self.kind in EXACT else self.tensors[0].shape[0]


@dataclass(frozen=True, eq=False)
class BatchOutcome:
    """What became of a work: `tensors` for its client, and the mean `loss` if the server knows it; or a `refusal`, if
    nothing came of it. `applied` says whether the parameters were changed by it.
    """

    work: BatchWork
    tensors: tuple[torch.Tensor, ...] = ()
    loss: float | None = None
    refusal: RejectedError | None = None
    applied: bool = False
    digest: str = ""


class BrokenPartError(LocalError):
    """The server's part of a model is of no use any more: half a step was taken, or its device computes nothing."""


class Applying(ABC):
    """What computes with `part`, the server's part of a model."""

    kinds: Collection[Kind] = ()
    """The kinds of requests that it takes; a server refuses others before their tensors are read."""

    def __init__(self, part: ModelPart) -> None:
        self.part = part

    @property
    def steps(self) -> int:
        """Steps that the server's part has taken."""
        return self.part.steps

    def save(self, path: Path) -> None:
        """Write all that a server goes on from when it is started again. Raises as `ModelPart.save`."""
        self.part.save(path)

    def load(self, path: Path) -> None:
        """Go on from what was written, if there is such a file. Raises as `ModelPart.load`."""
        self.part.load(path)

    @abstractmethod
    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Take a request; return what became of this one and of others, each exactly once, now or by a later call.

        Raises `BrokenPartError` if none can be taken any more.
        """

    def settle(self) -> None:  # noqa: B027
        """Leave the server's part, as the program has it, with all that was applied; nothing is applied after that."""

    @abstractmethod
    def half_done(self) -> Collection[str]:
        """The clients of which something is kept that waits for a further request, of theirs or of others."""

    @abstractmethod
    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """Forget what is half done of this client; return what becomes of those that waited, itself included."""


def refused(why: str) -> RejectedError:
    """A refusal of a batch that no other server would take either."""
    return RejectedError(why, code=RefusalCode.REFUSED)


# ---- The plain way to apply batches: one top, which takes a step for each batch, one after the other.
#
# A U-shaped batch is two requests, and between them the batches of other clients may be applied. Then the first
# request is computed once more, with the parameters of now and the same random draws, so that its gradient is one of
# the present parameters, with respect to activations of a little earlier. With one client that never happens. What is
# kept for a client between its two requests are the activations that it sent.


MAX_HALF_DONE: Final = 256
HALF_DONE_BYTES: Final = 512 << 20
"""Of the activations of half done batches, unless there is but one."""
MAX_GRAPHS: Final = 4
"""Half done batches of which the graph is kept, the latest; what the graph of one takes depends on the top alone."""
_FAULTS_OF_INPUT: Final = (RuntimeError, ValueError, TypeError, IndexError)
"""What a module raises that cannot take a tensor of this shape or type."""


@dataclass
class _HalfDone:
    """A U-shaped batch between its two requests. Without `outputs` it has to be computed once more."""

    inputs: Tensors
    outputs: Tensors
    draws: list[torch.Tensor]
    wants_gradients: bool


class OneTop(Applying):
    """One top for all clients. `loss` compares its outputs with labels; without one it takes U-shaped batches."""

    def __init__(self, part: ModelPart, loss: LossFunction | None) -> None:
        super().__init__(part)
        self._loss = loss
        self.kinds: Collection[Kind] = ("forward", "backward", "predict") if loss is None else ("train", "predict")
        self._half_done: dict[str, _HalfDone] = {}

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Always answers at once."""
        try:
            with self._refusing():
                if work.kind == "train":
                    return [self._train(work)]
                if work.kind == "forward":
                    return [self._forward(work)]
                if work.kind == "backward":
                    return [self._backward(work)]
                return [self._predict(work)]
        except RejectedError as error:
            return [BatchOutcome(work, refusal=error)]

    def half_done(self) -> Collection[str]:
        """Clients between the two requests of a U-shaped batch."""
        return list(self._half_done)

    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """Nobody waits for it: the request was answered."""
        self._half_done.pop(client, None)
        return []

    def run(self, inputs: Tensors) -> Tensors:
        """What the top makes of these inputs."""
        (module,) = self.part.modules
        return as_tensors(module(*self.part.adapted(inputs)))

    def _train(self, work: BatchWork) -> BatchOutcome:
        inputs = self._leaves(work.tensors)
        with self.part.keeping_buffers() as kept:
            outputs = self.run(inputs)
            labels = tuple(each.to(outputs[0].device) for each in work.labels)
            loss = self._loss(as_value(outputs), as_value(labels))  # type: ignore[misc]  # a kind that it has not
            value = float(loss.detach())
            if not abs(value) <= MAX_LOSS:  # also true for NaN
                raise refused(f"the loss of this batch is {value}")
            kept.check()
            loss.backward()
            gradients = self._step(inputs, wants_gradients=work.wants_gradients)
        return BatchOutcome(work, gradients, value, applied=True)

    def _forward(self, work: BatchWork) -> BatchOutcome:
        self._half_done.pop(work.client, None)
        inputs, drawn = self._leaves(work.tensors), draws(self.part.device)
        kept_bytes = sum(each.nbytes for known in self._half_done.values() for each in known.inputs)
        is_over = kept_bytes > 0 and kept_bytes + sum(each.nbytes for each in inputs) > HALF_DONE_BYTES
        if is_over or len(self._half_done) >= MAX_HALF_DONE:
            raise RejectedError("too many batches are half done here", code=RefusalCode.BUSY)
        with self.part.keeping_buffers() as kept:
            outputs = self.run(inputs)
            if not all(is_finite(each.float()) for each in outputs):
                raise refused("what the server's part of the model makes of this batch is not finite")
            kept.check()
        self._spoil_graphs(0 if self.part.buffers else MAX_GRAPHS - 1)
        self._half_done[work.client] = _HalfDone(inputs, outputs, drawn, work.wants_gradients)
        return BatchOutcome(work, tuple(each.detach() for each in outputs))

    def _backward(self, work: BatchWork) -> BatchOutcome:
        known = self._half_done.pop(work.client, None)
        if known is None:
            raise RejectedError("there is no batch to which these gradients belong", code=RefusalCode.SESSION)
        with contextlib.nullcontext() if known.outputs else self._as_then(known):
            floating = [each for each in known.outputs or self.run(known.inputs) if each.is_floating_point()]
            if [each.shape for each in floating] != [each.shape for each in work.tensors]:
                raise refused("gradients of other shapes than the activations that were sent")
            pairs = [
                (output, gradient.to(output.device, output.dtype))
                for output, gradient in zip(floating, work.tensors, strict=True)
                if output.requires_grad
            ]
            if pairs:
                torch.autograd.backward([output for output, _ in pairs], [gradient for _, gradient in pairs])
            gradients = self._step(known.inputs, wants_gradients=known.wants_gradients)
        return BatchOutcome(work, gradients, applied=True)

    def _predict(self, work: BatchWork) -> BatchOutcome:
        with self.part.predicting():
            outputs = self.run(work.tensors)
        return BatchOutcome(work, outputs)

    def _step(self, inputs: Tensors, *, wants_gradients: bool) -> Tensors:
        """Let the top take its step; returns the gradients for the client. Refuses, unchanged, if one is not finite."""
        gradients = gradients_of(inputs) if wants_gradients else ()
        if not all(is_finite(each.float()) for each in gradients):
            raise refused("a gradient of the activations is not finite")
        try:
            self.part.step(inputs[0].shape[0])
        except NonFiniteError:
            raise
        except Exception as error:  # whatever the optimizer raises
            raise BrokenPartError(f"a step of the server's part failed half-way: {first_line(error)}") from error
        finally:
            self._spoil_graphs()
        return gradients

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Inside, what modules raise of tensors that they cannot take refuses the batch; want of memory, for now."""
        try:
            yield
        except _FAULTS_OF_INPUT as error:
            if is_out_of_memory(error):
                traceback.clear_frames(error.__traceback__)  # which hold the activations as long as the refusal lives
                why = f"{self.part.device} has too little memory for this batch at present"
                raise RejectedError(why, code=RefusalCode.BUSY) from error
            self._check_device()
            raise refused(f"the server's part of the model cannot take this batch: {first_line(error)}") from error
        except NonFiniteError as error:
            raise refused(str(error)) from error
        finally:  # of whatever it raised; after a step there are none
            self.part.zero_grad()

    def _check_device(self) -> None:
        """Raise `BrokenPartError` if it computes nothing any more, as a GPU on which an assertion failed."""
        try:
            wait_for(self.part.device)
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise BrokenPartError(f"{self.part.device} fails: {first_line(error)}") from error

    def _leaves(self, tensors: Tensors) -> Tensors:
        moved = (each.to(self.part.device) for each in tensors)
        return tuple(each.requires_grad_() if each.is_floating_point() else each for each in moved)

    @contextlib.contextmanager
    def _as_then(self, known: _HalfDone) -> Iterator[None]:
        """Inside, the top draws what it drew for this batch before; its buffers, such as those of BatchNorm, have seen
        the batch already, and are as before afterwards.
        """
        kept = KeptBuffers(self.part)
        with replaying(known.draws, self.part.device):
            try:
                yield
            finally:
                kept.put_back()

    def _spoil_graphs(self, but_latest: int = 0) -> None:
        """What was kept of half done batches is of values that change now, or takes too much memory: these batches are
        computed once more.
        """
        waiting = list(self._half_done.values())
        for each in waiting[: len(waiting) - but_latest]:
            each.outputs = ()


def gradients_of(inputs: Tensors) -> Tensors:
    """The gradients of all floating-point inputs, zeros where nothing depends on one."""
    floating = (each for each in inputs if each.is_floating_point())
    return tuple(torch.zeros_like(each) if each.grad is None else each.grad for each in floating)


def first_line(error: BaseException) -> str:
    """What an exception says, in short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
