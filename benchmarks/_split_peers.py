"""Training of `benchmarks.split` by real peers on this machine: a server, and clients each on a thread of its own.

They find each other by the link, and all else is what users have: `minga.split.serve` and `minga.split.Client`.
"""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from benchmarks._split_training import ADAM, BATCH, shuffled_batches, split_recipe
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import Link
from minga.recipes.split.recipe import SplitRecipe
from minga.split import Client, serve
from minga.training.join import PeerOptions

AVERAGED = ("splitfed-1", "splitfed-2")
PLAIN_AVERAGING = {"outer_learning_rate": 1.0, "outer_momentum": 0.0, "nesterov": False}
"""SplitFed's own: after each round all clients go on from the mean of their parts."""


def train_with_peers(variant: str, epochs: int, clients: int, seed: int) -> float:
    """The accuracy of a network that real peers train, by one client's part and the server's.

    An epoch is a turn of each client (round-robin), or a round after which the parts are averaged (SplitFed).
    """
    batches = len(shuffled_batches(split_recipe("none", clients, seed)[1].client_samples({}, 0), 0))
    sections: dict[str, Any] = {"network": {"relay": "none"}}
    if variant in AVERAGED:
        sections["training"] = {
            "target_batch_size": clients * batches * BATCH,
            "stop_after_steps": epochs,
            "strategy": "local",
            "seed": seed,
        }
        sections["strategy"] = {"local": PLAIN_AVERAGING}
    spec, recipe = split_recipe(variant, clients, seed, sections=sections, turn_batches=batches)
    with TemporaryDirectory() as folder:
        options = PeerOptions(ephemeral=True, directory=Path(folder) / "server", host="127.0.0.1")
        _, top, _ = recipe.parts(u_shaped=False)
        with serve(spec, top, optimizer=ADAM, options=options) as server, ThreadPoolExecutor(clients) as pool:
            done = threading.Barrier(clients)
            trained = [
                pool.submit(_train, spec, recipe, server.link, Path(folder), number, epochs, done)
                for number in range(clients)
            ]
            return max((each.result() for each in trained), default=0.0)


def _train(
    spec: RunSpec, recipe: SplitRecipe, link: Link, folder: Path, number: int, epochs: int, done: threading.Barrier
) -> float:
    """One client, from the start to the end; the accuracy that it sees, 0 for all but the first."""
    bottom, _, _ = recipe.parts(u_shaped=False)
    options = PeerOptions(ephemeral=True, directory=folder / f"client-{number}", host="127.0.0.1")
    samples, held = recipe.client_samples({}, number), recipe.heldout_samples()
    if held is None:
        raise TypeError("the digits hold samples out")
    with Client(link, bottom, optimizer=ADAM, penalty=recipe.penalty, options=options) as client:
        epoch = 0
        while not client.finished and (epoch < epochs or spec.split.averages_clients):
            for some, classes in shuffled_batches(samples, 1000 * recipe.context.seed + epoch):
                client.train(some, classes)
            epoch += 1
        done.wait()
        accuracy = 0.0
        if number == 0:
            guesses: torch.Tensor = client.predict(held.inputs)
            accuracy = float((guesses.argmax(1) == held.labels).double().mean())
        done.wait()
    return accuracy
