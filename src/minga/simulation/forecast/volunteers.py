"""From peers as they were described to peers as plans take them: speeds, micro-batches and memory of their devices."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from minga.core.errors import ConfigurationError
from minga.simulation.forecast.devices import HOST_S_PER_PARAMETER, THIS, Measurement, Precision, look_up
from minga.simulation.forecast.memory import device_bytes
from minga.simulation.forecast.model_facts import ModelFacts, OptimizerName
from minga.simulation.forecast.peer_text import PeerClass
from minga.simulation.forecast.planned_run import Volunteers

USUAL_MICRO_BATCH: Final = 64
ROOM: Final = 0.85
"""Share of a device's memory that a plan fills: the rest is for the runtime and for fragments."""


def resolve(
    classes: Sequence[PeerClass],
    model: ModelFacts,
    optimizer: OptimizerName,
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
    optimizer: OptimizerName,
    target_batch_size: int,
    precision: Precision,
    measured: Sequence[Measurement],
) -> Volunteers:
    memory, speed, origin = each.memory_bytes, each.samples_per_s, "given"
    finds_out = True
    micro_batch, update_s = USUAL_MICRO_BATCH, model.parameters * HOST_S_PER_PARAMETER
    if each.device == THIS:
        own = measured_of(model, measured)
        micro_batch, update_s = own.micro_batch, own.update_s + update_s
        if speed is None:
            speed, origin = own.samples_per_s, "measured"
    elif each.device is not None:
        device = look_up(each.device)
        memory, micro_batch = memory or device.memory_bytes, device.micro_batch
        finds_out = device.fits_micro_batch
        update_s = device.update_s(model.parameters)
        if speed is None:
            speed, origin = device.samples_per_s(model.operations, precision), "estimate"
    usual = min(each.micro_batch or micro_batch, target_batch_size)
    fitting = usual
    if each.micro_batch is None and memory is not None and each.device != THIS:
        fitting = _that_fits(model, optimizer, usual, memory)
    has_to_be_told = fitting < usual and not finds_out
    return Volunteers(each, name, speed or 0.0, fitting, update_s, origin, memory, has_to_be_told)


def _that_fits(model: ModelFacts, optimizer: OptimizerName, micro_batch: int, memory_bytes: int) -> int:
    while micro_batch > 1 and device_bytes(model, optimizer, micro_batch) > ROOM * memory_bytes:
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
            raise ConfigurationError(f"{why}, and bench-device measures models of recipes alone; give samples_per_s=")
        raise ConfigurationError(f"{why}; run `minga plan --measure {model.measured_by}`, or give samples_per_s=")
    return max(fitting, key=lambda each: each.samples_per_s)
