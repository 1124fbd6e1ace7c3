"""Each kind of event that is emitted, waited for or documented is in the catalogue, and the other way round."""

from __future__ import annotations

import ast
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import minga
from documentation.events import TYPES, event_page
from minga.cli.terminal.output import QUIET_EVENTS
from minga.core.errors import ConfigurationError
from minga.core.events.averaging import RoundBegun
from minga.core.events.bus import Event, EventBus
from minga.core.events.catalogue import CATALOGUE, FIELDS, MODULES, fields_of, kinds_of
from minga.core.events.training import StepApplied
from minga.simulation.recorder import KEPT
from minga.simulation.timeline import INCIDENTS
from minga.training.status.last_problem import MEANINGS

ROOT = Path(__file__).parents[3]
SOURCE = Path(minga.__file__).parent
CLASSES = {data.__name__: data for data in CATALOGUE.values()}
OF_SIMULATIONS = {
    "peer.arrived",
    "peer.left",
    "peer.stayed",
    "peer.too_small",
    "peer.gave_up",
    "order.failed",
    "run.set_back",
}
"""Entries of the logs of simulations that are no events of a peer."""
COMPARED = r"\b(kind|event)[\"')\]]* (==|!=|in|not in) "


def sources(*folders: Path, pattern: str) -> Iterator[tuple[Path, ast.Module]]:
    """The files in whose text `pattern` is found, parsed: to parse all takes seconds."""
    for folder in folders:
        for path in sorted(folder.rglob("*.py")):
            text = path.read_text("utf-8")
            if re.search(pattern, text):
                yield path, ast.parse(text)


def test_every_kind_of_the_catalogue_is_emitted_somewhere() -> None:
    named = {
        node.id
        for path, tree in sources(SOURCE, pattern="minga.core.events")
        for node in ast.walk(tree)
        if isinstance(node, ast.Name) and path.relative_to(SOURCE).parts[0] not in ("simulation", "cli", "monitor")
    }
    assert sorted(CLASSES.keys() - named) == []


def test_kinds_have_one_class_and_names_of_their_own() -> None:
    assert len(CATALOGUE) == sum(1 for module in MODULES for _ in kinds_of(module)) == len(CLASSES)
    assert all(re.fullmatch(r"[a-z_]+\.[a-z_]+", kind) for kind in CATALOGUE)


def test_every_field_has_a_type_of_json_and_says_what_it_means() -> None:
    unclear = [
        f"{kind} {field.name}: {field.type}"
        for kind, data in CATALOGUE.items()
        for field in fields_of(data)
        if field.type not in TYPES or not (field.name in FIELDS or f"`{field.name}`" in (data.__doc__ or ""))
    ]
    assert unclear == []
    used = {field.name for data in CATALOGUE.values() for field in fields_of(data)}
    assert sorted(FIELDS.keys() - used) == []


def test_the_page_of_events_is_up_to_date_and_has_every_kind() -> None:
    page = (ROOT / "docs" / "events.md").read_text("utf-8")
    assert page == event_page(), "run `make docs`"
    assert re.findall(r"^\* `([a-z_]+\.[a-z_]+)`", page, re.MULTILINE) == list(CATALOGUE)
    assert max(map(len, page.splitlines())) <= 120


def test_other_pages_name_only_kinds_that_there_are() -> None:
    """In their tables of events; a kind may stand in one place only."""
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    cells = re.findall(r"^\| (`[a-z_]+\.[a-z_]+`.*?) \|", page, re.MULTILINE)
    kinds = [kind for cell in cells for kind in re.findall(r"`([a-z_]+\.[a-z_]+)`", cell)]
    assert sorted(set(kinds) - CATALOGUE.keys()) == []
    assert len(kinds) == len(set(kinds))


def test_displays_logs_and_benchmarks_wait_for_kinds_that_there_are() -> None:
    assert KEPT | {*INCIDENTS} <= CATALOGUE.keys() | OF_SIMULATIONS
    assert QUIET_EVENTS | MEANINGS.keys() <= CATALOGUE.keys()
    waited_for = [
        (f"{path.name}:{word.lineno}", word.value)
        for path, tree in sources(SOURCE, ROOT / "benchmarks", ROOT / "tests", pattern=COMPARED)
        for compared in ast.walk(tree)
        if isinstance(compared, ast.Compare) and re.search(r"\b(kind|event)('?[)\]])?$", ast.unparse(compared.left))
        for word in ast.walk(compared)
        if isinstance(word, ast.Constant) and re.fullmatch(r"(?!authority)[a-z_]+\.[a-z_]+", str(word.value))
    ]
    assert len(waited_for) > 50
    known = {*CATALOGUE, *OF_SIMULATIONS, "my.event"}
    assert [found for found in waited_for if found[1] not in known] == []


def test_an_event_has_its_data_typed_and_as_plain_fields() -> None:
    heard: list[Event] = []
    bus = EventBus(lambda: 2.5)
    bus.subscribe(heard.append)
    data = StepApplied(step=3, samples=4, members=2, batch=8, held_s=0.5)
    bus.emit(data)
    (event,) = heard
    assert event.data is data
    assert (event.time, event.kind) == (2.5, "step.applied")
    assert event.fields == {"step": 3, "samples": 4, "members": 2, "batch": 8, "held_s": 0.5}
    assert json.loads(event.json()) == {"t": 2.5, "kind": "step.applied", **event.fields}
    with pytest.raises(AttributeError):
        data.step = 4  # type: ignore[misc]
    with pytest.raises(TypeError):
        RoundBegun(step=1)  # type: ignore[call-arg]


def test_a_program_adds_events_of_its_own_but_none_of_mingas() -> None:
    heard: list[Event] = []
    came = threading.Event()
    with minga.host(minga.RunSpec(name="own events"), minga.PeerOptions(ephemeral=True, host="127.0.0.1")) as peer:
        peer.subscribe(lambda event: (heard.append(event), came.set()) if event.kind == "my.event" else None)
        peer.emit("my.event", answer=42)
        assert came.wait(10)
        with pytest.raises(ConfigurationError, match=r"step\.applied are minga's own"):
            peer.emit("step.applied", step=3)
    assert [(event.fields, event.data) for event in heard] == [({"answer": 42}, None)]
