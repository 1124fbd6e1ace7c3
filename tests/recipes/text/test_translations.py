"""Catalogues of translations as text."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from minga.core.errors import ConfigurationError
from minga.recipes.text import translations
from minga.recipes.text.translations import translation_documents
from minga.testing import RecipeCase


def catalogue(path: Path, strings: dict[str, str]) -> Path:
    """A gettext catalogue, as msgfmt writes it."""
    pairs = [("", "Content-Type: text/plain; charset=UTF-8\n"), *sorted(strings.items())]
    keys, values = ([side.encode() for side in column] for column in zip(*pairs, strict=True))
    place = 28 + 16 * len(pairs)
    tables, body = [], b""
    for column in (keys, values):
        rows = b""
        for text in column:
            rows += struct.pack("<II", len(text), place + len(body))
            body += text + b"\0"
        tables.append(rows)
    count = len(pairs)
    head = struct.pack("<7I", 0x950412DE, 0, count, 28, 28 + 8 * count, 0, 0)
    path.write_bytes(head + b"".join(tables) + body)
    return path


def test_strings_of_catalogues_and_language_packs_become_documents(tmp_path: Path) -> None:
    catalogue(tmp_path / "a.mo", {"Open the file": "ফাইল খুলুন", "Yes": "Yes", "_Close <b>%s</b>": "_বন্ধ করুন <b>%s</b>"})
    with zipfile.ZipFile(tmp_path / "langpack.xpi", "w") as archive:
        archive.writestr("browser/a.ftl", "# comment\nopen-file = একটি নতুন ফাইল খুলুন\n    .label = নাম লিখুন { $name }\n")
        archive.writestr("readme.txt", "open = no translation")
    (tmp_path / "broken.mo").write_bytes(b"\xde\x12\x04\x95 cut")
    (tmp_path / "broken.xpi").write_bytes(b"PK\x03\x04")
    documents = list(translation_documents([str(tmp_path / "*.mo"), str(tmp_path / "*.xpi")], "bn"))
    assert documents == ["ফাইল খুলুন\nবন্ধ করুন", "একটি নতুন ফাইল খুলুন\nনাম লিখুন"]


def test_long_catalogues_are_cut_into_documents_and_no_string_comes_twice(tmp_path: Path) -> None:
    strings = {f"key {number}": f"বাক্য সংখ্যা {number} এখানে আছে" for number in range(300)}
    catalogue(tmp_path / "a.mo", strings)
    catalogue(tmp_path / "b.mo", strings)
    documents = list(translation_documents([str(tmp_path / "*.mo")], "bn"))
    assert len(documents) > 3
    lines = [line for document in documents for line in document.split("\n")]
    assert sorted(lines) == sorted(strings.values())


def test_catalogues_that_were_found_here_are_inputs_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translations, "PLACES", (str(tmp_path / "{language}" / "*.mo"),))
    monkeypatch.setattr(translations.site, "getsitepackages", lambda: [str(tmp_path / "packages")])
    (tmp_path / "bn").mkdir()
    inside = tmp_path / "packages" / "program" / "locale" / "bn" / "LC_MESSAGES"
    inside.mkdir(parents=True)
    paths = [catalogue(tmp_path / "bn" / "a.mo", {"Yes": "হ্যাঁ"}), catalogue(inside / "b.mo", {"No": "না"})]
    data = {"source": "mixture", "language": "bn-paper", "sources": [{"source": "translations"}]}
    recipe = RecipeCase("masked-lm", {"size": "tiny", "data": data}).recipe()
    assert recipe.inputs() == paths
    paths.append(catalogue(tmp_path / "bn" / "c.mo", {"Open": "খুলুন"}))
    assert recipe.inputs() == paths, "a new one makes the prepared files stale"


def test_no_catalogue_says_where_to_get_some(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="apt-get download libreoffice-l10n-bn"):
        list(translation_documents([str(tmp_path / "*.mo")], "bn"))
