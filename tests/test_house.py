"""The layout of the package: one name for one thing; that imports go downward only is checked by `make lint`."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "minga"

FOREIGN = frozenset(
    {"AutoModel", "AutoTokenizer", "LearningRateMonitor", "MyAggregator", "OneCycleLR", "RecvStream", "SendStream"}
)
"""Names of other libraries, and of an example, that texts mention."""


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def statements(within: ast.AST) -> Iterator[ast.AST]:
    """All below one, handlers of exceptions too, without the expressions in them, which are ten times as many."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        for each in getattr(within, field, ()):
            yield each
            yield from statements(each)


def test_no_class_name_stands_for_two_things() -> None:
    places = defaultdict(list)
    for path in modules():
        for node in statements(tree(path)):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(where(path))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice


def dotted(path: Path) -> str:
    return ".".join(("minga", *path.relative_to(PACKAGE).with_suffix("").parts))


def imports(path: Path, known: set[str]) -> Iterator[str]:
    """The modules of the package that one imports, in functions and for types only too."""
    for node in statements(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                if inner in known or node.module in known:
                    yield inner if inner in known else node.module


def test_no_modules_import_each_other_in_a_circle() -> None:
    files = {dotted(path): path for path in modules()}
    graph = {name: set(imports(path, set(files))) for name, path in files.items()}
    while free := [name for name, needed in graph.items() if not needed & graph.keys()]:
        for name in free:
            del graph[name]
    assert not graph, sorted(graph)


TEXTS = re.compile(r'("""|\'\'\').*?\1|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL)
"""Strings and comments."""


@cache
def identifiers(path: Path) -> frozenset[str]:
    """All names that the code of a file uses, those in texts aside."""
    return frozenset(re.findall(r"[^\W\d]\w*", TEXTS.sub("", path.read_text("utf-8"))))


def test_names_in_texts_are_names_of_the_code() -> None:
    known = frozenset[str]().union(*map(identifiers, PACKAGE.rglob("*.py")))
    for path in [*PACKAGE.rglob("*.py"), *(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        text = path.read_text("utf-8")
        classes = set(re.findall(r"`([A-Z][a-z]+[A-Z][A-Za-z]*)[`.]", text)) - known - FOREIGN
        assert not classes, f"{path.relative_to(ROOT)} names {sorted(classes)}"
        if path.suffix == ".py":
            private = set(re.findall(r"`(_[a-z_]+)[`.]", text)) - identifiers(path)
            assert not private, f"{path.relative_to(ROOT)} names {sorted(private)}"


def test_decoders_are_made_in_one_place() -> None:
    """See `minga.core.decoding`: two threads that make decoders at once end the process."""
    makers = re.compile(r"msgspec\.(?:(?:msgpack|json)\.(?:decode|Decoder)|convert)\b")
    found = [where(path) for path in modules() if makers.search(path.read_text("utf-8"))]
    assert found == ["core/decoding.py"]


def test_each_file_that_the_texts_point_to_is_there() -> None:
    texts = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *PACKAGE.rglob("*.py")]
    for text in texts:
        here = text.parent
        for pointer in re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", text.read_text("utf-8")):
            places = (here, PACKAGE, ROOT, ROOT / "src")
            assert any((place / pointer).exists() for place in places), f"{text.relative_to(ROOT)} points to {pointer}"


def test_what_the_disk_says_is_told_in_its_words() -> None:
    """By `reason_of`; the text of the error itself has its number, and the name of a file for the moment."""
    raw = [
        f"{where(path)}:{part.lineno}"
        for path in modules()
        for handler in statements(tree(path))
        if isinstance(handler, ast.ExceptHandler)
        and isinstance(handler.type, ast.Name)
        and handler.type.id == "OSError"
        for raised in ast.walk(handler)
        if isinstance(raised, ast.Raise)
        for part in ast.walk(raised)
        if isinstance(part, ast.FormattedValue) and isinstance(part.value, ast.Name) and part.value.id == handler.name
    ]
    assert raw == []
