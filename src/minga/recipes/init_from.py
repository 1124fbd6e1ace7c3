"""Parameters to begin with: from another run, from a folder, or from a hub, as files that travel with the run.

The organiser's `minga host` reads what `model.init_from` names, and makes `initial.safetensors` of it. Its digest
stands in the published spec like that of every file of a run, so all peers begin with equal bits. The name of the
source, which may be a folder of the organiser's, is not published. Only safetensors are read: pickled parameters could
run code of a stranger.

What a run tunes and does not train is its base. The base's own files travel, below `base/`, so whoever has them already
need not fetch them: equal files have equal digests.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load, save
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.files import Content
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import BASE_FOLDER
from minga.core.units import and_others, counted
from minga.keeping.complete_checkpoints import MANIFEST_NAME
from minga.recipes.interface import Files
from minga.recipes.model_files import KEY, downloaded, names_of_hub
from minga.recipes.registry import CUSTOM, load_recipe
from minga.training.replica.buffers import OWN_BUFFERS_FILE
from minga.training.state.base import Base, base_of, hashed
from minga.training.state.checkpoints import Checkpoint, CheckpointStore, read_checkpoint
from minga.training.state.model_names import ModelNames, unwrapped
from minga.training.state.state_dict import MODEL
from minga.training.state.tensor_access import TensorAccess

INITIAL_FILE = "initial.safetensors"
SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
WEIGHTS: Final = (SINGLE, INDEX, "model-*.safetensors")

_GIVEN: Final = "the parameters that came with the run"
_ADAPTED: Final = ".base_layer."
"""What `peft` adds to the name of a layer that gets an adapter."""

logger = logging.getLogger("minga.recipes")


def initial_file(source: str) -> bytes:
    """The content of `initial.safetensors` out of what `source` names.

    That is the folder of a run (its newest intact checkpoint), a checkpoint, a folder with `model.safetensors` or its
    shards, a safetensors file, or a model of the Hugging Face hub, `OWNER/NAME` or `OWNER/NAME@REVISION`. Raises
    `ConfigurationError` if there are no such parameters.
    """
    path = Path(source).expanduser()
    said = f"{KEY} = {source!r}"
    if path.is_dir() and (path / "checkpoints").is_dir():
        tensors = _of_run(path)
    elif (path / MANIFEST_NAME).is_file():
        try:
            tensors = _of_checkpoint(read_checkpoint(path))
        except (ValueError, OSError) as error:
            raise ConfigurationError(f"{said}: the checkpoint cannot be used: {error}") from error
    elif path.exists():
        tensors = _read(safetensors_in(path, said), said)
    elif names_of_hub(source):
        tensors = _read(safetensors_in(downloaded(source, KEY, WEIGHTS), said), said)
    else:
        raise ConfigurationError(f"{said}: no such file or folder, and not a name such as OWNER/NAME of the hub")
    return save({name: tensors[name].contiguous() for name in sorted(tensors)}, metadata={"format": "pt"})


def prepared_files(spec: RunSpec) -> dict[str, Content]:
    """The files that ship with a run of this spec, made now, for which the organiser may have to wait minutes. Call it
    after `spelled_out`, which looks at the settings.

    Raises `ConfigurationError` where the recipe's data, or the parameters to begin with, cannot be used.
    """
    source = spec.model.init_from
    if spec.model.recipe == CUSTOM:
        if source is not None:
            raise ConfigurationError("model.init_from: a custom recipe loads its parameters itself, before it joins")
        return {}
    recipe = load_recipe(spec)
    given: dict[str, Content] = dict(recipe.given_files())
    if source is not None:
        given |= {INITIAL_FILE: initial_file(source), **recipe.files_of_model()}
    return {**recipe.prepare(), **given}


def load_initial(model: nn.Module, files: Files) -> dict[str, torch.Tensor]:
    """Let `model` begin with the parameters that came with the run, if any did; returns them as `given_tensors`.

    Raises `ConfigurationError` as `given_tensors`, and for numbers that are not finite, unless `model` has the same.
    """
    given, own = given_tensors(model, files), model.state_dict(keep_vars=True)
    with torch.no_grad():
        for name, tensor in given.items():
            before, new = own[name], tensor.to(own[name])
            # Some constants of a model, such as masks, are infinite themselves.
            if not new.isfinite().all() and (new.isnan() & ~before.isnan() | new.isinf() & (new != before)).any():
                raise ConfigurationError(f"{_GIVEN}: {_place(name)} holds numbers that are not finite")
            before.copy_(new)
    return given


def given_tensors(model: nn.Module, files: Files) -> dict[str, torch.Tensor]:
    """The parameters that came with the run for a `model`, which may be on the device `meta`, by its own names; read
    from the disk as they are used.

    Tensors of the model that the files lack, such as those of a new head, keep their initial draws, and those of the
    files that the model lacks are left out, as are buffers of another shape, such as tables of positions; log lines
    name all three. Raises `ConfigurationError` if the files fit no tensor, one by another name, a parameter of another
    shape, codes in the place of numbers, or two values for one.
    """
    paths = [path for name, path in files.items() if name == INITIAL_FILE or name.startswith(BASE_FOLDER)]
    if not paths:
        return {}
    tensors = model.state_dict(keep_vars=True)
    own = {_place(name): each for name, each in tensors.items()}
    given = _read_for(model, own, paths)
    matching = {name: tensor for name, tensor in own.items() if name in given}
    if not matching:
        raise ConfigurationError(
            f"{_GIVEN}: none of these {len(given)} tensors, such as {min(given, default='none')}, belongs to this "
            f"model, which has tensors such as {min(own, default='none')}"
        )
    unlike = list[str]()
    for name, tensor in matching.items():
        if tensor.is_floating_point() and not (given[name].is_floating_point() and given[name].itemsize > 1):
            raise ConfigurationError(
                f"{_GIVEN}: {name} is quantised ({str(given[name].dtype).removeprefix('torch.')}), and its codes mean "
                "nothing without their scales: take the model in bfloat16, float16 or float32"
            )
        if tensor.shape != given[name].shape:
            if isinstance(tensor, nn.Parameter):
                raise ConfigurationError(
                    f"{_GIVEN}: {name} has the shape {tuple(given[name].shape)}, and {tuple(tensor.shape)} in this run"
                )
            unlike.append(name)
    _check_tied(matching, given)
    filled = {id(tensor) for tensor in matching.values()}  # tied ones have several names
    fresh = sorted(name for name, tensor in own.items() if id(tensor) not in filled and tensor.numel())
    frozen = {_place(name) for name, each in model.named_parameters() if not each.requires_grad}
    if lacking := [name for name in fresh if name in frozen]:
        raise ConfigurationError(f"{_GIVEN} lack {lacking[0]}{and_others(lacking)}, which is not trained here")
    unused = sorted(given.keys() - own.keys())
    for name in fresh:
        module, _, _ = name.rpartition(".")
        for other in unused:
            if other.rpartition(".")[0] == module and given[other].shape == own[name].shape:
                raise ConfigurationError(
                    f"{_GIVEN}: they have {other}, and the model {name} in its place: rename it in their file"
                )
    if unused:
        logger.warning("the given parameters have tensors that the model lacks: %s%s", unused[0], and_others(unused))
    if unlike:
        others = and_others(unlike)
        logger.warning("the buffer %s%s has another shape in the given file, and begins anew", unlike[0], others)
    if fresh and not frozen:  # else it is what is trained on the given rest
        shown = ", ".join(fresh[:5]) + (f" and {len(fresh) - 5} more" if len(fresh) > 5 else "")
        logger.warning("%d of %d tensors begin with new values: %s", len(fresh), len(own), shown)
    taken = matching.keys() - unlike
    return {name: given[_place(name)] for name in tensors if _place(name) in taken}


def given_base(model: nn.Module, files: Files) -> Base | None:
    """What a state says of what is frozen in a model of a run to which the files of a base belong, by what these hold:
    in whatever form a machine holds it, it is the same base. None in other runs. Raises `ConfigurationError` if the
    files lack a frozen parameter, or have two values for one.
    """
    paths = [path for name, path in files.items() if name.startswith(BASE_FOLDER)]
    if not paths:
        return None
    names = ModelNames(model)
    own = {_place(names.clean(name)): each for name, each in model.named_parameters(remove_duplicate=False)}
    given = _read_for(model, own, paths)
    matching = {place: each for place, each in own.items() if place in given}
    _check_tied(matching, given)
    places = {id(each): place for place, each in matching.items()}  # files may have a tied one by any of its names
    frozen = {name: id(each) for name, each in names.parameters().items() if not each.requires_grad}
    if lacking := [name for name, each in frozen.items() if each not in places]:
        raise ConfigurationError(
            f"{_GIVEN} lack {lacking[0]}{and_others(lacking)}, which is frozen here: load the model that the run's "
            f"files in {BASE_FOLDER} are of, and freeze nothing else"
        )
    return hashed({name: given[places[each]] for name, each in frozen.items()}, TensorAccess())


def _read_for(model: nn.Module, own: Collection[str], paths: Iterable[Path]) -> dict[str, torch.Tensor]:
    """What the files hold for a model whose tensors have the names `own`. Files of a model without its head, such as
    those of GPT-2 on the hub, leave out what the names of all below a head begin with.
    """
    given = _read(paths, _GIVEN)
    prefix = getattr(unwrapped(model), "base_model_prefix", "")
    below = {f"{prefix}.{name}": each for name, each in given.items()}
    return below if given.keys().isdisjoint(own) and not below.keys().isdisjoint(own) else given


def _check_tied(matching: Mapping[str, torch.Tensor], given: Mapping[str, torch.Tensor]) -> None:
    """Raise `ConfigurationError` if the files have two values for one tensor, by two of its names."""
    names = dict[int, str]()
    for name, tensor in matching.items():
        other = names.setdefault(id(tensor), name)
        if other != name and not torch.equal(given[other], given[name].to(given[other].dtype)):
            raise ConfigurationError(
                f"{_GIVEN}: {other} and {name} differ, and are one tensor in this model: begin with a shape that does "
                "not tie them (tie_word_embeddings = false), or leave one of them out of their file"
            )


def _place(name: str) -> str:
    """What files call a tensor of a model that may have adapters."""
    return name.replace(_ADAPTED, ".")


def _of_run(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = CheckpointStore(folder / "checkpoints").load()
    if checkpoint is None:
        raise ConfigurationError(f"model.init_from: the run in {folder} has no checkpoint yet")
    return _of_checkpoint(checkpoint)


def _of_checkpoint(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    if base := base_of(checkpoint.snapshot.scalars):
        raise ConfigurationError(
            f"model.init_from: the run of {checkpoint.path} trains a part of its model, and its checkpoints do not "
            f"hold the {counted(len(base), 'other tensor')}, such as {next(iter(base))}: name what `minga export` "
            "makes of it"
        )
    logger.info("beginning with the parameters in %s", checkpoint.path)
    buffers = checkpoint.files.get(OWN_BUFFERS_FILE)
    return ({} if buffers is None else load(buffers)) | {
        entry.name.removeprefix(MODEL): tensor
        for entry, tensor in checkpoint.snapshot.named_tensors()
        if entry.name.startswith(MODEL)
    }


def safetensors_in(path: Path, said: str) -> list[Path]:
    """The safetensors files at `path`: itself, the single one of a folder, or its shards.

    `said` is how a run spec named it. Raises `ConfigurationError` if there are none.
    """
    if path.is_file():
        return [path]
    if (path / SINGLE).is_file():
        return [path / SINGLE]
    if not (path / INDEX).is_file():
        raise ConfigurationError(
            f"{said}: no {SINGLE} in it, and no shards of one; parameters in other formats, such "
            "as pytorch_model.bin, may hold a program and are not read"
        )
    try:
        shards = set(json.loads((path / INDEX).read_bytes())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(f"{said}: {INDEX} cannot be read: {error}") from error
    if not all(isinstance(name, str) and Path(name).name == name for name in shards):
        raise ConfigurationError(f"{said}: {INDEX} names files outside of the folder")
    return [path / name for name in sorted(shards)]


def _read(paths: Iterable[Path], said: str) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for path in paths:
        try:
            with safe_open(path, framework="pt", device="cpu") as file:
                tensors.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise ConfigurationError(f"{said}: {path.name} cannot be read: {error}") from error
    return tensors
