"""The pages that are made from the code are up to date, and the site builds without warnings and foreign requests."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from markdown import Markdown

import minga
from documentation.__main__ import DOCS, PAGES
from documentation.code_fences import CodeFences
from documentation.promises import guards, promises
from minga.cli.terminal.declaring import COMMANDS
from minga.cli.terminal.exit_codes import MEANINGS
from minga.core.spec.run_spec import RunSpec

ROOT = Path(__file__).parent.parent.parent
NOT_KEPT = "reference/changelog.md"
"""A copy of a page that is kept."""


@pytest.mark.parametrize("place", sorted(PAGES.keys() - {NOT_KEPT}))
def test_a_page_that_is_made_is_up_to_date(place: str) -> None:
    assert (DOCS / place).read_text("utf-8") == PAGES[place](), "run `make docs`"


def test_each_promise_has_tests_that_guard_it() -> None:
    assert guards().keys() == promises().keys()


def test_every_command_setting_name_and_exit_code_has_its_place() -> None:
    commands = PAGES["commands.md"]()
    assert [name for name in COMMANDS if f"### `minga {name}`" not in commands] == []
    settings = PAGES["reference/run-spec.md"]()
    sections = [name for name, field in RunSpec.model_fields.items() if hasattr(field.annotation, "model_fields")]
    assert len(sections) > 5
    assert [name for name in sections if f"## `[{name}]`" not in settings] == []
    assert all(f"* `{code}`: " in commands for code in MEANINGS)
    assert all(f"::: minga.{name}\n" in PAGES["reference/python.md"]() for name in minga.__all__)


def test_a_block_with_a_file_or_a_note_for_the_tests_is_a_block_of_the_site() -> None:
    page = "```toml run.toml\nname = 1\n```\n\n```sh background\nminga host\n```\n"
    html = Markdown(extensions=[CodeFences(), "pymdownx.highlight", "pymdownx.superfences"]).convert(page)
    assert html.count("<pre>") == 2
    assert '<span class="filename">run.toml</span>' in html
    assert "background" not in html


def test_every_page_has_its_place_in_the_navigation() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))["nav"]
    listed = set(re.findall(r"[a-z0-9/_-]+\.md", str(navigation)))
    there = {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} | {NOT_KEPT}
    assert listed == there


class _Loaded(HTMLParser):
    """Collects what a browser would fetch for a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        fetches = tag in ("script", "img", "iframe", "source") or (
            tag == "link" and values.get("rel") in ("stylesheet", "icon", "preconnect", "preload")
        )
        if fetches:
            self.addresses.append(values.get("src") or values.get("href") or "")


def test_the_site_builds_without_warnings_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    for name in ("docs", "documentation"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "src").symlink_to(ROOT / "src")
    shutil.copy(ROOT / "mkdocs.yml", tmp_path)
    (tmp_path / "docs" / NOT_KEPT).write_text(PAGES[NOT_KEPT](), "utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict"]
    built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=200, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    loaded = _Loaded()
    for page in pages:
        loaded.feed(page.read_text("utf-8"))
    assert len(loaded.addresses) > len(pages)
    assert [address for address in loaded.addresses if re.match(r"(https?:)?//", address)] == []
