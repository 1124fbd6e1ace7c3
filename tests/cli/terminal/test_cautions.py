"""What commands tell of a run whose settings have a price: a line for people, an event for programs."""

from __future__ import annotations

import json

import pytest

from minga.cli.terminal.context import tell_cautions
from minga.cli.terminal.output import Output
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
