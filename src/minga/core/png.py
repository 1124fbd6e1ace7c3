"""Pictures as PNG files, each written whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minga.core.errors import StorageError, reason_of
from minga.core.files import replacing


def blank(width_inches: float, height_inches: float) -> Any:
    """An empty figure of matplotlib."""
    # Its plain classes need no display and leave no global state behind, unlike its pyplot.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width_inches, height_inches), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def write(figure: Any, path: Path) -> None:
    """Save a figure, making the folder if need be. Raises `StorageError` if the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as unfinished:
            figure.savefig(unfinished, format="png", dpi=110)
    except OSError as error:
        raise StorageError(f"{path}: cannot be written: {reason_of(error)}") from error
