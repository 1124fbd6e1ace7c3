"""Code blocks of our pages as the site builder understands them.

A fence's second word tells the tests what to do with a block: a file to write, or how to run it. Python-Markdown takes
a fence with two words for ordinary text. So a file's name becomes the block's title here, and other words go.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from markdown import Extension
from markdown.preprocessors import Preprocessor

if TYPE_CHECKING:
    from markdown import Markdown

_FENCE: Final = re.compile(r"```(\w+) (\S+)")
_BEFORE_FENCES_ARE_READ: Final = 100


class CodeFences(Extension):
    """The extension of Python-Markdown that `mkdocs.yml` names."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (Python-Markdown's name)
        """Register the preprocessor."""
        md.preprocessors.register(_FenceWords(md), "fence_words", _BEFORE_FENCES_ARE_READ)


class _FenceWords(Preprocessor):
    def run(self, lines: list[str]) -> list[str]:
        return [_for_site(line) for line in lines]


def _for_site(line: str) -> str:
    fence = _FENCE.fullmatch(line)
    if fence is None:
        return line
    language, word = fence.groups()
    return f'```{language} title="{word}"' if "." in word else f"```{language}"


def makeExtension(**settings: Any) -> CodeFences:  # noqa: N802 (Python-Markdown's name)
    """What Python-Markdown calls."""
    return CodeFences(**settings)
