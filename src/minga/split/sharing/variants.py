"""What `[split]` of a run spec stands for, on either side."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import SplitSection
from minga.network.interface import PeerId
from minga.split.computing.applying import Applying, OneTop
from minga.split.computing.halves import ClientHalf
from minga.split.computing.parts import LossFunction, ModelPart, OptimizerChoice
from minga.split.no_peek import Penalty
from minga.split.sharing.round_robin import TurnHalf, Turns
from minga.split.sharing.splitfed import AveragedPart, TopCopies
from minga.split.sharing.vertical import BlockHalf, Blocks
from minga.split.wire.tensors import TensorWire
from minga.training.peer import Peer


def check_split(spec: RunSpec) -> None:
    """Raise `ConfigurationError` if a run spec says nothing of split learning, or names codecs that cannot be had."""
    if not spec.split.is_on:
        raise ConfigurationError(
            f'the run {spec.name!r} has split.variant = "none"; write variant = "vanilla" or another one into [split]'
        )
    for choice in (spec.split.upload_codec, spec.split.download_codec):
        TensorWire(choice, spec.split.max_elements)


def check_schedule(spec: RunSpec) -> None:
    """Raise `ConfigurationError` unless the learning rate of the run spec is the same in all steps: the top takes one
    for each batch of every client, a bottom for its own batches, or only in each round.
    """
    section = spec.optimizer
    if section.schedule != "constant" or section.warmup_steps:
        raise ConfigurationError(
            f'optimizer.schedule = "{section.schedule}" with warmup_steps = {section.warmup_steps}: the parts of a cut '
            'model do not take equally many steps; write schedule = "constant" and warmup_steps = 0'
        )


def server_of(spec: RunSpec) -> PeerId | None:
    """The one peer to which clients of this run send anything; None while nobody has begun it."""
    key = spec.split.server or spec.begun_by
    return PeerId(key) if key else None


def applying_for(
    section: SplitSection, part: ModelPart, loss: LossFunction, bottom: nn.Module | None = None
) -> Applying:
    """What a server does with batches. Raises `ConfigurationError` for a bottom that would never be handed over."""
    if bottom is not None and (section.variant != "round-robin" or not section.hand_over):
        raise ConfigurationError('bottom=… is for split.variant = "round-robin" with split.hand_over = true')
    if section.variant == "vertical":
        return Blocks(part, loss, section.blocks)
    if section.variant == "round-robin":
        return Turns(part, loss, section.turn_batches, bottom)
    if section.variant == "splitfed-1":
        return TopCopies(part, loss)
    return OneTop(part, None if section.variant == "u-shaped" else loss)


def part_for(
    peer: Peer, modules: Sequence[nn.Module], optimizer: OptimizerChoice | None, max_grad_norm: float | None
) -> ModelPart:
    """A client's modules with their optimizer; in SplitFed averaged with those of others, once they have a state."""
    section = peer.spec.optimizer
    if peer.spec.split.averages_clients:
        if optimizer is None:
            check_schedule(peer.spec)
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
    half = TurnHalf if section.variant == "round-robin" else ClientHalf
    return half(bottom, head, part, loss, section, name, penalty)
