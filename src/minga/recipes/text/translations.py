"""The texts of programs in one language: catalogues of translations that packages carry.

Small, short-winded, and real: what can be had of many languages without a download of gigabytes. Read are gettext's
`.mo` files and the Fluent files inside a Firefox language pack (`.xpi`). Without files named, those of LibreOffice and
Firefox (on Debian: libreoffice-l10n-bn, firefox-esr-l10n-bn) and of the Python packages of this environment are taken.
"""

from __future__ import annotations

import gettext
import glob
import re
import site
import struct
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from minga.core.errors import ConfigurationError

DOCUMENT_CHARACTERS: Final = 1500
MAX_CATALOGUE_BYTES: Final = 64 << 20
PLACES: Final = (
    "/usr/lib/libreoffice/program/resource/{language}/LC_MESSAGES/*.mo",
    "/usr/lib/firefox-esr/browser/extensions/langpack-{language}@*.xpi",
    "/usr/share/locale/{language}/LC_MESSAGES/*.mo",
)
_IN_PACKAGES: Final = "**/locale/{language}/LC_MESSAGES/*.mo"
_FLUENT = re.compile(r"^(?:-?[A-Za-z][\w-]*|\s+\.[A-Za-z][\w-]*)\s*=\s*(.+)$")
_MARKUP = re.compile(r"<[^>]{0,200}>|%\([\w]+\)[sd]|%\d?\$?[sd]|\{[^}]{0,100}\}|~|_(?=\w)|&[a-z]+;|\$\w+\$?")


def translation_documents(patterns: Sequence[str], language: str) -> Iterator[str]:
    """The translations in files that match `patterns`, some dozen strings to a document, each string once.

    Raises `ConfigurationError` if there are none; damaged catalogues are passed over.
    """
    found = False
    seen: set[str] = set()
    for path in catalogues(patterns, language):
        pending: list[str] = []
        for string in _strings(path):
            text = _MARKUP.sub("", string).strip()
            if len(text) < 4 or text in seen:
                continue
            seen.add(text)
            pending.append(" ".join(text.split()))
            if sum(map(len, pending)) >= DOCUMENT_CHARACTERS:
                found = True
                yield "\n".join(pending)
                pending = []
        if pending:
            found = True
            yield "\n".join(pending)
    if not found:
        raise ConfigurationError(
            f'source = "translations": no program translated to {language!r} was found here; on Debian get some with\n'
            f"  apt-get download libreoffice-l10n-{language} firefox-esr-l10n-{language}\n"
            "  for package in *-l10n-*.deb; do dpkg -x $package translations; done\n"
            'and name them: files = ["translations/**/*.mo", "translations/**/*.xpi"]'
        )


def catalogues(patterns: Sequence[str], language: str) -> list[Path]:
    """The files to read, in an order that does not depend on the machine's."""
    if patterns:
        found = [
            Path(each) for pattern in patterns for each in glob.glob(str(Path(pattern).expanduser()), recursive=True)
        ]
    else:
        found = [Path(each) for place in PLACES for each in glob.glob(place.format(language=language))]
        for folder in site.getsitepackages():
            found += Path(folder).glob(_IN_PACKAGES.format(language=language))
    return sorted({path for path in found if path.is_file()}, key=lambda path: (path.name, str(path)))


def _strings(path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > MAX_CATALOGUE_BYTES:
            return
        yield from _of_fluent(path) if path.suffix == ".xpi" else _of_gettext(path)
    except (OSError, ValueError, UnicodeDecodeError, zipfile.BadZipFile, EOFError):
        return  # a damaged catalogue of another program is no reason to stop


def _of_gettext(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            catalogue = gettext.GNUTranslations(file)._catalog  # type: ignore[attr-defined]  # noqa: SLF001
    except struct.error as error:
        raise ValueError(f"{path}: not a catalogue") from error
    for key, value in catalogue.items():
        if key and isinstance(value, str) and value != key:
            yield value


def _of_fluent(path: Path) -> Iterator[str]:
    with zipfile.ZipFile(path) as archive:
        for member in sorted(archive.infolist(), key=lambda each: each.filename):
            if not member.filename.endswith(".ftl") or member.file_size > MAX_CATALOGUE_BYTES:
                continue
            for line in archive.read(member).decode("utf-8").splitlines():
                if match := _FLUENT.match(line):
                    yield match.group(1)
