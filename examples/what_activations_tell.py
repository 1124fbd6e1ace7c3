"""What a client of split learning tells by its activations, without NoPeek and with it: python what_activations_tell.py

A model for the pictures of digits that come with scikit-learn is cut, and trained as its client and its server would do
it together. Then an attacker who has the client's part, and other digits to learn from, rebuilds pictures from their
activations. Change `WEIGHTS`, the shape of the network or the samples to try your own.
"""

import torch
from torch.nn import functional

from minga.split import NoPeek, distance_correlation
from minga.split.examples.decoder import InvertingDecoder
from minga.split.examples.network import CutNetwork, CutShape
from minga.split.examples.samples import LabelledSamples, example_samples

WEIGHTS = (0.0, 1.0, 3.0)
TEST, EPOCHS, BATCH = 500, 40, 64


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
        rebuilt = InvertingDecoder(seen, known.inputs, seed=0).rebuilt_share(sent, test.inputs)
        print(f"{weight:16g}   {accuracy:8.1%}   {correlation:20.2f}   {rebuilt:23.0%}")


if __name__ == "__main__":
    main()
