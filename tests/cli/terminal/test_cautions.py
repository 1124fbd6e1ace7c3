"""What commands tell of the settings of a run: a line for people, an event for programs."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from minga.cli.terminal.context import Context, tell_cautions
from minga.cli.terminal.output import Output
from minga.core.events.bus import Event
from minga.core.events.training import RunAmended
from minga.core.spec.run_spec import RunSpec

LUMPS = {"codec": "topk", "download_codec": "gtopk"}
SAID = 'averaging.codec = "topk" sends old gradients in lumps'


def told(json_output: bool, averaging: dict[str, str], capsys: pytest.CaptureFixture[str]) -> str:
    output = Output(json_output=json_output)
    tell_cautions(RunSpec.from_mapping({"name": "x", "optimizer": {"name": "adamw"}, "averaging": averaging}), output)
    output.summary(ok=True)
    return capsys.readouterr().out


def test_a_price_is_a_line_that_begins_with_a_mark(capsys: pytest.CaptureFixture[str]) -> None:
    (line,) = told(False, LUMPS, capsys).splitlines()
    assert line.startswith(f"! {SAID}")
    assert told(False, {"codec": "int8"}, capsys) == ""


def test_programs_get_an_event_with_the_code(capfd: pytest.CaptureFixture[str]) -> None:
    event, _ = map(json.loads, told(True, LUMPS, capfd).splitlines())
    assert (event["event"], event["code"]) == ("run.caution", "W1")
    assert event["why"].startswith(SAID)


def test_a_peer_says_what_the_organiser_changed(capsys: pytest.CaptureFixture[str]) -> None:
    listeners: list[Any] = []
    peer = SimpleNamespace(close=None, subscribe=listeners.append)
    interruption = SimpleNamespace(on_interrupt=lambda _: None)
    Context(Output(json_output=False), cast(Any, interruption)).wire(cast(Any, peer))
    (listener,) = listeners
    amended = RunAmended(step=7, changes="optimizer.learning_rate = 0.01")
    listener(Event(0.0, amended.kind, {}, amended))
    said = "Amendments of the organiser, in force here at step 7: optimizer.learning_rate = 0.01.\n"
    assert capsys.readouterr().out == said, "a peer that comes later does not say from which step on"
