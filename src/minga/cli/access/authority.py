"""`minga authority`: gives people who log in access to a run for members."""

from __future__ import annotations

import asyncio
import logging
import re
import sys
from typing import TYPE_CHECKING, Any

from minga.authority.codes import hashed, new_code
from minga.cli.commands import AuthorityCommand
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.urls import parse_listen
from minga.core.wheel import own_wheel
from minga.dashboard.joining import JoinFacts, JoinPage, Source
from minga.identity.access.token import LOGIN_NAME
from minga.identity.links.links import Link

if TYPE_CHECKING:
    from minga.authority.service import Handout

MAX_INPUT_CHARACTERS = 100_000


def run_authority(options: AuthorityCommand, context: Context) -> None:
    """Serve until Ctrl-C, or make a code for a person."""
    link, allow = options.link, options.allow
    if options.new_code is not None or link is None or allow is None:
        _new_code(str(options.new_code), context)  # which needs neither a web server nor torch
        return
    try:
        from minga.authority.app import AuthorityServer, AuthoritySettings
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"the authority needs the package {error.name}: python -m pip install starlette uvicorn"
        ) from error

    output = context.output
    parsed = Link.parse(sys.stdin.read(MAX_INPUT_CHARACTERS) if link == "-" else link)
    host, port = parse_listen(options.listen, "127.0.0.1:8470")
    if (options.certificate is None) != (options.key is None):
        raise ConfigurationError("--cert and --key belong together")
    settings = AuthoritySettings(
        parsed,
        allow,
        options.roster or allow.with_suffix(".roster.json"),
        host,
        port,
        options.url,
        options.certificate,
        options.key,
    )
    logging.basicConfig(format="minga: %(message)s", level=logging.WARNING)
    said = set[str]()

    def tell(kind: str, **fields: Any) -> None:
        output.event(kind, **fields)
        if kind == "authority.issued" and not fields["renewed"]:
            output.say(f"{fields['name']} logged in with the peer {fields['peer'][:10]}.")
        elif kind == "authority.refused" and fields["code"] == "invitation" and fields["why"] not in said:
            said.add(fields["why"])
            output.say(f"A person on the list was refused: {fields['why']}.")

    server = AuthorityServer(settings, tell)
    try:
        server.handouts = _handouts(server.url, server.link)
        output.event("authority", url=server.url, link=str(server.link), roster=str(settings.roster))
        output.say("Anyone who has this link can try to log in; who is on the list joins by\n")
        output.say_whole(f"minga join {server.link}")
        output.say(f"\nPeople without minga find it, with this link, at {server.url}")
        output.say(f"\nWho has which peers: {settings.roster}")
        output.say("Whoever is taken off the list gets no further token; minga ban LINK PEER ends an access at once.")
        asyncio.run(server.run())
    finally:
        server.close()
    output.summary(ok=True)


def _handouts(url: str, link: Link) -> tuple[Handout, ...]:
    """The page for newcomers, and the wheel."""
    from minga.authority.service import Handout

    wheel, base = own_wheel(), f"{url.rstrip('/')}/"
    rows = {"Open to": "the people on its list, who log in", "Run": link.run_id, "Organiser's key": link.organiser}
    facts = JoinFacts("A run for members", str(link), f"minga join {link}", rows)
    page = JoinPage(facts, Source.of(None, base, wheel), address=base).html().encode()
    handouts = (Handout("/", page, "text/html"),)
    return handouts if wheel is None else (*handouts, Handout(f"/{wheel.name}", wheel.data, "application/octet-stream"))


def _new_code(name: str, context: Context) -> None:
    """Print a code, and the lines for the list."""
    if not re.match(LOGIN_NAME, name):
        raise ConfigurationError(f"{name[:70]!r}: a name has letters, digits and . _ @ + -, at most 64 of them")
    code = new_code()
    lines = f'[people."{name}"]\ncode = "{hashed(code)}"'
    context.output.say(f"Give this code to {name}; it is shown only now:\n\n  {code}\n\nAdd these lines to the list:\n")
    context.output.say_whole(lines)
    context.output.summary(ok=True, name=name, code=code, lines=lines)
