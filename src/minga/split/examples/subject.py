"""An example as a leakage report takes it."""

from __future__ import annotations

from torch import nn

from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import LabelledSamples, example_samples
from minga.split.leakage.subject import LeakageSubject


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
