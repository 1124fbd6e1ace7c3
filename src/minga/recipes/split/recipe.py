"""The recipe of split learning: a network and samples, for clients and a server, or as a whole to compare with."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.recipes.data.order import shuffled
from minga.recipes.evaluation_mode import evaluating
from minga.recipes.exported import Exported, Provenance
from minga.recipes.initial import new_model
from minga.recipes.interface import Batch, Files, Loss, Metric, Recipe, StreamPosition
from minga.recipes.split.samples import OWN_FILE, DealtSamples, read_stored, store_tables, tables
from minga.recipes.split.settings import SplitRecipeSettings
from minga.security.randomness.public_batch import PublicBatch
from minga.split.examples.network import CutNetwork
from minga.split.examples.samples import LabelledSamples
from minga.split.no_peek import NoPeek

PARTS = ("bottom", "top", "head")
_EVALUATED_TOGETHER = 1024


class CutParts(NamedTuple):
    """The modules that `minga.split` takes; without a head, the top gives the logits."""

    bottom: nn.Module
    top: nn.Module
    head: nn.Module | None


class SplitRecipe(Recipe[SplitRecipeSettings]):
    """A small network for pictures or tables. No file travels with the run: clients have the samples."""

    Settings = SplitRecipeSettings
    headline = Metric("heldout_loss", "lower")

    _dealt: DealtSamples | None = None
    _own: LabelledSamples | None = None

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The digits, by AdamW, with a model that is cut: the labels stay with the clients, too."""
        return {
            "recipe": {"split": {"data": "digits"}},
            "split": {"variant": "u-shaped"},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 1e-3,
                "weight_decay": 0.0,
                "warmup_steps": 0,
                "schedule": "constant",
                "max_grad_norm": "off",
            },
        }

    # ---- clients and server

    def parts(self, *, u_shaped: bool) -> CutParts:
        """The parts of a new network, the same on every machine."""
        network = new_model(self)
        if not isinstance(network, CutNetwork) or network.head is None:
            raise TypeError("not the network of this recipe")
        if u_shaped:
            return CutParts(network.bottom, network.top, network.head)
        return CutParts(network.bottom, nn.Sequential(network.top, network.head), None)

    @property
    def penalty(self) -> NoPeek | None:
        """What clients add to the loss of their bottoms."""
        return NoPeek(self.settings.no_peek) if self.settings.no_peek else None

    def client_samples(self, files: Files, number: int) -> LabelledSamples:
        """What client `number`, counted from 0, trains on: its own samples if `own_data` read some, else its part of
        the example.

        Raises `ConfigurationError` if there is no such client, or if it has to bring samples of its own.
        """
        return self._known(files) if OWN_FILE in files else self._example.of_client(number)

    def heldout_samples(self) -> LabelledSamples | None:
        """What nobody trains on, None where each client brings its own samples."""
        return None if self.settings.data == "table" else self._example.heldout

    # ---- the interface of recipes

    def prepare(self) -> Mapping[str, bytes]:
        """Nothing travels. Raises `ConfigurationError` if the example is too small."""
        if self.settings.data != "table":
            self._example.of_client(0)
        return {}

    def check_own_data(self, patterns: Sequence[str], names: Collection[str]) -> None:  # noqa: ARG002
        """They have to name files."""
        tables(patterns)

    def own_data(self, files: Files, patterns: Sequence[str], folder: Path) -> tuple[SplitRecipe, Files]:
        """Samples out of tables, one a line, with its class at the end."""
        return SplitRecipe(self.settings, self.context), {
            **files,
            OWN_FILE: store_tables(patterns, self.settings.shape, folder),
        }

    def build_model(self) -> CutNetwork:
        """The whole network."""
        return CutNetwork(self.settings.shape).train()

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """`inputs` float32 [n, …] and `labels` int64 [n], of all samples that this machine has."""
        samples = self._known(files)
        order = shuffled(len(samples.labels), self.context.seed, position, micro_batch_size)
        return (_batch(samples, torch.from_numpy(rows)) for rows, _ in order)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """The same of the samples that `batch` names."""
        samples = self._known(files)
        return _batch(samples, torch.from_numpy(batch.indices(len(samples.labels))))

    def check_public(self) -> None:
        """Others have to have the same samples."""
        if self.settings.data == "table":
            raise ConfigurationError(
                'security.verification = "byzantine" needs samples that all peers have: recipe.split.data = "table" '
                "leaves them at each client"
            )

    def synthetic_batch(self, size: int) -> Batch:
        """Noise."""
        chance, shape = np.random.default_rng(0), self.settings.shape
        inputs = chance.random((size, *shape.sample), dtype=np.float32)
        labels = chance.integers(0, shape.classes, size, dtype=np.int64)
        return {"inputs": torch.from_numpy(inputs), "labels": torch.from_numpy(labels)}

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Cross entropy, nats. NoPeek is no part of it: a whole network sends nothing that it would hide."""
        total = functional.cross_entropy(model(batch["inputs"]), batch["labels"])
        return Loss(total, {"loss": total})

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:  # noqa: ARG002
        """`heldout_loss` (nats) and `heldout_accuracy` (share)."""
        samples = self.heldout_samples()
        return {} if samples is None else figures_of(model, samples)

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """The three parts as safetensors, and a README that says how to put them together."""
        figures, shape = self.evaluate(model, files), self.settings.shape
        with Exported.to(directory, provenance) as exported:
            for name in PARTS:
                exported.tensors(f"{name}.safetensors", model.get_submodule(name).state_dict())
            exported.card(
                self.context.run_name,
                f"The parts of a network for {self.settings.data}, trained with minga.",
                figures,
                f"""from safetensors.torch import load_file
from minga.split.examples.network import CutNetwork, CutShape

folder = "PATH OF THIS DIRECTORY"
network = CutNetwork(CutShape({shape.sample}, {shape.classes}, {shape.channels}, {shape.bottom}, {shape.top}, True))
for name in {PARTS}:
    network.get_submodule(name).load_state_dict(load_file(f"{{folder}}/{{name}}.safetensors"))
network.eval()  # logits [n, {shape.classes}] of inputs [n, {", ".join(map(str, shape.sample))}]""",
            )

    # ---- inner workings

    @property
    def _example(self) -> DealtSamples:
        settings = self.settings
        if settings.data == "table":
            raise ConfigurationError(
                'recipe.split.data = "table": each client brings samples of its own, with --data FILE.csv'
            )
        if self._dealt is None:
            self._dealt = DealtSamples(settings.data, settings.heldout, settings.clients, self.context.seed)
        return self._dealt

    def _known(self, files: Files) -> LabelledSamples:
        if OWN_FILE not in files:
            return self._example.training
        if self._own is None:
            self._own = read_stored(files[OWN_FILE], self.settings.shape)
        return self._own


def figures_of(model: nn.Module, samples: LabelledSamples) -> dict[str, float]:
    """Loss and accuracy of a model in evaluation mode; it is left as it was."""
    with evaluating(model) as device:
        parts = torch.split(samples.inputs, _EVALUATED_TOGETHER)
        found = torch.cat([model(some.to(device)).cpu().double() for some in parts])
    return {
        "heldout_loss": float(functional.cross_entropy(found, samples.labels)),
        "heldout_accuracy": float((found.argmax(1) == samples.labels).double().mean()),
    }


def _batch(samples: LabelledSamples, rows: Tensor) -> Batch:
    return {"inputs": samples.inputs[rows], "labels": samples.labels[rows]}
