"""What split learning keeps of the accuracy, and how fast it is over a home line.

    python -m benchmarks.split --json

The digits of scikit-learn (1,797 pictures), dealt out to four clients; figures are means over `--seeds` seeds, each
with other initial parameters and other held-out samples.

    accuracy    on held-out samples: "central" of the whole network on the samples of all clients; "vanilla" and
                "u-shaped" of the same network cut in two (labels go to the server) and in three (labels stay), by
                clients one after the other that share one bottom, without a network; "round-robin", "splitfed-1" and
                "splitfed-2" by real peers on this machine
    link        samples a second of one client that sends 1,024 values a sample over a line of 20 Mbit/s up and 100
                Mbit/s down in the virtual world, and their share of what the line allows

ok: cut networks are at most one point less accurate than the whole one; the line is used to 80 %. What activations tell
of the data, without and with NoPeek, is for `examples/what_activations_tell.py` to show.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import mean
from typing import Any

import torch

from benchmarks._report import finish, note, parser
from benchmarks._split_link import link_figures
from benchmarks._split_peers import train_with_peers
from benchmarks._split_training import train_centrally, train_in_turns

CLIENTS = 4
MOST_LOST = 0.01
LEAST_SHARE = 0.8


def accuracies(epochs: int, seeds: int) -> dict[str, float]:
    """The mean accuracy of each way to train."""
    ways: dict[str, Callable[[int], float]] = {"central": lambda seed: train_centrally(epochs, CLIENTS, seed)}
    for variant in ("vanilla", "u-shaped"):
        ways[variant] = lambda seed, variant=variant: train_in_turns(variant, epochs, CLIENTS, seed)  # type: ignore[misc]
    for variant in ("round-robin", "splitfed-1", "splitfed-2"):
        ways[variant] = lambda seed, variant=variant: train_with_peers(variant, epochs, CLIENTS, seed)  # type: ignore[misc]
    found = {}
    for name, train in ways.items():
        found[name] = round(mean(train(seed) for seed in range(seeds)), 4)
        note(f"{name}: {found[name]:.2%}")
    return found


def shortcomings(kept: dict[str, float], links: list[dict[str, Any]]) -> list[str]:
    """What is not as it should be."""
    checks = {
        **{f"{name} loses accuracy": kept[name] < kept["central"] - MOST_LOST for name in kept},
        **{f"{each['codec']} is slow": each["share"] < LEAST_SHARE for each in links},
    }
    return [what for what, fails in checks.items() if fails]


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=3)
    options.add_argument("--epochs", type=int, default=60, help="passes over the samples for the accuracies")
    options.add_argument("--batches", type=int, default=20, help="batches over the line")
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    links = [link_figures(codec, given.batches, 0) for codec in ("float32", "float16")]
    kept = accuracies(given.epochs, given.seeds)
    missing = shortcomings(kept, links)
    return finish("split", not missing, given.json, accuracy=kept, link=links, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
