"""Identity providers: they identify the people that log in."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol

from minga.authority.messages import ByCode, ByKey, DeviceCode, LoginWay, Pending, Way
from minga.authority.server import codes
from minga.authority.server.allow_list import AllowFile
from minga.authority.server.refusals import wrong_login

WRONG_CODE = "the name or the code is wrong"


@dataclass(frozen=True)
class Person:
    """A person that a provider identified, with the organisations to which they belong."""

    name: str
    organisations: frozenset[str] = frozenset()


class IdentityProvider(Protocol):
    """Identifies a person; the list decides whether they may take part."""

    label: str
    """Its name for people."""

    @property
    def ways(self) -> tuple[Way, ...]:
        """The ways to log in, the best first."""

    async def identify(self, login: LoginWay) -> Person | Pending:
        """The person, or `Pending` while the browser is waited for. Raises `Refused`."""

    async def begin_device(self) -> DeviceCode:
        """Begin a login in the browser. Raises `Refused`."""

    async def close(self) -> None:
        """Let its connections go."""


class FileProvider:
    """People with secret codes, whose hashes stand in the allow-list; needs no other service."""

    label = "codes from the organiser"
    ways: tuple[Way, ...] = ("code",)

    def __init__(self, allowed: AllowFile) -> None:
        self._allowed = allowed
        self._at_a_time = asyncio.Semaphore(2)
        self._nobodys = codes.hashed(codes.new_code())

    async def identify(self, login: LoginWay) -> Person:
        """See `IdentityProvider`. An unknown name takes as long as a wrong code."""
        if not isinstance(login, ByCode):
            raise refused_way(login, self.ways)
        person = self._allowed.current().people.get(login.name)
        stored = self._nobodys if person is None or person.code is None else person.code
        async with self._at_a_time:
            fits = await asyncio.to_thread(codes.fits, login.code, stored)
        if not fits:
            raise wrong_login(WRONG_CODE)
        return Person(login.name)

    async def begin_device(self) -> DeviceCode:
        """See `IdentityProvider`."""
        raise wrong_login("here people log in with codes, not in the browser")

    async def close(self) -> None:
        """See `IdentityProvider`."""


def refused_way(login: LoginWay, ways: tuple[Way, ...]) -> Exception:
    """The refusal of a way to log in that this authority does not offer."""
    tried = "key" if isinstance(login, ByKey) else type(login).__struct_config__.tag
    return wrong_login(f"this authority does not know the way {tried!r}; it offers: {', '.join(ways)}")
