"""The person at the machine, while a command logs in at an authority to take part."""

from __future__ import annotations

import datetime as dt
import getpass
import sys
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.files import read_secret

if TYPE_CHECKING:
    from minga.login.messages import DeviceCode

MAX_SECRET_CHARACTERS = 1000


class PersonAtTerminal:
    """Asks on the terminal for what is None: the name to log in with, a file with the code or access token.

    A pipe in place of the file is read once, and what it held is kept.
    """

    def __init__(self, name: str | None, secret: Path | None, output: Output) -> None:
        self._name, self._secret, self._output = name, secret, output
        self._read: str | None = None

    def has_secret(self) -> bool:
        """See `LoginUser`."""
        return self._secret is not None

    def is_ready(self, way: str) -> bool:
        """See `LoginUser`. Who writes into a pipe that was not read yet may have to be waited for."""
        can_read = self._secret is not None and (self._read is not None or isfile(self._secret))
        return can_read and (way == "token" or self._name is not None)

    def name(self, provider: str) -> str:
        """See `LoginUser`."""
        if self._name is not None:
            return self._name
        _check_terminal("log in: give your name with --login and your code with --secret FILE")
        return str(typer.prompt(f"This run is for members ({provider}). Your name", err=True)).strip()

    def secret(self, what: str, url: str) -> str:
        """See `LoginUser`."""
        if self._secret is not None:
            if self._read is None or isfile(self._secret):  # which may hold another one by now
                self._read = read_secret(self._secret, "--secret", MAX_SECRET_CHARACTERS).strip()
            return self._read
        _check_terminal(f"log in: give your {what} with --secret FILE")
        return getpass.getpass(f"Your {what} (goes to {url}, is not shown): ").strip()

    def open_browser(self, device: DeviceCode) -> None:
        """See `LoginUser`."""
        self._output.event("login.browser", url=device.url, code=device.code)
        self._output.say("To take part, open this page in a browser, on any machine, and enter the code:\n")
        self._output.say_whole(f"  {device.url}    {device.code}\n")

    def wait(self, why: str, seconds: float) -> None:
        """See `LoginUser`."""
        self._output.event("login.waits", why=why, seconds=seconds)
        said = f"The authority at which to log in cannot be used yet ({why}); trying again in {seconds:.0f} s …"
        self._output.say(said)

    def welcome(self, name: str, until_s: int) -> None:
        """See `LoginUser`."""
        until = dt.datetime.fromtimestamp(until_s, dt.UTC).strftime("%Y-%m-%d")
        self._output.event("login", name=name, until=until_s)
        self._output.say(f"Logged in as {name}; this machine does not ask again before {until}.")


def _check_terminal(otherwise: str) -> None:
    if not sys.stdin.isatty():
        raise ConfigurationError(f"nobody can be asked here. To {otherwise}")
