"""The page of events: every kind of the catalogue, and what its fields mean."""

from __future__ import annotations

import dataclasses
import inspect
import textwrap
from typing import Any, Final

from minga.core.events.bus import EventData
from minga.core.events.catalogue import FIELDS, MODULES, fields_of, kinds_of

TYPES: Final = {
    "int": "whole number",
    "float": "number",
    "str": "text",
    "bool": "true or false",
    "bool | None": "true, false or null",
    "str | None": "text or null",
    "list[str]": "list of texts",
    "float | None": "number or null",
    "int | None": "whole number or null",
}
"""The types of fields as JSON has them."""

HEAD: Final = """\
# Events

<!-- Made by `make docs` from `minga.core.events.catalogue`. -->

What a peer did, as data. `minga … --json` prints each event as a line with `t` (Unix time in seconds) and `event` (its
kind). `peer.subscribe` delivers it as a `minga.Event`, fault scripts wait for it by its kind and fields, and the log of
a simulation holds many of them. Events are for people and logs: nothing in a peer acts on them. The page on
[troubleshooting](troubleshooting.md) says what to do about them.

Ids of peers, rounds and invitations are texts. A program may add events of its own with `peer.emit`, of kinds that are
not on this page.
"""


def event_page() -> str:
    """The page, as Markdown."""
    parts = [HEAD]
    for module in MODULES:
        subject = (inspect.getdoc(module) or "").removeprefix("Events of ").removesuffix(".")
        parts.append(f"\n## {subject.capitalize()}\n")
        parts += map(_section, kinds_of(module))
    return "".join(parts)


def _section(data: type[EventData]) -> str:
    paragraphs = (inspect.getdoc(data) or "").split("\n\n")
    text = "\n\n".join(textwrap.fill(" ".join(paragraph.split()), 120) for paragraph in paragraphs)
    fields = "".join(f"- {_field(field)}\n" for field in fields_of(data))
    return f"\n### `{data.kind}`\n\n{text}\n" + (f"\n{fields}" if fields else "")


def _field(field: dataclasses.Field[Any]) -> str:
    meaning = FIELDS.get(field.name)
    return f"`{field.name}`: {TYPES[str(field.type)]}" + (f", {meaning}" if meaning else "")
