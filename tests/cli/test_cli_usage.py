"""The command line without a run: help, bad input, exit codes."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from minga.cli.app import MOVED, app
from minga.cli.taking_part import nearby
from minga.cli.terminal import exit_codes
from minga.cli.terminal.declaring import COMMANDS, Declaration
from minga.cli.terminal.options import folder_or_link
from minga.core import errors
from minga.core.errors import (
    ClosedError,
    ConfigurationError,
    IdentityError,
    LinkError,
    MingaError,
    NoStateError,
    RejectedError,
    StorageError,
    UnreachableError,
)
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import EntryPoint, Link
from tests.cli.keeping.test_runs_cli import kept
from tests.worlds.cli_run import call, last_json, run

LINK = str(Link("ab" * 32, "cd" * 32, (EntryPoint("cd" * 32, ("127.0.0.1:9",)),)))
HELP_LINES = 40
FOR_VOLUNTEERS = ["device", "directory", "max_traffic", "max_upload", "only", "pause", "unpause", "yes"]


WITHOUT_TORCH = """
import contextlib, json, os, sys
for name in ("torch", "transformers", "iroh", "matplotlib", "numpy", "starlette", "uvicorn"):
    sys.modules[name] = None  # importing them raises
os._exit = sys.exit
import minga.cli
for words in json.loads(sys.argv[1]):
    with contextlib.suppress(SystemExit):
        minga.cli.main(words)
    print("----", flush=True)
"""


def test_what_needs_no_torch_does_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes seconds to import. The help is one screen that names all commands and exit codes."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    (kept("one") / "checkpoints" / "step-000000007-0123456789ab").mkdir(parents=True)
    (kept("two") / "checkpoints" / ".partial-0123").mkdir(parents=True)
    wrong_links = [[name, "minga1abc"] for name in ("join", "status", "members")]
    commands = [["--help"], ["runs", "--json"], ["authority", "--new-code", "alice", "--json"], *wrong_links]
    words = [sys.executable, "-c", WITHOUT_TORCH, json.dumps(commands)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=45, check=True)
    text, runs, code, *_ = done.stdout.split("----\n")
    assert len(text.splitlines()) <= HELP_LINES
    named = re.findall(r"^│ ([a-z]+) ", text, re.MULTILINE)
    assert set(named) == {name.partition(" ")[0] for name in COMMANDS}
    assert "130 Ctrl-C" in text
    groups = dict.fromkeys(each.group for each in COMMANDS.values())
    assert re.findall("╭─ ([A-Z][a-z ]+) ─", text) == ["Options", *groups], "and no box for what has no group"
    assert {run["name"]: run["step"] for run in last_json(runs)["runs"]} == {"one": 7, "two": None}
    made = last_json(code)
    assert made["lines"]
    assert made["code"] not in made["lines"]
    assert done.stderr.count("cut off") == len(wrong_links)
    assert "Error" not in done.stderr


def test_a_command_says_all_where_the_encoding_lacks_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a pipe on Windows, or of an old locale."""
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    monkeypatch.setenv("PYTHONUTF8", "0")
    done = subprocess.run([sys.executable, "-m", "minga", "--help"], capture_output=True, timeout=45)
    assert (done.returncode, done.stderr) == (0, b"")
    assert rb"0 done \xb7 2 a wrong option" in b" ".join(done.stdout.split())


def made(name: str) -> Any:
    """The parser of a command."""
    found: Any = typer.main.get_command(app)
    for word in name.split():
        found = found.commands[word]
    return found


@pytest.mark.parametrize("command", COMMANDS.values(), ids=lambda each: each.name)
def test_the_example_of_each_command_is_one_that_its_options_allow(command: Declaration) -> None:
    words = shlex.split(
        command.example.partition(" > ")[0].replace("INVITATION", LINK).replace(" RUN", " LINK").replace("LINK", LINK)
    )
    name = command.name.split()
    assert words[: len(name) + 1] == ["minga", *name]
    with made(command.name).make_context(command.name, words[len(name) + 1 :]) as parsed:  # else it complains
        given = {each.name: parsed.params[each.name] for each in command.fields()}
    command.options(**given)


def test_join_shows_what_a_volunteer_needs_and_names_the_rest(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    usual = {each.name for each in made("join").params if not each.hidden} - {"link", "help_all"}
    assert sorted(usual) == FOR_VOLUNTEERS
    rare = [option for each in COMMANDS["join"].fields() if each.metadata["rare"] for option in made_options(each.name)]
    assert call("join", "--help") == 0
    shown = capsys.readouterr().out
    assert "--leash" not in shown
    assert all(option in shown for option in rare)
    assert "Leave once this machine" not in shown
    assert call("join", "--help-all") == 0
    assert "Leave once this machine" in capsys.readouterr().out


def made_options(name: str) -> list[str]:
    """The long names of an option of `minga join`."""
    return [text for each in made("join").params if each.name == name for text in each.opts if text.startswith("--")]


@pytest.mark.parametrize("name", MOVED)
def test_a_command_that_is_gone_says_what_to_type_instead(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(name, "x") == exit_codes.USAGE
    told = " ".join(capsys.readouterr().err.split())
    assert told.endswith(f"type: {MOVED[name]}"), "and names nothing else, as commands that look like it"
    words = MOVED[name].split()[1:]
    assert words[0] == "--version" or words[0] in COMMANDS


def test_a_long_link_is_no_name_of_a_file(tmp_path: Path) -> None:
    entries = tuple(EntryPoint(f"{number:064x}", ("127.0.0.1:9",) * 3) for number in range(1, 4))
    link = str(Link("ab" * 32, "cd" * 32, entries))
    assert len(link) > 255
    assert folder_or_link(link) is None
    assert folder_or_link(str(tmp_path)) == tmp_path
    with pytest.raises(ConfigurationError, match="no folder or id of a run on this machine, and no link either"):
        folder_or_link(str(tmp_path / "missing"))
    with pytest.raises(LinkError):
        folder_or_link("minga1x")


def test_a_new_run_spec_says_everything_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("new", "albert") == 0
    spec = RunSpec.from_toml(capsys.readouterr().out)
    assert spec.recipe_settings["size"] == "tiny", "that of the demo"
    assert call("new", "albert", "--size", "large") == 0
    spec = RunSpec.from_toml(capsys.readouterr().out)
    assert (spec.recipe_settings["size"], spec.recipe_settings["vocabulary_size"]) == ("large", 30_000)
    assert call("new", "albert", "--size", "larger") == 2
    assert "did you mean large?" in capsys.readouterr().err
    assert call("new", "albret") == 2
    assert "did you mean albert?" in capsys.readouterr().err


def test_recipes_are_listed_with_their_sizes_and_figures() -> None:
    found = {each["recipe"]: each for each in last_json(run("new", "--json").stdout)["recipes"]}
    assert found["albert"]["tasks"] == ["ner", "ncc"]
    assert {"albert", "causal-lm", "masked-lm", "sahajbert", "split", "swav", "text-to-image"} <= set(found)
    assert found["albert"]["sizes"] == ["tiny", "small", "base", "large"]
    assert found["causal-lm"]["headline"] == "heldout_perplexity"
    assert all(each["package"] == "minga" for each in found.values())


@pytest.mark.parametrize(
    "arguments",
    [
        ["fly"],
        ["join", "x", "--micro-batch", "0"],
        ["host", "run.toml", "--port", "65536"],
        ["demo", "--minutes", "soon"],
        ["demo", "--peers", "1"],
        ["plan", "peers.toml", "--precision", "nonsense"],
        ["plan", "--model", "gpt2", "--peers", "2x(t4)", "--seconds", "9"],
        ["plan", "--model", "swav-tiny", "--memory", "8GB", "--tokens", "7"],
        ["sample", "x", "a cat", "--temperature", "1e-40"],
        ["sample", "x", "a cat", "--temperature", "0", "--n", "3"],
    ],
)
def test_bad_options_are_usage_errors(
    arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nearby, "find_runs", lambda _: [])  # `join` without a link listens for some seconds
    assert call(*arguments) == exit_codes.USAGE
    assert capsys.readouterr().err.strip()
    assert call(*arguments, "--json") == exit_codes.USAGE
    assert last_json(capsys.readouterr().out)["exit_code"] == exit_codes.USAGE


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["join", "hello"], "begins with minga1"),
        (["join", "minga1"], "cut off"),
        (["join", ""], "empty"),
        (["join", "minga1aaaaaaaaaaaaaaaaaaaa"], "copy the whole link"),
        (["join", "minga9aaaa"], "update minga"),
        (["join", "minga1" + "a" * 100_000], "no link has more"),
        (["join", LINK, "--role", "king"], "--role king"),
        (["join", LINK, "--role", "monitor", "--evaluate"], "--role monitor does not have"),
        (
            ["join", LINK, "--role", "monitor", "--part", "2", "--leave-after-steps", "1"],
            "--part, --leave-after-steps: not with --role monitor",
        ),
        (["join", LINK, "--max-upload", "10"], "--max-upload"),
        (["join", LINK, "--max-download", "-3Mbit"], "--max-download"),
        (["join", LINK, "--identity", "k.json", "--ephemeral"], "exclude each other"),
        (["host", "no-such-file.toml"], "no-such-file.toml"),
        (["join", LINK, "--pause", "--unpause"], "exclude each other"),
        (["status", "no-such-file"], "no-such-file"),
        (["export", "no-such-folder", "--out", "o"], "no-such-folder"),
        (["export", "minga1", "--out", "o"], "cut off"),
        (["amend", LINK], "name what changes"),
        (["amend", LINK, "pause", "optimizer.learning_rate=1"], "pause: alone"),
        (["new", "albert", "--link", LINK], "only with --notebook"),
        (["sim", "home-150", "--replay", "log"], "only --step"),
        (["amend", LINK, "resume", "--at-step", "7"], "--at-step: a run that is paused"),
        (["runs", "remove"], "name a RUN, or give --temporary"),
        (["runs", "verify", ".", "--of", LINK], "--of: only for a file"),
        (["status", ".", "--watch"], "only with a LINK"),
        (["new", "--size", "tiny"], "of which RECIPE"),
        (["doctor", "hello"], "link"),
    ],
)
def test_bad_input_is_told_in_one_line(
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    code = call(*arguments, "--json")
    captured = capsys.readouterr()
    if arguments[0] == "doctor":
        assert code == exit_codes.CHECK_FAILED
        return  # its JSON is written by a thread, below Python's stdout; see test_cli_run.py
    assert code == exit_codes.USAGE
    assert captured.err.startswith("minga: ")
    assert captured.err.count("\n") == 1
    assert words in captured.err
    summary = last_json(captured.out)
    assert summary["ok"] is False
    assert words in summary["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "TOML"),
        ('name = "x"\n[recipe.albert.data]\nsource = "files"\nfiles = ["no-such-file.txt"]', "no-such-file.txt"),
        ('name = "x"\n[model]\nrecipe = "custom"', "--role monitor"),
    ],
)
def test_bad_run_specs(text: str, words: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(text)
    arguments = ["--role", "trainer"] if "custom" in text else []
    assert call("host", str(path), "--ephemeral", "--directory", str(tmp_path), *arguments) == exit_codes.USAGE
    assert words in capsys.readouterr().err
    assert not list(tmp_path.rglob(".unfinished*"))


def test_a_mistake_in_a_recipes_table_names_the_file_before_anything_is_prepared(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('name = "x"\n[recipe.albert]\nsize = "tinny"')
    assert call("host", str(path), "--ephemeral", "--directory", str(tmp_path)) == exit_codes.USAGE
    told = capsys.readouterr()
    assert told.err.startswith(f"minga: {path}: recipe.albert.size = 'tinny': ")
    assert "Preparing" not in told.out


def test_out_directory_with_content_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert call("export", str(tmp_path), "--out", str(tmp_path)) == exit_codes.USAGE
    assert call("demo", "--out", str(tmp_path)) == exit_codes.USAGE
    assert "not empty" in capsys.readouterr().err


def test_the_home_folder_is_meant_where_a_shell_leaves_its_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "key.json").write_text("{}")
    (tmp_path / "key.json").chmod(0o600)
    assert call("join", LINK, "--identity=~/key.json", "--directory=~/runs") == exit_codes.STORAGE
    assert str(tmp_path / "key.json") in capsys.readouterr().err
    assert [str(each) for each in Path().glob("~*")] == []


def test_exit_codes_by_kind_of_error() -> None:
    expected = {
        ConfigurationError("x"): exit_codes.USAGE,
        LinkError("x"): exit_codes.USAGE,
        UnreachableError("x"): exit_codes.REMOTE,
        RejectedError("x"): exit_codes.REMOTE,
        NoStateError("x"): exit_codes.NO_STATE,
        StorageError("x"): exit_codes.STORAGE,
        IdentityError("x"): exit_codes.STORAGE,
        ClosedError("x"): exit_codes.LOCAL,
        ValueError("x"): exit_codes.CHECK_FAILED,
    }
    assert {type(error): exit_codes.code_of(error) for error in expected} == {type(e): c for e, c in expected.items()}
    kinds = [v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, MingaError)]
    assert all(
        exit_codes.code_of(kind("x")) not in (exit_codes.OK, exit_codes.CHECK_FAILED)
        for kind in kinds
        if kind is not MingaError
    )


def test_remote_errors_are_followed_by_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_codes.report(UnreachableError("no answer", peer="ab" * 32), json_output=True) == exit_codes.REMOTE
    captured = capsys.readouterr()
    assert "no answer. Run `minga doctor LINK`" in captured.err
    assert json.loads(captured.out)["peer"] == "ab" * 32
