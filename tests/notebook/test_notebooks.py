"""Notebooks run as they are, in a kernel on this machine, and end in order; that of a volunteer in `test_joining`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from minga.core.errors import LinkError, LocalError
from minga.identity.links.links import EntryPoint, Link
from minga.notebook import host, join
from minga.notebook.notebook_file import ANY_LINK, CHECKOUT, hosting_notebook, joining_notebook
from tests.worlds import forked
from tests.worlds.cli_run import GENESIS, SPEC, last_json, run
from tests.worlds.forked_command import forked_commands

ROOT = Path(__file__).parent.parent.parent


def execute(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run a notebook in a kernel of this environment; all that its cells put out. What it starts is forked."""
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    with forked_commands(folder) as commands:
        monkeypatch.setenv("PATH", f"{commands}{os.pathsep}{os.environ['PATH']}")
        python = str(commands / Path(sys.executable).name)
        first = f"--IPKernelApp.exec_lines=import sys; sys.executable = {python!r}"
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources=resources, extra_arguments=[first]
        ).execute()
    return json.dumps([cell.get("outputs", []) for cell in notebook.cells])


def test_an_organiser_describes_plans_hosts_and_watches_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = hosting_notebook(str(ROOT))
    narrow = "hidden_size = 32, num_hidden_layers = 1, intermediate_size = 32, embedding_size = 16"
    small = f'size = \\"tiny\\"\\nmax_length = 32\\nvocabulary_size = 400\\noverrides = {{ {narrow} }}\\n'
    small += '[recipe.albert.data]\\nsource = \\"files\\"\\n'
    small += f'files = [\\"{GENESIS}\\"]\\nheldout_fraction = 0.05\\n'
    text = text.replace('size = \\"tiny\\"\\n', small).replace(
        "every_steps = 20", 'every_steps = 20\\n[network]\\nrelay = \\"none\\"'
    )
    text = text.replace(
        '\\"--role\\", \\"trainer\\"',
        '\\"--role\\", \\"trainer\\", \\"--bind\\", \\"127.0.0.1\\", \\"--threads\\", \\"1\\"',
    )
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    outputs = execute(text, tmp_path, monkeypatch)
    assert "minga1" in outputs
    assert "steps per hour" in outputs or "steps an hour" in outputs
    assert "1 peer training" in outputs


@pytest.fixture
def forked_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """The command behind a notebook need not import torch again."""

    def start(words: Sequence[str], *, text: bool, encoding: str, **options: Any) -> subprocess.Popen[str]:
        assert (words[0], text, encoding) == (sys.executable, True, "utf-8")
        return forked.start(*words[1:], **options)

    names = {name: getattr(subprocess, name) for name in ("PIPE", "TimeoutExpired")}
    monkeypatch.setattr("minga.notebook.command.subprocess", SimpleNamespace(Popen=start, **names))


def test_a_run_that_cannot_begin_says_why(tmp_path: Path, forked_command: None) -> None:
    (tmp_path / "run.toml").write_text("name = 3")
    with pytest.raises(LocalError, match="name"):
        host(tmp_path / "run.toml")


def test_a_notebook_whose_time_is_up_leaves(tmp_path: Path, forked_command: None) -> None:
    (tmp_path / "run.toml").write_text(SPEC)
    options = ("--bind", "127.0.0.1", "--directory", str(tmp_path / "run"))
    hosted = host(tmp_path / "run.toml", hours=2.0 / 3600.0, options=options)
    assert hosted.link.startswith("minga1")
    assert hosted.wait(60.0)
    assert hosted.summary["ok"]


def test_a_text_that_is_no_link_reaches_neither_a_command_nor_a_shell() -> None:
    for text in ("$(touch pwned)", "minga1…; touch pwned", "--help", '"\nimport os'):
        with pytest.raises(LinkError):
            join(text)
    assert "{LINK}" not in joining_notebook(ANY_LINK, CHECKOUT)


@pytest.mark.parametrize("source", ["C:\\new\\minga", 'a "quoted" name', "line\nbreak", "{brace}", "${name}", "größer"])
def test_any_text_is_the_source_in_a_notebook_as_it_is(source: str) -> None:
    notebook = nbformat.reads(joining_notebook(source, source), as_version=4)
    first_lines = [cell.source.partition("\n")[0] for cell in notebook.cells if cell.source.startswith("MINGA = ")]
    assert [ast.literal_eval(line.removeprefix("MINGA = ")) for line in first_lines] == [source]
    link = next(line for cell in notebook.cells for line in cell.source.split("\n") if line.startswith("LINK = "))
    assert ast.literal_eval(link.removeprefix("LINK = ")) == source


@pytest.mark.parametrize("text", [joining_notebook(ANY_LINK, CHECKOUT), hosting_notebook(CHECKOUT)])
def test_a_cell_that_is_run_again_stops_what_it_began(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []

    def begin(*_: object, **__: object) -> SimpleNamespace:
        happened.append("begin")
        return SimpleNamespace(link="", stop=lambda: happened.append("stop"))

    for name in ("join", "host"):
        monkeypatch.setattr(f"minga.notebook.{name}", begin)
    cells = nbformat.reads(text, as_version=4).cells
    cell, variables = next(cell.source for cell in cells if "mine = " in cell.source), dict[str, Any]()
    for _ in range(2):
        exec(cell, variables)
    assert happened == ["begin", "stop", "begin"]


def test_the_generic_notebooks_are_those_that_the_command_prints() -> None:
    for name, text in (("join", joining_notebook(ANY_LINK, CHECKOUT)), ("host", hosting_notebook(CHECKOUT))):
        assert (ROOT / "notebooks" / f"{name}.ipynb").read_text("utf-8") == text, "run `make docs`"


def test_the_command_writes_a_notebook_with_the_link_and_refuses_what_is_none(tmp_path: Path) -> None:
    def written(*options: str) -> nbformat.NotebookNode:
        done = run("new", "--notebook", str(tmp_path / "made.ipynb"), *options, "--json")
        assert last_json(done.stdout)["notebook"] == str(tmp_path / "made.ipynb"), done.stderr
        return nbformat.read(tmp_path / "made.ipynb", as_version=4)

    link = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",)),)))
    assert any(f'LINK = "{link}"' in cell.source for cell in written("--link", link).cells)
    assert run("new", "--notebook", str(tmp_path / "none.ipynb"), "--link", "minga1nonsense").returncode == 2
    assert not (tmp_path / "none.ipynb").exists()
    hidden = next(cell for cell in written().cells if "WHEEL =" in cell.source)
    assert hidden["metadata"] == {"cellView": "form", "jupyter": {"source_hidden": True}}
    named = written("--install", "/wheels/minga.whl")
    assert any("/wheels/minga.whl" in cell.source for cell in named.cells)
    assert run("new", "--notebook", str(tmp_path / ("a" * 300)), "--json").returncode == 4
