"""What the examples with training frameworks share, so that they can train together: the run, the data, the model.

A small network learns to tell which of two spirals a point lies on, as in custom_loop.py.
"""

import math
import sys

import torch
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset

import minga
from minga.optim import AdamW

SPEC = {
    "name": "spirals",
    "model": {"recipe": "custom"},  # model, data and loss are those of these programs
    "network": {"relay": "none"},  # peers of one local network; leave it out for the internet
    "training": {"target_batch_size": 4096, "stop_after_steps": 200},  # samples per step, of all peers together
}


class Points(Dataset):
    """Points of two spirals, and which one each belongs to; each process draws its own."""

    def __init__(self, samples: int = 20_000) -> None:
        chance = torch.Generator()
        chance.seed()
        self.labels = torch.randint(2, (samples,), generator=chance)
        angle = torch.rand(samples, generator=chance) * 3 * math.pi
        turned = angle + math.pi * self.labels
        spread = 0.02 * torch.randn(samples, 2, generator=chance)
        self.points = torch.stack([turned.cos(), turned.sin()], 1) * (angle / (3 * math.pi))[:, None] + spread

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"points": self.points[index], "labels": self.labels[index]}


class Network(torch.nn.Module):
    """Says which spiral points lie on, and how wrong it is if it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
        )

    def forward(self, points: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """Logits, and the mean loss where there are labels."""
        logits = self.layers(points)
        if labels is None:
            return {"logits": logits}
        return {"loss": torch.nn.functional.cross_entropy(logits, labels), "logits": logits}


def optimizer_of(network: torch.nn.Module) -> tuple[AdamW, LambdaLR]:
    """The optimizer and its schedule, which counts global steps: the same for all peers of the run."""
    optimizer = AdamW(network.parameters(), lr=3e-3)
    return optimizer, LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))


def enter(program: str) -> minga.Peer:
    """Join the run of the link on the command line; without one, begin a run and print its link."""
    torch.set_num_threads(1)  # several peers on one machine share its cores
    options = minga.PeerOptions(ephemeral=True)  # a key for this time only, so that one machine can be several peers
    if len(sys.argv) > 1:
        return minga.join(sys.argv[1], options)
    peer = minga.host(SPEC, options)
    print(f"others join with:  python examples/{program}", peer.link, flush=True)
    return peer


def show(network: torch.nn.Module, peer: minga.Peer) -> None:
    """Say how well the network does on new points."""
    test = Points(5_000)
    with torch.no_grad():
        right = network(test.points)["logits"].argmax(1) == test.labels
    print(f"right on {right.float().mean().item():.1%} of new points", flush=True)
    sums = [parameter.sum().item() for parameter in network.parameters()]
    print("sum of all parameters:", math.fsum(sums), flush=True)  # the same for all peers, to the last digit
    peer.close()
