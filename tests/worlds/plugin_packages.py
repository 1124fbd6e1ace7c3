"""Packages of other authors for tests: a module and its metadata in a folder on the path, as pip would leave them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from minga.core.spec.plugins import Registry


def install(
    folder: Path, package: str, version: str, entries: Mapping[str, Mapping[str, str]], modules: Mapping[str, str]
) -> None:
    """Write `modules` (sources by name) into `folder`, and metadata that declares `entries` (by group and name)."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    lines = [
        line
        for group, names in entries.items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in names.items()))
    ]
    (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")


def look_again(patch: pytest.MonkeyPatch, *registries: Registry[Any]) -> None:
    """Let registries see what is on the path now, until the test is over."""
    for registry in registries:
        fresh = Registry[object](registry.group, registry.what, registry._builtin)
        patch.setitem(vars(registry), "_external", fresh._external)
        patch.setattr(registry, "_loaded", {})
