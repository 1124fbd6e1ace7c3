"""Vertical cut, the server's side: clients have blocks of features of the same samples.

    block 0 of set 7 ─┐
    block 1 of set 7 ─┼─▶ z = (z_0, z_1, …) along axis 1 ─▶ top, loss ─▶ dL/dz, cut as z was joined ─▶ to each its own
    block 2 of set 7 ─┘     one of them has the labels

Clients go through the sample sets in ascending order. A set waits until all its blocks are there. It is given up, and
all who wait in it are told to go on, when one of its clients has gone on to a later set, began anew, or does not come
in time. Sets that were given up lately are remembered, for those that come to them later.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Final

import torch
from torch import nn

from minga.core.errors import ConfigurationError, RejectedError, SilentError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import SplitSection
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork, OneTop, refused
from minga.split.computing.halves import BatchFate, ClientHalf, Conversation, Question
from minga.split.computing.parts import LossFunction, ModelPart, as_value, run_module
from minga.split.no_peek import Penalty
from minga.split.wire.messages import BatchPlace, Kind
from minga.split.wire.tensors import EncodedTensors

REMEMBERED: Final = 1024
"""Sets that were given up."""

MOST_CLIENTS: Final = 64
"""Those whose places are known of each block."""

SetKey = tuple[Kind, int]


class Blocks(Applying):
    """One top for the joined activations of `blocks` clients."""

    kinds: Collection[Kind] = ("block", "predict_block")

    def __init__(self, part: ModelPart, loss: LossFunction, blocks: int) -> None:
        super().__init__(part)
        self._top, self._blocks = OneTop(part, loss), blocks
        self._waiting: dict[SetKey, dict[int, BatchWork]] = {}
        self._at: dict[tuple[Kind, int], dict[str, int]] = {}
        """The set at which each client was last that sent this block since a set of it was computed."""
        self._over = -1
        """The last set that was trained."""
        self._given_up: dict[SetKey, None] = {}

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Answers when the last block of a set is there."""
        try:
            self._check(work)
        except RejectedError as error:
            return [BatchOutcome(work, refusal=error)]
        key, block = (work.kind, work.place.sample_set), work.place.block
        self._note_at(work)
        works = self._waiting.setdefault(key, {})
        outcomes = [_given_up(works[block], "it was sent once more")] if block in works else []
        works[block] = work
        if len(works) == self._blocks:
            return [*outcomes, *self._compute(self._waiting.pop(key)), *self._give_up_impossible()]
        return [*outcomes, *self._give_up_impossible()]

    def half_done(self) -> Collection[str]:
        """The clients that wait for others."""
        return {work.client for works in self._waiting.values() for work in works.values()}

    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """Give up the sets in which it waits."""
        keys = [key for key, works in self._waiting.items() if any(work.client == client for work in works.values())]
        return [outcome for key in keys for outcome in self._give_up(key, "not all blocks came in time")]

    def _check(self, work: BatchWork) -> None:
        block, sample_set = work.place.block, work.place.sample_set
        if block >= self._blocks:
            raise refused(f"block {block}, where split.blocks = {self._blocks}")
        if len(work.tensors) != 1 or work.tensors[0].dim() < 2 or not work.tensors[0].is_floating_point():
            raise refused("a block is one floating-point tensor of samples and features")
        other = self._waiting.get((work.kind, sample_set), {}).get(block)
        if other is not None and other.client != work.client:
            raise refused(f"block {block} of set {sample_set} came from another client already")
        is_over = work.kind == "block" and sample_set <= self._over
        if is_over or (work.kind, sample_set) in self._given_up:
            raise RejectedError(f"sample set {sample_set} is over", code=RefusalCode.GIVEN_UP)

    def _compute(self, works: dict[int, BatchWork]) -> Sequence[BatchOutcome]:
        in_order = [works[block] for block in range(self._blocks)]
        kind = in_order[0].kind
        labelled = [each for each in in_order if each.labels]
        shapes = {(each.tensors[0].shape[0], *each.tensors[0].shape[2:]) for each in in_order}
        why = None
        if kind == "block" and len(labelled) != 1:
            why = f"{len(labelled)} clients sent labels of this sample set, and one has to"
        elif len(shapes) > 1:
            why = "blocks of one sample set have other numbers of samples, or other further axes"
        if why is not None:
            return [BatchOutcome(each, refusal=refused(why)) for each in in_order]
        whole = BatchWork(
            in_order[0].ticket,
            in_order[0].client,
            "train" if kind == "block" else "predict",
            (torch.cat([each.tensors[0] for each in in_order], dim=1),),
            labelled[0].labels if labelled else (),
            any(each.wants_gradients for each in in_order),
        )
        (outcome,) = self._top.apply(whole)
        if outcome.refusal is None:
            self._at |= {(kind, each.place.block): {each.client: each.place.sample_set} for each in in_order}
            self._over = max(self._over, in_order[0].place.sample_set if kind == "block" else -1)
        if kind == "predict_block" or outcome.refusal is not None:
            return [BatchOutcome(each, outcome.tensors, refusal=outcome.refusal) for each in in_order]
        return self._cut(in_order, outcome)

    def _cut(self, in_order: Sequence[BatchWork], outcome: BatchOutcome) -> Sequence[BatchOutcome]:
        """To each block its part of the gradient. The batch counts as one: that of the owner of the labels."""
        widths = [each.tensors[0].shape[1] for each in in_order]
        parts = torch.split(outcome.tensors[0], widths, dim=1) if outcome.tensors else [None] * self._blocks
        return [
            BatchOutcome(
                each,
                (part,) if part is not None and each.wants_gradients else (),
                outcome.loss,
                applied=bool(each.labels),
            )
            for each, part in zip(in_order, parts, strict=True)
        ]

    def _give_up_impossible(self) -> list[BatchOutcome]:
        """Give up the sets to which a missing block will not come any more: its client is at a later one."""
        gone = [
            (kind, sample_set)
            for (kind, sample_set), works in self._waiting.items()
            if any(block not in works and self._is_past(kind, block, sample_set) for block in range(self._blocks))
        ]
        return [outcome for key in gone for outcome in self._give_up(key, "a client is at a later one already")]

    def _note_at(self, work: BatchWork) -> None:
        clients = self._at.setdefault((work.kind, work.place.block), {})
        clients[work.client] = work.place.sample_set
        while len(clients) > MOST_CLIENTS:
            del clients[next(iter(clients))]

    def _is_past(self, kind: Kind, block: int, sample_set: int) -> bool:
        """Whether all who may have this block are at a later set; one who does not have it can only claim that."""
        clients = self._at.get((kind, block), {})
        return bool(clients) and all(at > sample_set for at in clients.values())

    def _give_up(self, key: SetKey, why: str) -> list[BatchOutcome]:
        self._given_up[key] = None
        while len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        return [_given_up(work, why) for work in self._waiting.pop(key).values()]


def _given_up(work: BatchWork, why: str) -> BatchOutcome:
    text = f"sample set {work.place.sample_set} was given up: {why}"
    return BatchOutcome(work, refusal=RejectedError(text, code=RefusalCode.GIVEN_UP))


# ---- Vertical cut, a client's side: one block of features of each sample set, and the labels at one of the clients.


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
        with self._batch(inputs) as own:
            given = EncodedTensors() if labels is None else self._encoded_labels(labels)
            place = BatchPlace(0, number, self._block)
            question = Question("block", self._encoded(own.cut), given, own.wants_gradients, place)
            return (yield from self._vanilla(own, question))

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
