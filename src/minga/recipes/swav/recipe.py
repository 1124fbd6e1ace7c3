"""The SwAV recipe: pictures are learned from without labels, by a ResNet.

Each peer assigns the pictures of its own micro-batch, so the micro-batch size is part of the run. Gradients are
averaged as ever; the prototypes are brought back to norm 1 after each update, on every peer alike.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import Tensor, nn

from minga.core.errors import ConfigurationError
from minga.recipes.data.files import file_of
from minga.recipes.data.order import shuffled
from minga.recipes.data.prefetch import prefetched
from minga.recipes.exported import Provenance
from minga.recipes.images.source import check_own_folders, files_below
from minga.recipes.interface import (
    Batch,
    Beside,
    DemoGoal,
    Files,
    Loss,
    Metric,
    Recipe,
    RecipeContext,
    Showing,
    StreamPosition,
)
from minga.recipes.swav.crops import array_batch, file_batches, synthetic_batch
from minga.recipes.swav.evaluation import class_figures, heldout_figures, is_collapsed, nearest_pictures, precise_copy
from minga.recipes.swav.export import export_model
from minga.recipes.swav.model import PROTOTYPES, SwavModel, normalize_prototypes, swav_loss
from minga.recipes.swav.pictures import (
    HELDOUT_FILE,
    MAX_PROBE,
    PROBE_FILE,
    TRAINING_FILE,
    PictureSet,
    is_shard,
    keep_files,
    keep_squares,
    own_pictures,
    prepared_files,
    read_pictures,
)
from minga.recipes.swav.settings import PRESETS, ImageData, SwavSettings
from minga.security.randomness.public_batch import PublicBatch

COLLAPSED_TWICE: Final = 2
MOST_PIXELS: Final = 1 << 14
"""Larger pictures are not classified by their pixels, which would take gigabytes and tell nothing."""

logger = logging.getLogger("minga.recipes")


class SwavRecipe(Recipe[SwavSettings]):
    """SwAV on the pictures that the settings name; see `Recipe` for what each method promises."""

    Settings = SwavSettings
    headline = Metric("heldout_one_label_accuracy", better="higher")
    demo_goal = DemoGoal(0.65, steps=150)
    counted_samples = 2  # one alone may have no variance
    estimates_statistics = True
    coupling = "micro-batch"
    sizes = tuple(PRESETS)

    def __init__(self, settings: SwavSettings, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._read: dict[Path, PictureSet] = {}
        self._collapsed = 0

    @property
    def is_streamed(self) -> bool:
        """Whether peers read the pictures of a data set themselves."""
        return self.settings.data.source == "hub"

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """The presets, which hold everything."""
        if tokens is not None:
            raise ConfigurationError("--tokens: pictures have none")
        return {"size": size}

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """The tiny model on the digits of scikit-learn."""
        return {
            "recipe": {"swav": {"size": "tiny"}},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.002,
                "weight_decay": 1e-6,
                "warmup_steps": 10,
                "schedule": "constant",
                "max_grad_norm": "off",
            },
            "training": {"target_batch_size": 256},
        }

    def check_public(self) -> None:
        """A gradient has to follow from parameters and public batch alone, and pictures from files without decoding."""
        if self.settings.queue:
            raise ConfigurationError(
                'security.verification = "byzantine" needs recipe.swav.queue = 0: nobody else has a peer\'s queue'
            )
        if not self.settings.data.is_packed:
            raise ConfigurationError(
                'security.verification = "byzantine" needs pictures that travel as arrays, since decoders differ: set '
                'recipe.swav.data.source to "folder" with a packed_size, or to "digits"'
            )

    def prepare(self) -> dict[str, bytes]:
        """Training and held-out pictures, with the labels that figures need."""
        return prepared_files(self.settings.data, self.settings.crops[0][1])

    def inputs(self) -> Sequence[Path]:
        """The pictures in the organiser's folder."""
        return files_below(self.settings.data.folder)

    def build_model(self) -> SwavModel:
        """Trunk, head and prototypes of norm 1."""
        return SwavModel(self.settings).train()

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `make_batch` describes them; those of picture files are made ahead, on other threads."""
        settings, seed = self.settings, self.context.seed
        if not settings.data.is_packed:
            return prefetched(file_batches(settings, files, seed, position, micro_batch_size))
        pictures = self._pictures(files, TRAINING_FILE).pictures
        order = shuffled(len(pictures), seed, position, micro_batch_size)
        return (array_batch(settings, pictures[rows], chance) for rows, chance in order)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """The same of the pictures that `batch` names."""
        pictures = self._pictures(files, TRAINING_FILE).pictures
        return array_batch(self.settings, pictures[batch.indices(len(pictures))], np.random.default_rng(batch.number))

    def synthetic_batch(self, size: int) -> Batch:
        """Noise."""
        return synthetic_batch(self.settings, size)

    def samples(self, batch: Batch) -> int:
        """The number of pictures, of which there are several crops."""
        return batch["crops_0"].shape[0] // self.settings.crops[0][0]

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """How badly assignments are predicted, in nats. In training mode, the queue takes part."""
        own = _own(model)
        total = swav_loss(own, batch, self.settings, with_queue=self.settings.queue > 0 and own.training)
        return Loss(total, {"swav_loss": total})

    def check_own_data(self, patterns: Sequence[str], names: Collection[str]) -> None:  # noqa: ARG002
        """Each has to be a folder."""
        check_own_folders(patterns)

    def own_data(self, files: Files, patterns: Sequence[str], folder: Path) -> tuple[SwavRecipe, Files]:
        """The pictures of folders: as squares like the run's, or where it trains on files as files."""
        pictures = own_pictures(patterns)
        heldout = self._pictures(files, HELDOUT_FILE) if HELDOUT_FILE in files else None
        if self.settings.data.is_packed:
            path = folder / TRAINING_FILE
            keep_squares(pictures, self._pictures(files, TRAINING_FILE), heldout, path)
            known = {PROBE_FILE: files[TRAINING_FILE]}  # figures are those of all peers
            return SwavRecipe(self.settings, self.context), {**files, **known, TRAINING_FILE: path}
        settings = self.settings.model_copy(update={"data": ImageData(source="folder", packed_size=0)})
        others = {name: path for name, path in files.items() if not is_shard(name)}
        return SwavRecipe(settings, self.context), {**others, **keep_files(pictures, heldout, folder)}

    def frozen(self, step: int) -> frozenset[str]:
        """The prototypes, in the first steps."""
        return frozenset({PROTOTYPES}) if step < self.settings.freeze_prototypes_steps else frozenset()

    def constrain(self, model: nn.Module, step: int) -> None:
        """Prototypes of norm 1. The model learns which step it is at, since the queue begins at one."""
        own = _own(model)
        own.steps = step
        normalize_prototypes(own)

    def decayed(self, name: str, parameter: Tensor) -> bool:  # noqa: ARG002
        """Everything, biases and norms too, as the authors of SwAV do."""
        return True

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_swav_loss` (nats), and with labels `heldout_one_label_accuracy`, `heldout_probe_accuracy` and
        `heldout_knn_accuracy`. Warns once if the model gives all pictures the same answer.
        """
        if HELDOUT_FILE not in files:
            return {}
        heldout, settings = self._pictures(files, HELDOUT_FILE), self.settings
        figures = heldout_figures(_own(model), settings, self._known(files), heldout)
        # Runs that learn may pass such a moment: the second in a row is one too many.
        self._collapsed = self._collapsed + 1 if is_collapsed(figures, settings.prototypes) else 0
        if self._collapsed == COLLAPSED_TWICE:
            logger.warning(
                "the model gives every picture the same answer (held-out loss %.3f, which is ln %d), so it learns "
                "nothing: begin anew with a lower learning rate, or in [recipe.swav] with a smaller epsilon, less "
                "jitter, or crops that show more of a picture",
                figures["heldout_swav_loss"],
                settings.prototypes,
            )
        return figures

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """For held-out pictures the training pictures that the models take to be most like them."""
        data, known, heldout = self.settings.data, self._known(files), self._pictures(files, HELDOUT_FILE)
        beside: dict[str, Beside] = {}
        if known.is_labelled and heldout.is_labelled and known.pictures[0].numel() <= MOST_PIXELS:
            few = known.first(MAX_PROBE)
            pixels = (each.pictures.flatten(1).float() for each in (few, heldout))
            beside = {name: Beside("raw pixels", share) for name, share in class_figures(few, heldout, *pixels).items()}
        return Showing(data.in_words(), nearest_pictures([_own(model) for model in models], known, heldout), beside)

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """The trunk for `transformers`, the head, and a README with the figures."""
        precise = precise_copy(_own(model), self._known(files))
        figures = self.evaluate(model, files)
        export_model(precise, self.settings, figures, directory, provenance, title=self.context.run_name)

    def _known(self, files: Files) -> PictureSet:
        """Training pictures of one size, for the probe and the statistics of BatchNorm."""
        return self._pictures(files, PROBE_FILE if PROBE_FILE in files else TRAINING_FILE)

    def _pictures(self, files: Files, name: str) -> PictureSet:
        path = file_of(files, name)
        if path not in self._read:
            self._read[path] = read_pictures(path, self.settings.data.channels)
        return self._read[path]


def _own(model: nn.Module) -> SwavModel:
    if not isinstance(model, SwavModel):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    return model
