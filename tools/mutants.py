"""Breaks the code in seeded ways, one at a time, and counts what the tests notice: `python -m tools.mutants --seed 1`.

In a copy of the checkout one comparison, operator, constant, condition or return of a module is changed. Then up to
twelve test files run that import the module, or else those of its folder, until one fails, which is printed. Of what is
printed as alive no test sees a difference: either none guards it, or there is none. The tests have to pass beforehand.
A mutant takes a quarter of a minute or so, on one core.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parent.parent
NOT_COPIED: Final = (".git", ".venv", "__pycache__", ".mypy_cache", ".ruff_cache", ".hypothesis", "site")
MOST_FILES: Final = 12
ALL_TESTS: Final = 20
"""All tests of a mutant have so many times the seconds that one has."""
OTHERS: Final[dict[type[ast.AST], type[ast.AST]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}
"""What an operator becomes."""


@dataclass(frozen=True)
class Mutant:
    """One change: the file, from `ROOT` on, its line, what it is in words, and the number of it in the file."""

    path: Path
    line: int
    what: str
    number: int

    def __str__(self) -> str:
        return f"{self.path.relative_to('src/minga')}:{self.line} {self.what}"


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, object, str]]:
    """All changes to a module: the node, its field, what that becomes, and this in words."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(ops=[operator, *more]) if type(operator) in OTHERS:
                yield node, "ops", [OTHERS[type(operator)](), *more], _swapped(operator)
            case ast.BinOp(op=operator) | ast.BoolOp(op=operator) | ast.AugAssign(op=operator):
                if type(operator) in OTHERS:
                    yield node, "op", OTHERS[type(operator)](), _swapped(operator)
            case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
                yield node, "test", ast.UnaryOp(ast.Not(), test), "the condition is turned"
            case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
                yield node, "value", ast.Constant(None), "returns None"
            case ast.Constant(value=bool(value)):
                yield node, "value", not value, f"{value} is turned"
            case ast.Constant(value=int(value) | float(value)):
                yield node, "value", value + 1, f"{value} + 1"


def _swapped(operator: ast.AST) -> str:
    return f"{type(operator).__name__} becomes {OTHERS[type(operator)].__name__}"


def mutants(packages: list[str]) -> list[Mutant]:
    """All mutants of some packages."""
    found = []
    for package in packages:
        for path in sorted((ROOT / "src" / "minga" / package).rglob("*.py")):
            tree = ast.parse(path.read_text("utf-8"))
            place = path.relative_to(ROOT)
            found += [
                Mutant(place, getattr(node, "lineno", 0), what, number)
                for number, (node, _, _, what) in enumerate(changes(tree))
            ]
    return found


def tests_of(module: Path) -> list[str]:
    """The first test files that import a module, or else those of the folder that mirrors its package."""
    name = ".".join(module.with_suffix("").parts[1:])
    folder = ROOT / "tests" / Path(*module.parent.parts[2:])
    files = sorted((ROOT / "tests").rglob("test_*.py"), key=lambda path: (path.parent != folder, path))
    found = [path for path in files if _imports(path.read_text("utf-8"), name)]
    return [str(path.relative_to(ROOT)) for path in found or sorted(folder.glob("test_*.py"))][:MOST_FILES]


def _imports(text: str, name: str) -> bool:
    package, _, last = name.rpartition(".")
    return f"from {name} import" in text or f"import {name}" in text or f"from {package} import {last}" in text


def noticer(mutant: Mutant, copy: Path, seconds: float) -> str:
    """The first test that fails with this change, or how the tests ended otherwise; empty if all pass."""
    path, tests = copy / mutant.path, tests_of(mutant.path)
    if not tests:
        return ""
    whole = path.read_text("utf-8")
    tree = ast.parse(whole)
    node, field, value, _ = list(changes(tree))[mutant.number]
    setattr(node, field, value)
    path.write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "-o", f"timeout={seconds}", *tests]
    env = {**os.environ, "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": ""}
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as out:
        # A group and a file: what the tests started ends with them, and holds no pipe that is read to its end.
        run = subprocess.Popen(command, cwd=copy, env=env, stdout=out, stderr=out, process_group=0)  # noqa: S603
        try:
            status = run.wait(timeout=ALL_TESTS * seconds)
        except subprocess.TimeoutExpired:
            return f"no end within {ALL_TESTS * seconds:g} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
            path.write_text(whole, "utf-8")
        out.seek(0)
        failed = [line for line in out.read().splitlines() if line.startswith(("FAILED tests", "ERROR tests"))]
    if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return ""
    return failed[0] if failed else f"status {status}"


def main() -> None:
    """Draw mutants, try them, and print what became of each."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--seed", type=int, default=1, help="draws the mutants")
    made.add_argument("--count", type=int, default=300, help="how many of them")
    made.add_argument("--packages", nargs="+", default=["averaging", "training", "network", "security"])
    made.add_argument("--seconds", type=float, default=60.0, help="after so long a test counts as failed")
    options = made.parse_args()
    everyone = mutants(options.packages)
    drawn = random.Random(options.seed).sample(everyone, min(options.count, len(everyone)))
    noticed = 0
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*NOT_COPIED), symlinks=True)
        for mutant in drawn:
            test = noticer(mutant, copy, options.seconds)
            noticed += bool(test)
            print(f"noticed {mutant} | {test}" if test else f"alive   {mutant}", flush=True)
    print(f"{noticed} of {len(drawn)} were noticed, of {len(everyone)} mutants in all")


if __name__ == "__main__":
    main()
