"""Another process, for checks of what has to be equal on all machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Final

import torch

_HASHES: Final = "99"
_LIMIT_S: Final = 300.0
_BEGINNING: Final = """
import json, sys
threads, sys.path[:], *words = json.loads(sys.argv[1])
import torch
torch.set_num_threads(threads); torch.manual_seed(99)
"""


def said_elsewhere(code: str, *words: str | None, violation: type[AssertionError]) -> list[str]:
    """The words that Python `code`, to which these are known as `words`, prints in a process with another number of
    threads and other seeds, of torch and of hashes. Raises `violation` if it fails.
    """
    threads = 2 if torch.get_num_threads() == 1 else 1
    ran = subprocess.run(  # noqa: S603
        [sys.executable, "-c", _BEGINNING + code, json.dumps([threads, sys.path, *words])],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
        env={**os.environ, "PYTHONHASHSEED": _HASHES},
    )
    if ran.returncode:
        raise violation(f"another process failed: {ran.stderr.strip()[-500:]}")
    return ran.stdout.split()


def can_be_imported(thing: Any) -> bool:
    """Whether another process finds this class or function; it does not if a function made it."""
    return "<" not in getattr(thing, "__qualname__", "<") and thing.__module__ != "__main__"
