"""Your own training loop, shared: a small network learns to tell which spiral a point lies on.

python examples/custom_loop.py                 host a run in one terminal; it prints a link
python examples/custom_loop.py LINK            join it in others, on this machine or elsewhere
"""

import math
import sys

import torch

import minga
from minga.optim import AdamW

SPEC = {
    "name": "spirals",
    "model": {"recipe": "custom"},  # model, data and loss are ours
    "network": {"relay": "none"},  # peers of one local network; leave it out for the internet
    "training": {"target_batch_size": 16384, "stop_after_steps": 400},  # samples per step, of all peers together
}


def spirals(samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points of two spirals and which one each belongs to; every call draws new ones."""
    which = torch.randint(2, (samples,))
    angle = torch.rand(samples) * 3 * math.pi
    radius = angle / (3 * math.pi)
    turned = angle + math.pi * which
    points = torch.stack([radius * turned.cos(), radius * turned.sin()], 1)
    return points + 0.02 * torch.randn_like(points), which


def main() -> None:
    torch.set_num_threads(1)  # several peers on one machine share its cores
    model = torch.nn.Sequential(
        torch.nn.Linear(2, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2)
    )
    options = minga.PeerOptions(ephemeral=True)  # a key for this time only, so that one machine can be several peers
    # The three lines: join (or host), wrap the optimizer, tell `step` how many samples there were.
    peer = (
        minga.join(sys.argv[1], options) if len(sys.argv) > 1 else minga.host(minga.RunSpec.from_mapping(SPEC), options)
    )
    optimizer = minga.Optimizer(AdamW(model.parameters(), lr=3e-3), peer, model=model)
    if len(sys.argv) == 1:
        print("others join with:  python examples/custom_loop.py", peer.link, flush=True)
    shown = 0
    while not optimizer.finished:
        points, which = spirals(256)
        loss = torch.nn.functional.cross_entropy(model(points), which)
        loss.backward()
        optimizer.step(samples=256)
        optimizer.zero_grad()
        if optimizer.global_step >= shown + 20:
            shown = optimizer.global_step
            print(f"step {shown}: loss {loss.item():.3f}", flush=True)
    points, which = spirals(10_000)
    print(f"right on {(model(points).argmax(1) == which).float().mean().item():.1%} of new points")
    peer.close()


if __name__ == "__main__":
    main()
