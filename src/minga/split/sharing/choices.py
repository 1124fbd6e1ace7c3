"""What `split.variant` of a run spec stands for, on either side."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import SplitSection
from minga.split.computing.applying import Applying
from minga.split.computing.halves import ClientHalf
from minga.split.computing.loss import LossFunction
from minga.split.computing.one_top import OneTop
from minga.split.computing.parts import ModelPart, OptimizerChoice
from minga.split.leakage.no_peek import Penalty
from minga.split.sharing.averaged_part import AveragedPart
from minga.split.sharing.block_half import BlockHalf
from minga.split.sharing.blocks import Blocks
from minga.split.sharing.top_copies import TopCopies
from minga.split.sharing.turn_half import TurnHalf
from minga.split.sharing.turns import Turns
from minga.training.peer import Peer


def applying_for(section: SplitSection, part: ModelPart, loss: LossFunction) -> Applying:
    """What a server does with batches."""
    if section.variant == "vertical":
        return Blocks(part, loss, section.blocks)
    if section.variant == "round-robin":
        return Turns(part, loss, section.turn_batches)
    if section.variant == "splitfed-1":
        return TopCopies(part, loss)
    return OneTop(part, None if section.variant == "u-shaped" else loss)


def part_for(
    peer: Peer, modules: Sequence[nn.Module], optimizer: OptimizerChoice | None, max_grad_norm: float | None
) -> ModelPart:
    """A client's modules with their optimizer; in SplitFed averaged with those of others, once they have a state."""
    section = peer.spec.optimizer
    if peer.spec.split.averages_clients:
        return AveragedPart(modules, optimizer, section, max_grad_norm, peer)
    return ModelPart(modules, optimizer, section, max_grad_norm)


def half_for(
    section: SplitSection,
    bottom: nn.Module,
    head: nn.Module | None,
    part: ModelPart,
    loss: LossFunction,
    name: str,
    block: int | None = None,
    penalty: Penalty | None = None,
) -> ClientHalf:
    """What a client does with its parts. Raises `ConfigurationError` for a head or a block where there is none."""
    if block is not None and section.variant != "vertical":
        raise ConfigurationError(f'block={block} is for split.variant = "vertical", not for "{section.variant}"')
    if head is None and section.variant == "vertical":
        return BlockHalf(bottom, part, loss, section, name, block, penalty)
    if head is None and section.variant == "round-robin":
        return TurnHalf(bottom, part, loss, section, name, penalty)
    return ClientHalf(bottom, head, part, loss, section, name, penalty)
