"""How many samples a batch has, as far as its tensors show it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from minga.core.errors import ConfigurationError


def batch_size_of(batch: Any) -> int:
    """The length that all tensors of a batch have, looked for in mappings, lists and tuples; scalars have none.

    Raises `ConfigurationError` if they have several, or there is no tensor. Lists of tensors that are all of one length
    look like stacked samples, of which they have that many.
    """
    lengths = sorted({len(each) for each in tensors_of(batch)})
    if len(lengths) == 1:
        return lengths[0]
    found = f"tensors of the lengths {', '.join(map(str, lengths))}" if lengths else "no tensor"
    raise ConfigurationError(
        f"how many samples a batch has does not show: it has {found}. Say it by weigh=, a function of the batch: to "
        'Accelerate by prepare(..., weigh=f, unit="samples"), to Lightning by MingaStrategy(..., weigh=f); for a '
        "Trainer name its labels, one for each sample: TrainingArguments(label_names=[...])"
    )


def tensors_of(batch: Any) -> Iterator[torch.Tensor]:
    """The tensors in a batch that have a length, in their order."""
    if isinstance(batch, torch.Tensor):
        yield from [batch] if batch.ndim else []
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from tensors_of(part)
