"""Taking part in a run of the recipe `split`: its server, and a client with samples, as commands and programs do it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import nn

from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import store
from minga.core.spec.run_spec import RunSpec
from minga.recipes.data.hold_out import content_rank
from minga.recipes.interface import Files
from minga.recipes.registry import CUSTOM, load_recipe
from minga.recipes.split.recipe import CutParts, SplitRecipe
from minga.split.client import Client
from minga.split.examples.samples import LabelledSamples
from minga.split.serving import serve
from minga.split.sharing.variants import check_split
from minga.training.peer import Peer

logger = logging.getLogger("minga")

# ---- The parts of a cut network on the disk of whoever has them.


def save_part(module: nn.Module, path: Path) -> None:
    """Write parameters and buffers. Raises `StorageError` if the disk refuses."""
    tensors = {name: each.detach().cpu().contiguous() for name, each in module.state_dict().items()}
    store(path, save(tensors))


def load_part(module: nn.Module, path: Path) -> bool:
    """Go on with what was written, if there is such a file; whether there is.

    Raises `ConfigurationError` if it is of another part.
    """
    if not path.exists():
        return False
    try:
        module.load_state_dict(load_file(path))
    except (OSError, SafetensorError, RuntimeError) as error:
        raise ConfigurationError(
            f"{path}: not this part of the model: {str(error)[:200]}; move the file away"
        ) from error
    return True


@contextlib.contextmanager
def _going_on() -> Iterator[None]:
    """A disk that refuses parts for now ends nothing: they are written again and again."""
    try:
        yield
    except StorageError as error:
        logger.warning("%s", error)


SAVE_S: Final = 60.0
"""Seconds between two times that parts are written."""
OWN_HELD_OUT: Final = 0.1
"""About this share of samples of one's own is held out."""


def split_recipe(spec: RunSpec) -> SplitRecipe:
    """The recipe of a run with a cut model. Raises `ConfigurationError` if it has none that could be cut."""
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
    return recipe


class ServerRun:
    """The server of a run that `peer` hosts. Its part is written to `folder` once in a while, and at the end; a server
    that comes again goes on with it.
    """

    def __init__(self, peer: Peer) -> None:
        parts = _parts(split_recipe(peer.spec), peer.spec)
        self.top, self.folder = parts.top, peer.directory
        self.resumes = load_part(self.top, self.path)
        self.server = serve(peer, self.top)
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
                self.server.between_batches(lambda: save_part(self.top, self.path))

    def close(self) -> None:
        """Serve no more, and write the part a last time, unless it is broken."""
        self.server.close()
        if self.server.broken is None:
            save_part(self.top, self.path)


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
        batch_size: int = 64,
    ) -> None:
        recipe: SplitRecipe = split_recipe(peer.spec)
        files: Files = peer.files
        self.folder = peer.directory / f"client-{peer.peer_id[:10]}"
        if data:
            recipe, files = recipe.own_data(files, data, self.folder)
        clients = recipe.settings.clients
        part = int(peer.peer_id[:8], 16) % clients if number is None else number - 1
        self.samples, self.held_out = _held_out(recipe, recipe.client_samples(files, part), peer.spec)
        parts = _parts(recipe, peer.spec)
        self._parts = {"bottom": parts.bottom, "head": parts.head}
        self.resumes = all(load_part(each, self._path(name)) for name, each in self._own())
        self.client = Client(peer, parts.bottom, parts.head, penalty=recipe.penalty)
        if self.held_out is not None:
            self.client.watch(self.held_out.inputs, self.held_out.labels)
        self._batch_size = max(1, min(batch_size, peer.spec.split.max_samples))
        self.batches, self.loss = 0, float("nan")
        self._saved_s = time.monotonic()

    def train(self, is_over: Callable[[], bool]) -> None:
        """Train batch by batch, in an order of this client's own, until it is over or the run has no further step."""
        chance = torch.Generator().manual_seed(int.from_bytes(self.client.peer.peer_id.encode()[:6], "big"))
        while True:
            for rows in torch.split(torch.randperm(len(self.samples.labels), generator=chance), self._batch_size):
                if is_over() or self.client.finished:
                    return
                loss = self.client.train(self.samples.inputs[rows], self.samples.labels[rows])
                if loss is not None:
                    self.batches, self.loss = self.batches + 1, loss
                if time.monotonic() - self._saved_s >= SAVE_S:
                    with _going_on():
                        self.save()

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

    def save(self) -> None:
        """Write this client's parts to its folder, from which it goes on when it comes again."""
        self._saved_s = time.monotonic()
        for name, module in self._own():
            save_part(module, self._path(name))

    def _own(self) -> list[tuple[str, nn.Module]]:
        return [(name, module) for name, module in self._parts.items() if module is not None]

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


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
