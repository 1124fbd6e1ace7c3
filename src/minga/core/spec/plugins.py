"""Registries of named implementations: those that come with minga, and those that other packages declare.

    [project.entry-points."minga.codecs"]     a package's pyproject.toml
    int3 = "minga_int3:Int3Codec"             name = "module:object"

Each seam (codec, strategy, recipe, aggregator, behaviour) has one `Registry` in the room that owns its interface. A
registry imports an implementation when it is asked for, not before; so listing names costs no import, and a broken
package of another author harms only runs that use it. A name that comes with minga cannot be replaced from outside.

A run spec records the `Origin` of each name that another package brings (`recorded`), and each peer compares it with
what is installed (`check_recorded`): two versions of a codec need not decode each other's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, cast

from pydantic import ValidationError

from minga.core.errors import ConfigurationError
from minga.core.spec.fields import Section, described
from minga.core.spec.problems import probably_meant

NAME_PATTERN: Final = r"^[a-z][a-z0-9_.-]{0,63}$"
MAX_PLUGINS: Final = 32
_PACKAGE: Final = r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?$"
_VERSION: Final = r"^[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}$"

T = TypeVar("T")


class Origin(Section):
    """The package that brings a plug-in, in the version that the run was started with."""

    package: str = described(..., "name of the package", "a name as pip takes it", pattern=_PACKAGE)
    version: str = described(..., "its version", "a version as pip shows it", pattern=_VERSION)

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


class Registry(Generic[T]):
    """The implementations of one seam by name.

    `group` is the entry-point group, such as `minga.codecs`; `what` names one implementation in messages, such as
    `codec`; `builtin` maps the names that come with minga to "module:object". With `base`, the "module:object" of an
    interface, whatever another package brings has to be a subclass or an instance of it.
    """

    def __init__(self, group: str, what: str, builtin: Mapping[str, str], base: str | None = None) -> None:
        self.group, self.what = group, what
        self._builtin, self._base = dict(builtin), base
        self._loaded: dict[str, T] = {}

    def names(self) -> tuple[str, ...]:
        """All names that can be asked for here: minga's own in their order, then those of other packages, sorted."""
        return (*self._builtin, *sorted(self._external))

    def get(self, name: str) -> T:
        """The implementation called `name`.

        Raises `ConfigurationError` if no installed package brings it, or if its package cannot be imported or brings
        something else.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def origin(self, name: str) -> Origin | None:
        """The package that brings `name`; `None` for minga's own. Raises `ConfigurationError` for unknown names."""
        if name in self._builtin:
            return None
        distribution = self._entry(name).dist
        try:
            if distribution is not None:
                return Origin(package=distribution.name, version=distribution.version)
        except ValidationError:
            pass  # a damaged or unusual installation, of which a run spec cannot speak
        raise ConfigurationError(
            f"{self.what}: the package that brings {name!r} has no name and version as pip has them"
        )

    def require(self, name: str, origin: Origin | None) -> None:
        """Raise `ConfigurationError` unless `name` is installed here in the version that a run was started with."""
        if origin is None:
            if name not in self._builtin:
                self._entry(name)
                raise ConfigurationError(f"{self.what}: the run does not say which package brings {name!r}")
            return
        install = f"pip install {origin.package}=={origin.version}"
        if name in self._builtin:
            raise ConfigurationError(f"{self.what}: the run takes {name!r} from {origin}, but here it is minga's own")
        if name not in self._external:
            raise ConfigurationError(f"{self.what}: {name!r} comes from {origin}, which is not installed: {install}")
        here = self.origin(name)
        if here != origin:
            raise ConfigurationError(f"{self.what}: this run uses {name!r} of {origin}, here is {here}: {install}")

    def _load(self, name: str) -> T:
        if name in self._builtin:
            return cast(T, _object_at(self._builtin[name]))
        entry = self._entry(name)
        try:
            loaded: Any = entry.load()
        except Exception as error:  # another author's package may fail in any way
            raise ConfigurationError(
                f"{self.what}: {name!r} of {self.origin(name)} cannot be loaded: {type(error).__name__}: {error}"
            ) from error
        if self._base is not None:
            base = _object_at(self._base)
            if not isinstance(loaded, base) and not (isinstance(loaded, type) and issubclass(loaded, base)):
                raise ConfigurationError(f"{self.what}: {name!r} of {self.origin(name)} is no {base.__name__}")
        return cast(T, loaded)

    def _entry(self, name: str) -> EntryPoint:
        entries = self._external.get(name, []) if isinstance(name, str) else []
        if not entries:
            known = ", ".join(self.names())
            raise ConfigurationError(
                f"{self.what}: {name!r} is none of {known}, and no package brings it"
                f"{probably_meant(name, self.names())}"
            )
        if len(entries) > 1:
            packages = " and by ".join(entry.dist.name if entry.dist else entry.value for entry in entries)
            raise ConfigurationError(f"{self.what}: {name!r} is brought by {packages}; uninstall all but one")
        return entries[0]

    @cached_property
    def _external(self) -> dict[str, list[EntryPoint]]:
        """Entry points of the group by name, without minga's own names and without ill-formed ones."""
        found: dict[str, list[EntryPoint]] = {}
        for entry in sorted(entry_points(group=self.group), key=lambda entry: (entry.name, entry.value)):
            if re.fullmatch(NAME_PATTERN, entry.name) and entry.name not in self._builtin:
                found.setdefault(entry.name, []).append(entry)
        return found


Use = tuple[Registry[Any], str]
"""A seam, and the name of the implementation that a run takes there."""


def recorded(uses: Iterable[Use], known: Mapping[str, Origin]) -> dict[str, Origin]:
    """`known`, and in addition the origin of each use that another package brings, by "what:name".

    For the peer that starts a run. Raises `ConfigurationError` if a name is not installed, or not as `known` says.
    """
    origins = dict(known)
    for registry, name in uses:
        key = _key(registry, name)
        if key in known:
            registry.require(name, known[key])
        elif (origin := registry.origin(name)) is not None:
            origins[key] = origin
    return origins


def check_recorded(uses: Iterable[Use], origins: Mapping[str, Origin]) -> None:
    """Raise `ConfigurationError`, with a line for each problem, unless all uses are installed here as `origins` says.

    For each peer that enters a run.
    """
    problems: list[str] = []
    for registry, name in uses:
        try:
            registry.require(name, origins.get(_key(registry, name)))
        except ConfigurationError as error:
            problems.append(str(error))
    if problems:
        raise ConfigurationError("\n".join(problems))


def _key(registry: Registry[Any], name: str) -> str:
    return f"{registry.what}:{name}"


def _object_at(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)
