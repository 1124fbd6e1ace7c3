"""Fragments: the parts of a model that rounds carry in turn, round r fragment r mod F.

Layer j is in fragment j mod F, so that each fragment has layers from all depths. What belongs to no layer (embeddings,
the head), and small tensors, go one by one, the largest first, to the fragment that has the fewest elements so far.
Averaged buffers travel with every round: they are small, and each global step begins with those of all peers.

All of it follows from names and shapes, which all peers of a run have in common.

Source: Streaming DiLoCo (arXiv:2501.18512), strided fragments.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError

SMALL: Final = 4096
"""Tensors of fewer elements, such as biases and norms, belong to no layer."""


class Fragments:
    """The `count` fragments of a vector of the layout `whole`, of which the first `parameters_numel` elements are
    parameters, called `names` if they have any.

    Raises `ConfigurationError` if there are fewer tensors than fragments.
    """

    def __init__(self, whole: VectorLayout, parameters_numel: int, names: Sequence[str], count: int) -> None:
        self.count, self._whole = count, whole
        ends = [0]
        for numel in whole.numels:
            ends.append(ends[-1] + numel)
        trained = sum(1 for end in ends[1:] if end <= parameters_numel)
        if count > trained:
            raise ConfigurationError(
                f"fragments = {count}: the model has {trained} tensors that are trained; choose at most as many"
            )
        found = _assign(whole.numels[:trained], names, count) if count > 1 else [list(range(trained))]
        self._runs = [_joined((ends[i], ends[i + 1]) for i in sorted(tensors)) for tensors in found]
        self.tensors = [(*sorted(tensors), *range(trained, len(whole.tensors))) for tensors in found]
        """Those of each fragment, by their places in the whole."""
        self.tail = slice(parameters_numel, whole.total)
        """The averaged buffers in the whole vector."""
        self.layouts = [
            replace(
                whole,
                tensors=tuple(whole.tensors[i] for i in tensors),
                label=f"local fragment {place + 1} of {count}",
            )
            for place, tensors in enumerate(self.tensors)
        ]
        if count == 1:
            self.layouts = [whole]

    def of(self, step: int) -> int:
        """The fragment of the round of `step`."""
        return step % self.count

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector of the round of `step`."""
        return self.layouts[self.of(step)]

    def slices(self, fragment: int) -> Iterator[tuple[slice, slice]]:
        """Where the parameters of a fragment are: in the whole vector, and in its own."""
        start = 0
        for run in self._runs[fragment]:
            stop = start + run.stop - run.start
            yield run, slice(start, stop)
            start = stop

    def take(self, whole: torch.Tensor, fragment: int) -> torch.Tensor:
        """A fragment of a whole vector, with the buffers at its end; the vector itself if there is but one."""
        if self.count == 1:
            return whole
        return torch.cat([*(whole[run] for run in self._runs[fragment]), whole[self.tail]])

    def buffers(self, vector: torch.Tensor) -> torch.Tensor:
        """The buffers at the end of a fragment's vector."""
        return vector[vector.numel() - (self.tail.stop - self.tail.start) :]


def layer_of(name: str) -> int | None:
    """The number of the layer to which a parameter belongs by its name: the first number in it."""
    return next((int(part) for part in name.split(".") if part.isdecimal() and part.isascii()), None)


def _assign(numels: Sequence[int], names: Sequence[str], count: int) -> list[list[int]]:
    """The tensors of each fragment, by their places."""
    found: list[list[int]] = [[] for _ in range(count)]
    loads = [0] * count
    rest = []
    for place, numel in enumerate(numels):
        layer = layer_of(names[place]) if names else None
        if layer is None or numel < SMALL:
            rest.append(place)
        else:
            found[layer % count].append(place)
            loads[layer % count] += numel
    for place in sorted(rest, key=lambda place: (-numels[place], place)):
        # Among equally light ones that with the fewest tensors, so that none stays empty.
        lightest = min(range(count), key=lambda each: (loads[each], len(found[each]), each))
        found[lightest].append(place)
        loads[lightest] += numels[place]
    return _without_empty(found, numels)


def _without_empty(found: list[list[int]], numels: Sequence[int]) -> list[list[int]]:
    """Where layers are fewer than fragments, an empty one gets the smallest tensor of the heaviest that has several."""
    for tensors in found:
        if not tensors:
            several = [each for each in found if len(each) > 1]
            heaviest = max(several, key=lambda each: sum(numels[i] for i in each))
            smallest = min(heaviest, key=lambda place: (numels[place], place))
            heaviest.remove(smallest)
            tensors.append(smallest)
    return found


def _joined(ranges: Iterator[tuple[int, int]]) -> list[slice]:
    """Neighbouring ranges as one slice."""
    found: list[slice] = []
    for start, stop in ranges:
        if found and found[-1].stop == start:
            found[-1] = slice(found[-1].start, stop)
        elif stop > start:
            found.append(slice(start, stop))
    return found
