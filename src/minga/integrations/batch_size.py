"""How many samples a batch has, as far as its tensors show it."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import torch

logger = logging.getLogger(__name__)

_NUMBER: Final = "a number or a word"
_MAPPING: Final = "a mapping"
_OTHER: Final = "something else"


def batch_size_of(batch: Any) -> int:
    """The length of the first tensor in a batch, looked for in mappings and sequences; 0 if there is none.

    A part that a loader cannot stack, such as pictures of unequal sizes, is a list with a tensor or a mapping of each
    sample. Its length is the size where another part is as long, and none as long as the first tensor. Where all parts
    are such lists, of one length, it is so if some are of mappings, or if shapes differ in each and lengths among all.
    The batch itself is never taken for one, as a pair of inputs and targets looks alike.

    Where the first tensor may be a single sample, a warning says so, once.
    """
    first = next(_lengths(batch), 0)
    lists, others = [], set()
    for part in _parts(batch):
        if isinstance(part, torch.Tensor) or _kind(part[0]) == _NUMBER:
            others.add(len(part))
        else:
            lists.append(part)
    counts = {len(each) for each in lists}
    if first not in others:
        if counts & others:
            return next(len(each) for each in lists if len(each) in others)
        if not others and len(counts) == 1 and _are_of_samples(lists):
            return counts.pop()
    if not (first in others and isinstance(batch, Mapping)) and _may_be_listed(batch, first):
        _warn()
    return first


def _kind(thing: Any) -> object:
    """What the things in a list of one for each sample have in common."""
    if isinstance(thing, torch.Tensor) and thing.ndim:
        return thing.dtype, thing.ndim
    if isinstance(thing, torch.Tensor | int | float | str):
        return _NUMBER
    return _MAPPING if isinstance(thing, Mapping) else _OTHER


def _is_of_one_kind(part: Any) -> bool:
    return isinstance(part, list | tuple) and len(kinds := set(map(_kind, part))) == 1 and _OTHER not in kinds


def _differ(part: Any) -> bool:
    """Whether it lists tensors of one kind whose shapes differ."""
    is_of_tensors = _is_of_one_kind(part) and _kind(part[0]) not in (_NUMBER, _MAPPING)
    return is_of_tensors and len({each.shape for each in part}) > 1


def _parts(batch: Any) -> Iterator[torch.Tensor | Sequence[Any]]:
    """The tensors of a batch, and the lists in it of things of one kind."""
    if isinstance(batch, torch.Tensor):
        yield from [batch] if batch.ndim else []
    elif isinstance(batch, Mapping | list | tuple):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            if _is_of_one_kind(part):
                yield part
            else:
                yield from _parts(part)


def _lengths(batch: Any) -> Iterator[int]:
    """Those of its tensors, without empty ones."""
    if isinstance(batch, torch.Tensor):
        yield from [len(batch)] if batch.ndim and len(batch) else []
    elif isinstance(batch, Iterable) and not isinstance(batch, str | bytes):
        for part in batch.values() if isinstance(batch, Mapping) else batch:
            yield from _lengths(part)


def _are_of_samples(lists: Sequence[Any]) -> bool:
    """Whether lists of one length, which are all there is in a batch, can only have something of each sample."""
    of_mappings = [_kind(each[0]) == _MAPPING for each in lists]
    if any(of_mappings):
        return not all(of_mappings)
    return all(map(_differ, lists)) and len(set(_lengths(lists))) > 1


def _may_be_listed(batch: Any, first: int) -> bool:
    """Whether its tensors have several lengths, or it lists more of them than there are rows in the first."""
    if not isinstance(batch, Mapping | list | tuple):
        return False
    return len(set(_lengths(batch))) > 1 or any(len(each) > first and _differ(each) for each in [batch, *_parts(batch)])


@cache
def _warn() -> None:
    """Once, as the next batches are likely to be alike."""
    logger.warning(
        "a batch counts as many samples as its first tensor has rows. Its tensors are unequal, so that it may have "
        "others: tell them by weigh= of prepare or MingaStrategy, a function of the batch"
    )
