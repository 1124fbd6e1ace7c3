"""What a planned run fixes: its peers, its model, and how they train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from minga.averaging.solver.division import PeerRates, SwarmRates
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import OptimizerSection
from minga.planner.device_memory import FILLED, device_memory, estimated_passes, state_bytes
from minga.planner.devices import HOST_S_PER_PARAMETER, THIS, Measurement, Precision, look_up
from minga.planner.model_facts import ModelFacts
from minga.planner.peer_text import PeerClass


@dataclass(frozen=True)
class Volunteers:
    """A class of peers with what is known of its device: speed (0 for auxiliaries), micro-batch, seconds of an update.

    `speed_origin` is "given", "measured" or "estimate" (or "none", for auxiliaries).
    """

    peers: PeerClass
    name: str
    samples_per_s: float
    micro_batch: int
    update_s: float
    speed_origin: str
    memory_bytes: int | None = None
    in_half: bool = False
    """Whether it computes in half precision."""
    has_to_be_told: bool = False
    """Whether the micro-batch is smaller than usual for want of memory, and `minga join` does not find that out."""

    @property
    def computes(self) -> bool:
        """Whether they have gradients."""
        return self.samples_per_s > 0.0


@dataclass(frozen=True)
class PlannedRun:
    """What a run fixes: who takes part in what, and how."""

    volunteers: tuple[Volunteers, ...]
    model: ModelFacts
    optimizer: OptimizerSection
    target_batch_size: int
    strategy: StrategyChoice
    codec: str
    download_codec: str | None = None

    @property
    def state_bytes(self) -> int:
        """What a newcomer fetches."""
        return state_bytes(self.model.tensors, self.optimizer, self.strategy)

    @property
    def round_batch_size(self) -> int:
        """Samples with which a round closes: with fragments, the part of one in the target batch."""
        return max(1, self.target_batch_size // self.strategy.facts.fragments)


def spec_of(planned: PlannedRun) -> RunSpec:
    """A run spec with what is fixed, for the rules of what may be combined; SGD is plain if a strategy needs that."""
    optimizer: dict[str, Any] = {"name": planned.optimizer.name}
    if planned.strategy.facts.owns_optimizer and planned.optimizer.name == "sgd":
        optimizer |= {"momentum": 0.0, "max_grad_norm": "off"}
    sections: dict[str, Any] = {
        "training": {"strategy": planned.strategy.name, "target_batch_size": planned.target_batch_size},
        "strategy": {planned.strategy.name: dict(planned.strategy.table)} if planned.strategy.table else {},
        "averaging": {"codec": planned.codec, "download_codec": planned.download_codec},
        "optimizer": optimizer,
    }
    return RunSpec.from_mapping({"name": "planned", **sections})


def swarm_rates(volunteers: Sequence[Volunteers]) -> SwarmRates:
    """The peers one by one, as the planner takes them, in the order of their classes."""
    peers: list[PeerRates] = []
    for each in volunteers:
        one = PeerRates(
            upload=each.peers.upload,
            download=each.peers.download,
            samples_per_second=each.samples_per_s,
            sends=each.computes,
            aggregates=each.peers.role != "client",
        )
        peers += [one] * each.peers.count
    return SwarmRates(tuple(peers))


# ---- From peers as they were described to peers as plans take them: speeds, micro-batches and memory of their
# devices.


USUAL_MICRO_BATCH: Final = 64


def resolve(
    classes: Sequence[PeerClass],
    model: ModelFacts,
    optimizer: OptimizerSection,
    target_batch_size: int,
    *,
    precision: Precision = "auto",
    measured: Sequence[Measurement] = (),
) -> tuple[Volunteers, ...]:
    """The classes with the speeds of their devices; `measured` is what is known of this machine.

    Without a micro-batch of its own a class gets what `minga join` would take, or the largest power of two below that
    for which its device has memory. Raises `ConfigurationError`, naming the place, for devices that are not known.
    """
    found = []
    for each, name in zip(classes, _names(classes), strict=True):
        if each.role == "auxiliary":
            found.append(Volunteers(each, name, 0.0, 1, model.parameters * HOST_S_PER_PARAMETER, "none"))
            continue
        try:
            found.append(_trainer(each, name, model, optimizer, target_batch_size, precision, measured))
        except ConfigurationError as error:
            raise ConfigurationError(f"--peers: at character {each.place}, {each.text!r}: {error}") from error
    return tuple(found)


def _names(classes: Sequence[PeerClass]) -> list[str]:
    """What the classes are called: by device or role, numbered where that is not enough."""
    plain = ["aux" if each.role == "auxiliary" else each.device or each.role for each in classes]
    plain = [
        f"{name} client" if each.role == "client" and each.device else name
        for name, each in zip(plain, classes, strict=True)
    ]
    often, seen = Counter(plain), Counter[str]()
    names = []
    for name in plain:
        seen[name] += 1
        names.append(f"{name} {seen[name]}" if often[name] > 1 else name)
    return names


def _trainer(
    each: PeerClass,
    name: str,
    model: ModelFacts,
    optimizer: OptimizerSection,
    target_batch_size: int,
    precision: Precision,
    measured: Sequence[Measurement],
) -> Volunteers:
    memory, speed, origin = each.memory_bytes, each.samples_per_s, "given"
    finds_out, in_half = True, precision == "half"
    micro_batch, update_s = USUAL_MICRO_BATCH, model.parameters * HOST_S_PER_PARAMETER
    if each.device == THIS:
        own = measured_of(model, measured)
        micro_batch, update_s = own.micro_batch, own.update_s + update_s
        if speed is None and precision != "auto":
            raise ConfigurationError(
                f"--precision {precision}: this machine was measured in the precision in which it would join; leave "
                "--precision out, or give samples_per_s="
            )
        if speed is None:
            speed, origin = own.samples_per_s, "measured"
    elif each.device is not None:
        device = look_up(each.device)
        memory, micro_batch = memory or device.memory_bytes, device.micro_batch
        finds_out, in_half = device.fits_micro_batch, in_half or (precision == "auto" and device.joins_in_half)
        update_s = device.update_s(model.parameters)
        if speed is None:
            speed, origin = device.samples_per_s(model.operations, precision), "estimate"
    usual = min(each.micro_batch or micro_batch, target_batch_size)
    fitting = usual
    if each.micro_batch is None and memory is not None and each.device != THIS:
        fitting = _that_fits(model, optimizer, usual, memory, half=in_half)
    has_to_be_told = fitting < usual and not finds_out
    return Volunteers(each, name, speed or 0.0, fitting, update_s, origin, memory, in_half, has_to_be_told)


def _that_fits(
    model: ModelFacts, optimizer: OptimizerSection, micro_batch: int, memory_bytes: int, *, half: bool
) -> int:
    """With the strategy that has least; what another one needs in addition shows in the warnings."""
    found = device_memory(model, optimizer, StrategyChoice("synchronous"), estimated_passes(model, half=half))
    while micro_batch > 1 and found.device(micro_batch) > FILLED * memory_bytes:
        micro_batch //= 2
    return micro_batch


def measured_of(model: ModelFacts, measured: Sequence[Measurement]) -> Measurement:
    """The fastest device of this machine for `model`, whatever it is called. Raises `ConfigurationError` if that was
    not measured.
    """
    fitting = [each for each in measured if each.shape == (model.parameters, model.operations, model.tokens)]
    if not fitting:
        known = ", ".join(sorted({each.name for each in measured})) or "nothing yet"
        of = f"{model.name} of {model.parameters:,} parameters with {model.tokens} tokens"
        why = f"this machine was not measured with {of} (but with: {known})"
        if model.measured_by is None:
            raise ConfigurationError(
                f"{why}, and `minga plan --measure` measures models of recipes alone; give samples_per_s="
            )
        raise ConfigurationError(f"{why}; run `minga plan --measure {model.measured_by}`, or give samples_per_s=")
    return max(fitting, key=lambda each: each.samples_per_s)
