"""Which peer of a run serves the other part of the model: what the board says, of the peers that the run spec names."""

from __future__ import annotations

from collections.abc import Collection

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.network.gossip.board import Board
from minga.network.interface import PeerId
from minga.split.wire.tensors import TensorWire
from minga.training.record_kinds import SplitServing


def check_split(spec: RunSpec) -> None:
    """Raise `ConfigurationError` if a run spec says nothing of split learning, or names codecs that cannot be had."""
    if not spec.split.is_on:
        raise ConfigurationError(
            f'the run {spec.name!r} has split.variant = "none"; write variant = "vanilla" or another one into [split]'
        )
    for choice in (spec.split.upload_codec, spec.split.download_codec):
        TensorWire(choice, spec.split.max_elements)


def allowed_servers(spec: RunSpec) -> Collection[str]:
    """The keys of the peers to which clients of this run send anything."""
    return spec.split.servers or tuple(filter(None, (spec.begun_by,)))


def find_server(board: Board, allowed: Collection[str], last: PeerId | None = None) -> PeerId | None:
    """The peer to send batches to: the `last` one as long as it serves, else the one with most steps."""
    serving = {  # the ones that stand by take nothing
        peer: record
        for peer, record in board.payloads(SplitServing).items()
        if peer in allowed and not record.stands_by
    }
    if last in serving:
        return last
    return max(serving, key=lambda peer: (serving[peer].step, peer), default=None)
