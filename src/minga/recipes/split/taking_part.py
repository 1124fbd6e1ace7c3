"""Taking part in a run of the recipe `split`: its server, and a client with samples, as commands and programs do it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from torch import nn

from minga.core.errors import ConfigurationError, StorageError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.data.hold_out import content_rank
from minga.recipes.interface import Files
from minga.recipes.registry import CUSTOM, load_recipe
from minga.recipes.split.recipe import CutParts, SplitRecipe
from minga.split.client import Client
from minga.split.examples.samples import LabelledSamples
from minga.split.serving import serve
from minga.split.sharing.variants import check_schedule, check_split
from minga.training.peer import Peer

logger = logging.getLogger("minga")


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """A disk that refuses parts for now ends nothing: they are written again and again."""
    try:
        yield
    except StorageError as error:
        logger.warning("%s", error)


CLIENT_FILE: Final = "parts.safetensors"
USUAL_BATCH: Final = 64
"""Samples of a batch."""
SAVE_S: Final = 60.0
"""Seconds between two times that parts are written."""
OWN_HELD_OUT: Final = 0.1
"""About this share of samples of one's own is held out."""


def split_recipe(spec: RunSpec) -> SplitRecipe:
    """The recipe of a run with a cut model. Raises `ConfigurationError` if it has none that could be cut, and for
    settings that such a run would not heed.
    """
    check_split(spec)
    if spec.model.recipe == CUSTOM:
        raise ConfigurationError("the parts of this model are in the organiser's program: it calls minga.split")
    recipe = load_recipe(spec)
    if not isinstance(recipe, SplitRecipe):
        raise ConfigurationError(f'the recipe "{spec.model.recipe}" does not cut its model; recipe = "split" does')
    if spec.split.variant == "vertical":
        raise ConfigurationError(
            'split.variant = "vertical" needs clients that have other columns of the same samples, which the recipe '
            '"split" has not: write a program that calls minga.split.Client(link, bottom, block=…)'
        )
    check_schedule(spec)
    if spec.model.init_from is not None:
        raise ConfigurationError("model.init_from: the parts of a cut model begin new")
    if spec.training.stop_after_steps is not None and not spec.split.averages_clients:
        raise ConfigurationError(
            f'training.stop_after_steps: with split.variant = "{spec.split.variant}" clients have no steps in common; '
            "each ends after as many batches as its --leave-after-steps says"
        )
    return recipe


class ServerRun:
    """The server of a run that `peer` hosts. Its part is written to `folder` once in a while, and at the end; a server
    that comes again goes on with it.
    """

    def __init__(self, peer: Peer) -> None:
        parts = _parts(split_recipe(peer.spec), peer.spec)
        self.top, self.folder = parts.top, peer.directory
        self.resumes = self.path.exists()
        hands_over = peer.spec.split.variant == "round-robin" and peer.spec.split.hand_over
        self.server = serve(peer, self.top, bottom=parts.bottom if hands_over else None, resume=self.path)
        self._saved_s = time.monotonic()

    @property
    def path(self) -> Path:
        """The file of the server's part."""
        return self.folder / "top.safetensors"

    def save_if_due(self) -> None:
        """Call it again and again."""
        if time.monotonic() - self._saved_s >= SAVE_S:
            self._saved_s = time.monotonic()
            with _going_on():
                self.server.save(self.path)

    def close(self) -> None:
        """Serve no more, and write the part a last time, unless it is broken."""
        self.server.close()
        if self.server.broken is None:
            self.server.save(self.path)


class ClientRun:
    """A client, with its part of the example or, where `data` names tables, with samples of its own.

    `number` says which part of the example, counted from 1; None takes one by this peer's key. It looks now and then
    at samples that are held out, which find a hostile server. What it keeps is in a folder of this peer's, since other
    clients may run on the same machine.
    """

    def __init__(
        self,
        peer: Peer,
        *,
        data: Sequence[str] = (),
        number: int | None = None,
        batch_size: int | None = None,
    ) -> None:
        recipe: SplitRecipe = split_recipe(peer.spec)
        files: Files = peer.files
        self.folder = peer.directory / f"client-{peer.peer_id[:10]}"
        if data:
            recipe, files = recipe.own_data(files, data, self.folder)
        by_key = 1 + int(peer.peer_id[:8], 16) % recipe.settings.clients
        part = by_key if number is None else number
        self.part = None if data else part
        """That of the example, counted from 1; another client may have the same."""
        self.samples, self.held_out = _held_out(recipe, recipe.client_samples(files, part - 1), peer.spec)
        parts = _parts(recipe, peer.spec)
        self.resumes = self.path.exists()
        self.client = Client(peer, parts.bottom, parts.head, penalty=recipe.penalty, resume=self.path)
        if self.held_out is not None:
            self.client.watch(self.held_out.inputs, self.held_out.labels)
        self._is_averaged = peer.spec.split.averages_clients
        self._batch_size = max(1, min(batch_size or USUAL_BATCH, peer.spec.split.max_samples))
        self.batches, self.loss = 0, float("nan")
        self._saved_s = time.monotonic()

    @property
    def path(self) -> Path:
        """The file of this client's parts; where they are averaged, they are in the checkpoints of the peer."""
        return self.folder / CLIENT_FILE

    def train(self, is_over: Callable[[], bool], report: Callable[[int], None]) -> None:
        """Train batch by batch, in an order of this client's own, until it is over or the run has no further step.

        `report` is called with the samples of each batch that was trained on.
        """
        seed = int.from_bytes(self.client.peer.peer_id.encode()[:6], "big") + self.client.steps
        chance = torch.Generator().manual_seed(seed)  # another order than before, where the client comes again
        while True:
            for rows in torch.split(torch.randperm(len(self.samples.labels), generator=chance), self._batch_size):
                if is_over() or self.client.finished:
                    return
                loss = self.client.train(self.samples.inputs[rows], self.samples.labels[rows])
                if loss is not None:
                    self.batches, self.loss = self.batches + 1, loss
                    report(len(rows))
                if not self._is_averaged and time.monotonic() - self._saved_s >= SAVE_S:
                    with _going_on():
                        self._save()

    def evaluate(self) -> dict[str, float]:
        """Loss and accuracy of the whole model on samples that this client does not train on; empty without any."""
        if self.held_out is None:
            return {}
        logits: torch.Tensor = self.client.predict(self.held_out.inputs)
        labels = self.held_out.labels
        return {
            "heldout_loss": float(nn.functional.cross_entropy(logits, labels)),
            "heldout_accuracy": float((logits.argmax(1) == labels).double().mean()),
        }

    def close(self) -> None:
        """Keep this client's parts, in its folder or, where they are averaged, with the peer's checkpoints, and end.

        Raises `StorageError` if the disk refuses them.
        """
        try:
            self._save()  # first: a server that does not answer holds the goodbye up
        finally:
            self.client.close()

    def _save(self) -> None:
        self._saved_s = time.monotonic()
        self.client.save(self.path)


def _parts(recipe: SplitRecipe, spec: RunSpec) -> CutParts:
    return recipe.parts(u_shaped=spec.split.variant == "u-shaped")


def _held_out(
    recipe: SplitRecipe, samples: LabelledSamples, spec: RunSpec
) -> tuple[LabelledSamples, LabelledSamples | None]:
    """What to train on, and what not. Of samples of one's own the contents say which are held out, whatever else there
    is, so that none that was trained on is held out once there are more.
    """
    common = recipe.heldout_samples()
    if common is not None:
        return samples, common.rows(torch.arange(min(len(common.labels), spec.split.max_samples)))
    ranks = torch.tensor([content_rank(row.numpy().tobytes()) for row in samples.inputs], dtype=torch.float64)
    is_out = ranks < OWN_HELD_OUT
    if not is_out.any() and round(OWN_HELD_OUT * len(ranks)):  # of so many one at least
        is_out = ranks == ranks.min()
    if not is_out.any() or is_out.all():
        return samples, None
    kept = is_out.nonzero()[:, 0]
    return samples.rows(~is_out), samples.rows(kept[ranks[kept].argsort(stable=True)][: spec.split.max_samples])
