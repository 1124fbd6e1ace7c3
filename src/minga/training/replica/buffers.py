"""A model's persistent buffers: under the policy "average" the same on all peers after every step, under "local" each
peer's own.

Theory of operation. What is averaged is how far each floating-point buffer (BatchNorm's running mean and variance, say)
has moved since the last step, not its value: constants such as masks and position tables thus contribute exact zeros,
whatever codec the run uses, even where they hold infinities or NaN.

    base       what the buffers held after the last step: shared by all peers, a function of means alone
    moved      how far they were from the base when the last micro-batch ended: this peer's, and yet to count
    a round    base ← base + mean,   buffers ← the new base + what of moved counts later

The invariant: a movement goes where the samples go that it came with. With them it is in one mean, once; or it is kept
for a later round, and the buffers have it still; or it is dropped, and the buffers are back at the base. A strategy of
gradients contributes the mean of `moved` over its micro-batches, any other one `moved` itself. What a contribution
closed with is counted; what micro-batches beside its round add to that is not yet, so their strategy has the buffers
`move` by it once they are at the new base, and measures on from there.

So in no strategy do buffers hold what was contributed and not taken, by a coarse codec or a sketch: those that follow a
running mean are further from it, and move by it again, and those that add something up have lost it. Error feedback
would count it twice with the first, and to drop it would be wrong for the others. So where a codec or a sketch leaves
something out, buffers travel whole (`VectorLayout.whole`), and residuals hold nothing of them.

What is NaN or infinite after a step cannot move: it contributes 0 and goes back, of which the program is told. Whole
numbers cannot be averaged either: BatchNorm's `num_batches_tracked` counts global steps, as it would with one large
batch, and any other buffer goes back as well. Buffers that are not persistent are rebuilt by each peer's own code and
left alone, and what layers with packed weights keep there belongs to the base of the run (`training/state/base.py`).

Under "local" no state has buffers, as states are equal on all peers. They are a file beside the state in a checkpoint,
and come back with it; where peers of one machine share a folder, they are those of the peer that wrote it first. Nobody
sends them, so a newcomer's are those that its program made. What `after_update` changes has to be equal on all peers,
so it takes a model with buffers under "average" only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator, Sequence

import torch
from safetensors.torch import load, save

from minga.averaging.codecs.dense import CONTRIBUTION_LIMIT
from minga.core.errors import ConfigurationError
from minga.core.units import and_others
from minga.optim.shards import is_sharded
from minga.training.replica.accelerator import WriteMarks
from minga.training.replica.trained_record import version_of
from minga.training.state.base import hash_of, holds_others, packed_tensors
from minga.training.state.model_names import ModelNames
from minga.training.state.snapshot import DTYPE_NAMES
from minga.training.state.tensor_access import TensorAccess

logger = logging.getLogger("minga.training")

COUNTER, RUNNING_MEAN, RUNNING_VAR = "num_batches_tracked", "running_mean", "running_var"
OWN_BUFFERS_FILE = "buffers.safetensors"
"""What a checkpoint calls the file of `OwnBuffers`."""


class SharedBuffers:
    """The persistent buffers of `model` (of nothing, if None) and their values after the last step.

    Raises `ConfigurationError` for buffers that cannot be changed.
    """

    def __init__(self, model: torch.nn.Module | None) -> None:
        named = {} if model is None else _persistent(model)
        for name, buffer in named.items():
            _check(name, buffer)
        self._names = [name for name, buffer in named.items() if buffer.is_floating_point()]
        self.averaged = [named[name] for name in self._names]
        others = [(name, buffer) for name, buffer in named.items() if not buffer.is_floating_point()]
        self._counters = [buffer for name, buffer in others if name.rpartition(".")[2] == COUNTER]
        self._fixed = [buffer for name, buffer in others if name.rpartition(".")[2] != COUNTER]
        self._watched = [name for name, _ in others if name.rpartition(".")[2] != COUNTER]
        self._tensors = [*self.averaged, *self._counters, *self._fixed]
        kinds: dict[tuple[torch.device, torch.dtype], list[int]] = {}
        for index, buffer in enumerate(self.averaged):
            kinds.setdefault((buffer.device, buffer.dtype), []).append(index)
        self._groups = list(kinds.values())  # places in `averaged` that are handled together, since most are small
        self._bases: list[torch.Tensor] = []
        # Of each group, and behind what computes them; replaced as a whole, since any thread may read it.
        self._moved: tuple[list[torch.Tensor], WriteMarks] = [], WriteMarks([])
        self._unmoved: list[int] = []  # those of `averaged` that hold NaN or infinity after the last step
        self.rebase()

    @property
    def moved(self) -> list[torch.Tensor]:
        """By how much each of `averaged` had moved since the last step when the last micro-batch ended (float32, its
        shape and device). Any thread may ask, and keep it.
        """
        flats, written = self._moved
        written.follow()
        return self._in_order(flats)

    def movements(self) -> list[torch.Tensor]:
        """A micro-batch ended: by how much each has moved now. What is NaN, infinite or too large to be sent is not
        `moved`.
        """
        if not self._groups:  # as in most models: this comes with each micro-batch
            return []
        with torch.no_grad():
            present = [self._measured(group) for group in self._groups]
            self._update_moved(present)
            return self._in_order(present)

    @torch.no_grad()
    def undo_broken(self) -> None:
        """Put what is NaN, infinite or too far away to be sent back to where it was before the micro-batch: a bad one
        must not spoil the next ones. No device is waited for.
        """
        for group, moved in zip(self._groups, self._moved[0], strict=True):
            present, base = (_joined(tensors, group) for tensors in (self.averaged, self._bases))
            kept = torch.where(_is_good(self._measured(group)), present, _sum(base, moved))
            torch._foreach_copy_([self.averaged[index] for index in group], self._split(kept, group))

    def _measured(self, group: Sequence[int]) -> torch.Tensor:
        """How far some buffers are from where they were after the last step, as one flat float32 tensor."""
        present, base = (_wide(_joined(tensors, group)) for tensors in (self.averaged, self._bases))
        return torch.where(base.isfinite(), present - base, 0.0).float()

    def _in_order(self, flats: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What is given for each group, for each of `averaged`."""
        found: dict[int, torch.Tensor] = {}
        for group, flat in zip(self._groups, flats, strict=True):
            found |= zip(group, self._split(flat, group), strict=True)
        return [found[index] for index in range(len(self.averaged))]

    def _split(self, flat: torch.Tensor, group: Sequence[int]) -> list[torch.Tensor]:
        """The tensors of the shapes of some buffers that make up a flat one."""
        shapes = [self.averaged[index].shape for index in group]
        parts = torch.split(flat, [shape.numel() for shape in shapes])
        return [part.view(shape) for part, shape in zip(parts, shapes, strict=True)]

    def advance(self, means: Iterable[torch.Tensor]) -> None:
        """Begin the next step with the mean movements of all peers, one flat tensor for each of `averaged`."""
        if not self._tensors:
            return
        with torch.no_grad():
            self._warn_of_changed()
            for base, mean in zip(self._bases, means, strict=False):
                base.copy_(_sum(base, mean))
            for base, _ in zip(self._bases[len(self.averaged) :], self._counters, strict=False):
                base.add_(1)
            self.move(None)

    @torch.no_grad()
    def move(self, moved: torch.Tensor | None) -> None:
        """Stand so far from the last step: nothing but that has yet to count. It is as `flat_movements` has it; None is
        not at all.
        """
        for tensor, base in zip(self._tensors, self._bases, strict=True):
            tensor.copy_(base)
        zeros = [torch.zeros_like(_joined(self.averaged, group), dtype=torch.float32) for group in self._groups]
        self._moved = zeros, WriteMarks(zeros)
        if moved is not None:
            self.take(moved)
            for buffer, base, part in zip(self.averaged, self._bases, self.moved, strict=False):
                buffer.copy_(_sum(base, part))

    @torch.no_grad()
    def take(self, moved: torch.Tensor) -> None:
        """What is `moved` is this: it begins as `flat_movements` has it."""
        found = self._split(moved[: sum(buffer.numel() for buffer in self.averaged)], range(len(self.averaged)))
        groups = zip(self._groups, self._moved[0], strict=True)
        self._update_moved([_joined(found, group).to(old.device) for group, old in groups])

    def _update_moved(self, present: Sequence[torch.Tensor]) -> None:
        moved = [torch.where(_is_good(now), now, old) for now, old in zip(present, self._moved[0], strict=True)]
        self._moved = moved, WriteMarks(moved)

    def _warn_of_changed(self) -> None:
        """Say, once, which buffers go back."""
        bases = self._bases[len(self._bases) - len(self._fixed) :]
        for name, buffer, base in zip(self._watched, self._fixed, bases, strict=False):
            if not torch.equal(buffer, base):
                self._watched = []
                logger.warning(
                    "the buffer %s was changed by the program, and goes back at each global step: whole numbers cannot "
                    "be averaged over peers. minga.Optimizer(..., after_update=function) calls a function that may "
                    'change it once for each global step; training.buffers = "local" leaves all buffers to each peer',
                    name,
                )
                break
        for index in self._unmoved:
            before, present = _wide(self._bases[index]), _wide(self.averaged[index])
            if bool((~before.isfinite() & (present != before) & ~(present.isnan() & before.isnan())).any()):
                self._unmoved = []
                logger.warning(
                    "the buffer %s was NaN or infinite and was changed by the program, and goes back at each global "
                    "step: nothing can be averaged from there. Give it finite values before the run begins; "
                    'training.buffers = "local" leaves all buffers to each peer',
                    self._names[index],
                )
                break

    @contextlib.contextmanager
    def at_base(self) -> Iterator[None]:
        """Inside, the buffers have their values after the last step: those that all peers share."""
        pairs = zip(self._tensors, self._bases, strict=True)
        moved = [(t, b, t.clone()) for t, b in pairs if not torch.equal(t, b)]
        for tensor, base, _ in moved:
            tensor.copy_(base)
        try:
            yield
        finally:
            for tensor, _, present in moved:
                tensor.copy_(present)

    @torch.no_grad()
    def rebase(self) -> None:
        """Take the present values for those after the last step: the state was replaced."""
        if not self._bases:
            self._bases = [tensor.clone() for tensor in self._tensors]
        for base, tensor in zip(self._bases, self._tensors, strict=True):
            base.copy_(tensor)
        self._unmoved = [
            index for index, buffer in enumerate(self.averaged) if not bool(_wide(buffer).isfinite().all())
        ]
        self.move(None)


class OwnBuffers:
    """The persistent buffers of `model` (of nothing, if None) under the policy "local", wherever they are by now."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        self._model = model
        self._is_told = False
        modules = [] if model is None else model.named_modules()
        found = {name: each for name, each in modules if isinstance(getattr(each, RUNNING_MEAN, None), torch.Tensor)}
        self._norms = [(name, norm, _hashes(norm)) for name, norm in found.items()]
        # of the norms whose statistics are known to be those that they began with
        self._unmoved = {name: _versions(norm) for name, norm in found.items()}

    def named(self) -> dict[str, torch.Tensor]:
        """All of them by name."""
        return {} if self._model is None else _persistent(self._model)

    def written(self) -> bytes:
        """All that a file can have, as a safetensors file; empty if there are none."""
        kept = {name: buffer.detach().to("cpu", copy=True).contiguous() for name, buffer in self._storable().items()}
        return save(kept) if kept else b""

    @torch.no_grad()
    def take(self, written: bytes) -> None:
        """Give them the values in such a file, as far as it has any that fit."""
        found = load(written) if written else {}
        for name, buffer in self._storable().items():
            kept = found.get(name)
            if kept is None or (kept.shape, kept.dtype) != (buffer.shape, buffer.dtype):
                continue
            if not torch.equal(buffer.cpu(), kept):  # else a norm has the statistics that it began with
                buffer.copy_(kept)

    def check_norms(self) -> None:
        """Raise `ConfigurationError` if a norm computes with other statistics than it began with: what this peer's own
        data made of them other peers, that compute the same gradient again, do not have. A device is read only where
        they may have moved since the last look.
        """
        for name, norm, begun in self._norms:
            if norm.training:
                self._unmoved.pop(name, None)  # not all norms tell in any way that their statistics moved
            elif (versions := _versions(norm)) != self._unmoved.get(name):
                if not begun or _hashes(norm) != begun:
                    raise ConfigurationError(
                        f"`{name}` ({type(norm).__name__}) is in eval mode, with other statistics than when "
                        "minga.Optimizer was made: where they come from this peer's own data or folder, others, who "
                        "verify its gradients, may have other ones, and would ban this peer for good. Keep a norm that "
                        "learns them in training mode, or have all peers freeze it from the run's first step on, with "
                        "the same statistics, which the program gives it before it makes minga.Optimizer"
                    )
                self._unmoved[name] = versions

    def warn_of_new(self) -> None:
        """The state here was trained before: say, once, whose running statistics have seen nothing of it."""
        found = self._storable()
        homes = [
            name.removesuffix(COUNTER) for name, each in found.items() if name.endswith(COUNTER) and not each.any()
        ]
        new = [mean for home in homes if (mean := home + RUNNING_MEAN) in found and not found[mean].any()]
        if new and not self._is_told:
            self._is_told = True
            logger.warning(
                'the buffer %s%s is 0: with training.buffers = "local" no peer sends its own. Running statistics, '
                "as those of BatchNorm, are wrong until they have seen some hundred micro-batches, or are estimated "
                "anew: until then, evaluate and export from the folder of a peer that has trained",
                min(new),
                and_others(new),
            )

    def _storable(self) -> dict[str, torch.Tensor]:
        """Those that a file can have, and that can be filled."""
        return {name: buffer for name, buffer in self.named().items() if _is_storable(name, buffer)}


def _is_storable(name: str, buffer: torch.Tensor) -> bool:
    with contextlib.suppress(ConfigurationError):
        _check(name, buffer)
        return buffer.dtype in DTYPE_NAMES and not (holds_others(buffer) or is_sharded(buffer))
    return False


def _statistics(norm: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: getattr(norm, name, None) for name in (RUNNING_MEAN, RUNNING_VAR, COUNTER)}
    return {name: each for name, each in found.items() if isinstance(each, torch.Tensor)}


def _versions(norm: torch.nn.Module) -> list[tuple[int, int]]:
    """Others where its statistics may be: not all norms count, nor does torch note what BatchNorm does to its mean."""
    return [version_of(each) for each in _statistics(norm).values()]


def _hashes(norm: torch.nn.Module) -> list[str]:
    """What stands for the statistics by which a norm in eval mode computes, as far as they can be read."""
    statistics = [each for name, each in _statistics(norm).items() if name != COUNTER]
    return [
        hash_of(each.contiguous(), TensorAccess())
        for each in statistics
        if not each.is_meta and each.layout is torch.strided and not is_sharded(each)
    ]


def flat_movements(moved: Sequence[torch.Tensor]) -> torch.Tensor:
    """Movements of buffers as they are in the vector: one after the other, in RAM."""
    return torch.cat([torch.zeros(0, dtype=torch.float32, device="cpu"), *(each.reshape(-1).cpu() for each in moved)])


def _persistent(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    packed = {id(each) for each in packed_tensors(model).values()}
    named = ModelNames(model).buffers().items()
    return {name: buffer for name, buffer in named if buffer.numel() and id(buffer) not in packed}


def _check(name: str, buffer: torch.Tensor) -> None:
    if buffer.is_meta:
        raise ConfigurationError(f"the buffer {name} is on the device meta: give it values first")
    if buffer.layout is not torch.strided:
        raise ConfigurationError(
            f"the buffer {name} is sparse, which a state cannot hold: make it dense, or register it with "
            "persistent=False"
        )
    if any(size > 1 and stride == 0 for size, stride in zip(buffer.shape, buffer.stride(), strict=True)):
        raise ConfigurationError(
            f"several elements of the buffer {name} are one number in memory, as expand() makes them, so it cannot be "
            "changed: register its clone(), or register it with persistent=False"
        )


def _joined(tensors: Sequence[torch.Tensor], group: Sequence[int]) -> torch.Tensor:
    """Some of the tensors as one flat tensor."""
    return torch.cat([tensors[index].detach().reshape(-1) for index in group])


def _is_good(moved: torch.Tensor) -> torch.Tensor:
    """Which movements can be sent."""
    return moved.abs() <= CONTRIBUTION_LIMIT  # False of NaN


def _sum(base: torch.Tensor, moved: torch.Tensor) -> torch.Tensor:
    """In the dtype of `base`. Devices differ in the bits of a NaN that they compute, so what is not finite is kept."""
    before = _wide(base)
    return torch.where(before.isfinite(), (before + moved.to(base.device).view(base.shape)).to(base.dtype), base)


def _wide(values: torch.Tensor) -> torch.Tensor:
    """As numbers of a dtype that has all operations."""
    return values if values.dtype is torch.float64 else values.float()
