"""What crosses to and from a device in each phase of a step, counted by a dispatch mode."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.optim import AdamW
from minga.simulation.virtual_time import run_virtual
from minga.training.bridge.gradient_port import GradientPort
from minga.training.replica.replica import FIRST_STEPS, Replica
from tests.worlds.pretend_device import pretend, pretended_device

_ATEN = torch.ops.aten
_READS = (_ATEN._local_scalar_dense.default, _ATEN.equal.default)
LARGE = 1 << 12
"""A copy of so many elements is one of a part of the vector; a smaller one to the host tells it a few numbers."""
STEPS, MICRO_BATCHES = FIRST_STEPS + 3, 4


class TransferCount(TorchDispatchMode):
    """While it is entered, adds up what crosses in the present `phase`."""

    def __init__(self) -> None:
        super().__init__()
        self.phase = ""
        self.found: dict[str, Counter[str]] = {}

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """What crosses inside belongs to this phase."""
        before, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        numbers = self.found.setdefault(self.phase, Counter())
        if func in _READS and not args[0].is_cpu:
            numbers["reads"] += 1
        elif func is _ATEN.copy_.default:
            self._note(numbers, args[1], args[0].device)
        elif func is _ATEN._to_copy.default and kwargs.get("device") is not None:
            self._note(numbers, args[0], kwargs["device"])
        return func(*args, **kwargs)

    @staticmethod
    def _note(numbers: Counter[str], source: torch.Tensor, target: torch.device) -> None:
        if source.device.type == target.type or "meta" in (source.device.type, target.type):
            return
        to_host = target.type == "cpu"
        if source.numel() >= LARGE:
            numbers["to_host" if to_host else "to_device"] += source.numel()
        elif to_host:
            numbers["reads"] += 1


def count_transfers(device: str, strategy: str, optimizer: type[torch.optim.Optimizer] = AdamW) -> dict[str, Any]:
    """The figures of a peer alone with `strategy` on a `device`; "cpu" takes a pretended one.

    full_vector_transfers_per_micro_batch    elements that cross in `step`, by those of the vector
    host_reads_per_micro_batch               numbers that the host waits for or fetches there
    crossings_to_host_per_round, crossings_to_device_per_round    by the vector, at the seal and for the update
    """
    with contextlib.ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(pretended_device())
        count = stack.enter_context(TransferCount())
        replica = _replica(device, optimizer)
        size = replica.vector.numel

        async def live() -> None:
            port = GradientPort(asyncio.get_running_loop(), replica, strategy=StrategyChoice(strategy))
            for step in range(1, STEPS + 1):
                if step == FIRST_STEPS + 1:  # before that a replica looks at what it is given
                    count.found.clear()
                for _ in range(MICRO_BATCHES):
                    loss = _backward(replica)
                    with count.during("micro_batch"):
                        port.add(replica.collect(2, loss), loss)
                        replica.zero_grad()
                        port.poll()
                with count.during("seal"):
                    mean, _ = await port.seal()
                if mean is None:
                    raise RuntimeError("nothing was contributed")
                result = replica.vector.new(mean.numel())
                result.copy_(mean)
                with count.during("update"):
                    port.absorb(step, result, ContributionFate.COUNTED, 1, 0, 2 * MICRO_BATCHES)
                port.reopen()

        run_virtual(live())
    found, rounds = count.found, STEPS - FIRST_STEPS
    micro, seal, update = (found.get(name, Counter()) for name in ("micro_batch", "seal", "update"))
    micro_batches = rounds * MICRO_BATCHES
    return {
        "full_vector_transfers_per_micro_batch": round(
            (micro["to_host"] + micro["to_device"]) / size / micro_batches, 3
        ),
        "host_reads_per_micro_batch": round(micro["reads"] / micro_batches, 3),
        "crossings_to_host_per_round": round((seal["to_host"] + update["to_host"]) / size / rounds, 3),
        "crossings_to_device_per_round": round((seal["to_device"] + update["to_device"]) / size / rounds, 3),
    }


class LaunchCount(TorchDispatchMode):
    """While it is entered, counts operations on tensors of accelerators, views left out: about one kernel each."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = (each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor))
        self.count += not func.is_view and any(not each.is_cpu for each in tensors)
        return func(*args, **(kwargs or {}))


def count_launches(device: str, make: Callable[[Any], torch.optim.Optimizer]) -> float:
    """Operations for each parameter tensor in a step: of 96 tensors, as a transformer of 8 layers has them."""
    layer = [(64, 64), (64,)] * 4 + [(256, 64), (256,), (64, 256), (64,)]
    with contextlib.ExitStack() as stack:
        if device == "cpu":
            stack.enter_context(pretended_device())
        model: nn.Module = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in layer * 8])
        model = pretend(model) if device == "cpu" else model.to(device)
        parameters = list(model.parameters())
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        optimizer = make(parameters)
        optimizer.step()
        with LaunchCount() as found:
            optimizer.step()
    return round(found.count / len(parameters), 2)


def _replica(device: str, optimizer: Callable[..., torch.optim.Optimizer]) -> Replica:
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(128, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 128))
    model = pretend(model) if device == "cpu" else model.to(device)
    spec = RunSpec.from_mapping({"name": "transfers", "training": {"buffers": "average"}})
    return Replica(spec, optimizer(model.parameters()), model=model, max_grad_norm=1.0)


def _backward(replica: Replica) -> torch.Tensor:
    """A micro-batch, whose gradients the device makes by itself."""
    parameters = replica.vector.parameters()
    loss = torch.stack([parameter.square().sum() for parameter in parameters]).sum()
    loss.backward()
    return loss.detach()
