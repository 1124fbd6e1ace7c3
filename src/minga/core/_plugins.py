"""Registries of named implementations: those that come with minga, and those that other packages declare.

    [project.entry-points."minga.codecs"]     a package's pyproject.toml
    int3 = "minga_int3:Int3Codec"             name = "module:object"

Each seam (codec, strategy, recipe, aggregator, behaviour) has one `Registry` in the room that owns its interface. A
registry imports an implementation when it is asked for, not before; so listing names costs no import, and a broken
package of another author harms only runs that use it. A name that comes with minga cannot be replaced from outside.

A run spec records the `Origin` of each name that another package brings (`Registry.origin`), and `require` compares it
on each peer: two versions of a codec need not decode each other's bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, cast

import msgspec

from minga.core._errors import ConfigurationError

NAME_PATTERN: Final = r"^[a-z][a-z0-9_-]{0,63}$"

T = TypeVar("T")


class Origin(msgspec.Struct, frozen=True):
    """The installed distribution that an implementation comes from, such as `minga-int3` in version `0.2.1`."""

    package: str
    version: str

    def __str__(self) -> str:
        return f"{self.package} {self.version}"


class Registry(Generic[T]):
    """The implementations of one seam by name.

    `group` is the entry-point group, such as `minga.codecs`; `what` names one implementation in messages, such as
    `codec`; `builtin` maps the names that come with minga to "module:object".
    """

    def __init__(self, group: str, what: str, builtin: Mapping[str, str]) -> None:
        self.group, self.what = group, what
        self._builtin = dict(builtin)
        self._loaded: dict[str, T] = {}

    def names(self) -> tuple[str, ...]:
        """All names that can be asked for here: minga's own in their order, then those of other packages, sorted."""
        return (*self._builtin, *sorted(self._external))

    def get(self, name: str) -> T:
        """The implementation called `name`.

        Raises `ConfigurationError` if no installed package brings it or if its package cannot be imported.
        """
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def origin(self, name: str) -> Origin | None:
        """The package that brings `name`; `None` for minga's own. Raises `ConfigurationError` for unknown names."""
        if name in self._builtin:
            return None
        distribution = self._entry(name).dist
        if distribution is None:
            raise ConfigurationError(f"{self.what}: the package that brings {name!r} does not say its version")
        return Origin(distribution.name, distribution.version)

    def require(self, name: str, origin: Origin | None) -> None:
        """Raise `ConfigurationError` unless `name` is installed here in the version that a run was started with."""
        if origin is None:
            if name not in self._builtin:
                self._entry(name)
                raise ConfigurationError(f"{self.what}: the run does not say which package brings {name!r}")
            return
        install = f"pip install {origin.package}=={origin.version}"
        if name not in self._external:
            raise ConfigurationError(f"{self.what}: {name!r} comes from {origin}, which is not installed: {install}")
        here = self.origin(name)
        if here != origin:
            raise ConfigurationError(f"{self.what}: this run uses {name!r} of {origin}, here is {here}: {install}")

    def _load(self, name: str) -> T:
        if name in self._builtin:
            module, _, attribute = self._builtin[name].partition(":")
            return cast(T, getattr(import_module(module), attribute))
        entry = self._entry(name)
        try:
            loaded: Any = entry.load()
        except Exception as error:  # another author's package may fail in any way
            raise ConfigurationError(
                f"{self.what}: {name!r} of {self.origin(name)} cannot be loaded: {error}"
            ) from error
        return cast(T, loaded)

    def _entry(self, name: str) -> EntryPoint:
        try:
            return self._external[name]
        except (KeyError, TypeError):
            known = ", ".join(self.names())
            raise ConfigurationError(f"{self.what}: {name!r} is none of {known}, and no package brings it") from None

    @cached_property
    def _external(self) -> dict[str, EntryPoint]:
        """Entry points of the group by name, without minga's own names and without ill-formed ones."""
        found = sorted(entry_points(group=self.group), key=lambda entry: (entry.name, entry.value))
        return {
            entry.name: entry
            for entry in found
            if re.fullmatch(NAME_PATTERN, entry.name) and entry.name not in self._builtin
        }
