"""The output that all benchmarks share: JSON lines, the last of which is the summary, and the exit status."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from typing import Any


def emit(**fields: Any) -> None:
    """Print one line of JSON."""
    print(json.dumps(fields), flush=True)


def finish(benchmark: str, ok: bool, as_json: bool, **fields: Any) -> int:
    """Print the summary, as JSON or as a table, and return the exit status."""
    summary = {"summary": True, "benchmark": benchmark, "ok": ok, **fields}
    if as_json:
        emit(**summary)
    else:
        print("\n".join(f"{name:>24}  {_shown(value)}" for name, value in summary.items()), flush=True)
    return 0 if ok else 1


def spread(values: Iterable[float], digits: int = 4) -> list[float] | None:
    """Median, minimum and maximum; None without values."""
    known = list(values)
    if not known:
        return None
    return [round(f(known), digits) for f in (statistics.median, min, max)]


def parser(documentation: str | None) -> argparse.ArgumentParser:
    """An argument parser that shows the module's documentation and has `--json`."""
    made = argparse.ArgumentParser(description=documentation, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", action="store_true", help="the summary as one line of JSON instead of a table")
    return made


def note(text: str) -> None:
    """A remark on the progress, kept out of the output."""
    print(text, file=sys.stderr, flush=True)


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_shown(v)}" for k, v in value.items())
    if isinstance(value, list) and value and isinstance(value[0], Mapping):
        return "".join(f"\n{'':>26}{_shown(row)}" for row in value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
