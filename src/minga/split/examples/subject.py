"""What a leakage report is about: samples, and a model that is cut in two; also the examples as that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from minga.core.errors import ConfigurationError
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import LabelledSamples, example_samples

FEWEST_SAMPLES = 40


@dataclass(frozen=True)
class LeakageSubject:
    """Samples and the parts to be trained on them.

    `inputs` are float32 [n, …] with values from 0 to 1 where they are pictures, `labels` int64 [n]. `new_parts` makes
    the bottom and what comes behind it, with parameters by torch's generator. `picture` is (channels, height, width) if
    a sample is a picture, else None.
    """

    name: str
    inputs: Tensor
    labels: Tensor
    new_parts: Callable[[], tuple[nn.Module, nn.Module]]
    picture: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` if samples and labels do not belong together, or are too few."""
        if len(self.inputs) != len(self.labels) or len(self.inputs) < FEWEST_SAMPLES:
            raise ConfigurationError(
                f"{self.name}: {len(self.inputs)} samples and {len(self.labels)} labels: as many of both are needed, "
                f"and at least {FEWEST_SAMPLES}"
            )
        if not bool(self.inputs.isfinite().all()):
            raise ConfigurationError(f"{self.name}: some values of the samples are not finite")


def subject_of(name: str, samples: LabelledSamples, shape: CutShape) -> LeakageSubject:
    """Samples with the network of `shape`, cut behind its bottom."""

    def new_parts() -> tuple[nn.Module, nn.Module]:
        network = CutNetwork(shape)
        return network.bottom, network.top if network.head is None else nn.Sequential(network.top, network.head)

    return LeakageSubject(name, samples.inputs, samples.labels, new_parts, samples.picture)


def example_subject(name: str) -> LeakageSubject:
    """One of the examples with the usual network. Raises `ConfigurationError` as `example_samples` does."""
    samples = example_samples(name)
    return subject_of(name, samples, CutShape(tuple(samples.inputs.shape[1:]), samples.classes))
