"""Another process, for checks of what has to be equal on all machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import torch

from minga.testing.violation import Violation

_HASHES: Final = "99"
_LIMIT_S: Final = 300.0
_MARK: Final = "said: "
"""Before each word, as modules may print, too."""
_BEGINNING: Final = """
import json, sys
from importlib import import_module
from operator import attrgetter
mark, threads, sys.path[:], *words = json.loads(sys.argv[1])
sys.path.append("")  # pytest may import modules of the working directory without it
import torch
torch.set_num_threads(threads); torch.manual_seed(99)
def find(module, name):
    return attrgetter(name)(import_module(module))
def say(word):
    print()
    print(mark + word)
"""


def said_elsewhere(code: str, *words: str | None) -> list[str]:
    """The words that Python `code` says, by `say`, in a process with another number of threads and other seeds, of
    torch and of hashes. It knows `words`, and `find`s things by module and name. Raises `Violation` if it fails.
    """
    threads = 2 if torch.get_num_threads() == 1 else 1
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _BEGINNING + code, json.dumps([_MARK, threads, sys.path, *words])],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": _HASHES},
    )
    if ran.returncode:
        raise Violation(f"another process failed: {ran.stderr.strip()[-500:]}")
    return [line.removeprefix(_MARK) for line in ran.stdout.splitlines() if line.startswith(_MARK)]


def can_be_imported(thing: Any) -> bool:
    """Whether another process finds this class or function; it does not if a function made it."""
    return "<" not in getattr(thing, "__qualname__", "<") and thing.__module__ != "__main__"
