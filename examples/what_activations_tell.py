"""What a client of split learning tells by its activations, without NoPeek and with it: python what_activations_tell.py

A model for the pictures of digits that come with scikit-learn is cut, and trained as its client and its server would do
it together. Then an attacker who has the client's part, and other digits to learn from, rebuilds pictures from their
activations. Change `WEIGHTS`, the shape of the network or the samples to try your own.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from minga.split import NoPeek, distance_correlation
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import LabelledSamples, example_samples

WEIGHTS = (0.0, 1.0, 3.0)
TEST, EPOCHS, BATCH = 500, 40, 64
WIDTH, ATTACK_EPOCHS = 256, 60


def train(samples: LabelledSamples, weight: float) -> CutNetwork:
    """The whole network, with the loss that NoPeek adds at the cut."""
    torch.manual_seed(0)
    network = CutNetwork(CutShape(tuple(samples.inputs.shape[1:]), samples.classes))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3)
    penalty = NoPeek(weight)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(samples.labels)).split(BATCH):
            inputs = samples.inputs[rows]
            sent = network.bottom(inputs)
            loss = functional.cross_entropy(network.top(sent), samples.labels[rows]) + penalty(inputs, sent)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return network.eval()


def decoder(sent: Tensor, inputs: Tensor) -> nn.Module:
    """A network from activations to the inputs that they are of, trained on pairs of them."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(sent.shape[1], WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, WIDTH),
        nn.ReLU(),
        nn.Linear(WIDTH, inputs[0].numel()),
        nn.Unflatten(1, inputs.shape[1:]),
    )
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-3)
    for _ in range(ATTACK_EPOCHS):
        for rows in torch.randperm(len(inputs)).split(BATCH):
            optimizer.zero_grad()
            functional.mse_loss(network(sent[rows]), inputs[rows]).backward()
            optimizer.step()
    return network


def rebuilt_share(sent: Tensor, inputs: Tensor, known: tuple[Tensor, Tensor]) -> float:
    """How much of the variance of the inputs a decoder rebuilds that was trained on what is `known`: 1 is all."""
    known_sent, known_inputs = known
    middle, spread = known_sent.mean(0), known_sent.std(0)
    spread = spread.clamp_min(1e-3 * float(spread.max()))  # what hardly varies is not scaled up to the rest
    attack = decoder((known_sent - middle) / spread, known_inputs)
    with torch.no_grad():
        error = functional.mse_loss(attack((sent - middle) / spread), inputs)
    return 1.0 - float(error / (inputs - inputs.mean(0)).square().mean())


def main() -> None:
    samples = example_samples("digits")
    order = torch.randperm(len(samples.labels), generator=torch.Generator().manual_seed(0))
    test, known = samples.rows(order[:TEST]), samples.rows(order[TEST:])
    print("weight of NoPeek   accuracy   distance correlation   rebuilt by the attacker")
    for weight in WEIGHTS:
        network = train(known, weight)
        with torch.no_grad():
            sent, seen = network.bottom(test.inputs), network.bottom(known.inputs)
            accuracy = float((network.top(sent).argmax(1) == test.labels).float().mean())
        correlation = float(distance_correlation(test.inputs, sent))
        rebuilt = rebuilt_share(sent, test.inputs, (seen, known.inputs))
        print(f"{weight:16g}   {accuracy:8.1%}   {correlation:20.2f}   {rebuilt:23.0%}")


if __name__ == "__main__":
    main()
