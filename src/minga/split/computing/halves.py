"""What a client does with its parts of the model, as conversations: questions go out, answers come back.

A conversation is a generator without a network. The client drives it on the thread that trains (`split/client.py`), and
a simulated one on its event loop (`converse`). The gradients meet the parameters on this side only when the server has
answered for good, so a batch that is given up changes nothing here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeVar

import torch
from torch import nn

from minga.core.errors import ConfigurationError, ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import SplitSection
from minga.split.computing.parts import (
    KeptBuffers,
    LossFunction,
    ModelPart,
    Tensors,
    as_tensors,
    as_value,
    run_module,
)
from minga.split.no_peek import Penalty
from minga.split.wire.messages import CHANGES_NOTHING, NOWHERE, BatchPlace, BatchReply, Kind
from minga.split.wire.tensors import EncodedReply, EncodedTensors, InvalidTensorsError, TensorWire

NOTHING: Final = EncodedTensors()
MOST_BEGINNINGS: Final = 20
"""A batch that has begun anew so often, by the word of servers, is not for them."""


@dataclass(frozen=True, eq=False)
class Question:
    """One request, but for session and number."""

    kind: Kind
    tensors: EncodedTensors
    labels: EncodedTensors = NOTHING
    wants_gradients: bool = True
    place: BatchPlace = NOWHERE
    digest: str = ""

    @property
    def changes(self) -> bool:
        """Whether it may change anything at the server."""
        return self.kind not in CHANGES_NOTHING


class BatchFate(Enum):
    """What became of a request to which there is no answer."""

    NOT_APPLIED = "not applied: the batch can begin anew"
    GIVEN_UP = "it may have been applied, and its gradients are lost"


@dataclass(frozen=True)
class Answer:
    """What `peer`, the server, answered."""

    peer: str
    reply: EncodedReply


T = TypeVar("T")
Conversation = Generator[Question, "Answer | BatchFate", T]


async def converse(conversation: Conversation[T], ask: Callable[[Question], Awaitable[Answer | BatchFate]]) -> T:
    """Lead a conversation on an event loop."""
    try:
        question = next(conversation)
        while True:
            question = conversation.send(await ask(question))
    except StopIteration as end:
        result: T = end.value
        return result
    finally:
        conversation.close()


@dataclass(frozen=True, eq=False)
class _Batch:
    """What the bottom made of one batch, and what the client's own loss says of it."""

    cut: Tensors
    wants_gradients: bool
    penalty: torch.Tensor | None
    kept: KeptBuffers


class ClientHalf:
    """A client's parts: `bottom`, and `head` if the run is U-shaped; `part` trains both.

    `name` is the client's own, from which follows what its codecs draw. A `penalty` is added to the loss of each batch
    for the bottom alone; nobody else sees it, and it is not in the loss that `train` returns. Raises
    `ConfigurationError` if there is a head where the server has the labels, or none where it has not.
    """

    def __init__(
        self,
        bottom: nn.Module,
        head: nn.Module | None,
        part: ModelPart,
        loss: LossFunction,
        section: SplitSection,
        name: str,
        penalty: Penalty | None = None,
    ) -> None:
        if (head is not None) != (section.variant == "u-shaped"):
            wanted = "needs a head" if head is None else "has no head: the server has the end of the model"
            raise ConfigurationError(f'a client of a run with split.variant = "{section.variant}" {wanted}')
        self.part, self._bottom, self._head, self._loss = part, bottom, head, loss
        self._section, self._name, self._penalty = section, name, penalty
        self._upload = TensorWire(section.upload_codec, section.max_elements)
        self._download = TensorWire(section.download_codec, section.max_elements)
        self._labels = TensorWire("float32", section.max_elements)
        self._sent = 0

    def train(self, inputs: Any, labels: Any) -> Conversation[float | None]:
        """Train on one batch. Returns its mean loss, None if the batch was given up: then no part here has changed."""
        with self._batch(inputs) as own:
            sent = self._encoded(own.cut)
            if self._head is None:
                question = Question("train", sent, self._encoded_labels(labels), own.wants_gradients, self._place())
                return (yield from self._vanilla(own, question))
            return (yield from self._u_shaped(self._head, own, sent, labels))

    def predict(self, inputs: Any) -> Conversation[Any]:
        """What the whole model makes of the inputs, without learning from them."""
        with self.part.predicting():
            cut = run_module(self._bottom, inputs)
        self._check(cut)
        answer = yield Question("predict", self._encoded(cut))
        if isinstance(answer, BatchFate):
            raise ProtocolError("a request that changes nothing was said to be in doubt")
        outputs = self._decoded(answer)
        if self._head is None:
            return as_value(outputs)
        with self.part.predicting():
            return as_value(run_module(self._head, self.part.adapted(outputs)))

    def evaluate(self, inputs: Any, labels: Any) -> Conversation[float]:
        """The mean loss of a batch, without learning from it; the labels stay here."""
        outputs = yield from self.predict(inputs)
        with torch.no_grad():
            return float(self._loss(outputs, labels))

    # ---- inner workings

    @contextlib.contextmanager
    def _batch(self, inputs: Any) -> Iterator[_Batch]:
        """Run the bottom on a batch, to learn from it; afterwards there are no gradients, and if it was given up or
        failed, the buffers are as before.

        Raises `ConfigurationError` for too many samples, and `NonFiniteError` if the batch spoils a buffer.
        """
        try:
            with self.part.keeping_buffers() as kept:
                cut = run_module(self._bottom, inputs)
                self._check(cut)
                kept.check()
                wants = any(each.requires_grad for each in cut)
                penalty = self._penalty(inputs, as_value(cut)) if wants and self._penalty is not None else None
                yield _Batch(cut, wants, penalty, kept)
        finally:
            self.part.zero_grad()

    def _vanilla(self, own: _Batch, question: Question) -> Conversation[float | None]:
        for _ in range(MOST_BEGINNINGS):
            if (answer := (yield question)) is not BatchFate.NOT_APPLIED:
                break
        else:
            raise never_applied()
        if isinstance(answer, BatchFate):
            own.kept.put_back()
            return None
        if answer.reply.message.loss is None:
            raise ProtocolError("a batch came back without its loss", peer=answer.peer)
        self._finish(own, answer, answer.reply.message.loss)
        return answer.reply.message.loss

    def _u_shaped(self, head: nn.Module, own: _Batch, sent: EncodedTensors, labels: Any) -> Conversation[float | None]:
        for _ in range(MOST_BEGINNINGS):
            answer = yield Question("forward", sent, wants_gradients=own.wants_gradients)
            if isinstance(answer, BatchFate):
                continue  # it changes nothing, whatever became of it
            middle = self._decoded(answer)
            for each in middle:
                if each.is_floating_point():
                    each.requires_grad_()
            outputs = as_value(run_module(head, self.part.adapted(middle)))
            loss = self._loss(outputs, labels)
            loss.backward()  # type: ignore[no-untyped-call]
            floating = [each for each in middle if each.is_floating_point()]
            if not floating:
                raise ProtocolError("the server's part of the model returned nothing to learn from", peer=answer.peer)
            gradients = [torch.zeros_like(each) if each.grad is None else each.grad for each in floating]
            own.kept.check()  # the head's
            answer = yield Question("backward", self._encoded(gradients), wants_gradients=own.wants_gradients)
            if answer is BatchFate.GIVEN_UP:
                own.kept.put_back()
                return None
            if isinstance(answer, Answer):
                value = float(loss.detach())
                self._finish(own, answer, value)
                return value
            self.part.zero_grad()
        raise never_applied()

    def _finish(self, own: _Batch, answer: Answer, loss: float) -> None:
        """Lead the gradients that came back through the bottom, and step."""
        if own.wants_gradients:
            floating = [each for each in own.cut if each.is_floating_point()]
            gradients = self._decoded(answer)
            if [(each.shape, each.dtype) for each in gradients] != [(each.shape, each.dtype) for each in floating]:
                raise ProtocolError("gradients of other shapes or types than the activations", peer=answer.peer)
            pairs: list[tuple[torch.Tensor, torch.Tensor | None]] = [
                (tensor, gradient.to(tensor.device))
                for tensor, gradient in zip(floating, gradients, strict=True)
                if tensor.requires_grad
            ]
            if own.penalty is not None and own.penalty.requires_grad:
                pairs.append((own.penalty, None))
            torch.autograd.backward([tensor for tensor, _ in pairs], [gradient for _, gradient in pairs])
        self.part.step(own.cut[0].shape[0], loss)

    def _check(self, cut: Tensors) -> None:
        if not cut[0].dim() or cut[0].shape[0] > self._section.max_samples:
            raise ConfigurationError(
                f"a batch has from 1 to split.max_samples = {self._section.max_samples} samples, the length of the "
                f"first axis; this one has the shape {tuple(cut[0].shape)}"
            )

    def _place(self) -> BatchPlace:
        return BatchPlace(round=self.part.round)

    def _encoded_labels(self, labels: Any) -> EncodedTensors:
        return self._labels.encode(as_tensors(labels), "")

    def _encoded(self, tensors: Sequence[torch.Tensor]) -> EncodedTensors:
        self._sent += 1
        return self._upload.encode(tensors, f"upload {self._name} {self._sent}")

    def _decoded(self, answer: Answer) -> Tensors:
        """The tensors of an answer, where this client computes. Raises `ProtocolError` if they are none."""
        try:
            self._download.check(answer.reply.message.tensors)
            tensors = self._download.decode(answer.reply.encoded)
        except InvalidTensorsError as error:
            raise ProtocolError(str(error), peer=answer.peer) from error
        device = self.part.device
        return tuple(each.to(device) for each in tensors)


def never_applied() -> RejectedError:
    """The end of a batch that began anew again and again."""
    return RejectedError(f"{MOST_BEGINNINGS} times this batch had to begin anew", code=RefusalCode.SESSION)


def check_reply(message: BatchReply, wire: TensorWire, peer: str) -> None:
    """Raise `ProtocolError` unless the tensors that are announced are within the limits: before memory is reserved."""
    try:
        wire.check(message.tensors)
    except InvalidTensorsError as error:
        raise ProtocolError(str(error), peer=peer) from error
