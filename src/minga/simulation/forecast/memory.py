"""How much memory a peer needs, by what the code keeps: on the device, and in main memory beside it.

    device   parameters, gradients and optimizer state in float32, the optimizer's scratch, activations of a micro-batch
    main     the sum of gradients (two of them with the delayed strategy), the result of the round, in which parts are
             summed up, too, the part that the peer reduces as it is sent, and a copy of the state for a newcomer, if
             that is small: a large one is a file

Where the device is the processor both are one. Programs and libraries (some 0.5 to 1 GB) come on top, and the data.
"""

from __future__ import annotations

from dataclasses import dataclass

from minga.simulation.forecast.forecast import Forecast
from minga.simulation.forecast.model_facts import STATE_BYTES, WITH_SCRATCH, ModelFacts, OptimizerName
from minga.simulation.forecast.planned_run import Volunteers
from minga.training.state.snapshot import FILED_BYTES


@dataclass(frozen=True)
class Footprint:
    """Bytes of memory of one peer. `activations` is None where nothing is known of the model's layers."""

    parameters: int
    gradients: int
    optimizer: int
    scratch: int
    activations: int | None
    accumulators: int
    result: int
    wire: int
    state_copy: int

    @property
    def device(self) -> int:
        """What has to fit on the device (without unknown activations)."""
        return self.parameters + self.gradients + self.optimizer + self.scratch + (self.activations or 0)

    @property
    def main(self) -> int:
        """What is in main memory; a large copy of the state is on disk."""
        return self.accumulators + self.result + self.wire + (self.state_copy if self.state_copy < FILED_BYTES else 0)


def device_bytes(model: ModelFacts, optimizer: OptimizerName, micro_batch: int) -> int:
    """What has to fit on the device for micro-batches of this size (without unknown activations)."""
    activations = round((model.activation_bytes or 0.0) * micro_batch)
    return model.parameters * (8 + STATE_BYTES[optimizer]) + _scratch_bytes(model, optimizer) + activations


def _scratch_bytes(model: ModelFacts, optimizer: OptimizerName) -> int:
    return 4 * model.parameters if optimizer in WITH_SCRATCH else 0


def footprint(forecast: Forecast, place: int) -> Footprint:
    """The memory of a peer of class number `place`."""
    setting = forecast.setting
    each: Volunteers = setting.volunteers[place]
    model, size = setting.model, 4 * setting.model.parameters
    known = model.activation_bytes is not None and each.computes
    activations = round((model.activation_bytes or 0.0) * each.micro_batch) if known else None
    return Footprint(
        parameters=size,
        gradients=size,
        optimizer=setting.moment_bytes,
        scratch=_scratch_bytes(model, setting.optimizer),
        activations=activations if each.computes else 0,
        accumulators=size * setting.strategy.facts.vectors,
        result=size,
        # And of each sender a few chunks on their way, below 1 % of the vector.
        wire=round(forecast.classes[place].reduces * forecast.vector_bytes),
        state_copy=setting.state_bytes,
    )
