"""The reference page of the Python API: the public names of each package, whose texts mkdocstrings fills in."""

from __future__ import annotations

from importlib import import_module
from typing import Final

MODULES: Final = {
    "minga": "Take part in a run, or begin one, from a program",
    "minga.optim": "Optimizers whose bits are equal on every device",
    "minga.averaging": "Codecs and sketches, for packages that bring their own",
    "minga.training": "Strategies, for packages that bring their own",
    "minga.recipes": "Recipes, for packages that bring their own",
    "minga.security": "Aggregators, for packages that bring their own",
    "minga.simulation": "Swarms on virtual time",
    "minga.testing": "Conformance suites",
}
"""The packages with a public surface, and what each is for."""

HEAD: Final = """\
# Python

<!-- Made by `make docs` from the names in each package's `__all__`. -->

Names that this page does not list may change without notice.
"""


def python_page() -> str:
    """The page, as Markdown with mkdocstrings' directives."""
    parts = [HEAD]
    for module, purpose in MODULES.items():
        parts.append(f"\n## `{module}`\n\n{purpose}.\n")
        names = sorted(import_module(module).__all__, key=lambda name: name.endswith("Error"))  # errors last
        parts += [f"\n::: {module}.{name}\n" for name in names]
    return "".join(parts)
