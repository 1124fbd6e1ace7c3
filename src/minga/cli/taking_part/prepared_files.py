"""The files of a run on the organiser's disk, so that they are prepared once for all runs of equal settings.

Training a tokenizer takes minutes, and need not give the same bytes twice. So what a recipe prepared is kept, under a
hash of the run spec, which names the commits of data sets of a hub, of minga's version and a number for what it makes
of them, and of the sizes and dates of the organiser's own files that the recipe reads. For a recipe of another package
its code counts, too: its author changes it between two runs without another version. Parameters to begin with are kept
where they come from.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from blake3 import blake3

import minga
from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.core.files import Content, write
from minga.core.spec.fields import without_private
from minga.core.spec.run_spec import RunSpec
from minga.recipes.interface import Recipe
from minga.recipes.registry import CUSTOM, load_recipe, pinned
from minga.training.transfer.run_files import whole_digest

_INDEX = "index.json"
_PREPARATION = 2
"""One more whenever equal settings give other files than before, which may be between two versions."""


def prepared_files(spec: RunSpec, directory: Path) -> dict[str, Content]:
    """The files that ship with the run, most of them in the cache below `directory`, where they may be made now.

    Raises `ConfigurationError` where the recipe's data cannot be used, `StorageError` if the cache cannot be written.
    """
    source = spec.model.init_from
    if spec.model.recipe == CUSTOM:
        if source is not None:
            raise ConfigurationError("model.init_from: a custom recipe loads its parameters itself, before it joins")
        return {}
    from minga.recipes.init_from import INITIAL_FILE, initial_file

    spec = pinned(spec)
    recipe = load_recipe(spec)
    given: dict[str, Content] = dict(recipe.given_files())
    if source is not None:
        given |= {INITIAL_FILE: initial_file(source), **recipe.files_of_model()}
    folder = directory / "prepared" / _key(spec, recipe)[:16]
    stored = _stored(folder)
    if stored is None:
        _write(folder, recipe.prepare())
        stored = _stored(folder)
    if stored is None:
        raise StorageError(f"{folder} does not hold what was written to it")
    return {**stored, **given}


def _key(spec: RunSpec, recipe: Recipe[Any]) -> str:
    spec = spec.with_recipe_settings(without_private(recipe.published_settings()).model_dump(mode="json"))
    version = metadata.version(minga.__name__)
    facts: list[object] = [without_private(spec).canonical_bytes().hex(), version, _PREPARATION]
    for path in (*recipe.inputs(), *recipe.files_of_model().values(), *_code(recipe)):
        status = path.stat()
        facts.append([str(path), status.st_size, status.st_mtime_ns])
    return blake3(json.dumps(facts).encode()).hexdigest()


def _code(recipe: Recipe[Any]) -> list[Path]:
    """The modules of the package that brings the recipe, none for minga's own."""
    package = sys.modules[type(recipe).__module__.partition(".")[0]]
    if package.__name__ == minga.__name__:
        return []
    places = [Path(each) for each in getattr(package, "__path__", ())]
    modules = [path for place in places for path in place.rglob("*.py")] or [Path(package.__file__ or "")]
    return sorted(path for path in modules if path.is_file())  # an editor's lock may be a link to nothing


def _stored(folder: Path) -> dict[str, Content] | None:
    """Where the files lie that were kept, if they are complete and undamaged."""
    try:
        index = json.loads((folder / _INDEX).read_bytes())
        files = {str(name): folder / f"{number}.bin" for number, name in enumerate(index)}
        intact = all(whole_digest(path) == index[name] for name, path in files.items())
    except (OSError, ValueError, TypeError, KeyError):
        return None
    return {**files} if intact else None


def _write(folder: Path, files: Mapping[str, Content]) -> None:
    unfinished: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder.parent))
        for number, content in enumerate(files.values()):
            write(unfinished / f"{number}.bin", content)
        index = {name: whole_digest(unfinished / f"{number}.bin") for number, name in enumerate(files)}
        (unfinished / _INDEX).write_text(json.dumps(index))
        shutil.rmtree(folder, ignore_errors=True)
        unfinished.rename(folder)
    except OSError as error:
        raise StorageError(f"the run's files cannot be kept in {folder}: {reason_of(error)}") from error
    finally:
        if unfinished is not None:
            shutil.rmtree(unfinished, ignore_errors=True)
