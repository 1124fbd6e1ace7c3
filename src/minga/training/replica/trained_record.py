"""What trains here: the record by which peers know that they train one thing, and what became of it in this program.

Theory of operation. A peer that froze what the others train, counts tokens where they count samples, or trains an
adapter on another base model comes to other parameters, or to the same ones of another model, and no number of a round
shows it. So each state says what its peers have, and a peer that takes a state over compares (`Replica.check`). Names,
shapes and dtypes of the model are the manifest's own, and so are the numbers of the parameter groups, which a newcomer
takes over; this record says the rest, under the scalar `trains`. It is fixed when the replica is made, so that it can
be part of every digest by which states are compared, and `digest` stands for all of it. What the organisers amend
later reaches all peers and changes nothing in it.

What is frozen is the base of the run (`training/state/base.py`), of which the record has the hashes.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import torch
from blake3 import blake3
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ConfigurationError, UnfitError
from minga.core.printable import is_printable
from minga.core.units import and_others, counted
from minga.optim.shards import local
from minga.optim.together import members_of
from minga.training.state.base import BASE, Base, base_of, has_form, hash_of, hashed, holds_others, packed_tensors
from minga.training.state.manifest import MAX_NAME_CHARACTERS
from minga.training.state.scalars import TRAINS, Json, canonical_json, decode_number, encode_number, group_numbers
from minga.training.state.snapshot import TensorEntry
from minga.training.state.state_dict import named_parameters
from minga.training.state.tensor_access import TensorAccess

SAMPLES, TOKENS = "samples", "tokens"
MAX_UNIT_CHARACTERS = 40
_SWITCHES: Final = (
    "amsgrad",
    "centered",
    "debias",
    "decoupled_weight_decay",
    "exact",
    "match_adamw",
    "maximize",
    "nesterov",
    "use_muon",
)
"""Settings that are no numbers, which a newcomer would take over, and make other updates."""
_RATES: Final = {"lr", "initial_lr"}
_CYCLED: Final = {"momentum", "betas"}
_CYCLING: Final = ("CyclicLR", "OneCycleLR")
_SAMPLED_TENSORS, _SAMPLED_ELEMENTS = 64, 4
"""After each step, so many tensors of the base are looked at, by so many elements of each."""

_MALFORMED: Final = "the state's scalars are malformed: they do not say what trains in the run"

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TrainedRecord:
    """That of one peer, as it was when its replica was made. Raises `ConfigurationError` for a unit that is no word."""

    unit: str
    """What the peers count in micro-batches and in the target batch size."""
    groups: tuple[tuple[str, ...], ...]
    """The names of the trained parameters in each parameter group of the optimizer."""
    optimizers: tuple[str, ...]
    """How each group is updated, as `kind_of` has it."""
    settings: tuple[frozenset[str], ...]
    """The names of the numbers that each group has; optimizers may add others at their first step."""
    scheduler: str
    """The class of the learning-rate scheduler, with those that it has inside; empty for none."""
    max_grad_norm: float | None
    max_grad_value: float | None
    base: Base
    """What no step changes."""
    held: tuple[str, ...]
    """The names of the frozen parameters that states hold all the same."""

    def __post_init__(self) -> None:
        if not (1 <= len(self.unit) <= MAX_UNIT_CHARACTERS and is_printable(self.unit) and self.unit.strip()):
            raise ConfigurationError(
                f"unit={self.unit!r} is no word for what step(samples=...) counts, such as {SAMPLES!r} or {TOKENS!r}"
            )

    def written(self) -> Json:
        """As it stands in a state; names that the state has elsewhere are left out."""
        norm = None if self.max_grad_norm is None else encode_number(float(self.max_grad_norm))
        value = None if self.max_grad_value is None else encode_number(float(self.max_grad_value))
        later: list[Json] = [list[Json](names) for names in self.groups[1:]]
        return {
            "unit": self.unit,
            "groups": later,  # the first has the other names
            "optimizers": list[Json](self.optimizers),
            "settings": [list[Json](sorted(names)) for names in self.settings],
            "scheduler": self.scheduler,
            "max_grad_norm": norm,
            "max_grad_value": value,
            BASE: {name: [each.dtype, list[Json](each.shape), each.hash] for name, each in self.base.items()},
            "held": list[Json](self.held),
        }

    def digest(self, model: Sequence[TensorEntry]) -> str:
        """32 hexadecimal digits that stand for it and for the `model` whose tensors the state describes so."""
        tensors: list[Json] = [[each.name, each.dtype, list[Json](each.shape)] for each in model]
        written = canonical_json({"model": tensors, TRAINS: self.written()})
        return blake3(b"minga what trains 1\n" + written).hexdigest(length=16)

    def check(self, scalars: Mapping[str, Json]) -> None:
        """Raise `UnfitError` that names what is other in the run, a state of which has these `scalars`, than here; the
        tensors of the model and the values of the base are the same. Raises `ConfigurationError` if the scalars do not
        say it.
        """
        run = _Written(scalars)
        self._check_frozen(run)
        if (theirs := run.word("scheduler")) != self.scheduler:
            raise UnfitError(
                f"the run's learning-rate scheduler is {theirs or 'none'}, this program's is "
                f"{self.scheduler or 'none'}: give minga.Optimizer the same scheduler=... on all peers"
            )
        self._check_groups(run)
        if (norm := decode_number(run.part.get("max_grad_norm"))) != self.max_grad_norm:
            raise UnfitError(
                f"the run began with max_grad_norm={norm}, this program has {self.max_grad_norm}: give minga.Optimizer "
                "that one, which is peer.spec.optimizer.max_grad_norm where the run's host takes the run spec's; what "
                "organisers made of it by minga amend counts by itself"
            )
        if (value := decode_number(run.part.get("max_grad_value"))) != self.max_grad_value:
            raise UnfitError(
                f"the run began with max_grad_value={value}, this program has {self.max_grad_value}: give "
                "minga.Optimizer that one"
            )
        if (unit := run.word("unit")) != self.unit:
            raise UnfitError(
                f"the run counts {unit}, this program counts {self.unit}: the target batch size is in {unit}, so "
                "count these on all peers, and say so by unit=... (docs/trainers.md, Units)"
            )

    def tell_of_numbers(self, scalars: Mapping[str, Json], groups: Sequence[Mapping[str, Any]]) -> None:
        """Tell the program which numbers of its optimizer's `groups` give way to those of the run, whose state has
        these `scalars`; what a schedule moves is left out.
        """
        moves = _RATES | (_CYCLED if any(each in self.scheduler for each in _CYCLING) else set())
        for group, theirs, names in zip(groups, _list(scalars.get("groups")), self.settings, strict=True):
            own = group_numbers(group)
            for name in sorted(names - moves):
                if (run := _mapping(theirs).get(name)) != own.get(name):
                    logger.warning(
                        "%s = %s of this program's optimizer gives way to the run's %s", name, own.get(name), run
                    )

    def _check_frozen(self, run: _Written) -> None:
        theirs, held = set(run.words("held")), set(self.held)
        there, here = run.base().keys() | theirs, self.base.keys() | held
        if differing := sorted(there ^ here):
            first = differing[0]
            one, other = ("frozen", "trained") if first in there else ("trained", "frozen")
            raise UnfitError(
                f"`{first}` is {one} in the run and {other} in this program{and_others(differing)}: before "
                "minga.Optimizer is made, the same parameters have to require a gradient and to be in the optimizer "
                "on all peers"
            )
        if differing := sorted(theirs ^ held):
            one, other = ("an", "none") if differing[0] in theirs else ("no", "one")
            raise UnfitError(
                f"the run has {one} after_update=, which may change `{differing[0]}`{and_others(differing)}, and this "
                f"program has {other}: give minga.Optimizer the same function on all peers"
            )

    def _check_groups(self, run: _Written) -> None:
        theirs, settings = run.groups({name for names in self.groups for name in names}), run.settings()
        if len(settings) != len(self.groups):
            raise UnfitError(
                f"the run's optimizer has {counted(len(settings), 'parameter group')}, this program's has "
                f"{len(self.groups)}: make the same on all peers, in the same order"
            )
        if differing := [name for name, place in self._places() if theirs.get(name) != place]:
            first = differing[0]
            raise UnfitError(
                f"`{first}` is in parameter group {theirs.get(first)} of the run's optimizer, and in group "
                f"{dict(self._places())[first]} of this program's{and_others(differing)}: make the same groups on all "
                "peers, in the same order"
            )
        kinds = run.words("optimizers")
        if kinds != self.optimizers:
            raise UnfitError(
                f"the run is trained by {_listed(kinds)}, this program's optimizer is {_listed(self.optimizers)}: all "
                "peers need the same one"
            )
        if not len(self.settings) == len(settings) == len(run.present()):
            raise ConfigurationError(_MALFORMED)
        for place, (here, there) in enumerate(zip(self.settings, settings, strict=True)):
            if differing := sorted(here ^ there):
                first = differing[0]
                one, other = ("no", "one") if first in here else ("a", "none")
                raise UnfitError(
                    f"parameter group {place} of the run's optimizer has {one} number {first}, this program's "
                    f"has {other}{and_others(differing)}: make the optimizer with the same settings on all peers"
                )
        if any(names - present for names, present in zip(settings, run.present(), strict=True)):
            raise ConfigurationError(_MALFORMED)

    def _places(self) -> Iterator[tuple[str, int]]:
        for place, names in enumerate(self.groups):
            yield from ((name, place) for name in names)


class _Written:
    """A record in the scalars of a state, which another peer wrote: everything is looked at before it is used."""

    def __init__(self, scalars: Mapping[str, Json]) -> None:
        self._scalars = scalars
        self.part = _mapping(scalars.get(TRAINS))

    def word(self, name: str) -> str:
        return _text(self.part.get(name))

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(_text(each) for each in _list(self.part.get(name)))

    def base(self) -> Base:
        if BASE not in self.part:
            raise ConfigurationError(_MALFORMED)
        return base_of(self._scalars)

    def groups(self, trained: Collection[str]) -> dict[str, int]:
        """The place of the group of each of the `trained`: the first has those that no other has."""
        later = enumerate(_list(self.part.get("groups")), 1)
        return dict.fromkeys(trained, 0) | {_text(name): place for place, names in later for name in _list(names)}

    def settings(self) -> list[frozenset[str]]:
        return [frozenset(map(_text, _list(names))) for names in _list(self.part.get("settings"))]

    def present(self) -> list[frozenset[str]]:
        """The names of the numbers that the state has of each group."""
        return [frozenset(map(_text, _mapping(group))) for group in _list(self._scalars.get("groups"))]


def record_of(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module | None,
    scheduler: LRScheduler | None,
    access: TensorAccess,
    *,
    max_grad_norm: float | None,
    max_grad_value: float | None,
    unit: str,
    holds_frozen: bool = False,
    base: Base | None = None,
) -> TrainedRecord:
    """The record of this program, after its base was hashed: where one is given, what of that is here in the form in
    which it is given. With `holds_frozen` frozen parameters are no part of it, but of the state, if they have bytes of
    their own.
    """
    trained = set(trained_parameters(optimizer, model))
    named, groups = named_parameters(optimizer, model), optimizer.param_groups
    names = {id(each): name for name, each in named.items()}
    frozen = {name: each for name, each in named.items() if name not in trained}
    held = {name for name, each in frozen.items() if holds_frozen and not holds_others(each)}
    rest = frozen | ({} if model is None else packed_tensors(model))
    resting = {name: each for name, each in rest.items() if name not in held and (base is None or name in base)}
    return TrainedRecord(
        unit,
        tuple(tuple(sorted({names[id(p)] for p in group["params"]} & trained)) for group in groups),
        tuple(kind_of(each, group) for each in members_of(optimizer) for group in each.param_groups),
        tuple(frozenset(group_numbers(group)) for group in groups),
        "" if scheduler is None else _schedule_kind(scheduler),
        None if max_grad_norm is None else float(max_grad_norm),
        None if max_grad_value is None else float(max_grad_value),
        hashed(resting, access, base),
        tuple(sorted(held)),
    )


def trained_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module | None = None
) -> dict[str, torch.Tensor]:
    """The parameters of which gradients are averaged, in order of their names: those of the optimizer that require a
    gradient, each once.
    """
    given = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    return {name: each for name, each in named_parameters(optimizer, model).items() if id(each) in given}


def kind_of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> str:
    """The optimizer's class, without the package, as what keeps equal tensors goes by equal names, and which switches
    of a group are not as usual. Of a class that a program derived it is the one of torch or minga.
    """
    name = _known_class(optimizer, torch.optim.Optimizer, ("torch.optim.", "minga.optim."))
    on = {switch for switch in _SWITCHES if group.get(switch) is True} - {"debias"}
    if group.get("debias") is False:
        on.add("no debias")
    if (adjusted := group.get("adjust_lr_fn") or "original") != "original":  # of torch's Muon
        on.add(f"adjust_lr_fn {adjusted}")
    if name in ("Adam", "AdamW") and "decoupled_weight_decay" in on:  # torch has AdamW as an Adam with this
        name, on = "AdamW", on - {"decoupled_weight_decay"}
    return f"{name} ({', '.join(sorted(on))})" if on else name


class ModelWatch:
    """Notices what a program does to the tensors of its model after the run's optimizer was made.

    `model` are all by name, `trained` those of them that the optimizer trains, `base` what no step changes.

    No state holds the base: a target network, or an average of the weights, that the program changes in its loop is
    another one on each peer, and what an adapter is trained on if that was merged into it. A few numbers show it at
    each step, however it was changed; where torch counts changes, the hashes show the rest when the state is read, but
    of what is here in another form than `base` says.
    """

    def __init__(
        self,
        model: Mapping[str, torch.Tensor],
        trained: Collection[str],
        base: Base,
        access: TensorAccess,
    ) -> None:
        self._access = access
        self._begun = {name: (each, each.dtype, each.shape) for name, each in model.items()}
        self._trained, self._base = frozenset(trained), base
        self._watched = {name: (each, each.requires_grad) for name, each in model.items()}
        # those that are not yet told to have other values, in order
        compared = {name: model[name] for name in base if name in model and not holds_others(model[name])}
        self._samples = _samples(dict(islice(compared.items(), _SAMPLED_TENSORS)))
        self._versions: dict[str, tuple[int, int]] = {}
        if access.is_local:  # else all processes would have to look at the same time
            comparable = {name: each for name, each in compared.items() if has_form(each, base[name])}
            self._versions = {name: version_of(each) for name, each in comparable.items()}

    def look(self, resting: Collection[str]) -> None:
        """Warn, once for each, of parameters whose `requires_grad` was changed, but those that rest by rules; and of
        tensors of the base that have other values.
        """
        changed = {name: before for name, (each, before) in self._watched.items() if each.requires_grad != before}
        thawed = [name for name, before in changed.items() if not before]
        frozen = [name for name in changed if name in self._trained and name not in resting]
        if thawed:
            logger.warning(
                "%s requires a gradient now and did not when minga.Optimizer was made: the run does not train it",
                thawed[0] + and_others(thawed),
            )
        if frozen:
            logger.warning(
                "%s requires no gradient now and did when minga.Optimizer was made: the run goes on training it. To "
                "let parameters rest for some steps, pass rules= on all peers",
                frozen[0] + and_others(frozen),
            )
        for name in (*thawed, *frozen):
            del self._watched[name]
        found = _samples({name: self._begun[name][0] for name in self._samples})
        self._warn_of_values([name for name, before in self._samples.items() if found[name] != before])

    def check(self, model: Mapping[str, torch.Tensor]) -> None:
        """Raise `UnfitError` unless the model has the tensors that it had, by their names; warn, once for each, of
        those of the base that have other values.
        """
        if lost := [name for name in self._trained if self._begun[name][0] is not model.get(name)]:
            raise UnfitError(
                f"the optimizer trains {counted(len(lost), 'tensor')} that the model no longer has, such as "
                f"`{min(lost)}`: a layer was replaced after minga.Optimizer was made. Change the model before, or fill "
                "its tensors in place (copy_)"
            )
        if more := sorted(model.keys() - self._begun.keys()):
            raise UnfitError(
                f"the model has {counted(len(more), 'tensor')} that it had not when minga.Optimizer was made, such as "
                f"`{more[0]}`: the run knows nothing of them. Add layers before"
            )
        for name, (tensor, dtype, shape) in self._begun.items():
            now = model.get(name)
            if now is None or now is not tensor or (now.dtype, now.shape) != (dtype, shape):
                found = "is gone" if now is None else "is another tensor"
                if now is tensor:
                    found = f"is {_described(now.dtype, now.shape)}, and was {_described(dtype, shape)}"
                raise UnfitError(
                    f"`{name}` of the model {found} since minga.Optimizer was made: change the model before, or fill "
                    "its tensors in place (copy_)"
                )
        self._warn_of_changed()

    def _warn_of_changed(self) -> None:
        moved = [name for name, before in self._versions.items() if version_of(self._begun[name][0]) != before]
        self._warn_of_values(
            [name for name in moved if hash_of(self._begun[name][0], self._access) != self._base[name].hash]
        )
        self._versions = {name: version_of(self._begun[name][0]) for name in self._versions}

    def _warn_of_values(self, changed: Sequence[str]) -> None:
        if not changed:
            return
        logger.warning(
            "%s is frozen in the run, and this program changed its values: each peer has others then, no checkpoint "
            "has them, and peers compare only those that it had when minga.Optimizer was made. What is to follow the "
            "trained parameters, such as an average of them or a target network, is changed once for each global step "
            "on all peers by minga.Optimizer(..., model=all_of_it, after_update=function)",
            changed[0] + and_others(changed),
        )
        for name in changed:
            self._versions.pop(name, None)
            self._samples.pop(name, None)


def _schedule_kind(scheduler: LRScheduler) -> str:
    name = _known_class(scheduler, LRScheduler, ("torch.optim.lr_scheduler",))
    inside = ", ".join(map(_schedule_kind, getattr(scheduler, "_schedulers", ())))
    return f"{name} ({inside})"[:MAX_NAME_CHARACTERS] if inside else name


def _known_class(thing: object, base: type, packages: tuple[str, ...]) -> str:
    """The class of `thing`, or the nearest one above it that belongs to `packages` and is not the `base` of all."""
    known = (each for each in type(thing).__mro__ if each is not base and each.__module__.startswith(packages))
    return next(known, type(thing)).__name__


def version_of(tensor: torch.Tensor) -> tuple[int, int]:
    """Another one where the values may be others."""
    return tensor.data_ptr(), 0 if tensor.is_inference() else tensor._version  # noqa: SLF001  (no other name for it)


@torch.no_grad()
def _samples(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[float, ...]]:
    """A few numbers of each, by one transfer from each device."""
    found: dict[str, tuple[float, ...]] = dict.fromkeys(tensors, ())
    real = {name: tensor for name, tensor in tensors.items() if not (tensor.is_meta or tensor.is_complex())}
    for device in {tensor.device for tensor in real.values()}:
        here = {name: tensor for name, tensor in real.items() if tensor.device == device}
        parts = [local(tensor).reshape(-1)[:_SAMPLED_ELEMENTS].to(torch.float32) for tensor in here.values()]
        numbers = iter(torch.cat(parts).nan_to_num().tolist())
        found |= {name: tuple(islice(numbers, part.numel())) for name, part in zip(here, parts, strict=True)}
    return found


def _described(dtype: torch.dtype, shape: Sequence[int]) -> str:
    return f"{str(dtype).removeprefix('torch.')} {list(shape)}"


def _listed(kinds: Sequence[str]) -> str:
    return " and ".join(dict.fromkeys(kinds))


def _mapping(value: Json) -> dict[str, Json]:
    if not isinstance(value, dict):
        raise ConfigurationError(_MALFORMED)
    return value


def _list(value: Json) -> list[Json]:
    if not isinstance(value, list):
        raise ConfigurationError(_MALFORMED)
    return value


def _text(value: Json) -> str:
    """A word of another peer that errors may show."""
    if not isinstance(value, str) or len(value) > MAX_NAME_CHARACTERS or not is_printable(value):
        raise ConfigurationError(_MALFORMED)
    return value
