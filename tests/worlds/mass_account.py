"""An account of mass in rounds: what each peer brought, what each mean took up of it, and what each peer keeps."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from typing import Any

import pytest
import torch

from minga.averaging.allreduce.round import Round
from minga.averaging.codecs.layout import Chunk
from minga.averaging.codecs.residual import Residual
from minga.core.errors import NonFiniteError
from minga.network.interface import PeerId

FLOAT16_STEP = 2.0**-11


class MassAccount:
    """Looks into all rounds of one test, which are over one vector of `numel` elements with sparse uploads and means.

    Mass is a value times its samples. A peer that dies takes with it what it has not committed: its own lines of the
    account are not balanced any more, but what others took of it still is.
    """

    def __init__(self, numel: int, patch: pytest.MonkeyPatch) -> None:
        self.brought: dict[PeerId, torch.Tensor] = defaultdict(lambda: torch.zeros(numel, dtype=torch.float64))
        self.taken: dict[PeerId, torch.Tensor] = defaultdict(lambda: torch.zeros(numel, dtype=torch.float64))
        self.means: dict[str, torch.Tensor] = {}
        """The means of the rounds that count, by the ids of the rounds that made them."""
        self.lost = 0
        """Rounds whose result is not that of all members."""
        self._given: dict[tuple[str, PeerId], tuple[int, torch.Tensor]] = {}
        self._counted: dict[str, dict[int, frozenset[PeerId]]] = defaultdict(dict)
        self._chunks: dict[str, list[Chunk]] = {}
        self._committed: set[tuple[str, PeerId]] = set()
        self._install(patch)

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        begin, note_fate, keep, account = Round.__init__, Round.note_fate, Round.keep_residual, self

        def begun(self: Round, *arguments: Any, **named: Any) -> None:
            begin(self, *arguments, **named)
            account._chunks[self.plan.round_id] = self.chunks
            if self.own is not None and not self.plan.adopts:
                account._note_given(self)

        def noted(self: Round, index: int, counted: Collection[int]) -> None:
            note_fate(self, index, counted)
            account._counted[self.plan.round_id][index] = frozenset(self.members[each] for each in counted)

        def kept(self: Round) -> None:
            keep(self)
            account._note_commit(self)

        for name, patched in (("__init__", begun), ("note_fate", noted), ("keep_residual", kept)):
            patch.setattr(Round, name, patched)

    def _note_given(self, round: Round) -> None:
        assert round.own is not None
        chunks = [chunk for chunk in round.chunks if chunk.numel > 1]  # the last says that there were gradients
        assert all(chunk.codecs.encodes_own for chunk in chunks), "else it matters who reduces a chunk"
        try:
            shares = torch.cat([round.own.own_share(chunk) for chunk in round.chunks])
        except NonFiniteError:
            return
        self._given[round.plan.round_id, round.node.peer_id] = round.own.weight, shares

    def _note_commit(self, round: Round) -> None:
        """A member has the committed result; `plan.result_id` is the round that made it."""
        result_id, me = round.plan.result_id, round.node.peer_id
        if result_id in self.means and not torch.equal(self.means[result_id], round.result):
            self.lost += 1
        self.means.setdefault(result_id, round.result.clone())
        if round.own is not None:
            self.brought[me] += round.own.weight * round.own._vector.double()
        if (result_id, me) in self._given:
            self._committed.add((result_id, me))

    def balance(self, peers: Iterable[tuple[PeerId, Residual]]) -> float:
        """The largest share of what a peer brought that is neither in a mean nor kept by it; or the surplus."""
        for result_id, member in self._given:
            if result_id in self.means:
                self.taken[member] += self._share_taken(result_id, member)
        wrong = [
            (self.brought[peer] - self.taken[peer] - residual.mass.double()).norm() / self.brought[peer].norm()
            for peer, residual in peers
        ]
        return max(map(float, wrong))

    def _share_taken(self, result_id: str, member: PeerId) -> torch.Tensor:
        weight, shares = self._given[result_id, member]
        taken, mean = torch.zeros_like(shares, dtype=torch.float64), self.means[result_id]
        for index, chunk in enumerate(self._chunks[result_id]):
            if member in self._counted[result_id].get(index, frozenset()):
                part = slice(chunk.start, chunk.stop)
                kept = mean[part] != 0.0 if chunk.codecs.download.returns else torch.ones_like(mean[part])
                taken[part] = weight * shares[part].double() * kept
        return taken

    def check_means(self) -> None:
        """Each mean is the weighted mean of what it took up, but for the rounding of float16."""
        for result_id, mean in self.means.items():
            total, size, weight = torch.zeros(3, mean.numel(), dtype=torch.float64)
            for round_id, member in self._given:
                if round_id == result_id:
                    share = self._share_taken(result_id, member)
                    total, size = total + share, size + share.abs()
            for index, chunk in enumerate(self._chunks[result_id]):
                weights = [self._given[result_id, m][0] for m in self._counted[result_id][index]]
                weight[chunk.start : chunk.stop] = sum(weights)
            wanted = total / weight
            close = (mean.double() - wanted).abs() <= FLOAT16_STEP * wanted.abs() + 2.0**-22 * size / weight + 2.0**-25
            assert bool(close.all()), f"the mean of {result_id} is not what it took up"
