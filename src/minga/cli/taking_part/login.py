"""The person at the machine, while a command logs in at an authority to take part."""

from __future__ import annotations

import datetime as dt
import getpass
import sys
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
    """Asks on the terminal for what is None: the name to log in with, a file with the code or access token."""

    def __init__(self, name: str | None, secret: Path | None, output: Output) -> None:
        self._name, self._secret, self._output = name, secret, output

    def has_secret(self) -> bool:
        """See `LoginUser`."""
        return self._secret is not None

    def is_ready(self) -> bool:
        """See `LoginUser`."""
        return self._name is not None and self._secret is not None

    def name(self, provider: str) -> str:
        """See `LoginUser`."""
        if self._name is not None:
            return self._name
        _check_terminal("log in: give your name with --login and your code with --secret FILE")
        return str(typer.prompt(f"This run is for members ({provider}). Your name", err=True)).strip()

    def secret(self, what: str, url: str) -> str:
        """See `LoginUser`."""
        if self._secret is not None:
            return read_secret(self._secret, "--secret", MAX_SECRET_CHARACTERS).strip()
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
