"""Hugging Face Accelerate: `prepare` in the place of `accelerator.prepare`, and the raw loop is a peer's.

loader ─▶ samples ──────────────┐
accelerator.backward ─▶ loss ───┴▶ tally ─▶ optimizer.step() at each synchronising micro-batch ─▶ the run
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.integrations.data_order import order_by, streams_of
from minga.integrations.global_schedule import GlobalSchedule
from minga.integrations.joined_optimizer import JoinedOptimizer
from minga.integrations.place import RunPlace, enter
from minga.integrations.tally import Tally, batch_size_of
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.replica.trained_record import SAMPLES

WITHOUT_SHARDS = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""Ways of Accelerate in which each process has the whole model."""


class CountedLoader:
    """A prepared loader whose batches are counted. It ends when the run does.

    peer: this process's part in the run, None in processes other than the first; close it to leave before the program
        ends.
    """

    def __init__(self, loader: Any, optimizer: JoinedOptimizer, weigh: Callable[[Any], int], peer: Peer | None) -> None:
        self.loader, self._optimizer, self._weigh, self.peer = loader, optimizer, weigh, peer

    def __iter__(self) -> Iterator[Any]:
        for batch in self.loader:
            if self._optimizer.finished:
                return
            self._optimizer.tally.begin(self._weigh(batch))
            yield batch

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self._optimizer.finished

    def __len__(self) -> int:
        return len(self.loader)

    def skip_first_batches(self, batches: int) -> CountedLoader:
        """The same without its first batches, as `accelerator.skip_first_batches` has it."""
        return CountedLoader(skip_first_batches(self.loader, batches), self._optimizer, self._weigh, self.peer)

    def set_epoch(self, epoch: int) -> None:
        """Shuffle as in this epoch."""
        self.loader.set_epoch(epoch)


class Prepared(NamedTuple):
    """What `prepare` returns; `scheduler` shows learning rates, and leaves them to the run."""

    model: torch.nn.Module
    optimizer: Any
    loader: CountedLoader
    scheduler: GlobalSchedule


def prepare(
    accelerator: Accelerator,
    link: Link | str | Peer | None,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    scheduler: LRScheduler | None = None,
    *,
    options: PeerOptions | None = None,
    weigh: Callable[[Any], int] = batch_size_of,
    unit: str | None = None,
) -> Prepared:
    """Join the run of `link` (or take the program's peer), and prepare these as `accelerator.prepare` does.

    Iterate over the loader that is returned, which counts samples and ends with the run. `scheduler` counts global
    steps; what is returned in its place may be stepped, and does nothing. Gradients are clipped after averaging, as the
    run spec says (`optimizer.max_grad_norm`): `accelerator.clip_grad_norm_` returns the norm and no longer clips.

    `weigh` says what a batch counts for, by default its samples. Where the loss is a mean over target tokens it is to
    return their number, and `unit` is "tokens": the word for what it counts, which is needed with it and is the same on
    all peers. A stream (`IterableDataset`) is put into an order of this peer's own, as far as its class has a way for
    that. Of the micro-batches of one optimizer call each counts alike in the gradient, which is
    Accelerate's way; a last call with fewer of them is scaled to their mean.

    Returns when this peer has the run's current state. Raises what `minga.join` raises, and `ConfigurationError` for
    FSDP, DeepSpeed and others that divide the model, and for a second call with one accelerator.
    """
    if accelerator.distributed_type.value not in WITHOUT_SHARDS:
        raise ConfigurationError(
            f"Accelerate's {accelerator.distributed_type.value} divides the model among processes; this adapter is for "
            "processes that have all of it"
        )
    if getattr(accelerator.backward, "joined", False):
        raise ConfigurationError("this Accelerator takes part in a run already; put all parameters into one optimizer")
    if unit is None and weigh is not batch_size_of:
        raise ConfigurationError(
            'weigh=... counts what this program says: say what that is, as with unit="tokens" or unit="samples", the '
            "same on all peers"
        )
    place = enter(link, options, is_first=accelerator.is_main_process)
    try:
        return _prepared(accelerator, place, model, optimizer, loader, scheduler, weigh, unit or SAMPLES)
    except BaseException:
        place.leave()
        raise


def _prepared(
    accelerator: Accelerator,
    place: RunPlace,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: Any,
    scheduler: LRScheduler | None,
    weigh: Callable[[Any], int],
    unit: str,
) -> Prepared:
    tally = Tally()
    (seed,) = broadcast_object_list([0 if place.peer is None else place.peer.seed])
    for dataset in streams_of(loader):
        order_by(seed, dataset)
    joined = JoinedOptimizer(optimizer, tally)
    model, accelerated, loader = accelerator.prepare(model, joined, loader)
    joined.begin(place, model=model, scheduler=scheduler, unit=unit)
    tally.window = accelerator.gradient_accumulation_steps
    _listen(accelerator, tally)
    return Prepared(model, accelerated, CountedLoader(loader, joined, weigh, place.peer), GlobalSchedule(joined))


def _listen(accelerator: Accelerator, tally: Tally) -> None:
    """Hear of each loss, and leave the clipping to the run."""
    own_backward, own_clip = accelerator.backward, accelerator.clip_grad_norm_

    def backward(loss: torch.Tensor, **named: Any) -> None:
        tally.add_loss(loss.detach() / accelerator.gradient_accumulation_steps)
        own_backward(loss, **named)

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:  # noqa: ARG001
        return own_clip(parameters, float("inf"), norm_type)

    def load_state(*_: Any, **__: Any) -> None:
        raise ConfigurationError(
            "parameters and optimizer are those of the run; to begin a run from a model, load that before `prepare`"
        )

    backward.joined = True  # type: ignore[attr-defined]
    accelerator.backward, accelerator.clip_grad_norm_ = backward, clip_grad_norm_
    accelerator.load_state = load_state
