"""Hugging Face Accelerate: `prepare` in the place of `accelerator.prepare`, and the raw loop is a peer's.

loader ─▶ samples ──────────────┐
accelerator.backward ─▶ loss ───┴▶ tally ─▶ optimizer.step() at each synchronising micro-batch ─▶ the run
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import torch
from accelerate import Accelerator, skip_first_batches
from accelerate.utils import broadcast_object_list
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError, RunFinishedError
from minga.core.units import counted
from minga.identity.links.links import Link
from minga.integrations.batch_size import batch_size_of
from minga.integrations.data_order import order_loaders, tell_of_data_seed
from minga.integrations.global_schedule import GlobalSchedule
from minga.integrations.joined_optimizer import JoinedOptimizer
from minga.integrations.place import RunPlace, enter
from minga.integrations.tally import Tally
from minga.training.join import PeerOptions
from minga.training.peer import Peer
from minga.training.replica.schedule import can_be_stretched, stretch
from minga.training.replica.trained_record import SAMPLES

logger = logging.getLogger("minga.integrations")

_LEAVE: Final = "Leave the loop over epochs when the run is over: if loader.finished: break"
WITHOUT_SHARDS = ("NO", "MULTI_CPU", "MULTI_GPU", "MULTI_XPU", "MULTI_NPU")
"""Ways of Accelerate in which each process has the whole model."""


class CountedLoader:
    """A prepared loader whose batches are counted. It ends when the run does.

    peer: this process's part in the run, None in processes other than the first; close it to leave before the program
        ends.
    """

    def __init__(self, loader: Any, optimizer: JoinedOptimizer, weigh: Callable[[Any], int], peer: Peer | None) -> None:
        self.loader, self._optimizer, self._weigh, self.peer = loader, optimizer, weigh, peer
        self._epochs_beyond = 0

    def __iter__(self) -> Iterator[Any]:
        """Raises `RunFinishedError` in a loop that goes on for more than an epoch after the end of the run."""
        if self.finished:
            self._tell_of_end()
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

    def __getattr__(self, name: str) -> Any:
        """What the prepared loader has, such as its data set."""
        if name.startswith("_") or name == "loader":  # a copy has none yet
            raise AttributeError(name)
        return getattr(self.loader, name)

    def skip_first_batches(self, batches: int) -> CountedLoader:
        """The same without its first batches, as `accelerator.skip_first_batches` has it."""
        return CountedLoader(skip_first_batches(self.loader, batches), self._optimizer, self._weigh, self.peer)

    def _tell_of_end(self) -> None:
        self._epochs_beyond += 1
        step = counted(self._optimizer.global_step, "step")
        if self._epochs_beyond > 1:
            raise RunFinishedError(f"the run is complete after {step}. {_LEAVE}")
        logger.warning("the run is complete after %s, and this loop goes on with another epoch. %s", step, _LEAVE)


class PausingLoader:
    """A prepared loader of data on which the script evaluates: the run expects no gradient meanwhile."""

    def __init__(self, loader: Any, optimizer: JoinedOptimizer) -> None:
        self._loader, self._optimizer = loader, optimizer

    def __iter__(self) -> Iterator[Any]:
        self._optimizer.pause()
        return iter(self._loader)

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # a copy has no loader yet
            raise AttributeError(name)
        return getattr(self._loader, name)


def prepare(
    accelerator: Accelerator,
    link: Link | str | Peer | None,
    *objects: Any,
    options: PeerOptions | None = None,
    weigh: Callable[[Any], int] = batch_size_of,
    unit: str | None = None,
) -> tuple[Any, ...]:
    """Join the run of `link` (or take the program's peer), and prepare `objects` as `accelerator.prepare` does: the
    model, its optimizer, loaders and the scheduler, if there is one. They come back in their order.

    Of loaders the first is the one to train on. What comes back in its place, a `CountedLoader`, counts samples and
    ends with the run; the others are for evaluation. The scheduler counts global steps, of the run: one that
    `transformers.get_scheduler` made goes over the run's steps, whatever number it was made with. What comes back in
    its place may be stepped, and does nothing. Gradients are clipped after averaging, as the run spec says
    (`optimizer.max_grad_norm`): `accelerator.clip_grad_norm_` returns the norm and no longer clips, nor does
    `accelerator.clip_grad_value_`.

    `weigh` says what a batch counts for, by default its samples: the length that all its tensors have. It is needed
    where they have several, and where samples are not stacked: of a list of pictures of one size the length of each
    picture would be taken for the number of samples. Where the loss is a mean over target tokens it is to return their
    number, and `unit` is "tokens": the word for what it counts, which is needed with it and is the same on all peers.
    Data that is shuffled is put into an order of this peer's own, unless the accelerator has a `data_seed`
    for its samplers, and so is a stream (`IterableDataset`), as far as its class has a way for that. Of the
    micro-batches of one optimizer call each counts alike in the gradient, which is Accelerate's way; a last call with
    fewer of them under `accelerator.accumulate` is scaled to their mean.

    Returns when this peer has the run's current state. Raises what `minga.join` raises, and `ConfigurationError` for
    FSDP, DeepSpeed and others that divide the model, for a second call with one accelerator, and without one model, one
    optimizer and a loader.
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
    kinds = [_kind_of(each) for each in objects]
    if [kinds.count(each) for each in ("model", "optimizer")] != [1, 1] or "loader" not in kinds:
        given = ", ".join(type(each).__name__ for each in objects) or "nothing"
        raise ConfigurationError(
            "prepare(accelerator, link, ...) takes one model, its optimizer, the loader to train on, and what else "
            f"accelerator.prepare takes, such as the scheduler and a loader to evaluate on; got {given}"
        )
    if kinds.count("scheduler") > 1:
        raise ConfigurationError("an optimizer of a run has one learning-rate scheduler; chain them into one")
    place = enter(link, options, is_first=accelerator.is_main_process)
    try:
        return _prepared(accelerator, place, dict(enumerate(objects)), kinds, weigh, unit or SAMPLES)
    except BaseException:
        place.leave()
        raise


def _kind_of(thing: Any) -> str:
    kinds = {
        "model": torch.nn.Module,
        "optimizer": torch.optim.Optimizer,
        "scheduler": LRScheduler,
        "loader": Iterable,
    }
    return next((name for name, kind in kinds.items() if isinstance(thing, kind)), "other")


def _prepared(
    accelerator: Accelerator,
    place: RunPlace,
    objects: dict[int, Any],
    kinds: Sequence[str],
    weigh: Callable[[Any], int],
    unit: str,
) -> tuple[Any, ...]:
    tally = Tally()
    training = kinds.index("loader")
    (seed,) = broadcast_object_list([0 if place.peer is None else place.peer.seed])
    order_loaders(seed, objects[training])
    settings = accelerator.dataloader_config
    if settings.data_seed is None:  # of samplers that Accelerate makes
        accelerator.dataloader_config = replace(settings, data_seed=seed)  # the script may use its own once more
    elif settings.use_seedable_sampler:
        tell_of_data_seed(settings.data_seed)
    optimizer = kinds.index("optimizer")
    joined = objects[optimizer] = JoinedOptimizer(objects[optimizer], tally)
    scheduler = objects.pop(kinds.index("scheduler")) if "scheduler" in kinds else None
    found = dict(zip(objects, accelerator.prepare(*objects.values()), strict=True))
    if scheduler is not None:
        if can_be_stretched(scheduler):
            stretch(scheduler, place.schedule_steps)
        found[kinds.index("scheduler")] = GlobalSchedule(joined)
    joined.begin(place, model=found[kinds.index("model")], scheduler=scheduler, unit=unit)
    tally.told_by = "accelerator.backward(loss)"
    _listen(accelerator, joined, place)
    for number, kind in enumerate(kinds):
        if number == training:
            found[number] = CountedLoader(found[number], joined, weigh, place.peer)
        elif kind == "loader":
            found[number] = PausingLoader(found[number], joined)
    return tuple(found[number] for number in range(len(kinds)))


def _listen(accelerator: Accelerator, joined: JoinedOptimizer, place: RunPlace) -> None:
    """Hear of each loss, and leave the clipping to the run."""
    tally = joined.tally
    own_accumulate = accelerator.accumulate
    own_backward, own_skip = accelerator.backward, accelerator.skip_first_batches
    own_clip, own_clip_value = accelerator.clip_grad_norm_, accelerator.clip_grad_value_

    @contextmanager
    def accumulate(*models: Any) -> Iterator[None]:
        with own_accumulate(*models):
            tally.begin_part()
            yield

    def backward(loss: torch.Tensor, **named: Any) -> None:
        tally.window = accelerator.gradient_accumulation_steps
        tally.add_loss(loss.detach() / tally.window)
        own_backward(loss, **named)

    is_told = False

    def tell_of_clipping(own: float | None, *, by_value: bool = False) -> None:
        nonlocal is_told
        if not is_told:
            is_told = True
            place.tell_of_clipping(own, by_value=by_value)

    def clip_grad_norm_(parameters: Any, max_norm: float, norm_type: float = 2.0) -> Any:
        tell_of_clipping(max_norm)
        return own_clip(parameters, float("inf"), norm_type)

    def clip_grad_value_(parameters: Any, clip_value: float) -> None:
        tell_of_clipping(clip_value, by_value=True)
        own_clip_value(parameters, float("inf"))

    def before_step(*_: Any) -> None:
        tell_of_clipping(None)  # unless the script clipped before its first optimizer call

    def skip(dataloader: Any, num_batches: int = 0) -> Any:
        skips_itself = isinstance(dataloader, CountedLoader)
        return dataloader.skip_first_batches(num_batches) if skips_itself else own_skip(dataloader, num_batches)

    def load_state(*_: Any, **__: Any) -> None:
        raise ConfigurationError(
            "parameters and optimizer are those of the run, so leave accelerator.load_state out; to begin a run from a "
            "model, load its file by model.load_state_dict before `prepare`"
        )

    joined.register_step_pre_hook(before_step)
    backward.joined = True  # type: ignore[attr-defined]
    accelerator.backward, accelerator.accumulate = backward, accumulate
    accelerator.clip_grad_norm_, accelerator.clip_grad_value_ = clip_grad_norm_, clip_grad_value_
    accelerator.load_state, accelerator.skip_first_batches = load_state, skip
