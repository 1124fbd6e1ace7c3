"""What a client's activations tell about its data, without and with NoPeek."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from minga.core.errors import ConfigurationError
from minga.split.examples.subject import LeakageSubject, example_subject
from minga.split.leakage.decoder import InvertingDecoder, PairedSamples, best_decoder, decoding_error
from minga.split.leakage.distance_correlation import distance_correlation
from minga.split.leakage.division import SampleDivision
from minga.split.leakage.no_peek import NoPeek
from minga.split.leakage.permutation import permuted_correlation
from minga.split.leakage.report import LeakageReport, LeakageRow
from minga.split.leakage.settings import LeakageSettings
from minga.split.leakage.similarity import structural_similarity
from minga.split.leakage.training import TrainedParts, train_parts

MOST_CORRELATED = 2048
"""Of more samples in the validation or report part only the first so many are correlated: the cost is their square."""
FEWEST_IN_A_PART = 8


@dataclass(frozen=True)
class _Candidate:
    """Parts trained with one weight, judged on the validation samples."""

    weight: float
    parts: TrainedParts
    accuracy: float
    correlation: float


def compare_leakage(settings: LeakageSettings, seed: int, subject: LeakageSubject | None = None) -> LeakageReport:
    """Train the parts of `subject` without and with NoPeek, attack both, and say what the attacks find.

    Without a subject, that is the example which the settings name. Takes seconds to minutes, on the CPU. Equal settings
    and seeds give equal reports on one machine. Raises `ConfigurationError` if there are too few samples, or the
    example is not installed.
    """
    subject = example_subject(settings.example) if subject is None else subject
    division = SampleDivision.of(len(subject.inputs), settings.validation_share, settings.report_share, seed)
    smallest = min(len(division.training), len(division.validation), len(division.report))
    if smallest < FEWEST_IN_A_PART:
        raise ConfigurationError(
            f"{subject.name}: a part of the samples has {smallest} only; {FEWEST_IN_A_PART} are needed for training, "
            "for validation and for the report: give more samples, or larger shares"
        )
    plain = _candidate(subject, division, settings, 0.0, seed)
    tried = [_candidate(subject, division, settings, weight, seed) for weight in settings.weights]
    chosen = _chosen(plain, tried, settings.accuracy_loss)
    attacks = [_Attack(subject, division, settings, each, seed) for each in (plain, chosen)]
    count = min(settings.pictures, len(division.report))
    rows = division.report[:count]
    sheet = {"original": subject.inputs[rows]}
    for name, attack in zip(("without NoPeek", "with NoPeek"), attacks, strict=True):
        sheet[name] = attack.reconstructed(rows)
    guess = subject.inputs[division.training].mean(0)
    return LeakageReport(
        subject=subject.name,
        seed=seed,
        samples=(len(division.training), len(division.validation), len(division.report)),
        plain=attacks[0].row(),
        no_peek=attacks[1].row(),
        mean_guess_error=float((subject.inputs[division.report] - guess).square().mean()),
        is_within_accuracy_loss=chosen.accuracy >= plain.accuracy - settings.accuracy_loss,
        weights_tried=settings.weights,
        sheet=sheet,
        picture=subject.picture,
    )


def _candidate(
    subject: LeakageSubject, division: SampleDivision, settings: LeakageSettings, weight: float, seed: int
) -> _Candidate:
    penalty = NoPeek(weight) if weight else None
    parts = train_parts(subject, division.training, settings, penalty, seed)
    inputs, labels = subject.inputs[division.validation], subject.labels[division.validation]
    few = inputs[:MOST_CORRELATED]
    correlation = float(distance_correlation(few, parts.activations(few)))
    return _Candidate(weight, parts, parts.accuracy(inputs, labels), correlation)


def _chosen(plain: _Candidate, tried: list[_Candidate], accuracy_loss: float) -> _Candidate:
    """The one that tells least among those that are nearly as right as without NoPeek; if none is, the most right."""
    fair = [each for each in tried if each.accuracy >= plain.accuracy - accuracy_loss]
    if fair:
        return min(fair, key=lambda each: each.correlation)
    return max(tried, key=lambda each: each.accuracy)


class _Attack:
    """A decoder against the bottom of a candidate."""

    def __init__(
        self,
        subject: LeakageSubject,
        division: SampleDivision,
        settings: LeakageSettings,
        candidate: _Candidate,
        seed: int,
    ) -> None:
        self._subject, self._division, self._settings = subject, division, settings
        self._candidate, self._seed = candidate, seed
        known, validation = self._paired(division.training), self._paired(division.validation)
        self._decoder: InvertingDecoder = best_decoder(known, validation, settings, seed)

    def reconstructed(self, rows: Tensor) -> Tensor:
        """What the decoder makes of samples."""
        with torch.no_grad():
            found: Tensor = self._decoder(self._paired(rows).activations)
        return found

    def row(self) -> LeakageRow:
        """The figures on the report samples."""
        subject, rows, parts = self._subject, self._division.report, self._candidate.parts
        pairs, similarity = self._paired(rows), None
        if subject.picture is not None:
            shape = (-1, *subject.picture)
            found = self.reconstructed(rows).clamp(0.0, 1.0)
            similarity = float(structural_similarity(pairs.inputs.reshape(shape), found.reshape(shape)))
        few = PairedSamples(pairs.activations[:MOST_CORRELATED], pairs.inputs[:MOST_CORRELATED])
        return LeakageRow(
            weight=self._candidate.weight,
            accuracy=parts.accuracy(pairs.inputs, subject.labels[rows]),
            correlation=permuted_correlation(few.inputs, few.activations, self._settings.permutations, self._seed),
            decoder_error=decoding_error(self._decoder, pairs),
            decoder_similarity=similarity,
        )

    def _paired(self, rows: Tensor) -> PairedSamples:
        inputs = self._subject.inputs[rows]
        return PairedSamples(self._candidate.parts.activations(inputs), inputs)
