"""Round-robin, a client's side: wait for the turn, train so many batches, and hand the part over to the next client."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from minga.core.spec.sections import SplitSection
from minga.split.computing.halves import Answer, BatchFate, ClientHalf, Conversation, Question
from minga.split.computing.loss import LossFunction
from minga.split.computing.parts import ModelPart
from minga.split.leakage.no_peek import Penalty
from minga.split.sharing.handed_part import WrongPartError, pack, unpack
from minga.split.wire.tensors import EncodedTensors, InvalidTensorsError

logger = logging.getLogger("minga.split")


class TurnHalf(ClientHalf):
    """A client that takes turns of `split.turn_batches`; with `split.hand_over` it goes on from the part of the client
    before it. What its optimizer keeps is its own.
    """

    def __init__(
        self,
        bottom: nn.Module,
        part: ModelPart,
        loss: LossFunction,
        section: SplitSection,
        name: str,
        penalty: Penalty | None = None,
    ) -> None:
        super().__init__(bottom, None, part, loss, section, name, penalty)
        self._left = 0
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
