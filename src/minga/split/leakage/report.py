"""The figures and the picture of a leakage report, and how they are written."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from minga.core.files import write_atomically
from minga.split.leakage.permutation import PermutedCorrelation
from minga.split.leakage.sheet import write_sheet

FIGURES_FILE, TEXT_FILE, SHEET_FILE = "leakage.json", "leakage.md", "leakage.png"
CAVEAT: Final = (
    "These attacks are not all attacks: what they do not find is not proven to be hidden. Split learning and NoPeek "
    "promise no privacy in the sense of differential privacy, and activations tell about labels by design."
)


@dataclass(frozen=True)
class LeakageRow:
    """What was measured of parts that were trained with one `weight` of NoPeek, 0 for none, on the report samples.

    `accuracy` is a share; `decoder_error` the mean squared error of reconstructions; `decoder_similarity` their
    structural similarity to the originals, None for samples that are no pictures.
    """

    weight: float
    accuracy: float
    correlation: PermutedCorrelation
    decoder_error: float
    decoder_similarity: float | None


@dataclass(frozen=True)
class LeakageReport:
    """Both rows, and what they are to be compared with.

    `samples` are the numbers for training, validation and report; `mean_guess_error` is the error of an attacker who
    sees no activations and guesses the mean of the training samples. `is_within_accuracy_loss` says that, on the
    validation samples, the weight that was taken lost no more accuracy than the settings allow. `sheet` has originals
    and reconstructions by name.
    """

    subject: str
    seed: int
    samples: tuple[int, int, int]
    plain: LeakageRow
    no_peek: LeakageRow
    mean_guess_error: float
    is_within_accuracy_loss: bool
    weights_tried: tuple[float, ...]
    sheet: Mapping[str, Tensor] = field(repr=False)
    picture: tuple[int, int, int] | None

    def figures(self) -> dict[str, Any]:
        """All figures, for JSON."""
        return {
            "subject": self.subject,
            "seed": self.seed,
            "samples": dict(zip(("training", "validation", "report"), self.samples, strict=True)),
            "weights_tried": list(self.weights_tried),
            "is_within_accuracy_loss": self.is_within_accuracy_loss,
            "mean_guess_error": self.mean_guess_error,
            "plain": asdict(self.plain),
            "no_peek": asdict(self.no_peek),
        }

    def text(self) -> str:
        """The report for people, in Markdown."""
        training, validation, reported = self.samples
        rows = (
            ("accuracy", *(f"{each.accuracy:.1%}" for each in self._rows)),
            ("distance correlation of data and activations", *(f"{each.correlation.found:.3f}" for each in self._rows)),
            ("the same by chance, mean", *(f"{each.correlation.mean:.3f}" for each in self._rows)),
            ("the same by chance, 95 % are below", *(f"{each.correlation.high:.3f}" for each in self._rows)),
            ("mean squared error of reconstructions", *(f"{each.decoder_error:.4f}" for each in self._rows)),
            *self._similarities(),
        )
        lines = [
            f"# Leakage of {self.subject}",
            "",
            f"| on {reported} samples | without NoPeek | NoPeek, weight {self.no_peek.weight:g} |",
            "| --- | --- | --- |",
            *("| " + " | ".join(row) + " |" for row in rows),
            "",
            f"A guess without activations has a mean squared error of {self.mean_guess_error:.4f}. The parts and the "
            f"decoders were trained on {training} other samples; weight, width and duration were chosen on "
            f"{validation} others. Seed {self.seed}.",
        ]
        if not self.is_within_accuracy_loss:
            lines += ["", "No weight that was tried kept the accuracy within the allowed loss: the best is shown."]
        return "\n".join([*lines, "", CAVEAT, ""])

    def write(self, folder: Path) -> list[Path]:
        """Write figures (JSON), text (Markdown) and originals beside reconstructions (PNG); the paths of the files.

        Makes the folder if need be. Raises `StorageError` if the disk refuses.
        """
        figures, text, sheet = folder / FIGURES_FILE, folder / TEXT_FILE, folder / SHEET_FILE
        write_sheet(self.sheet, self.picture, sheet)
        write_atomically(figures, json.dumps(self.figures(), indent=2).encode())
        write_atomically(text, self.text().encode())
        return [figures, text, sheet]

    @property
    def _rows(self) -> tuple[LeakageRow, LeakageRow]:
        return self.plain, self.no_peek

    def _similarities(self) -> list[tuple[str, ...]]:
        found = [each.decoder_similarity for each in self._rows]
        shown = [f"{each:.3f}" for each in found if each is not None]
        return [("their structural similarity to the originals", *shown)] if len(shown) == len(found) else []
