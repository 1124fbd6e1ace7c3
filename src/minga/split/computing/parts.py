"""A part of a model that is cut: its modules, and the optimizer that trains them on this machine."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn
from torch.nn import functional
from torch.optim.lr_scheduler import LRScheduler

from minga.averaging.codecs.interface import is_finite
from minga.core.errors import ConfigurationError, NonFiniteError
from minga.core.files import store
from minga.core.spec.sections import OptimizerSection
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.state.snapshot import DTYPE_NAMES, StateMemory, StateSnapshot, TensorEntry, layout_bytes
from minga.training.state.state_dict import TrainingState

OptimizerChoice = torch.optim.Optimizer | Callable[[list[nn.Parameter]], torch.optim.Optimizer]
"""An optimizer of the part's parameters, or what makes one of them, such as `partial(torch.optim.Adam, lr=1e-3)`."""

Tensors = tuple[torch.Tensor, ...]

_BESIDE: Final = "beside/"


class ModelPart:
    """Modules that are trained together on one machine. A part that has nothing to train needs no optimizer.

    Without an `optimizer` it is that of the run spec, with its schedule, one step for each batch, and with its
    `max_grad_norm` if nothing else is said. That scales down the gradient of this part alone: clipped part by part a
    model takes other steps than as a whole.

    Raises `ConfigurationError` for an optimizer that is none, or that lacks some of these parameters.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizer: OptimizerChoice | None,
        section: OptimizerSection,
        max_grad_norm: float | None = None,
    ) -> None:
        if max_grad_norm is not None and not (math.isfinite(max_grad_norm) and max_grad_norm > 0):
            raise ConfigurationError(f"max_grad_norm={max_grad_norm} is no positive number")
        if wrong := [each for each in modules if not isinstance(each, nn.Module)]:
            raise ConfigurationError(f"a part of a model is a torch.nn.Module, not a {type(wrong[0]).__name__}")
        self.modules = tuple(modules)
        self.parameters = [each for each in nn.ModuleList(modules).parameters() if each.requires_grad]
        self.optimizer, self.scheduler = self._made(optimizer, section)
        self.max_grad_norm = section.max_grad_norm if optimizer is None and max_grad_norm is None else max_grad_norm
        self.steps = 0
        """Steps that this part has taken."""

    @property
    def round(self) -> int:
        """Rounds in which it was averaged with those of others."""
        return 0

    @property
    def device(self) -> torch.device:
        """Where the part computes: where its first parameter or buffer lies, in CPU memory if it has none."""
        tensors = chain.from_iterable(chain(each.parameters(), each.buffers()) for each in self.modules)
        first = next(tensors, None)
        return torch.device("cpu") if first is None else first.device

    @property
    def buffers(self) -> list[torch.Tensor]:
        """What modules keep and no optimizer changes, such as the means of BatchNorm."""
        return [buffer for module in self.modules for buffer in module.buffers()]

    @property
    def dtype(self) -> torch.dtype | None:
        """The type of its first floating-point parameter, None without one."""
        tensors = chain.from_iterable(each.parameters() for each in self.modules)
        return next((each.dtype for each in tensors if each.is_floating_point()), None)

    def adapted(self, tensors: Tensors) -> Tensors:
        """Tensors of the other side of the cut where this part computes, floating-point ones in its own type."""
        device, dtype = self.device, self.dtype
        return tuple(each.to(device, dtype if each.is_floating_point() else None) for each in tensors)

    def step(self, samples: int = 1, loss: float | None = None) -> None:  # noqa: ARG002
        """Update the parameters by their gradients, of so many samples of this mean loss, and forget these,
        also if the optimizer fails.

        Raises `NonFiniteError`, with the parameters untouched, if a gradient is NaN or infinite.
        """
        if self.optimizer is None:
            self.steps += 1
            return
        try:
            norm = nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm or math.inf)
            if not bool(torch.isfinite(norm)):
                raise NonFiniteError("a gradient of this part of the model is not finite")
            self.optimizer.step()
            if self.scheduler is not None:
                self.scheduler.step()
            self.steps += 1
        finally:
            self.zero_grad()

    @contextlib.contextmanager
    def keeping_buffers(self) -> Iterator[KeptBuffers]:
        """If what is done inside fails, the buffers are as before afterwards."""
        kept = KeptBuffers(self)
        try:
            yield kept
        except BaseException:
            kept.put_back()
            raise

    def copied(self) -> ModelPart:
        """A copy of modules, optimizer and schedule that is trained for itself."""
        made = copy.deepcopy(self)
        if made.optimizer is not None and made.scheduler is not None:
            # A schedule warns unless it has wrapped the optimizer's `step`, and the copy of an optimizer lacks that.
            optimizer: Any = made.optimizer
            optimizer.step = functools.partial(optimizer.step)
            optimizer.step._wrapped_by_lr_sched = optimizer._opt_called = True  # noqa: SLF001
        return made

    def capture(self) -> StateSnapshot:
        """A copy of modules, optimizer and schedule. Raises `ConfigurationError` if it cannot be described."""
        return self._state().capture(self.steps)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Go on from a state of this part, or of a copy of it. Raises `ConfigurationError` for any other."""
        self._state().restore(snapshot)
        self.steps = snapshot.step
        self.zero_grad()

    def save(self, path: Path, beside: Mapping[str, torch.Tensor] | None = None) -> None:
        """Write to one file, of safetensors, what `capture` copies, and tensors that are to be found `beside` it.

        Raises `StorageError`, with the file as before, if the disk refuses, and as `capture`.
        """
        state = self.capture()
        tensors = {entry.name: tensor.clone() for entry, tensor in state.named_tensors()}
        tensors |= {_BESIDE + name: tensor.contiguous() for name, tensor in (beside or {}).items()}
        said = {"step": str(state.step), "scalars": json.dumps(state.scalars), "optimizer": self._kind}
        store(path, save(tensors, said))

    def load(self, path: Path) -> Mapping[str, torch.Tensor] | None:
        """Go on from what `save` wrote; what lay beside it, or None if there is no such file.

        The settings of the optimizer are those of the file, as with `load_state_dict` of torch. Raises
        `ConfigurationError`, with nothing changed, if it is of another part or of another kind of optimizer.
        """
        if not path.exists():
            return None
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                said = file.metadata() or {}
                found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (this is no dictionary)
            if (kind := said.get("optimizer")) != self._kind:
                raise ConfigurationError(f"its optimizer is {kind}, and here it is {self._kind}")
            step, scalars = int(said["step"]), json.loads(said["scalars"])
            entries = tuple(
                TensorEntry(name, DTYPE_NAMES[each.dtype], tuple(each.shape))
                for name, each in found.items()
                if not name.startswith(_BESIDE)
            )
            state = StateSnapshot.within(step, entries, scalars, StateMemory.of(layout_bytes(entries)))
            for entry, tensor in state.named_tensors():
                tensor.copy_(found[entry.name])
            self.restore(state)
        except (OSError, SafetensorError, KeyError, ValueError, ConfigurationError) as error:
            raise ConfigurationError(
                f"{path}: not this part of the model: {str(error)[:200]}; move the file away"
            ) from error
        return {name.removeprefix(_BESIDE): each for name, each in found.items() if name.startswith(_BESIDE)}

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @contextlib.contextmanager
    def predicting(self) -> Iterator[None]:
        """Without gradients, and with all modules in evaluation mode; afterwards each is in its own mode again."""
        modes = [(module, module.training) for part in self.modules for module in part.modules()]
        try:
            for each in self.modules:
                each.eval()
            with torch.no_grad():
                yield
        finally:
            for module, mode in modes:
                module.training = mode

    @property
    def _kind(self) -> str:
        return type(self.optimizer).__name__

    def _state(self) -> TrainingState:
        if self.optimizer is None:
            raise ConfigurationError("a part of a model that has nothing to train has no state")
        return TrainingState(self.optimizer, model=nn.ModuleList(self.modules), scheduler=self.scheduler)

    def _made(
        self, choice: OptimizerChoice | None, section: OptimizerSection
    ) -> tuple[torch.optim.Optimizer | None, LRScheduler | None]:
        if not self.parameters:
            return None, None
        if choice is None:
            return build_optimizer(section, nn.ModuleList(self.modules))
        made = choice if isinstance(choice, torch.optim.Optimizer) else choice(list(self.parameters))
        if not isinstance(made, torch.optim.Optimizer):
            raise ConfigurationError(f"optimizer: {made!r} is no torch.optim.Optimizer, and makes none")
        trained = {id(each) for group in made.param_groups for each in group["params"]}
        named = nn.ModuleList(self.modules).named_parameters()
        if lacking := [name for name, each in named if each.requires_grad and id(each) not in trained]:
            raise ConfigurationError(
                f"the optimizer lacks {len(lacking)} of the parameters of this part of the model, {lacking[0]} first: "
                "give it those of all its modules (of a client: bottom and head); what is not to be trained has to "
                "require no gradient"
            )
        return made, None


class KeptBuffers:
    """The buffers of a part as they were when this was made."""

    def __init__(self, part: ModelPart) -> None:
        self._part, self._round = part, part.round
        self._buffers = [(each, each.clone()) for each in part.buffers]

    def check(self) -> None:
        """Raise `NonFiniteError` if a buffer that was finite is not so any more: no later batch would mend a running
        mean with NaN or infinity in it.
        """
        for each, before in self._buffers:
            if each.is_floating_point() and not is_finite(each) and is_finite(before):
                raise NonFiniteError("a buffer of this part of the model is not finite any more")

    def put_back(self) -> None:
        """Let the buffers be as they were, unless the part has come to another round, and has those of that."""
        if self._part.round == self._round:
            with torch.no_grad():
                for each, before in self._buffers:
                    each.copy_(before)


def run_module(module: nn.Module, inputs: Any) -> Tensors:
    """What a module makes of its inputs: a tensor, a sequence of positional or a mapping of named arguments.

    Raises `ConfigurationError` unless that is a tensor, or a sequence of tensors.
    """
    if isinstance(inputs, Mapping):
        made = module(**inputs)
    elif isinstance(inputs, tuple | list):
        made = module(*inputs)
    else:
        made = module(inputs)
    return as_tensors(made)


def as_tensors(value: Any) -> Tensors:
    """One tensor or several as a tuple. Raises `ConfigurationError` for anything else."""
    found = (value,) if isinstance(value, torch.Tensor) else value
    if isinstance(found, tuple | list) and found and all(isinstance(each, torch.Tensor) for each in found):
        return tuple(found)
    raise ConfigurationError(f"a tensor or a tuple of tensors is needed, not a {type(value).__name__}")


def as_value(tensors: Tensors) -> Any:
    """A single tensor as itself, several as a tuple."""
    return tensors[0] if len(tensors) == 1 else tensors


# ---- What a batch is trained by: the loss that one side or the other computes.


LossFunction = Callable[[Any, Any], torch.Tensor]
"""The mean loss of a batch, by outputs and labels."""


def cross_entropy(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The usual loss: `functional.cross_entropy`, of which a wrong class is a `ValueError` on every device."""
    if not labels.is_floating_point() and outputs.dim() > 1 and labels.numel():
        low, high = (int(each) for each in torch.aminmax(labels))
        if high >= outputs.shape[1] or (low < 0 and low != -100):
            raise ValueError(f"classes from {low} to {high}, where the model knows {outputs.shape[1]}")
    return functional.cross_entropy(outputs, labels)
