"""The complete checkpoints of a folder, by their names alone: what lists them needs no torch."""

from __future__ import annotations

import re
from pathlib import Path

MANIFEST_NAME = "manifest.json"
_COMPLETE = re.compile(r"step-(\d{9,16})-([0-9a-f]{12})")


def folder_name(step: int, digest: str) -> str:
    """The name of the folder with the complete checkpoint of this step and state."""
    return f"step-{step:09d}-{digest[:12]}"


def complete_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Step and folder of each complete checkpoint in `directory`, oldest step first."""
    found: list[tuple[int, Path]] = []
    for path in directory.iterdir():
        match = _COMPLETE.fullmatch(path.name)
        if match is not None:
            found.append((int(match[1]), path))
    return sorted(found)
