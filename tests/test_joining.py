"""Newcomers who have PyTorch and the address of an organiser's page, and nothing else: they are in the run."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import subprocess
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from urllib.parse import urljoin
from urllib.request import urlopen

import nbformat
import pytest
from nbclient import NotebookClient

from minga.core.wheel import own_wheel
from minga.identity.links.links import Link
from minga.keeping.known_runs import known_run
from tests.worlds.cli_run import LOCAL, SPEC, Running
from tests.worlds.installed_wheel import environment_without_minga


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("host")
    (folder / "run.toml").write_text(SPEC)
    own = ("--identity", str(folder / "key.json"), "--directory", str(folder / "runs"))
    shown = ("--dashboard", "--dashboard-listen", "127.0.0.1:0")
    with Running("host", str(folder / "run.toml"), *LOCAL, "--threads", "1", *own, *shown) as running:
        yield running


@pytest.fixture
def newcomer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The interpreter of a machine without minga and without an internet."""
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_NO_COMPILE", "1")  # most modules are not imported here
    python = environment_without_minga(tmp_path)
    monkeypatch.setenv("PATH", f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}")
    found = "from importlib.util import find_spec; print([name for name in ('torch', 'minga') if find_spec(name)])"
    assert subprocess.run((python, "-c", found), capture_output=True, text=True).stdout == "['torch']\n"
    return python


def lines_for_linux(page: str) -> list[str]:
    shown = re.search(r"<strong>Linux</strong>.*?<pre[^>]*>(.*?)</pre>", page, re.DOTALL)
    assert shown is not None
    return unescape(shown[1]).split("\n")


def test_the_notebook_of_the_page_runs_where_only_pytorch_is(
    host: Running, newcomer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for Colab: a kernel with PyTorch, in an empty folder, which reaches no page of the organiser."""
    address = str(host.told("dashboard")["join_url"])
    with urlopen(address) as answer:
        page = answer.read().decode()
    lines = lines_for_linux(page)
    assert lines[0].startswith("python3 -m venv ")  # which `newcomer` is
    assert lines[1].startswith("python -m pip install torch --index-url ")  # which it has
    *pip, minga = shlex.split(lines[2])
    assert pip == ["python", "-m", "pip", "install", "--no-compile"]  # as the notebook does, with the same wheel
    wheel, _, digest = minga.removeprefix("minga[data] @ ").partition("#sha256=")
    assert wheel.startswith(f"{address.removesuffix('join')}minga-")
    with urlopen(wheel) as answer:
        assert hashlib.sha256(answer.read()).hexdigest() == digest
    assert shlex.split(lines[3]) == ["minga", "join", host.told("link")["link"]]  # which the notebook runs
    found = re.search(r'href="([^"]+)" download', page)
    assert found is not None
    with urlopen(urljoin(address, found[1])) as answer:
        notebook = nbformat.reads(answer.read().decode(), as_version=4)
    nbformat.validate(notebook)
    assert not any(address.removesuffix("join") in cell.source for cell in notebook.cells)
    options = json.dumps(["--bind", "127.0.0.1", "--device", "cpu", "--threads", "1", "--ephemeral"])
    contributed = 'while mine.events.get("step.applied", {}).get("step", 0) < 3: import time; time.sleep(0.1)\n'
    for cell in notebook.cells:
        cell.source = cell.source.replace("hours=HOURS)", f"hours=HOURS, options={options})")
        if "minga status" in cell.source:  # which `notebook/test_notebooks.py` runs, as it is in both notebooks
            cell.source = contributed
        if "minga doctor" in cell.source:  # which looks at the machine, as everywhere
            cell.source = ""
    kernel = tmp_path / "kernels" / "colab"
    kernel.mkdir(parents=True)
    words = [newcomer, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.joinpath("kernel.json").write_text(json.dumps({"argv": words, "display_name": "x", "language": "python"}))
    content = tmp_path / "content"
    content.mkdir()
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    monkeypatch.setenv("JUPYTER_PLATFORM_DIRS", "1")
    resources = {"metadata": {"path": content}}
    NotebookClient(notebook, timeout=120, kernel_name="colab", resources=resources).execute()
    outputs = json.dumps([cell.get("outputs", []) for cell in notebook.cells])
    assert "Thank you!" in outputs
    assert "steps_contributed" in outputs
    host.wait_for("member.left")


def test_the_record_that_the_organiser_signed_names_the_wheel(host: Running) -> None:
    wheel, told = own_wheel(), host.told("link")
    assert wheel is not None
    known = known_run(Path(told["directory"]))
    assert known.signed.verify(told["run_id"], Link.parse(told["link"]).organiser).wheel == wheel.reference
