"""The list of people that an authority admits: one TOML file, read again whenever it changes.

The provider does not change with the file: names of one provider belong to other people at the next. So a list with
another provider takes effect when the authority is started again. Only the organisation may change in that section.

peers = 2                  # how many peers each person may have at a time
token = "6h"               # how long a token lasts; peers renew it before it ends
login = "30d"              # after how long people have to log in again

[provider]
kind = "huggingface"       # or "oauth"; without this section people log in with codes from this file
organisation = "my-org"    # all its members are admitted; without it only the people named below

[people.alice]
peers = 3
until = 2027-01-31
code = "scrypt:…"          # made by `minga authority --new-code alice`
"""

from __future__ import annotations

import datetime as dt
import hashlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from minga.authority.codes import HASH_PATTERN
from minga.core.errors import ConfigurationError
from minga.core.files import read_toml
from minga.core.spec.problems import explain
from minga.core.units import parse_duration
from minga.core.urls import MAX_URL_CHARACTERS, is_safe_url
from minga.identity.access.token import LOGIN_NAME

MAX_FILE_BYTES = 4 << 20
MAX_PEERS = 10_000
MIN_TOKEN_S, MAX_TOKEN_S = 60.0, 30 * 86_400.0
MIN_LOGIN_S, MAX_LOGIN_S = 60.0, 400 * 86_400.0
SETTLE_S = 3.0
"""How long nothing has to write to the file until it counts: one that is saved in place is empty, or cut, meanwhile."""

logger = logging.getLogger("minga.authority")

Name = Annotated[str, Field(pattern=LOGIN_NAME.replace(r"\Z", "$"))]
Peers = Annotated[int, Field(strict=True, ge=0, le=MAX_PEERS)]
Url = Annotated[str, Field(max_length=MAX_URL_CHARACTERS)]
Word = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[!-~]+$")]


class AllowListSection(BaseModel):
    """Base of the sections: nothing unknown is in them."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Provider(AllowListSection):
    """The identity provider.

    kind: "file" (codes in this file), "huggingface", or "oauth" (RFC 8628: `device_url`, `token_url`, and `user_url`,
    whose answer has the name in `name_field`). endpoint: of the Hugging Face Hub. client_id: of the OAuth application,
    for logins in the browser. organisation: (huggingface) all its members are admitted.
    """

    kind: Literal["file", "huggingface", "oauth"] = "file"
    label: Annotated[str, Field(min_length=1, max_length=60)] | None = None
    endpoint: Url = "https://huggingface.co"
    organisation: Name | None = None
    client_id: Word | None = None
    scope: Annotated[str, Field(max_length=200)] = "openid profile"
    device_url: Url | None = None
    token_url: Url | None = None
    user_url: Url | None = None
    name_field: Word = "preferred_username"

    @field_validator("endpoint", "device_url", "token_url", "user_url")
    @classmethod
    def _check_url(cls, url: str | None) -> str | None:
        if url is not None and not is_safe_url(url):
            raise ValueError("must be an https:// URL (http:// is for this machine only)")
        return url.rstrip("/") if url is not None else None

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        urls = {"device_url": self.device_url, "token_url": self.token_url, "user_url": self.user_url}
        if self.kind == "oauth" and (missing := [n for n, v in {**urls, "client_id": self.client_id}.items() if not v]):
            raise ValueError(f'kind = "oauth" needs {", ".join(missing)}')
        if self.kind != "oauth" and any(urls.values()):
            raise ValueError('device_url, token_url and user_url are for kind = "oauth" only')
        if self.kind == "file" and self.client_id is not None:
            raise ValueError("client_id needs a provider with OAuth")
        if self.kind != "huggingface" and self.organisation is not None:
            raise ValueError('organisation is for kind = "huggingface" only')
        return self

    @property
    def source(self) -> str:
        """Where its names come from; the same name from another source may belong to another person."""
        if self.kind == "file":
            return "file"
        where = self.endpoint if self.kind == "huggingface" else f"{self.user_url} {self.name_field}"
        return f"{self.kind} {where}"

    def is_as_before(self, before: Provider) -> bool:
        """Whether at most the organisation has changed: that decides who may take part, and identifies nobody."""
        return self == before.model_copy(update={"organisation": self.organisation})


class ListedPerson(AllowListSection):
    """One person: at most `peers` at a time, `until` a day (its end) or a moment, in UTC unless it says otherwise."""

    peers: Peers | None = None
    until: dt.datetime | dt.date | None = None
    code: Annotated[str, Field(pattern=HASH_PATTERN)] | None = None

    @field_validator("until", mode="before")
    @classmethod
    def _check_until(cls, value: object) -> object:
        """A text would be a moment, even if it is a day, and a whole number seconds since 1970."""
        if value is not None and not isinstance(value, dt.date):
            raise ValueError("write a day or a moment without quotes, such as 2027-01-31")
        return value

    @property
    def code_mark(self) -> str | None:
        """What tells the code from the next one, and nothing else of it."""
        return None if self.code is None else hashlib.sha256(self.code.encode()).hexdigest()

    @property
    def until_s(self) -> float | None:
        """`until` in Unix seconds."""
        until = self.until
        if isinstance(until, dt.datetime):
            return (until if until.tzinfo is not None else until.replace(tzinfo=dt.UTC)).timestamp()
        if until is None:
            return None
        return dt.datetime.combine(until, dt.time(), dt.UTC).timestamp() + 86_400.0


@dataclass(frozen=True)
class Allowance:
    """The allowance of one person: peers at a time, until when (Unix seconds; None: no end)."""

    peers: int
    until_s: float | None


class AllowList(AllowListSection):
    """The whole file. `token` and `login` are durations such as "6h"."""

    peers: Peers = 2
    token: str = "6h"  # noqa: S105 (a duration)
    login: str = "30d"
    provider: Provider = Provider()
    people: Annotated[dict[Name, ListedPerson], Field(max_length=100_000)] = {}

    @field_validator("token", "login")
    @classmethod
    def _check_duration(cls, value: str, info: Any) -> str:
        low, high = (MIN_TOKEN_S, MAX_TOKEN_S) if info.field_name == "token" else (MIN_LOGIN_S, MAX_LOGIN_S)
        try:
            seconds = parse_duration(value, info.field_name)
        except ConfigurationError as error:
            raise ValueError(str(error)) from error
        if not low <= seconds <= high:
            raise ValueError(f"between 1 minute and {high / 86_400:.0f} days")
        return value

    @model_validator(mode="after")
    def _check_people(self) -> Self:
        """An empty file is what a full disk leaves; that takes nobody's access."""
        if not self.people and self.provider.organisation is None:
            raise ValueError("it names nobody; to give nobody a place write peers = 0 for each person")
        return self

    @property
    def token_s(self) -> float:
        """How long a token lasts, in seconds."""
        return parse_duration(self.token, "token")

    @property
    def login_s(self) -> float:
        """After how many seconds people have to log in again."""
        return parse_duration(self.login, "login")

    def allowance(self, name: str, organisation: str | None, now_s: float) -> Allowance | None:
        """The places of a person who logged in as `name`, as a member of `organisation` if of one; None: no place."""
        person = self.people.get(name)
        if person is None and (organisation is None or organisation != self.provider.organisation):
            return None
        allowance = Allowance(self.peers, None)
        if person is not None:
            allowance = Allowance(self.peers if person.peers is None else person.peers, person.until_s)
        has_ended = allowance.until_s is not None and allowance.until_s <= now_s
        return None if has_ended or allowance.peers == 0 else allowance

    @classmethod
    def read(cls, path: Path) -> AllowList:
        """Read the file. Raises `ConfigurationError` that names the file and each mistake."""
        values = read_toml(path, MAX_FILE_BYTES)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            mistakes = explain(error, cls, str(path), shows_values=False)
            raise ConfigurationError(mistakes) from None  # the cause would show values


class AllowFile:
    """The list as it stands in its file now.

    A file that has become invalid, or names another provider, is logged, and changes nothing. `clock` is in seconds,
    from any beginning.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._stamp: tuple[int, int, int] | None = None
        self._seen, self._seen_s = self._look(), clock()
        self._list = AllowList.read(path)
        self.is_whole = False
        """Whether the list is one that had settled; what is there at the start may be a part."""

    def current(self) -> AllowList:
        """The list, read again if the file has changed and settled."""
        stamp, now_s = self._look(), self._clock()
        if stamp != self._seen:
            self._seen, self._seen_s = stamp, now_s
        if stamp != self._stamp and now_s - self._seen_s >= SETTLE_S:
            self._stamp = stamp
            try:
                self._list = self._read_again()
            except ConfigurationError as error:
                logger.warning("the list stays as it was: %s", error)
            else:
                self.is_whole = True
                logger.info("the list was read again: %d people", len(self._list.people))
        return self._list

    def _read_again(self) -> AllowList:
        changed = AllowList.read(self._path)
        if not changed.provider.is_as_before(self._list.provider):
            raise ConfigurationError(
                f"{self._path}: provider: only organisation may change while the authority runs; restart it"
            )
        return changed

    def _look(self) -> tuple[int, int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return status.st_mtime_ns, status.st_size, status.st_ino
