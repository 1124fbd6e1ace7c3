"""Labels leak through the gradients that a U-shaped server gets; noise hides them from one attack, at its price."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.core.errors import ConfigurationError
from minga.split.examples.samples import example_samples
from minga.split.leakage.gradient_noise import GradientNoise

TRAINED, BATCH, STEPS, LOOKS = 1300, 64, 250, (40, 50, 60)


def labels_found(gradients: Tensor, labels: Tensor) -> float:
    """The share of labels that are found by whoever knows one sample of each class: that of the nearest direction."""
    directions = functional.normalize(gradients.flatten(1), dim=1)
    known = {int(label): row for row, label in enumerate(labels)}
    rows = torch.tensor(sorted(known.values()))
    guesses = labels[rows][(directions @ directions[rows].T).argmax(1)]
    others = torch.ones(len(labels), dtype=torch.bool)
    others[rows] = False
    return float((guesses == labels)[others].float().mean())


def train(head: nn.Module, seed: int = 1) -> tuple[float, float]:
    """Labels found after about fifty batches, and the accuracy in the end."""
    samples = example_samples("digits")
    inputs, labels = samples.inputs.flatten(1), samples.labels
    torch.manual_seed(seed)
    server = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
    for module in head.modules():
        if isinstance(module, nn.Linear):
            module.reset_parameters()
    optimizer = torch.optim.Adam([*server.parameters(), *head.parameters()], 2e-3)
    found = []
    for step in range(STEPS):
        rows = torch.randint(0, TRAINED, (BATCH,))
        middle = server(inputs[rows])
        received = middle.detach().requires_grad_()
        functional.cross_entropy(head(received), labels[rows]).backward()  # type: ignore[no-untyped-call]
        assert received.grad is not None
        if step in LOOKS:
            found.append(labels_found(received.grad, labels[rows]))
        middle.backward(received.grad)
        optimizer.step()
        optimizer.zero_grad()
    head.eval()
    with torch.no_grad():
        guesses = head(server(inputs[TRAINED:])).argmax(1)
    return sum(found) / len(found), float((guesses == labels[TRAINED:]).float().mean())


def test_noise_hides_labels_and_costs_accuracy() -> None:
    rows = {
        "one linear layer": train(nn.Sequential(nn.Linear(32, 10))),
        "GradientNoise(1.0)": train(nn.Sequential(GradientNoise(1.0), nn.Linear(32, 10))),
        "GradientNoise(4.0)": train(nn.Sequential(GradientNoise(4.0), nn.Linear(32, 10))),
        "two layers": train(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))),
    }
    for name, (found, accuracy) in rows.items():
        print(f"{name}: {found:.0%} of labels found, accuracy {accuracy:.1%}")
    assert rows["one linear layer"][0] > 0.95
    assert rows["two layers"][0] > 0.8
    assert rows["GradientNoise(4.0)"][0] < 0.35
    assert rows["GradientNoise(4.0)"][1] > 0.75


def test_noise_is_as_long_as_it_says_and_only_in_training() -> None:
    torch.manual_seed(0)
    noise, values = GradientNoise(2.0), torch.randn(500, 40, requires_grad=True)
    gradients = torch.randn(500, 40)
    passed = noise(values)
    assert torch.equal(passed, values)
    passed.backward(gradients)
    assert values.grad is not None
    added = (values.grad - gradients).norm(dim=1).mean()
    assert float(added) == pytest.approx(2.0 * float(gradients.norm(dim=1).mean()), rel=0.02)
    assert noise.eval()(values) is values
    assert repr(noise) == "GradientNoise(scale=2)"
    for scale in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigurationError):
            GradientNoise(scale)
