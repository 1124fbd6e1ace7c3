"""Averaging the parameters themselves now and then: devices of different kinds drift apart in the last bits."""

from __future__ import annotations

import msgspec
import torch
from blake3 import blake3

from minga.averaging.allreduce.service import AllReduce, RoundAbortedError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.messages import Plan
from minga.core.thread_guard import loop_bound
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.interface import ReplicaInterface


@loop_bound
class ParameterAverage:
    """Replaces the parameters behind `port` by the mean over the group of a step that was just applied.

    The group and its parts are those of that step, so that nothing has to be agreed on. Parameters are reduced anew
    even where the step adopted an earlier result.
    """

    def __init__(self, all_reduce: AllReduce, replica: ReplicaInterface, port: GradientPort) -> None:
        self._all_reduce, self._replica, self._port = all_reduce, replica, port
        self._mean: torch.Tensor | None = None

    async def take(self, plan: Plan, tolerance: float) -> None:
        """Average with the members of `plan`.

        Raises `RoundAbortedError`, with nothing changed, if that fails, or if the mean is farther than `tolerance` from
        this peer's own parameters: rounding does not explain that, so a member gave something else.
        """
        mean = self._mean = self._replica.vector.new() if self._mean is None else self._mean
        values = await self._port.request("read", self._replica.read_values)
        layout = VectorLayout(self._replica.vector.layout.numels, "float32")
        name = blake3(plan.round_id.encode()).hexdigest()[:32]
        again = msgspec.structs.replace(plan, round_id=name, adopts="", holders=(), view=())
        await self._all_reduce.reduce(again, layout, values, 1, mean, most_weight=1)

        def write() -> float:
            count = self._replica.vector.parameters_numel
            apart = float(torch.dist(mean[:count], values[:count]))
            if apart <= tolerance:
                self._replica.write_values(mean)
            return apart

        apart = await self._port.request("write", write)
        if not apart <= tolerance:
            raise RoundAbortedError(
                f"the mean of the parameters is {apart:.2g} from this peer's own, and rounding explains {tolerance:.2g}"
            )
