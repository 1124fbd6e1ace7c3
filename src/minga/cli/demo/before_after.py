"""What a model made of the same things before training and after it: in words, and side by side on one picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from minga.core.errors import StorageError
from minga.core.files import write_atomically
from minga.recipes.interface import Exhibit, Showing

FILE_NAME: Final = "before-after.png"
CLEARLY: Final = 0.05
"""By how much a share has to be better than chance to be told of."""

_WIDTH: Final = 104


class BeforeAfter(NamedTuple):
    """The same rows, made by both models."""

    before: Showing
    after: Showing

    def lines(self) -> Iterator[str]:
        """The rows for people: on one line if it is short enough, else on several."""
        for old, new in zip(self.before.rows, self.after.rows, strict=True):
            if not new.made.text:
                continue
            right = f"   (right: {new.right.text})" if new.right.text else ""
            short = f"  {new.given.text}: {old.made.text} → {new.made.text}{right}"
            if len(short) <= _WIDTH and len(new.given.text) <= _WIDTH // 2:
                yield short
                continue
            yield f"  {new.given.text}"
            if len(old.made.text) + len(new.made.text) + len(right) <= _WIDTH:
                yield f"      before: {old.made.text}   after: {new.made.text}{right}"
            else:
                yield f"      before: {old.made.text}"
                yield f"      after:  {new.made.text}{right}"

    def as_table(self) -> list[dict[str, str]]:
        """The rows as JSON."""
        return [
            {"given": new.given.text, "before": old.made.text, "after": new.made.text, "right": new.right.text}
            for old, new in zip(self.before.rows, self.after.rows, strict=True)
        ]

    def draw(self, directory: Path) -> list[str]:
        """Write the pictures among the rows side by side; the name of the file, if there are any.

        Raises `StorageError` if the disk refuses.
        """
        from minga.recipes.images.grid import columns_png

        views: dict[str, list[Exhibit]] = {
            "given": [row.given for row in self.after.rows],
            "before training": [row.made for row in self.before.rows],
            "after": [row.made for row in self.after.rows],
            "real": [row.right for row in self.after.rows],
        }
        columns = {
            name: pictures
            for name, column in views.items()
            if (pictures := [each.picture for each in column if each.picture is not None])
        }
        if not columns:
            return []
        path = directory / FILE_NAME
        try:
            write_atomically(path, columns_png(columns, [row.given.text for row in self.after.rows]))
        except OSError as error:
            raise StorageError(f"{path}: cannot be written: {error.strerror}") from error
        return [path.name]


def compared(first: Mapping[str, float], last: Mapping[str, float], headline: str, showing: Showing) -> Iterator[str]:
    """The held-out figures before and after training, the headline first, and what they are to be compared with.
    Another share that is not clearly better than chance, or than that of the untrained model, is left out.
    """
    for name in sorted(last.keys() & first.keys() - {"step"}, key=lambda each: (each != headline, each)):
        found = showing.beside.get(name)
        chance = found.value if found is not None and found.is_chance else 0.0
        if name != headline and name.endswith("accuracy") and last[name] < max(first[name], chance) + CLEARLY:
            continue
        beside = "" if found is None else f" ({found.words}: {rounded(found.value)})"
        yield f"{name} {rounded(first[name])} → {rounded(last[name])}{beside}"


def rounded(value: Any) -> str:
    """Four significant digits of a figure."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
