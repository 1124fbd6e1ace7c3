"""The training state of this process: parameters, buffers, optimizer and scheduler, read out and put back.

Theory of operation. Tensors are named by what they belong to, never by their place in some pickle:

    model/<parameter or buffer name>                    every parameter and persistent buffer, tied ones once; but
                                                        not what belongs to the base (`base.py`)
    optimizer/<parameter name>/<key>                    tensors that the optimizer keeps for a parameter
    sketch/<name>                                       the basis of the run's sketch, if it has one
    strategy/<name>                                     tensors that the run's strategy keeps beside them

Python numbers that the optimizer keeps for a parameter, the numbers of its parameter groups and those of the scheduler
are scalars (see `scalars.py`), and so is the strategy that goes on from the state, if it is another one than the run
began with, and the record of what trains here (`training/replica/trained_record.py`). Names and their order are those
of `model_names.py`, so equal states give equal bytes, whatever order a program lists its layers in.

Optimizers create their state on the first step. A newcomer's optimizer has none yet: `restore` creates the tensors
from the snapshot, with its dtypes and shapes, and removes those that the snapshot lacks. `torch`'s own
`load_state_dict` is not used, because it casts optimizer state to the parameter's dtype. Existing tensors are filled in
place, so that views of them (a flat parameter buffer, a compiled graph) stay valid.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, Final

import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError, UnfitError
from minga.core.units import counted
from minga.optim.together import members_of
from minga.training.state.base import Base, base_of, check_base, hashed, packed_tensors
from minga.training.state.manifest import Manifest, manifest_of
from minga.training.state.model_names import ModelNames, by_name, given_names
from minga.training.state.scalars import (
    STRATEGY_NAME,
    TRAINS,
    Json,
    decode_number,
    encode_number,
    group_numbers,
    merge_numbers,
    numbers_of,
    set_group_numbers,
    strategy_of,
)
from minga.training.state.snapshot import DTYPE_NAMES, DTYPES, StateSnapshot, TensorEntry, layout_bytes
from minga.training.state.tensor_access import TensorAccess

MODEL, OPTIMIZER, SKETCH, STRATEGY = "model/", "optimizer/", "sketch/", "strategy/"
_NUMBER: Final = "#"
"""How the key of a number begins where it stands beside those of tensors."""
_PLACE: Final = re.compile(r"group\d+\.\d+")
"""A parameter without a name."""

_MAX_OPTIMIZER_FACTOR = 16
_MAX_OPTIMIZER_EXTRA_BYTES = 64 << 20
"""Optimizer state may take this many times the bytes of the model, and a little: Adam on bfloat16 takes 4 times."""


class TrainingState:
    """A view of one optimizer, the model that it trains and its learning-rate scheduler.

    Without a `model`, the state's parameters are those of the optimizer and there are no buffers. With
    `include_buffers=False` the model's buffers (BatchNorm statistics) stay each peer's own. The tensors of `basis`, by
    their names, belong to the state, too. `access` reads and fills tensors; by default they are all here.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        model: torch.nn.Module | None = None,
        scheduler: LRScheduler | None = None,
        include_buffers: bool = True,
        basis: Mapping[str, torch.Tensor] | None = None,
        access: TensorAccess | None = None,
    ) -> None:
        self._optimizer, self._scheduler, self._access = optimizer, scheduler, access or TensorAccess()
        self._begun = [frozenset(group) for group in optimizer.param_groups]
        self._added = [frozenset[str]() for _ in self._begun]  # to the groups, by steps of the optimizer
        self._model = model
        self._include_buffers, self._basis = include_buffers, dict(basis or {})
        self._shared: Callable[[], Mapping[str, torch.Tensor]] | None = None
        self._shares_optimizer = True
        self._of_strategy: dict[str, torch.Tensor] = {}  # restored while there was none
        self.strategy: str | None = None
        """The name of the strategy that goes on from here; None for that with which the run began."""
        self.trains: Json = None
        """What the state says of what trains here beside the model's tensors; None says nothing."""
        self.base: Base = {}
        """What of the model is no part of the state."""

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """From now on the state that is captured and described has the tensors that `shared` returns, and not those
        that are here; and the optimizer's numbers only with `optimizer`.
        """
        self._shared, self._shares_optimizer = shared, optimizer

    def take_strategy_tensors(self) -> dict[str, torch.Tensor]:
        """The strategy's part of a state that was restored before `define_shared`, for once."""
        found, self._of_strategy = self._of_strategy, {}
        return found

    @contextlib.contextmanager
    def unshared(self) -> Iterator[None]:
        """Inside, the state is what is here."""
        kept = self._shared, self._shares_optimizer
        self._shared, self._shares_optimizer = None, True
        try:
            yield
        finally:
            self._shared, self._shares_optimizer = kept

    def tensors(self) -> dict[str, torch.Tensor]:
        """All that is here, by name: the tensors themselves."""
        return {entry.name: tensor for entry, tensor in self._own_tensors()}

    def moments(self) -> dict[str, torch.Tensor]:
        """All that the optimizer keeps for its parameters, by name: the tensors themselves, and numbers as tensors
        without dimensions.
        """
        found = {name: tensor for name, tensor in self.tensors().items() if name.startswith(OPTIMIZER)}
        for name, parameter in self._optimized():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    dtype = torch.int64 if isinstance(value, int) else torch.float64
                    number = torch.tensor(value, dtype=dtype, device="cpu")
                    found[f"{OPTIMIZER}{name}/{_NUMBER}{_plain_key(key)}"] = number
        return found

    def names(self) -> dict[int, str]:
        """The names of all model tensors of the state, by their `id`."""
        return {id(tensor): MODEL + name for name, tensor in self._model_tensors()}

    def model_tensors(self) -> dict[str, torch.Tensor]:
        """All parameters of model and optimizer that are here, and the model's buffers, by name; the base, too."""
        named = named_parameters(self._optimizer, self._model)
        if self._model is not None and self._include_buffers:
            named |= ModelNames(self._model).buffers()
        return by_name(named.items())

    def model_entries(self) -> tuple[TensorEntry, ...]:
        """What the state says of those that belong to it."""
        return tuple(_entry(MODEL + name, tensor) for name, tensor in self._model_tensors())

    def capture(self, step: int, directory: Path | None = None) -> StateSnapshot:
        """Copy the whole state, as it is after global step `step`: to the CPU, or if it is large into a file in
        `directory`.

        Raises `ConfigurationError` for state that cannot be described, `NonFiniteError` if a setting is NaN.
        """
        tensors = list(self._tensors())
        entries = tuple(entry for entry, _ in tensors)
        memory = self._access.memory(layout_bytes(entries), directory)
        start = 0
        for piece in self._access.read([tensor for _, tensor in tensors]):
            stop = start + piece.numel()
            memory.buffer[start:stop].copy_(piece)
            memory.release(start, stop)
            start = stop
        return StateSnapshot.within(step, entries, self._scalars(), memory)

    def manifest(self, step: int) -> Manifest:
        """The manifest of the state as it is now, without copying what already lies on the CPU.

        Equals `build_manifest(self.capture(step))`. Raises as `capture` does.
        """
        tensors = list(self._tensors())
        entries = tuple(entry for entry, _ in tensors)
        pieces = self._access.read([tensor for _, tensor in tensors])
        return manifest_of(step, entries, self._scalars(), (piece.numpy().data for piece in pieces))

    def digest(self, step: int) -> str:
        """The state digest as it is now, 64 hexadecimal digits. Raises as `capture` does."""
        digest: str = self.manifest(step).digest
        return digest

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Raise `ConfigurationError` unless this state can be put in here; nothing is changed."""
        self.check_model(state)
        self._check(state.tensors, state.scalars)

    def read_base(self, scalars: Mapping[str, Json]) -> None:
        """Have the same base as a state with these scalars, as far as the model has such tensors; what `base` says of
        those that are here in another form.
        """
        self.base = hashed(self.frozen(base_of(scalars)), self._access, self.base)

    def frozen(self, base: Base) -> dict[str, torch.Tensor]:
        """The tensors of a base, as far as the model has them."""
        here = self.model_tensors() | ({} if self._model is None else packed_tensors(self._model))
        return {name: here[name] for name in base if name in here}

    def check_model(self, state: Manifest | StateSnapshot) -> None:
        """Raise `UnfitError` unless this state has the model that is here, on the same base."""
        base = base_of(state.scalars)
        here = {name: _entry(name, tensor) for name, tensor in self._fixed_tensors()} | _entries(self.base)
        there = {entry.name: entry for entry in state.tensors if entry.name.startswith((MODEL, SKETCH))}
        there |= _entries(base)
        _check_prefixes(here.keys() - there, there.keys() - here)
        in_both = {MODEL + name for name in base.keys() & self.base.keys()}
        if differing := [name for name in here | there if here.get(name) != there.get(name) and name not in in_both]:
            raise UnfitError(_difference(differing, here, there))
        check_base(base, self.base)

    def step_optimizer(self) -> None:
        """Have the optimizer take a step; the numbers that it adds to its parameter groups belong to the state.

        Raises `ConfigurationError` if it adds several numbers in one, a tensor, a switch or a word, as these would not
        come to a newcomer.
        """
        groups = self._optimizer.param_groups
        before = [frozenset(group) for group in groups]
        self._optimizer.step()
        for place, (group, names) in enumerate(zip(groups, before, strict=True)):
            added = {key: group[key] for key in group.keys() - names}
            new = {k for k, v in added.items() if isinstance(v, bool | str) or numbers_of(v) not in (None, {}, [])}
            if odd := sorted(key for key in new if type(group[key]) not in (int, float)):
                raise ConfigurationError(
                    f"the optimizer adds {odd[0]} to its parameter groups as it steps, and peers that fetch the state "
                    "would not have it: let it add plain numbers, or have all from the start"
                )
            self._added[place] |= new

    def restore(self, snapshot: StateSnapshot) -> None:
        """Put a snapshot into the model, the optimizer and the scheduler, in place.

        Raises `ConfigurationError`, before anything was changed, if the snapshot is not of this model and optimizer.
        """
        self.check(snapshot)
        parameters = dict(self._optimized())
        targets, state = self._targets(snapshot.tensors)
        self._access.fill([(start, targets.get(entry.name)) for entry, start in snapshot.placed()], snapshot)
        if self._shared is None:
            kept = ((entry, start) for entry, start in snapshot.placed() if entry.name.startswith(STRATEGY))
            self._of_strategy = {entry.name: snapshot.tensor(entry, start).clone() for entry, start in kept}
        for name, values in _dictionary(snapshot.scalars["state"]).items():
            state[name].update({key: _plain(value) for key, value in _dictionary(values).items()})
        for name, parameter in parameters.items():
            self._optimizer.state.pop(parameter, None)
            if state[name]:
                self._optimizer.state[parameter] = state[name]
        groups, given = self._optimizer.param_groups, [_dictionary(each) for each in _list(snapshot.scalars["groups"])]
        for group, numbers, begun, added in zip(groups, given, self._begun, self._added, strict=True):
            for key in added - numbers.keys():
                group.pop(key, None)
            set_group_numbers(group, numbers, begun)
        self._added = [frozenset(numbers) - begun for numbers, begun in zip(given, self._begun, strict=True)]
        if self._scheduler is not None:
            merge_numbers(self._scheduler, snapshot.scalars["scheduler"])
        self.strategy = strategy_of(snapshot.scalars)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some tensors back under the names that `tensors` or `moments` had for them; the rest stays as it is."""
        parameters = dict(self._optimized())
        numbers = {name: each for name, each in tensors.items() if _is_number(name)}
        targets, state = self._targets(_entry(name, each) for name, each in tensors.items() if name not in numbers)
        with torch.no_grad():
            for name, target in targets.items():
                target.copy_(tensors[name])
        for full_name, number in numbers.items():
            name, key = _split(full_name)
            state[name][key.removeprefix(_NUMBER)] = number.item()
        for name, values in state.items():
            if values:
                self._optimizer.state[parameters[name]].update(values)

    def _targets(self, entries: Iterable[TensorEntry]) -> tuple[dict[str, torch.Tensor], dict[str, dict[str, Any]]]:
        """The tensors of model, basis and optimizer that are to be filled, by full name; and those of the optimizer by
        parameter name and key.
        """
        fixed = dict(self._fixed_tensors())
        parameters = dict(self._optimized())
        groups = {parameter: group for group in self._optimizer.param_groups for parameter in group["params"]}
        targets: dict[str, torch.Tensor] = {}
        state: dict[str, dict[str, Any]] = {name: {} for name in parameters}
        for entry in entries:
            if entry.name in fixed:
                targets[entry.name] = fixed[entry.name]
            elif entry.name.startswith(OPTIMIZER):
                name, key = _split(entry.name)
                parameter = parameters[name]
                tensor = self._own_tensor(parameter, groups[parameter], key, entry)
                targets[entry.name] = state[name][key] = tensor
        return targets, state

    # ---- what there is

    def _fixed_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Full name and tensor of everything that is there from the beginning and keeps its shape."""
        yield from ((MODEL + name, tensor) for name, tensor in self._model_tensors())
        yield from ((SKETCH + name, tensor) for name, tensor in sorted(self._basis.items()))

    def _model_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and tensor of everything that belongs under `model/`."""
        yield from ((name, each) for name, each in self.model_tensors().items() if name not in self.base)

    def _optimized(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Name and parameter of everything that the optimizer has."""
        has = {id(parameter) for group in self._optimizer.param_groups for parameter in group["params"]}
        named = named_parameters(self._optimizer, self._model)
        yield from ((name, parameter) for name, parameter in named.items() if id(parameter) in has)

    def _tensors(self) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
        """What the state consists of, in its order."""
        if self._shared is None:
            yield from self._own_tensors()
            return
        for name, tensor in self._shared().items():
            yield _entry(name, tensor), tensor.detach()

    def _own_tensors(self) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
        for name, tensor in self._fixed_tensors():
            yield _entry(name, tensor), tensor.detach()
        for name, parameter in self._optimized():
            for key, value in sorted(self._optimizer.state.get(parameter, {}).items()):
                if isinstance(value, torch.Tensor):
                    yield _entry(f"{OPTIMIZER}{name}/{_plain_key(key)}", value), value.detach()

    def _scalars(self) -> dict[str, Json]:
        self._check_keys()
        state: dict[str, Json] = {}
        for name, parameter in self._optimized() if self._shares_optimizer else ():
            values = self._optimizer.state.get(parameter, {}).items()
            numbers = {_plain_key(k): _scalar(name, k, v) for k, v in values if not isinstance(v, torch.Tensor)}
            if numbers:
                state[name] = dict(numbers)
        named: dict[str, Json] = {} if self.strategy is None else {STRATEGY_NAME: self.strategy}
        if self.trains is not None:
            named[TRAINS] = self.trains
        return {
            **named,
            "groups": self._groups(),
            "scheduler": numbers_of(self._scheduler),
            "state": state,
        }

    def _check_keys(self) -> None:
        """Raise `ConfigurationError` if the optimizer keeps something that belongs to no parameter of its groups."""
        trained = {id(each) for group in self._optimizer.param_groups for each in group["params"]}
        for each in members_of(self._optimizer):
            kept = [key for key, values in each.state.items() if not isinstance(values, dict) or values]
            if odd := [key for key in kept if id(key) not in trained]:
                where = "a tensor that it does not train" if isinstance(odd[0], torch.Tensor) else f"{odd[0]!r:.80}"
                raise ConfigurationError(
                    f"{type(each).__name__} keeps state under {where}: newcomers and checkpoints would lack it. Let it "
                    "keep that with a parameter, or as a number of its parameter groups"
                )

    def _groups(self) -> list[Json]:
        """The numbers of the parameter groups; whatever else the program put there later is its own."""
        every = zip(self._optimizer.param_groups, self._begun, self._added, strict=True)
        return [
            group_numbers({key: group[key] for key in group if key in begun | added}) for group, begun, added in every
        ]

    # ---- what may come in

    def _check(self, tensors: tuple[TensorEntry, ...], scalars: dict[str, Json]) -> None:
        here = {name: _entry(name, tensor) for name, tensor in self._fixed_tensors()}
        model_bytes = sum(entry.size_bytes for entry in here.values())
        if strategy_of(scalars) == self.strategy:
            self._check_strategy([entry for entry in tensors if entry.name.startswith(STRATEGY)])
        others = [entry for entry in tensors if entry.name not in here and not entry.name.startswith(STRATEGY)]
        kept = [entry for entry in tensors if entry.name not in here]
        if layout_bytes(kept) > _MAX_OPTIMIZER_FACTOR * model_bytes + _MAX_OPTIMIZER_EXTRA_BYTES:
            raise ConfigurationError(
                "the state holds far more beside the model than any optimizer or strategy keeps for it"
            )
        parameters = {name for name, _ in self._optimized()}
        for entry in others:
            if not entry.name.startswith(OPTIMIZER) or _split(entry.name)[0] not in parameters:
                raise ConfigurationError(f"the state holds {entry.name}, which this optimizer does not train")
        self._check_scalars(scalars, parameters)

    def _check_strategy(self, tensors: list[TensorEntry]) -> None:
        """Those of the strategy at work here. Without one, as in an export, they are of no use and may be any."""
        if self._shared is None:
            return
        here = {name: _entry(name, tensor) for name, tensor in self._shared().items() if name.startswith(STRATEGY)}
        there = {entry.name: entry for entry in tensors}
        for name in sorted(here.keys() | there.keys()):
            if here.get(name) != there.get(name):
                raise ConfigurationError(
                    f"the state does not fit the strategy of this run: {name} is {_describe(there.get(name))} in the "
                    f"state and {_describe(here.get(name))} here"
                )

    def _check_scalars(self, scalars: dict[str, Json], parameters: set[str]) -> None:
        if scalars.keys() - {STRATEGY_NAME, TRAINS} != {"groups", "scheduler", "state"}:
            raise ConfigurationError("the state's scalars are malformed: not groups, scheduler and state")
        groups, count = _list(scalars["groups"]), len(self._optimizer.param_groups)
        if len(groups) != count or not all(isinstance(group, dict) for group in groups):
            raise ConfigurationError(f"the state has {len(groups)} parameter groups and this optimizer {count}")
        for name, values in _dictionary(scalars["state"]).items():
            if name not in parameters:
                raise ConfigurationError(f"the state holds numbers for {name[:100]}, which is not trained here")
            for key, value in _dictionary(values).items():
                if isinstance(value, dict | list) or not key:
                    raise ConfigurationError(f"optimizer state {key[:100]} of {name[:100]} is not a plain value")
        if (self._scheduler is None) != (scalars["scheduler"] is None):
            raise ConfigurationError("the state has a learning-rate scheduler where this peer has none, or the reverse")

    def _own_tensor(self, parameter: torch.Tensor, group: dict[str, Any], key: str, entry: TensorEntry) -> torch.Tensor:
        """The optimizer's tensor `key` of `parameter`; a new one if there is none that fits."""
        tensor, dtype = self._optimizer.state.get(parameter, {}).get(key), DTYPES[entry.dtype]
        if not isinstance(tensor, torch.Tensor) or (tensor.shape, tensor.dtype) != (entry.shape, dtype):
            # torch keeps step counters on the CPU, where reading them costs nothing, unless its kernels count.
            on_cpu = key == "step" and not group.get("capturable") and not group.get("fused")
            if parameter.shape == entry.shape and not on_cpu:
                return torch.empty_like(parameter, dtype=dtype, requires_grad=False)
            return torch.empty(entry.shape, dtype=dtype, device="cpu" if on_cpu else parameter.device)
        return tensor


def named_parameters(optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> dict[str, torch.Tensor]:
    """All parameters of model and optimizer, in order of their names: those of `model`, of others those that the
    optimizer was given, or else their places in its groups.
    """
    named = {} if model is None else ModelNames(model).parameters()
    known = {id(parameter) for parameter in named.values()}
    for i, group in enumerate(optimizer.param_groups):
        given = given_names(group)
        for j, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                known.add(id(parameter))
                name = given[j] if given else f"group{i}.{j}"
                if name in named:
                    raise ConfigurationError(
                        f"two parameters are called {name}: pass the model that has both as model="
                    )
                named[name] = parameter
    return by_name(named.items())


def _entry(name: str, tensor: torch.Tensor) -> TensorEntry:
    dtype = DTYPE_NAMES.get(tensor.dtype)
    if dtype is None or tensor.layout is not torch.strided:
        raise ConfigurationError(f"{name} is a tensor of {tensor.dtype}, {tensor.layout}, which a state cannot hold")
    return TensorEntry(name, dtype, tuple(tensor.shape))


def _entries(base: Base) -> dict[str, TensorEntry]:
    """Those of the base by full name, as if a state had them."""
    return {MODEL + name: TensorEntry(MODEL + name, each.dtype, each.shape) for name, each in base.items()}


def _plain_key(key: object) -> str:
    if not isinstance(key, str) or not key or "/" in key:
        raise ConfigurationError(f"the optimizer keeps state under {key!r}; keys must be text without a slash")
    return key


def _check_prefixes(here: Set[str], there: Set[str]) -> None:
    """Raise `UnfitError` if the names that only one side has are the same but for one prefix."""
    mine, theirs = ({name.removeprefix(MODEL) for name in names} for names in (here, there))
    if prefix := _prefix(theirs, mine):
        remedy = f"pass the part {prefix[:-1]} of the model as model=, with Lightning in MingaStrategy"
    elif prefix := _prefix(mine, theirs):
        remedy = f"pass as model= a module that has the network as its attribute {prefix[:-1]}"
    else:
        return
    raise UnfitError(
        f"the names of this program's model differ from the run's by the prefix {prefix!r}: {min(theirs)} in the run "
        f"is {min(mine)} here; {remedy} (docs/trainers.md, Lightning: how frameworks are mixed)"
    )


def _prefix(short: Set[str], long: Set[str]) -> str:
    """What each of the names `long` has before one of `short`; nothing if they differ otherwise."""
    prefix = min(long, default="").removesuffix(min(short, default=""))
    return prefix if short and prefix.endswith(".") and {prefix + name for name in short} == long else ""


def _scalar(name: str, key: str, value: Any) -> Json:
    if isinstance(value, bool | str) or value is None:
        return value
    if isinstance(value, int | float):
        return encode_number(value)
    raise ConfigurationError(
        f"the optimizer keeps {key} of {name} as {type(value).__name__}; only tensors and plain numbers can be shared"
    )


def _plain(value: Json) -> Json:
    """The reverse of `_scalar`."""
    return value if isinstance(value, bool) or (number := decode_number(value)) is None else number


def _split(name: str) -> tuple[str, str]:
    """Parameter name and key of an optimizer tensor's name."""
    parameter, _, key = name.removeprefix(OPTIMIZER).rpartition("/")
    return parameter, key


def _difference(names: Sequence[str], here: Mapping[str, TensorEntry], there: Mapping[str, TensorEntry]) -> str:
    """What to say of tensors of these `names`, which are others in the run than here: of the largest, for that is the
    weight of a layer and not its bias.
    """
    first = max(names, key=lambda name: math.prod((here.get(name) or there[name]).shape))
    run, own, name = there.get(first), here.get(first), first.removeprefix(MODEL)
    whole = "model" if first.startswith(MODEL) else "state"
    if run is not None and own is not None:
        says_dtype = run.dtype != own.dtype
        theirs, ours = (_describe(each, says_dtype=says_dtype) for each in (run, own))
        found = f"the run's {whole} has `{name}` {theirs}, this program's has {ours}"
    elif run is not None:
        found = f"the run's {whole} has `{name}` {_describe(run)}, this program's has no such tensor"
    else:
        found = f"the run's {whole} has no `{name}`, this program's has {_describe(own)}"
    more = len(names) - 1
    rest = f" ({counted(more, 'other differs', 'others differ')})" if more else ""
    if all(_PLACE.fullmatch(each.removeprefix(MODEL)) for each in here) != all(
        _PLACE.fullmatch(each.removeprefix(MODEL)) for each in there
    ):
        return f"{found}{rest}: one side names its tensors and the other does not; pass model=... to minga.Optimizer"
    return f"{found}{rest}: build the same model, with the same dtype, as the run"


def _describe(entry: TensorEntry | None, *, says_dtype: bool = True) -> str:
    return (
        "missing" if entry is None else f"{entry.dtype} {list(entry.shape)}" if says_dtype else f"{list(entry.shape)}"
    )


def _is_number(name: str) -> bool:
    return name.startswith(OPTIMIZER) and _split(name)[1].startswith(_NUMBER)


def _dictionary(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ConfigurationError("the state's scalars are malformed: a dictionary is missing")
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ConfigurationError("the state's scalars are malformed: a list is missing")
    return value
