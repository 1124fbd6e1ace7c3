"""The plain way to apply batches: one top, which takes a step for each batch, one after the other.

A U-shaped batch is two requests, and between them the batches of other clients may be applied. Then the first request
is computed once more, with the parameters of now and the same random draws, so that its gradient is one of the present
parameters, with respect to activations of a little earlier. With one client that never happens. What is kept for a
client between its two requests are the activations that it sent.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.nn import functional

from minga.averaging.codecs.interface import is_finite
from minga.core.errors import NonFiniteError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.computing.applying import Applying, Outcome, Work
from minga.split.computing.parts import Part, Tensors, as_tensors, as_value
from minga.split.wire.messages import Kind

LossFunction = Callable[[Any, Any], torch.Tensor]
"""The mean loss of a batch, by outputs and labels."""

MAX_HALF_DONE: Final = 256
_FAULTS_OF_INPUT: Final = (RuntimeError, ValueError, TypeError, IndexError)
"""What a module raises that cannot take a tensor of this shape or type."""


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The usual loss: `functional.cross_entropy`, of which a wrong class is a `ValueError` on every device."""
    if not labels.is_floating_point() and outputs.dim() > 1 and labels.numel():
        low, high = (int(each) for each in torch.aminmax(labels))
        if high >= outputs.shape[1] or (low < 0 and low != -100):
            raise ValueError(f"classes from {low} to {high}, where the model knows {outputs.shape[1]}")
    return functional.cross_entropy(outputs, labels)


@dataclass
class _HalfDone:
    """A U-shaped batch between its two requests. Without `outputs` it has to be computed once more."""

    inputs: Tensors
    outputs: Tensors
    draws: list[torch.Tensor]
    wants_gradients: bool


class OneTop(Applying):
    """One top for all clients. `loss` is for vanilla runs; without one it takes U-shaped batches."""

    def __init__(self, part: Part, loss: LossFunction | None) -> None:
        self.part, self._loss = part, loss
        self.kinds: Collection[Kind] = ("forward", "backward", "predict") if loss is None else ("train", "predict")
        self._half_done: dict[str, _HalfDone] = {}

    @property
    def steps(self) -> int:
        """Steps of the top."""
        return self.part.steps

    def apply(self, work: Work) -> Sequence[Outcome]:
        """Always answers at once."""
        try:
            if work.kind == "train":
                return [self._train(work)]
            if work.kind == "forward":
                return [self._forward(work)]
            if work.kind == "backward":
                return [self._backward(work)]
            return [self._predict(work)]
        except RejectedError as error:
            return [Outcome(work, refusal=error)]

    def half_done(self) -> Collection[str]:
        """Clients between the two requests of a U-shaped batch."""
        return list(self._half_done)

    def drop(self, client: str) -> Sequence[Outcome]:
        """Nobody waits for it: the request was answered."""
        self._half_done.pop(client, None)
        return []

    def run(self, inputs: Tensors) -> Tensors:
        """What the top makes of these inputs."""
        (module,) = self.part.modules
        return as_tensors(module(*self.part.adapted(inputs)))

    def _train(self, work: Work) -> Outcome:
        inputs = self._leaves(work.tensors)
        with self._refusing():
            outputs = self.run(inputs)
            labels = tuple(each.to(outputs[0].device) for each in work.labels)
            loss = self._loss(as_value(outputs), as_value(labels))  # type: ignore[misc]  # a kind that it has not
            value = float(loss.detach())
            if value - value != 0.0:  # NaN or infinite
                raise refused(f"the loss of this batch is {value}")
            loss.backward()
        return Outcome(work, self._step(inputs, wants_gradients=work.wants_gradients), value, applied=True)

    def _forward(self, work: Work) -> Outcome:
        if len(self._half_done) >= MAX_HALF_DONE and work.client not in self._half_done:
            raise RejectedError("too many batches are half done here", code=RefusalCode.BUSY)
        inputs, draws = self._leaves(work.tensors), _draws(self.part.device)
        with self._refusing():
            outputs = self.run(inputs)
        if self.part.buffers:
            self._spoil_graphs()
        self._half_done[work.client] = _HalfDone(inputs, outputs, draws, work.wants_gradients)
        return Outcome(work, tuple(each.detach() for each in outputs))

    def _backward(self, work: Work) -> Outcome:
        known = self._half_done.pop(work.client, None)
        if known is None:
            raise RejectedError("there is no batch to which these gradients belong", code=RefusalCode.SESSION)
        with self._refusing(), contextlib.nullcontext() if known.outputs else self._as_then(known):
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
        return Outcome(work, self._step(known.inputs, wants_gradients=known.wants_gradients), applied=True)

    def _predict(self, work: Work) -> Outcome:
        with self._refusing(), self.part.predicting():
            outputs = self.run(work.tensors)
        return Outcome(work, outputs)

    def _step(self, inputs: Tensors, *, wants_gradients: bool) -> Tensors:
        """Let the top take its step; returns the gradients for the client. Refuses, unchanged, if one is not finite."""
        gradients = gradients_of(inputs) if wants_gradients else ()
        if not all(is_finite(each.float()) for each in gradients):
            self.part.zero_grad()
            raise refused("a gradient of the activations is not finite")
        try:
            self.part.step()
        except NonFiniteError as error:
            raise refused(str(error)) from error
        self._spoil_graphs()
        return gradients

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Inside, what modules raise of tensors that they cannot take refuses the batch."""
        try:
            yield
        except _FAULTS_OF_INPUT as error:
            self.part.zero_grad()
            raise refused(f"the server's part of the model cannot take this batch: {first_line(error)}") from error
        except RejectedError:
            self.part.zero_grad()
            raise

    def _leaves(self, tensors: Tensors) -> Tensors:
        moved = (each.to(self.part.device) for each in tensors)
        return tuple(each.requires_grad_() if each.is_floating_point() else each for each in moved)

    @contextlib.contextmanager
    def _as_then(self, known: _HalfDone) -> Iterator[None]:
        """Inside, the top draws what it drew for this batch before; its buffers, such as those of BatchNorm, have seen
        the batch already, and are as before afterwards.
        """
        buffers = [(each, each.clone()) for each in self.part.buffers]
        device = self.part.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            _set_draws(known.draws, device)
            try:
                yield
            finally:
                with torch.no_grad():
                    for buffer, before in buffers:
                        buffer.copy_(before)

    def _spoil_graphs(self) -> None:
        """What was kept of half done batches is of values that change now: these batches are computed once more."""
        for waiting in self._half_done.values():
            waiting.outputs = ()


def gradients_of(inputs: Tensors) -> Tensors:
    """The gradients of all floating-point inputs, zeros where nothing depends on one."""
    floating = (each for each in inputs if each.is_floating_point())
    return tuple(torch.zeros_like(each) if each.grad is None else each.grad for each in floating)


def refused(why: str) -> RejectedError:
    """A refusal of a batch that no other server would take either."""
    return RejectedError(why, code=RefusalCode.REFUSED)


def first_line(error: BaseException) -> str:
    """What an exception says, in short."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]


def _draws(device: torch.device) -> list[torch.Tensor]:
    """The states of the generators that modules on this device draw from."""
    states = [torch.random.get_rng_state()]
    return [*states, torch.cuda.get_rng_state(device)] if device.type == "cuda" else states


def _set_draws(states: list[torch.Tensor], device: torch.device) -> None:
    torch.random.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)
