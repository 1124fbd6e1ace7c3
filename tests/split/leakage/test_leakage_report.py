"""Leakage reports: what is trained and measured on which samples, what decoders find, and what is written."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import nn

from minga.core.errors import ConfigurationError
from minga.split import LeakageReport, LeakageSettings, LeakageSubject, compare_leakage
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import EXAMPLES, example_samples
from minga.split.examples.subject import subject_of
from minga.split.leakage.decoder import PairedSamples, best_decoder, decoding_error
from minga.split.leakage.division import SampleDivision
from minga.split.leakage.similarity import structural_similarity

QUICK = LeakageSettings(
    weights=(1.5,), epochs=40, learning_rate=2e-3, decoder_widths=(64,), decoder_epochs=25, permutations=10, pictures=4
)


@pytest.fixture(scope="module")
def digits() -> LeakageReport:
    return compare_leakage(QUICK, 1)


def test_no_peek_halves_the_correlation_of_digits_and_decoders_find_less(digits: LeakageReport) -> None:
    plain, no_peek = digits.plain, digits.no_peek
    assert digits.samples == (899, 359, 539)
    assert plain.accuracy > 0.9
    assert no_peek.accuracy > plain.accuracy - 0.04
    assert no_peek.correlation.found < 0.65 * plain.correlation.found
    assert plain.correlation.mean < 0.3
    assert plain.decoder_error < no_peek.decoder_error < digits.mean_guess_error
    assert plain.decoder_similarity is not None
    assert no_peek.decoder_similarity is not None
    assert plain.decoder_similarity > no_peek.decoder_similarity


def test_a_report_is_written_as_figures_text_and_picture(digits: LeakageReport, tmp_path: Path) -> None:
    figures, text, sheet = digits.write(tmp_path / "new")
    told = json.loads(figures.read_text("utf-8"))
    assert told["no_peek"]["correlation"]["found"] == digits.no_peek.correlation.found
    assert told["samples"] == {"training": 899, "validation": 359, "report": 539}
    assert f"{digits.plain.accuracy:.1%}" in text.read_text("utf-8")
    assert "promise no privacy" in text.read_text("utf-8")
    with Image.open(sheet) as picture:
        assert picture.format == "PNG"
        assert len(picture.convert("L").getcolors(1 << 16) or []) > 16
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["leakage.json", "leakage.md", "leakage.png"]


def subject(count: int = 120, *, picture: bool = False) -> LeakageSubject:
    generator = torch.Generator().manual_seed(2)
    inputs = torch.rand(count, 16, generator=generator)
    labels = (inputs.sum(1) > 8.0).long()

    def new_parts() -> tuple[nn.Module, nn.Module]:
        network = CutNetwork(CutShape((16,), 2, bottom=(8,), top=(4,)))
        return network.bottom, network.top

    return LeakageSubject("sums", inputs, labels, new_parts, (1, 4, 4) if picture else None)


SHORT = replace(QUICK, weights=(0.5, 1.0), epochs=2, decoder_epochs=2)


def test_equal_seeds_give_equal_reports_and_leave_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    first = compare_leakage(SHORT, 3, subject())
    assert torch.equal(before, torch.random.get_rng_state())
    torch.rand(3)
    assert first.figures() == compare_leakage(SHORT, 3, subject()).figures()
    assert first.figures() != compare_leakage(SHORT, 4, subject()).figures()


def test_tables_have_no_similarity_and_are_drawn_all_the_same(tmp_path: Path) -> None:
    report = compare_leakage(SHORT, 3, subject())
    assert report.plain.decoder_similarity is None
    assert "structural" not in report.text()
    assert report.write(tmp_path)[2].is_file()
    assert compare_leakage(SHORT, 3, subject(picture=True)).plain.decoder_similarity is not None


def test_a_weight_is_chosen_by_the_validation_samples_alone() -> None:
    told = subject()
    division = SampleDivision.of(len(told.inputs), SHORT.validation_share, SHORT.report_share, 3)
    spoiled = told.inputs.clone()
    spoiled[division.report] = torch.rand(len(division.report), 16, generator=torch.Generator().manual_seed(9))
    other = compare_leakage(SHORT, 3, replace(told, inputs=spoiled))
    report = compare_leakage(SHORT, 3, told)
    assert report.no_peek.weight == other.no_peek.weight
    assert report.is_within_accuracy_loss == other.is_within_accuracy_loss
    assert report.plain.decoder_error != other.plain.decoder_error


def test_if_no_weight_keeps_the_accuracy_the_report_says_so() -> None:
    some = example_samples("digits").rows(torch.arange(300))
    settings = replace(QUICK, weights=(1e5,), decoder_epochs=1, permutations=1)
    report = compare_leakage(settings, 3, subject_of("some digits", some, CutShape((1, 8, 8), 10)))
    assert not report.is_within_accuracy_loss
    assert "No weight that was tried" in report.text()


def test_samples_are_in_one_part_each_and_what_is_reported_is_the_same_for_all_seeds() -> None:
    one, other = SampleDivision.of(100, 0.2, 0.3, 1), SampleDivision.of(100, 0.2, 0.3, 2)
    for each in (one, other):
        parts = (each.training, each.validation, each.report)
        assert [len(part) for part in parts] == [50, 20, 30]
        assert sorted(torch.cat(parts).tolist()) == list(range(100))
    assert torch.equal(one.report, other.report)
    assert not torch.equal(one.validation, other.validation)


def test_a_decoder_inverts_what_can_be_inverted_and_guesses_the_mean_of_the_rest() -> None:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(600, 4, generator=generator)
    turned = inputs @ torch.linalg.qr(torch.randn(4, 4, generator=generator)).Q
    settings = LeakageSettings(decoder_widths=(64,), decoder_epochs=60)
    for activations, low, high in ((turned, 0.0, 0.1), (torch.randn(600, 4, generator=generator), 0.9, 1.2)):
        known, validation, report = (
            PairedSamples(activations[rows], inputs[rows]) for rows in (slice(0, 400), slice(400, 500), slice(500, 600))
        )
        decoder = best_decoder(known, validation, settings, 5)
        assert low <= decoding_error(decoder, report) <= high


def test_structural_similarity_equals_that_of_torchmetrics() -> None:
    torchmetrics = pytest.importorskip("torchmetrics.functional.image")
    generator = torch.Generator().manual_seed(0)
    pictures = torch.rand(3, 2, 24, 20, generator=generator)
    others = (pictures + 0.2 * torch.randn(pictures.shape, generator=generator)).clamp(0.0, 1.0)
    _, places = torchmetrics.structural_similarity_index_measure(
        others, pictures, data_range=1.0, return_full_image=True
    )
    inside = places[..., 5:-5, 5:-5]  # beyond, its windows lie across the borders
    assert float(structural_similarity(pictures, others)) == pytest.approx(float(inside.mean()), abs=1e-5)


def test_structural_similarity_of_small_pictures_is_one_for_equal_and_less_for_others() -> None:
    pictures = torch.rand(4, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    assert float(structural_similarity(pictures, pictures)) == pytest.approx(1.0, abs=1e-6)
    assert float(structural_similarity(pictures, 1.0 - pictures)) < 0.1
    with pytest.raises(ValueError, match="cannot be compared"):
        structural_similarity(pictures, pictures[:, :, :4])


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_finite_and_fit_their_network(name: str) -> None:
    samples = example_samples(name)
    network = CutNetwork(CutShape(tuple(samples.inputs.shape[1:]), samples.classes))
    assert network(samples.inputs[:5]).shape == (5, samples.classes)
    assert sorted(samples.labels.unique().tolist()) == list(range(samples.classes))
    if samples.picture:
        assert (float(samples.inputs.min()), float(samples.inputs.max())) == (0.0, 1.0)
    else:
        torch.testing.assert_close(samples.inputs.mean(0), torch.zeros(samples.inputs.shape[1]), atol=1e-4, rtol=0.0)


def test_networks_are_cut_where_their_shape_says() -> None:
    shape = CutShape((1, 8, 8), 10, channels=(4, 6), bottom=(20,), top=(12,), has_head=True)
    network, pictures = CutNetwork(shape), torch.rand(3, 1, 8, 8)
    assert network.bottom(pictures).shape == (3, network.cut_width) == (3, 20)
    assert network.top(network.bottom(pictures)).shape == (3, 12)
    assert isinstance(network.head, nn.Linear)
    assert network(pictures).shape == (3, 10)
    assert CutNetwork(replace(shape, bottom=(), has_head=False)).cut_width == 6 * 4 * 4
    for wrong in (replace(shape, sample=(64,)), replace(shape, top=()), replace(shape, channels=(), bottom=())):
        with pytest.raises(ValueError, match=r"no pictures|at least one layer"):
            CutNetwork(wrong)


@pytest.mark.parametrize(
    "change",
    [
        {"epochs": 0},
        {"weights": ()},
        {"weights": (0.0,)},
        {"weights": (float("nan"),)},
        {"learning_rate": float("inf")},
        {"validation_share": 0.5, "report_share": 0.5},
        {"decoder_widths": (0,)},
    ],
)
def test_settings_that_make_no_sense_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError, match="leakage: "):
        replace(LeakageSettings(), **change)


def test_samples_that_are_too_few_or_not_finite_are_refused() -> None:
    told = subject()
    with pytest.raises(ConfigurationError, match="as many of both"):
        replace(told, labels=told.labels[1:])
    with pytest.raises(ConfigurationError, match="not finite"):
        replace(told, inputs=told.inputs * float("nan"))
    with pytest.raises(ConfigurationError, match="a part of the samples has"):
        compare_leakage(replace(SHORT, validation_share=0.02), 1, told)
    with pytest.raises(ConfigurationError, match="is no example"):
        example_samples("mnist")
