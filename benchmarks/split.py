"""What split learning keeps of the accuracy, what it tells about the data, and how fast it is over a home line.

    python -m benchmarks.split --json

The digits of scikit-learn (1,797 pictures), dealt out to four clients; figures are means over `--seeds` seeds, each
with other initial parameters and other held-out samples.

    accuracy    on held-out samples: "central" of the whole network on the samples of all clients; "vanilla" and
                "u-shaped" of the same network cut in two (labels go to the server) and in three (labels stay), by
                clients one after the other that share one bottom, without a network; "round-robin", "splitfed-1" and
                "splitfed-2" by real peers on this machine
    leakage     without and with NoPeek: accuracy, distance correlation of inputs and activations, error of an inverting
                decoder; on samples by which nothing was chosen, neither the weight nor the decoder
                (`minga.split.compare_leakage`)
    link        samples a second of one client that sends 1,024 values a sample over a line of 20 Mbit/s up and 100
                Mbit/s down in the virtual world, and their share of what the line allows

ok: cut networks are at most one point less accurate than the whole one; NoPeek at least halves the distance
correlation, costs at most two points, and raises the decoder's error; the line is used to 80 %.
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
from minga.split import LeakageReport, LeakageSettings, compare_leakage

CLIENTS = 4
MOST_LOST, MOST_LOST_BY_NO_PEEK = 0.01, 0.02
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


def leakage(settings: LeakageSettings, seeds: int) -> dict[str, Any]:
    """The mean figures of reports without and with NoPeek."""
    reports: list[LeakageReport] = []
    for seed in range(seeds):
        reports.append(compare_leakage(settings, seed))
        note(reports[-1].text())
    rows = {"plain": [each.plain for each in reports], "no_peek": [each.no_peek for each in reports]}
    told: dict[str, Any] = {
        name: {
            "weights": [row.weight for row in own],
            "accuracy": round(mean(row.accuracy for row in own), 4),
            "distance_correlation": round(mean(row.correlation.found for row in own), 4),
            "by_chance": round(mean(row.correlation.mean for row in own), 4),
            "decoder_error": round(mean(row.decoder_error for row in own), 5),
            "decoder_similarity": round(mean(row.decoder_similarity or 0.0 for row in own), 4),
        }
        for name, own in rows.items()
    }
    return {**told, "mean_guess_error": round(mean(each.mean_guess_error for each in reports), 5)}


def shortcomings(kept: dict[str, float], leaked: dict[str, Any], links: list[dict[str, Any]]) -> list[str]:
    """What is not as it should be."""
    plain, no_peek = leaked["plain"], leaked["no_peek"]
    checks = {
        **{f"{name} loses accuracy": kept[name] < kept["central"] - MOST_LOST for name in kept},
        "NoPeek does not halve": no_peek["distance_correlation"] > plain["distance_correlation"] / 2,
        "NoPeek loses accuracy": no_peek["accuracy"] < plain["accuracy"] - MOST_LOST_BY_NO_PEEK,
        "NoPeek does not help": no_peek["decoder_error"] <= plain["decoder_error"],
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
    leaked = leakage(LeakageSettings(), given.seeds)
    missing = shortcomings(kept, leaked, links)
    return finish("split", not missing, given.json, accuracy=kept, leakage=leaked, link=links, missing=missing)


if __name__ == "__main__":
    sys.exit(main())
