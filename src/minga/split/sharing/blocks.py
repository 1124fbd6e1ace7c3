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
from typing import Final

import torch

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork, refused
from minga.split.computing.loss import LossFunction
from minga.split.computing.one_top import OneTop
from minga.split.computing.parts import ModelPart
from minga.split.wire.messages import Kind
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot

REMEMBERED: Final = 1024
"""Sets that were given up."""

SetKey = tuple[Kind, int]


class Blocks(Applying):
    """One top for the joined activations of `blocks` clients."""

    kinds: Collection[Kind] = ("block", "predict_block")

    def __init__(self, part: ModelPart, loss: LossFunction, blocks: int) -> None:
        self._top, self._blocks = OneTop(part, loss), blocks
        self._waiting: dict[SetKey, dict[int, BatchWork]] = {}
        self._at: dict[tuple[Kind, int], int] = {}
        """The set at which each block was last."""
        self._over = -1
        """The last set that was trained."""
        self._given_up: dict[SetKey, None] = {}

    @property
    def steps(self) -> int:
        """Steps of the top: sets that were trained."""
        return self._top.steps

    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Answers when the last block of a set is there."""
        try:
            self._check(work)
        except RejectedError as error:
            return [BatchOutcome(work, refusal=error)]
        key, block = (work.kind, work.place.sample_set), work.place.block
        self._at[work.kind, block] = work.place.sample_set
        works = self._waiting.setdefault(key, {})
        outcomes = [_given_up(works[block], "it was sent once more")] if block in works else []
        works[block] = work
        if len(works) == self._blocks:
            return [*outcomes, *self._compute(self._waiting.pop(key)), *self._give_up_impossible()]
        return [*outcomes, *self._give_up_impossible()]

    def capture(self) -> StateSnapshot:
        """The top as it is."""
        return self._top.capture()

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Whether it is of this top."""
        self._top.check(state)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Go on from there."""
        self._waiting.clear()
        self._top.restore(snapshot)

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
        if kind == "block":
            self._over = max(self._over, in_order[0].place.sample_set)
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
            if any(block not in works and self._at.get((kind, block), -1) > sample_set for block in range(self._blocks))
        ]
        return [outcome for key in gone for outcome in self._give_up(key, "a client is at a later one already")]

    def _give_up(self, key: SetKey, why: str) -> list[BatchOutcome]:
        self._given_up[key] = None
        while len(self._given_up) > REMEMBERED:
            del self._given_up[next(iter(self._given_up))]
        return [_given_up(work, why) for work in self._waiting.pop(key).values()]


def _given_up(work: BatchWork, why: str) -> BatchOutcome:
    text = f"sample set {work.place.sample_set} was given up: {why}"
    return BatchOutcome(work, refusal=RejectedError(text, code=RefusalCode.GIVEN_UP))
