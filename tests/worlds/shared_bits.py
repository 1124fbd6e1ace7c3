"""Prints digests of what peers make of some means: run anew, a process may use other instructions."""

from __future__ import annotations

import json
import threading

import numpy as np
import torch
from blake3 import blake3

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.sketches.dct64 import DCT64
from minga.averaging.sketches.interface import Sketch
from minga.averaging.sketches.powersgd import PowerSGD, PowerSGDSettings
from minga.averaging.strategy_choice import STRATEGIES, StrategyChoice
from minga.core.spec.run_spec import RunSpec
from minga.optim import SGD
from minga.training.replica.replica import Replica

ROUNDS = 3


def bits_of_some_rounds() -> dict[str, str]:
    """Digests by the names of sketches and of minga's own strategies."""
    whole = VectorLayout(((301, 130), (70, 9, 9), (77,)), "float32")
    sketches: list[Sketch] = [PowerSGD(whole, PowerSGDSettings(rank=4, start=0)), DCT64(whole)]
    found = {type(sketch).__name__: _bits_of_sketch(sketch) for sketch in sketches}
    return found | {name: _bits_of_strategy(name) for name in STRATEGIES.names()}


def _bits_of_sketch(sketch: Sketch) -> str:
    """Of expanded means and of bases."""
    found = blake3()
    for step in range(ROUNDS):
        mean = _drawn(step, sketch.layout(step).total)
        image = sketch.expand(mean, step)
        sketch.absorb(mean, step)
        for tensor in (image, *sketch.basis().values()):
            found.update(tensor.contiguous().numpy().tobytes())
    return str(found.hexdigest())


def _bits_of_strategy(name: str) -> str:
    """Of what all peers share."""
    model = torch.nn.Linear(1000, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(_drawn(ROUNDS, 1000)[None])
    choice, spec = StrategyChoice(name), RunSpec.from_mapping({"name": "bits", "training": {"strategy": name}})
    replica = Replica(spec, SGD(model.parameters(), lr=0.1), model=model)
    strategy = choice.kind(threading.Condition(), unit=1, settings=choice.settings)
    strategy.begin(replica)
    for step in range(ROUNDS):
        strategy.absorb(step + 1, _drawn(step, replica.vector.numel), ContributionFate.ABSENT)
    return replica.digest()


def _drawn(seed: int, numel: int) -> torch.Tensor:
    numbers = np.random.default_rng(seed).standard_normal(numel)
    return torch.from_numpy((numbers * 1e-3).astype(np.float32))


if __name__ == "__main__":
    print(json.dumps(bits_of_some_rounds()))
