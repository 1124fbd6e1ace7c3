"""Round-robin, the server's side: one client trains at a time, for so many batches; then comes the next.

    turn ─▶ queue ─▶ granted: the part that was handed over last ─▶ train, train, … ─▶ hand_over ─▶ next in the queue

Clients queue in the order in which they ask. The one whose turn it is loses it when it does not come in time, or begins
anew; what it trained stays in the top. The part that goes from client to client is kept as it came, unread: the next
client checks its digest. It lies in the file of the top, and a server that is started again goes on with both. A server
that has the clients' part itself gives it to the first client, and takes no part of other sizes; without it the first
client goes on with what it has.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from blake3 import blake3
from torch import nn

from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork, OneTop, refused
from minga.split.computing.halves import Answer, BatchFate, ClientHalf, Conversation, Question
from minga.split.computing.parts import LossFunction, ModelPart, Tensors
from minga.split.wire.messages import Kind
from minga.split.wire.tensors import EncodedTensors, InvalidTensorsError

MAX_QUEUE: Final = 256


class Turns(Applying):
    """One top, which the clients train in turns of `batches`."""

    kinds: Collection[Kind] = ("predict", "train", "turn", "hand_over")

    def __init__(self, part: ModelPart, loss: LossFunction, batches: int, bottom: nn.Module | None = None) -> None:
        super().__init__(part)
        self._top, self._batches = OneTop(part, loss), batches
        self._queue: deque[BatchWork] = deque()
        self._holder: str | None = None
        self._left = 0
        self._handed: tuple[Tensors, str] = ((), "") if bottom is None else pack(bottom)
        self._sizes = None if bottom is None else _sizes(self._handed[0])

    def save(self, path: Path) -> None:
        """The top, with the clients' part that fits it."""
        tensors, digest = self._handed
        beside = {str(index): each for index, each in enumerate(tensors)}
        if digest:
            beside["digest"] = torch.tensor(list(bytes.fromhex(digest)), dtype=torch.uint8)
        self.part.save(path, beside)

    def load(self, path: Path) -> None:
        """See `save`."""
        beside = dict(self.part.load(path) or {})
        if (digest := beside.pop("digest", None)) is not None:
            self._handed = tuple(beside[name] for name in sorted(beside)), bytes(digest.tolist()).hex()

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """A "turn" is answered when it is granted, all others at once."""
        if work.kind == "predict":
            return self._top.apply(work)
        if work.kind == "turn":
            return self._ask(work)
        if work.client != self._holder:
            return [BatchOutcome(work, refusal=_lost("it is the turn of another client"))]
        if work.kind == "hand_over":
            self._holder = None
            if work.tensors and self._sizes not in (None, _sizes(work.tensors)):
                why = f"this part has {_sizes(work.tensors)} values, and that of the run {self._sizes}"
                return [BatchOutcome(work, refusal=refused(why)), *self._grant_next()]
            if work.tensors:
                self._handed = work.tensors, work.digest
            return [BatchOutcome(work), *self._grant_next()]
        if self._left < 1:
            return [BatchOutcome(work, refusal=_lost(f"a turn has {self._batches} batches"))]
        (outcome,) = self._top.apply(work)
        self._left -= outcome.applied
        return [outcome]

    def half_done(self) -> Collection[str]:
        """The client whose turn it is."""
        return [] if self._holder is None else [self._holder]

    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """It loses its turn, or its place in the queue."""
        outcomes = self._leave_queue(client)
        if client == self._holder:
            self._holder = None
            return [*outcomes, *self._grant_next()]
        return outcomes

    def _ask(self, work: BatchWork) -> Sequence[BatchOutcome]:
        if len(self._queue) >= MAX_QUEUE:
            return [
                BatchOutcome(work, refusal=RejectedError("too many clients wait for their turn", code=RefusalCode.BUSY))
            ]
        outcomes = self._leave_queue(work.client)
        if work.client == self._holder:  # it does not know, and goes on with what it has
            return [*outcomes, BatchOutcome(work)]
        self._queue.append(work)
        return outcomes if self._holder is not None else [*outcomes, *self._grant_next()]

    def _leave_queue(self, client: str) -> list[BatchOutcome]:
        gone = [work for work in self._queue if work.client == client]
        self._queue = deque(work for work in self._queue if work.client != client)
        return [BatchOutcome(work, refusal=_lost("this client asked once more")) for work in gone]

    def _grant_next(self) -> Sequence[BatchOutcome]:
        if not self._queue:
            return []
        work = self._queue.popleft()
        self._holder, self._left = work.client, self._batches
        tensors, digest = self._handed
        return [BatchOutcome(work, tensors, digest=digest)]


def _sizes(tensors: Tensors) -> list[int]:
    return [each.numel() for each in tensors]


def _lost(why: str) -> RejectedError:
    return RejectedError(why, code=RefusalCode.GIVEN_UP)


# ---- A client's part on its way to the next client: two flat vectors, and the digest of what they stand for.
#
#     module ─▶ floating-point tensors as one float32 vector, whole numbers as one int64 vector, digest ─▶ next module
#
# The digest covers names, shapes and types of all parameters and persistent buffers, and the values as they travel. So
# a part arrives as it was sent, or not at all, and at a module of the same kind only.


class WrongPartError(ValueError):
    """What came is not what was sent, or belongs to another module."""


def pack(module: nn.Module) -> tuple[Tensors, str]:
    """The vectors (one or two, none for a module without state), and the digest, 64 hexadecimal digits."""
    state = module.state_dict()
    floating = [each.detach().to("cpu", torch.float32).flatten() for each in _of(state, floating=True)]
    whole = [each.detach().to("cpu", torch.int64).flatten() for each in _of(state, floating=False)]
    vectors = tuple(torch.cat(each) for each in (floating, whole) if each)
    vectors = tuple(each for each in vectors if each.numel())
    return vectors, _digest(module, vectors)


def unpack(module: nn.Module, vectors: Sequence[torch.Tensor], digest: str) -> None:
    """Put what `pack` made of another module of this kind into this one, in place.

    Raises `WrongPartError`, with nothing changed, for anything else.
    """
    state = module.state_dict()
    groups = [
        found for found in (_of(state, floating=True), _of(state, floating=False)) if sum(e.numel() for e in found)
    ]
    if [each.numel() for each in vectors] != [sum(e.numel() for e in found) for found in groups]:
        raise WrongPartError("it has other sizes than the clients' part here")
    if _digest(module, vectors) != digest:
        raise WrongPartError("its digest is another one")
    with torch.no_grad():
        for vector, found in zip(vectors, groups, strict=True):
            start = 0
            for each in found:
                each.copy_(vector[start : start + each.numel()].view(each.shape))
                start += each.numel()


def _of(state: dict[str, torch.Tensor], *, floating: bool) -> list[torch.Tensor]:
    return [state[name] for name in sorted(state) if state[name].is_floating_point() == floating]


def _digest(module: nn.Module, vectors: Sequence[torch.Tensor]) -> str:
    hasher = blake3()
    for name, tensor in sorted(module.state_dict().items()):
        hasher.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
    for vector in vectors:
        hasher.update(as_bytes(vector.contiguous().view(torch.uint8)))
    return hasher.hexdigest()


# ---- Round-robin, a client's side: wait for the turn, train so many batches, and hand the part over to the next
# client.


logger = logging.getLogger("minga.split")


class TurnHalf(ClientHalf):
    """A client that takes turns of `split.turn_batches`; with `split.hand_over` it goes on from the part of the client
    before it. What its optimizer keeps is its own.
    """

    _left = 0
    """Batches of the present turn that are to come; 0 while it is not this client's turn."""

    def train(self, inputs: Any, labels: Any) -> Conversation[float | None]:
        """Train on one batch, in the turn of this client. None if the batch was given up, as by one that came too late
        for its turn.
        """
        if not self._left:
            yield from self._wait_for_turn()
        value = yield from super().train(inputs, labels)
        self._left = 0 if value is None else self._left - 1
        if value is not None and not self._left:
            yield from self.end_turn()
        return value

    def end_turn(self) -> Conversation[None]:
        """Hand over to the next client, at the end of a turn or in the middle of it."""
        self._left = 0
        vectors, digest = pack(self._bottom) if self._section.hand_over else ((), "")
        question = Question("hand_over", self._labels.encode(vectors, ""), digest=digest)
        while (yield question) is BatchFate.NOT_APPLIED:
            pass

    def leave(self) -> Conversation[None]:
        """The client ends: nobody has to wait for it."""
        if self._left:
            yield from self.end_turn()

    def _wait_for_turn(self) -> Conversation[None]:
        while not isinstance(answer := (yield Question("turn", EncodedTensors())), Answer):
            pass
        if answer.reply.message.tensors:
            try:
                self._labels.check(answer.reply.message.tensors)
                unpack(self._bottom, self._labels.decode(answer.reply.encoded), answer.reply.message.digest)
            except (InvalidTensorsError, WrongPartError) as error:  # nobody could train any more if this one failed
                logger.warning("what was handed over cannot be used, this client goes on with its own: %s", error)
        self._left = self._section.turn_batches
