"""What an exported trunk is good for: simple classifiers on its features, beside those of a trunk from scratch.

The trunk rests. `linear-probe` fits a logistic regression to the features of training pictures, `knn` asks the nearest
of them; both are then tried on other pictures. Which picture is on which side follows from its content, as in a run: so
pictures that a run has held out are never among those that it trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.recipes.exported import PROVENANCE_FILE, read_provenance
from minga.recipes.swav.data.labelled import LabelledPictures, labelled_pictures
from minga.recipes.swav.data.settings import GREY_SOURCES
from minga.recipes.swav.evaluation import features_of, precise_copy
from minga.recipes.swav.export import TRUNK_FILE
from minga.recipes.swav.model import SwavModel
from minga.recipes.swav.probes import knn_accuracy, linear_probe_accuracy, renumbered, standardized
from minga.recipes.swav.settings import SwavSettings
from minga.recipes.task_report import Say, TaskOptions, TaskReport, in_words, summary

Classifier = Callable[[Tensor, Tensor, Tensor, Tensor], float]
CLASSIFIERS: Final[dict[str, Classifier]] = {"linear-probe": linear_probe_accuracy, "knn": knn_accuracy}
TASKS: Final = tuple(CLASSIFIERS)
MOST_PIXELS: Final = 1 << 14
"""Larger pictures are not classified by their pixels, which would take gigabytes and tell nothing."""


def judge_export(model: str, options: TaskOptions, say: Say) -> TaskReport:
    """The share of test pictures that a task classifies right; see `Recipe.judge`."""
    folder = Path(model).expanduser()
    settings = _settings(folder)
    trained = _trained(folder, settings)
    source = options.data or (settings.data.source if settings.data.source in GREY_SOURCES else None)
    if source is None:
        raise ConfigurationError("--data: name pictures with classes: a folder with one folder for each class")
    side = settings.data.packed_size if settings.data.source == "folder" else 0
    pictures = labelled_pictures(source, settings.data, side or settings.crops[0][1], options.training_examples)
    task = CLASSIFIERS[options.task]
    raw = None
    if pictures.training.pictures[0].numel() <= MOST_PIXELS:
        raw = _score(task, pictures, lambda them: them.flatten(1).float())
        say(f"raw pixels: {in_words(raw)}")
    found = _score(task, pictures, lambda them: features_of(trained, them))
    say(f"trained: {in_words(found)}")
    scratch = []
    for seed in range(options.runs):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            fresh = precise_copy(SwavModel(settings), pictures.training)
        scratch.append(_score(task, pictures, lambda them, own=fresh: features_of(own, them)))  # type: ignore[misc]
        say(f"from scratch, {seed + 1} of {options.runs}: {in_words(scratch[-1])}")
    return TaskReport(
        options.task,
        source,
        len(pictures.training),
        options.runs,
        summary([found]),
        summary(scratch),
        raw=None if raw is None else summary([raw]),
    )


def _score(task: Classifier, pictures: LabelledPictures, features: Callable[[Tensor], Tensor]) -> dict[str, float]:
    known, asked = standardized(features(pictures.training.pictures), features(pictures.test.pictures))
    labels, wanted = renumbered(pictures.training.labels, pictures.test.labels)
    return {"accuracy": task(known, labels, asked, wanted)}


def _settings(folder: Path) -> SwavSettings:
    if not folder.is_dir():
        raise ConfigurationError(f"{folder}: no such folder; `minga export` writes one")
    provenance = read_provenance(folder)
    if provenance is None:
        raise ConfigurationError(f"{folder}: has no {PROVENANCE_FILE}, so it is not known which trunk it has")
    settings = provenance.checked(SwavSettings)
    if not isinstance(settings, SwavSettings):
        raise TypeError(type(settings).__name__)
    return settings


def _trained(folder: Path, settings: SwavSettings) -> SwavModel:
    """The exported model, in evaluation mode. Its head, which no task needs, stays as it is made."""
    with torch.random.fork_rng(devices=[]):
        model = SwavModel(settings)
    try:
        model.trunk.load_state_dict(load_file(folder / TRUNK_FILE))
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise ConfigurationError(f"{folder / TRUNK_FILE}: not the trunk of this model: {str(error)[:300]}") from error
    return model.eval()
