"""Every command block of the README and the documentation runs.

A fenced block's info string tells how: `sh` runs, `sh background` is left running until the page's end (and gives the
page its LINK), `sh make` names targets of the Makefile (run as a dry run here: they are what runs this test), `sh
install` says what it would install (`test_packaging.py` builds and installs), `toml FILE` and `python FILE` write a
file, `python` runs in one namespace for each page. The texts that the page on troubleshooting quotes are those of the
code, and the example trains.
"""

from __future__ import annotations

import ast
import contextlib
import copy
import importlib.util
import os
import re
import shlex
import subprocess
import sys
import textwrap
import threading
import tomllib
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch

import minga
from minga.core.spec.run_spec import RunSpec
from minga.planner.model_facts import named_spec
from minga.recipes.registry import RECIPES
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from tests.worlds import forked
from tests.worlds.cli_run import GENESIS, GUARDED_MINGA, run
from tests.worlds.forked_command import forked_commands

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
QUICK = ("doctor", "export", "plan", "sample", "sim", "status", "--version")
"""Commands that run in the process of the test, to which another import of torch would be most of the work."""
FORKED = {"minga": (GUARDED_MINGA,), "python": (), "torchrun": ("-m", "torch.distributed.run")}
"""Programs of Python, which are processes of their own, without another import of torch; `minga` trains with pauses."""
FENCE = re.compile(r"^```([a-z]+) ?(.*)\n((?:.*\n)*?)```$", re.MULTILINE)


class Block(NamedTuple):
    language: str
    how: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found.groups()) for found in FENCE.finditer(page.read_text("utf-8"))]


def shortened(program: str) -> str:
    """A program that lasts long enough to be joined by hand, without its pauses and with few steps."""
    return re.sub(r"time\.sleep\(\S+\)", "time.sleep(0)", re.sub(r"(\"stop_after_steps\": )\d+", r"\g<1>5", program))


def smaller(spec: str) -> str:
    """A run whose steps take few samples, and which trains on one book of the Bible: what its commands do is the same.

    To prepare all of it takes seconds; that it can be read is shown in `recipes/text/test_recipe_text.py`.
    """
    spec = re.sub(r"(?m)^(target_batch_size = )[\d_]+", r"\g<1>16", spec)
    book = f'source = "files"\nfiles = ["{GENESIS}"]\nheldout_fraction = 0.05\n'
    narrow = "hidden_size = 32, num_hidden_layers = 1, intermediate_size = 32"
    spec = spec.replace(
        '[recipe.causal-lm]\nsize = "tiny"\n',
        f'[recipe.causal-lm]\nsize = "tiny"\nmax_length = 32\nvocabulary_size = 400\noverrides = {{ {narrow} }}\n',
    )
    if "[recipe.albert]" in spec:
        spec = spec.replace('size = "tiny"\n', f'size = "tiny"\noverrides = {{ {narrow}, embedding_size = 16 }}\n')
        return f"{spec}\n[recipe.albert.data]\n{book}"
    return spec.replace('source = "bible"\n', book)


def environment(folder: Path) -> dict[str, str]:
    home = {"HOME": str(folder), "XDG_DATA_HOME": str(folder / "data"), "COLUMNS": "200", "OMP_NUM_THREADS": "1"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    gloo = {"GLOO_SOCKET_IFNAME": "lo"} if sys.platform == "linux" else {}  # whatever this machine's name resolves to
    return {**os.environ, **home, **gloo, "PATH": path}


class Background:
    """A command that keeps running, and the link that it prints."""

    def __init__(self, command: str, folder: Path) -> None:
        minga, *words = command.split()
        assert minga == "minga"
        self.process = forked.start(
            *FORKED["minga"],
            *words,
            "--bind",
            "127.0.0.1",
            cwd=folder,
            env=environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.link, self._found, self.lines = "", threading.Event(), list[str]()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if (found := re.search(r"\bminga1[a-z0-9]{60,}", line)) and not self.link:
                self.link = found.group()
                self._found.set()
        self._found.set()

    def wait_for_link(self) -> str:
        self._found.wait()
        assert self.link, "".join(self.lines)
        return self.link

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


@cache
def first_page_with(line: str) -> Path:
    """What installs into a folder of its own does the same on each page: the first one shows it."""
    return next(page for page in PAGES if any(line in block.text.splitlines() for block in blocks(page)))


def smallest(model: str, folder: Path) -> str:
    """A run spec of the smallest model of its recipe, with one layer if it is one of language, whose operations are
    counted in a moment; `model` has to be one, too.
    """
    if (spec := named_spec(model)) is None:
        return model
    name, recipe = spec.model.recipe, RECIPES.get(spec.model.recipe)
    settings: dict[str, object] = {"size": recipe.sizes[0]}
    if "max_length" in recipe.Settings.model_fields:
        settings |= {"max_length": 64, "overrides": {"num_hidden_layers": 1}}
    small = {"name": name, "model": {"recipe": name}, "recipe": {name: settings}}
    path = folder / f"smallest-{name}.toml"
    path.write_text(RunSpec.from_mapping(small).to_toml())
    return str(path)


def run_shell(page: Path, block: Block, folder: Path, link: str) -> None:
    for line in block.text.strip().splitlines():
        words = shlex.split(line.replace("LINK", link))
        if block.how == "make":
            words[1:1] = ["--dry-run", "-C", str(ROOT)]
        elif block.how == "install":
            assert words[0] == "python"
            if first_page_with(line) != page:
                continue
            source = [re.sub(r"^\.(?=\[|$)", lambda _: str(ROOT), word) for word in words[1:]]
            words = [sys.executable, *source, "--no-deps", "--no-build-isolation", "--quiet", "--dry-run"]
        if words[:2] == ["minga", "plan"] and "--model" in words:
            words[words.index("--model") + 1] = smallest(words[words.index("--model") + 1], folder)
        if words[:2] == ["minga", "sim"] and "--replay" not in words:
            words += ["--set", "stop.steps=2"]
        if words[0] == "minga" and words[1] in QUICK:
            with pytest.MonkeyPatch.context() as patch:
                patch.chdir(folder)
                for name, value in environment(folder).items():
                    patch.setenv(name, value)
                done = run(*words[1:])
        elif words[0] in FORKED and block.how != "install":
            with contextlib.ExitStack() as stack:
                env = environment(folder)
                if words[0] == "torchrun":  # the processes that it starts are forked as well
                    commands = stack.enter_context(forked_commands(folder))
                    env["PYTHON_EXEC"] = str(commands / Path(sys.executable).name)
                done = forked.run(*FORKED[words[0]], *words[1:], timeout_s=100.0, cwd=folder, env=env)
        else:
            done = subprocess.run(words, cwd=folder, env=environment(folder), capture_output=True, text=True)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"


def run_python(block: Block, namespace: dict[str, object]) -> None:
    exec(compile(shortened(block.text), "documentation", "exec"), namespace)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "python-data"))
    namespace: dict[str, object] = {}
    running: list[Background] = []
    try:
        for block in blocks(page):
            assert block.language in ("sh", "toml", "python"), f"{page.name}: a block of {block.language!r}"
            if block.language == "toml" or (block.language == "python" and block.how):
                (tmp_path / block.how).parent.mkdir(parents=True, exist_ok=True)
                is_program = block.language == "python"
                (tmp_path / block.how).write_text((shortened if is_program else smaller)(block.text), "utf-8")
            elif block.language == "python":
                run_python(block, namespace)
            elif block.how == "background":
                running.append(Background(block.text.strip(), tmp_path))
            else:
                run_shell(page, block, tmp_path, running[-1].wait_for_link() if "LINK" in block.text else "")
    finally:
        for background in running:
            background.stop()
        for value in namespace.values():
            if isinstance(value, minga.Peer):
                value.close()


def programs_that_print_a_link() -> list[str]:
    found = [block.text for page in PAGES for block in blocks(page) if block.language == "python"]
    return [text for text in found if "peer.link" in text and "optimizer.finished" in text]


def test_programs_that_come_after_the_last_step_end_without_a_mistake() -> None:
    """What only the loop gives a value is not read behind it: for a late one the loop never begins."""
    for program in programs_that_print_a_link():
        tree = ast.parse(program)
        bodies = [tree.body, *(node.body for node in ast.walk(tree) if isinstance(node, ast.With))]
        body = next(body for body in bodies if any(isinstance(each, ast.While) for each in body))
        at = next(number for number, each in enumerate(body) if isinstance(each, ast.While))
        before, inside, after = (names_in(part) for part in (body[:at], body[at : at + 1], body[at + 1 :]))
        assert not (inside[0] - before[0]) & after[1]


def names_in(statements: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """The names to which these statements give a value, and those that they read."""
    names = [node for each in statements for node in ast.walk(each) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    return stored, {node.id for node in names if isinstance(node.ctx, ast.Load)}


def test_models_of_scenarios_that_have_numbers_learn_within_their_few_steps() -> None:
    """By default the rate rises for thousands of steps, in which a small classifier stays where it begins."""
    texts = [block.text for block in blocks(ROOT / "docs" / "simulation.md") if block.how.endswith(".toml")]
    texts += [path.read_text("utf-8") for path in (ROOT / "src/minga/simulation/scenarios").glob("*.toml")]
    scenarios = [values for values in map(tomllib.loads, texts) if "peers" in values]
    learning = [values for values in scenarios if values.get("model", {}).get("kind", "classifier") == "classifier"]
    assert len(learning) >= 3
    for values in learning:
        assert values.get("optimizer", {}).get("warmup_steps") == 0, values


@cache
def texts_in(file: Path) -> list[str]:
    """All strings of a file, with an ellipsis in place of what is filled in."""
    texts = []
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.JoinedStr):
            parts = (str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
            texts.append("".join(parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def test_the_texts_that_troubleshooting_quotes_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text("utf-8")
    page = re.sub(r"(?<!\n)\n(?![\n|#])", " ", page)  # each paragraph in one line: a heading may be wrapped
    seam = re.compile(r'"\s*\n\s*f?"')  # of a string over several lines
    sources = {file: seam.sub("", file.read_text("utf-8")) for file in (ROOT / "src").rglob("*.py")}
    headings = re.findall(r"^\*\*.+?\*\* —", page, re.MULTILINE)
    quotes = [quote for heading in headings for quote in re.findall(r"“(.+?)”", heading)]
    tables = page[page.index("## What the doctor finds") :]
    first_columns = re.findall(r"^\|([^|]+)\|", tables, re.MULTILINE)
    quotes += [word for cell in first_columns for word in re.findall(r"`(.+?)`", cell)]
    assert len(quotes) > 50
    for quote in quotes:
        parts = quote.split("…")
        pattern = re.compile(".*".join(map(re.escape, parts)), re.DOTALL)
        likely = (file for file, source in sources.items() if all(part in source for part in parts))
        found = (text for file in likely for text in texts_in(file) if all(part in text for part in parts))
        assert any(pattern.search(text) for text in found), f"nothing in the code says {quote!r}"


def test_the_example_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["custom_loop.py"])
    described = importlib.util.spec_from_file_location("custom_loop", ROOT / "examples" / "custom_loop.py")
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    module.SPEC["training"] = {"target_batch_size": 512, "stop_after_steps": 20}
    threads = torch.get_num_threads()
    module.main()
    torch.set_num_threads(threads)
    printed = capsys.readouterr().out
    assert "others join with:  python examples/custom_loop.py minga1" in printed
    assert "step 20: loss" in printed


def test_what_is_evaluated_of_a_model_with_tied_weights_is_what_peers_share() -> None:
    """A checkpoint has them by one of their names, and those of the peer were loaded by the other one."""
    page = (ROOT / "docs" / "strategies.md").read_text("utf-8")
    found = re.search(r"\*\*Evaluate Θ\*\*.*?\n\n((?: {8}[^\n]*\n)+)", page, re.DOTALL)
    assert found
    model = torch.nn.ModuleDict({"embedding": torch.nn.Embedding(8, 4), "head": torch.nn.Linear(4, 8, bias=False)})
    model["head"].weight = model["embedding"].weight
    values = torch.full((8, 4), 3.0)
    entries = (TensorEntry("model/embedding.weight", "float32", (8, 4)), TensorEntry("own", "float32", (8, 4)))
    buffer = torch.cat([values, 2 * values]).flatten().view(torch.uint8)
    snapshot = StateSnapshot(1, entries, {}, buffer)
    taken: list[torch.nn.Module] = []
    known = {
        "copy": copy,
        "model": model,
        "evaluate": taken.append,
        "optimizer": SimpleNamespace(save_checkpoint=lambda: None),
        "peer": SimpleNamespace(newest_checkpoint=lambda: snapshot),
    }
    exec(textwrap.dedent(found[1]), known)
    (copied,) = taken
    assert all(torch.equal(each, values) for each in copied.state_dict().values())
    assert not torch.equal(model["head"].weight, values)


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text("utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_lines_of_json_of_all_commands_are_documented() -> None:
    lines = (ROOT / "docs/commands.md").read_text().partition("## Lines for programs")[2]
    documented = set(re.findall(r"^\* `([a-z_.]+)`", lines, re.MULTILINE))
    printed = set[str]()
    for path in (ROOT / "src/minga/cli").rglob("*.py"):
        for call in re.findall(r"output\.event\(([^,)]+)", path.read_text()):
            printed.update(re.findall(r'"([a-z_.]+)"', call))
    assert printed == documented


def test_the_tree_on_the_page_of_the_design_is_that_of_the_package() -> None:
    page = (ROOT / "docs" / "design.md").read_text("utf-8")
    tree = page[page.index("    minga/cli") : page.index("    tests/  benchmarks/")]
    drawn = set()
    for room, text in re.findall(r"^    minga/(\w+)(.*?)(?=^    minga/|\Z)", tree, re.MULTILINE | re.DOTALL):
        folders = re.findall(r"^ {25}(?=\w+ ·)(.+(?:·\n.+)*)$", text, re.MULTILINE)
        drawn |= {room} | {f"{room}/{name}" for line in folders for name in re.findall(r"\w+", line)}
    package = ROOT / "src" / "minga"
    files = [path.relative_to(package) for path in package.glob("*/**/*.*") if path.suffix != ".pyc"]
    assert drawn == {"/".join(path.parent.parts[:2]) for path in files}  # folders in folders are drawn there


def glossary() -> list[str]:
    page = (ROOT / "docs" / "concepts.md").read_text("utf-8")
    return re.findall(r"^\* \*\*(.+?)\*\*: ", page, re.MULTILINE)


def test_the_code_uses_each_term_of_the_glossary() -> None:
    terms = glossary()
    assert len(terms) > 50
    assert len({term.lower() for term in terms}) == len(terms), "a term stands twice"
    code = "\n".join(file.read_text("utf-8") for file in (ROOT / "src" / "minga").rglob("*.py"))
    for term in terms:
        words = r"[\s_-]*".join(map(re.escape, re.split(r"[\s-]", term)))  # RankReplica is the rank replica
        assert re.search(rf"\b{words}s?\b", code, re.IGNORECASE), f"nothing in the code says {term!r}"
