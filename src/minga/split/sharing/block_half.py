"""Vertical cut, a client's side: one block of features of each sample set, and the labels at one of the clients."""

from __future__ import annotations

from typing import Any

from torch import nn

from minga.core.errors import ConfigurationError, SilentError
from minga.core.spec.sections import SplitSection
from minga.split.computing.halves import BatchFate, ClientHalf, Conversation, Question
from minga.split.computing.loss import LossFunction
from minga.split.computing.parts import ModelPart, as_value, run_module
from minga.split.leakage.no_peek import Penalty
from minga.split.wire.messages import BatchPlace
from minga.split.wire.tensors import EncodedTensors


class BlockHalf(ClientHalf):
    """The client that has block number `block`, of which there are `split.blocks`, counted from 0.

    Raises `ConfigurationError` for a block that there is not.
    """

    def __init__(
        self,
        bottom: nn.Module,
        part: ModelPart,
        loss: LossFunction,
        section: SplitSection,
        name: str,
        block: int | None,
        penalty: Penalty | None = None,
    ) -> None:
        super().__init__(bottom, None, part, loss, section, name, penalty)
        if block is None or not 0 <= block < section.blocks:
            raise ConfigurationError(f"block={block}: this run has blocks 0 to {section.blocks - 1}; say which is here")
        self._block, self._train_set, self._predict_set = block, 0, 0

    def train(self, inputs: Any, labels: Any = None, sample_set: int | None = None) -> Conversation[float | None]:
        """Train on this block of a sample set, with the `labels` if they are here. None if the set was given up."""
        number = self._train_set + 1 if sample_set is None else sample_set
        if number <= self._train_set:
            raise ConfigurationError(f"sample_set={number} comes after {self._train_set}: sets come in ascending order")
        self._train_set = number
        try:
            own = self._forward(inputs)
            given = EncodedTensors() if labels is None else self._encoded_labels(labels)
            place = BatchPlace(0, number, self._block)
            question = Question("block", self._encoded(own.cut), given, own.wants_gradients, place)
            return (yield from self._vanilla(own, question))
        finally:
            self.part.zero_grad()

    def predict(self, inputs: Any, sample_set: int | None = None) -> Conversation[Any]:
        """What the whole model makes of a sample set of which all clients ask for a prediction.

        Raises `SilentError` if one of them did not come in time.
        """
        number = self._predict_set = self._predict_set + 1 if sample_set is None else sample_set
        with self.part.predicting():
            cut = run_module(self._bottom, inputs)
        self._check(cut)
        answer = yield Question("predict_block", self._encoded(cut), place=BatchPlace(0, number, self._block))
        if isinstance(answer, BatchFate):
            raise SilentError(f"not all clients asked for a prediction of sample set {number} in time")
        return as_value(self._decoded(answer))
