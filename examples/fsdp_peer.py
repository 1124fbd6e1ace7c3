"""A model that FSDP shards over the GPUs of a machine, as one peer of a run: a transformer learns to sort digits.

torchrun --standalone --nproc-per-node 2 examples/fsdp_peer.py          host a run; it prints a link
torchrun --standalone --nproc-per-node 2 examples/fsdp_peer.py LINK     join it with further processes or GPUs
python examples/fsdp_peer.py LINK                                       or with a single process
"""

import argparse
import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

import minga
from minga.optim import AdamW

DIGITS, LENGTH, MICRO_BATCH = 10, 8, 16
WIDTH, LAYERS = 50, 3


class Sorter(torch.nn.Module):
    """For each place of each sequence the logits of the digit that is there once it is sorted."""

    def __init__(self) -> None:
        super().__init__()
        self.digits = torch.nn.Embedding(DIGITS, WIDTH)
        self.places = torch.nn.Embedding(LENGTH, WIDTH)
        layer = torch.nn.TransformerEncoderLayer
        self.layers = torch.nn.ModuleList(layer(WIDTH, 5, 2 * WIDTH, 0.0, batch_first=True) for _ in range(LAYERS))
        self.head = torch.nn.Linear(WIDTH, DIGITS)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """Sequences [batch, length] to logits [batch · length, digits]."""
        hidden = self.digits(sequences) + self.places(torch.arange(LENGTH, device=sequences.device))
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden.flatten(0, 1))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("link", nargs="?", help="of the run to join; without it one is hosted")
    parser.add_argument("--steps", type=int, default=300, help="global steps of a hosted run")
    return parser.parse_args()


def take_part(given: argparse.Namespace) -> minga.Peer:
    options = minga.PeerOptions(ephemeral=True)  # a key for this time only, so that one machine can be several peers
    if given.link:
        return minga.join(given.link, options)
    spec = {
        "name": "sorted digits",
        "model": {"recipe": "custom"},
        "network": {"relay": "none"},  # peers of one local network; leave it out for the internet
        "training": {"target_batch_size": 256, "stop_after_steps": given.steps},
    }
    peer = minga.host(minga.RunSpec.from_mapping(spec), options)
    print("others join with:  python examples/fsdp_peer.py", peer.link, flush=True)
    return peer


def main() -> None:
    given = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C: the peer says goodbye
    is_sharded, rank = "RANK" in os.environ, int(os.environ.get("RANK", "0"))
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else "cpu"
    if is_sharded:
        if torch.cuda.is_available():
            torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    else:
        torch.set_num_threads(1)

    model = Sorter().to(device)
    if is_sharded:
        for layer in model.layers:
            fully_shard(layer)
        fully_shard(model)
    peer = take_part(given) if rank == 0 else None  # rank 0 talks to the swarm
    optimizer = minga.Optimizer(AdamW(model.parameters(), lr=2e-3), peer, model=model, max_grad_norm=1.0)

    shown = optimizer.global_step
    while not optimizer.finished:
        sequences = torch.randint(DIGITS, (MICRO_BATCH, LENGTH), device=device)
        logits = model(sequences)
        loss = torch.nn.functional.cross_entropy(logits, sequences.sort(1).values.flatten())
        loss.backward()
        optimizer.step(samples=MICRO_BATCH, loss=loss)  # the samples of this process
        optimizer.zero_grad()
        if rank == 0 and optimizer.global_step >= shown + 20:
            shown = optimizer.global_step
            print(f"step {shown}: loss {loss.item():.3f}", flush=True)
    digest = optimizer.digest()  # all ranks call it: each holds a part of the state
    if peer is not None:
        print(f"after step {optimizer.global_step} all peers hold the state {digest[:16]}", flush=True)
        peer.close()
    if is_sharded:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
