"""Prints a digest of what sketches make of some means: run anew, a process may use other instructions."""

from __future__ import annotations

import numpy as np
import torch
from blake3 import blake3

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.sketches.dct64 import DCT64
from minga.averaging.sketches.interface import Sketch
from minga.averaging.sketches.powersgd import PowerSGD, PowerSGDSettings


def bits_of_some_rounds() -> str:
    """Of expanded means and of bases."""
    whole, found = VectorLayout(((301, 130), (70, 9, 9), (77,)), "float32"), blake3()
    sketches: list[Sketch] = [PowerSGD(whole, PowerSGDSettings(rank=4, start=0)), DCT64(whole)]
    for sketch in sketches:
        for step in range(3):
            numbers = np.random.default_rng(step).standard_normal(sketch.layout(step).total)
            mean = torch.from_numpy((numbers * 1e-3).astype(np.float32))
            image = sketch.expand(mean, step)
            sketch.absorb(mean, step)
            for tensor in (image, *sketch.basis().values()):
                found.update(tensor.contiguous().numpy().tobytes())
    return str(found.hexdigest())


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(bits_of_some_rounds())
