"""Devices that round differently, played by an optimizer: what kinds of processors and accelerators do to torch's."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch

from minga.core.spec.run_spec import RunSpec
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.simulation.swarm.swarm import Swarm
from minga.training.replica.replica import Replica


class RoundingAdamW(torch.optim.AdamW):
    """torch's AdamW on a device of a `kind`: kind 0 as it is, the others change last bits of other thirds of it."""

    def __init__(self, parameters: Any, kind: int, **settings: Any) -> None:
        super().__init__(parameters, **settings)
        self.kind = kind

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Take the step, then round up or down by one last bit."""
        loss = super().step(closure)
        if self.kind:
            for group in self.param_groups:
                for parameter in group["params"]:
                    flat = parameter.view(-1)[self.kind % 3 :: 3]
                    towards = torch.tensor(float("inf") if self.kind % 2 else float("-inf"))
                    flat.copy_(torch.nextafter(flat, towards))
        return loss


def rounding_replicas(
    kinds: int, features: int = 40, make: Callable[..., torch.optim.Optimizer] = RoundingAdamW, **settings: Any
) -> Callable[[RunSpec], Replica]:
    """Makes replicas of a linear model, on devices of `kinds` kinds by turns."""
    turn = itertools.count()

    def replica(spec: RunSpec) -> Replica:
        torch.manual_seed(1)
        model = torch.nn.Linear(features, 3)
        kind = {"kind": next(turn) % kinds} if make is RoundingAdamW else {}
        return Replica(spec, make(model.parameters(), **kind, **{"lr": 0.01, **settings}), model=model)

    return replica


def learn(peer: SimulatedPeer, samples: int) -> None:
    """The gradient of a regression on random data."""
    generator = torch.Generator().manual_seed(peer.samples_done * 1009 + int(peer.network.peer_id[:8], 16))
    bias, weight = parameters(peer)
    inputs = torch.randn(samples, weight.shape[1], generator=generator)
    error = inputs @ weight.detach().T + bias.detach() - inputs[:, :3].cumsum(1)
    weight.grad, bias.grad = error.T @ inputs / samples, error.mean(0)


def loss_of(peer: SimulatedPeer) -> float:
    """The mean squared error on data that no peer trains on."""
    bias, weight = (each.detach() for each in parameters(peer))
    inputs = torch.randn(256, weight.shape[1], generator=torch.Generator().manual_seed(5))
    return float(((inputs @ weight.T + bias - inputs[:, :3].cumsum(1)) ** 2).mean())


def farthest(swarm: Swarm) -> float:
    """The largest distance of two peers' parameters, as a share of the length of the parameters."""
    values = [torch.cat([each.detach().reshape(-1) for each in parameters(peer)]) for peer in swarm.alive()]
    return max(float(torch.dist(one, other) / one.norm()) for one in values for other in values)


def parameters(peer: SimulatedPeer) -> list[torch.Tensor]:
    """Those that a peer trains."""
    replica = peer.replica
    if not isinstance(replica, Replica):
        raise TypeError("a model without numbers does not round")
    return replica.vector.parameters()
