"""What the cell shows while a command works: figures, a curve of the loss, and what this machine did."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from minga.core.units import counted, format_size

MAX_POINTS: Final = 400
"""Points of the curve; beyond that every second one goes, and later ones are twice as far apart."""
WIDTH, HEIGHT = 480, 80
"""Size of the curve, in pixels."""


class Screen:
    """One output of a cell, which changes in place; without IPython nothing is shown.

    `progress` and `summary` are the newest events of these kinds, empty before the first.
    """

    def __init__(self, title: str) -> None:
        self.title, self.state = title, "starting"
        self.progress: Mapping[str, Any] = {}
        self.summary: Mapping[str, Any] = {}
        self.complaint = ""
        self._losses: list[tuple[int, float]] = []
        self._apart = 1
        """Steps between two points, at least, but for the newest."""
        self._handle = _new_output(self.html())

    def note_progress(self, progress: Mapping[str, Any]) -> None:
        """Take in an event `progress`."""
        self.progress = progress
        step, loss = progress.get("step"), progress.get("loss")
        if isinstance(step, int) and isinstance(loss, int | float):
            last = [at for at, _ in self._losses[-2:]]
            if last and last[-1] == step:
                return
            if len(last) == 2 and abs(last[1] - last[0]) < self._apart:
                del self._losses[-1]  # the newest until now
            self._losses.append((step, float(loss)))
            if len(self._losses) > MAX_POINTS:
                del self._losses[1:-1:2]
                self._apart *= 2

    def refresh(self) -> None:
        """Show how things stand."""
        if self._handle is not None:
            self._handle.update(_Html(self.html()))

    def html(self) -> str:
        """The output, with every value escaped."""
        rows = "".join(
            f"<tr><th style='text-align:left;padding-right:1em'>{escape(name)}</th>"
            f"<td style='text-align:left'>{escape(value)}</td></tr>"
            for name, value in self.rows()
        )
        curve = _curve(self._losses)
        trouble = f"<pre>{escape(self.complaint)}</pre>" if self.complaint else ""
        return f"<div><b>{escape(self.title)}</b> · {escape(self.state)}<table>{rows}</table>{curve}{trouble}</div>"

    def rows(self) -> list[tuple[str, str]]:
        """Names and values, for people."""
        return [*_of_run(self.progress), *_of_machine(self.progress.get("own")), *_at_the_end(self.summary)]


def _of_run(progress: Mapping[str, Any]) -> list[tuple[str, str]]:
    if not progress:
        return []
    last = f" of {progress['last_step']}" if progress.get("last_step") else ""
    loss = progress.get("loss")
    return [
        ("step", f"{progress.get('step')}{last}" + (" (paused by the organisers)" if progress.get("paused") else "")),
        ("loss", "none yet" if loss is None else f"{loss:.3f}"),
        ("peers in rounds", f"{progress.get('members')}"),
        ("while computing", f"{progress.get('samples_per_second') or 0:.1f} samples/s"),
    ]


def _of_machine(own: Any) -> list[tuple[str, str]]:
    if not isinstance(own, Mapping):
        return []
    share = "" if own.get("share") is None else f"; {own['share']:.0%} of those of the last steps"
    traffic = f"{format_size(int(own.get('bytes_sent', 0)))}, {format_size(int(own.get('bytes_received', 0)))}"
    return [
        ("this machine", f"{own.get('phase')}" + (f" on {own['machine']}" if own.get("machine") else "")),
        ("its samples", f"{own.get('samples')}{share}"),
        ("sent, received", traffic),
    ]


def _at_the_end(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    if "steps_contributed" not in summary:
        return []
    samples = counted(summary["samples"], "sample")
    return [
        ("your contribution", f"{samples} in {counted(summary['steps_contributed'], 'step')}. Thank you!"),
        ("step at the end", str(summary.get("step"))),
    ]


def _curve(losses: Sequence[tuple[int, float]]) -> str:
    if len(losses) < 2:
        return ""
    steps, values = [step for step, _ in losses], [loss for _, loss in losses]
    width, height = steps[-1] - steps[0] or 1, max(values) - min(values) or 1.0
    points = " ".join(
        f"{(step - steps[0]) / width * WIDTH:.1f},{HEIGHT - (loss - min(values)) / height * HEIGHT:.1f}"
        for step, loss in losses
    )
    label = f"loss from {values[0]:.3f} at step {steps[0]} to {values[-1]:.3f} at step {steps[-1]}"
    return (
        f'<svg role="img" aria-label="{label}" viewBox="-2 -2 {WIDTH + 4} {HEIGHT + 4}" width="{WIDTH}">'
        f"<title>{label}</title>"
        f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>'
    )


class _Html:
    """What IPython shows as HTML."""

    def __init__(self, html: str) -> None:
        self._html = html

    def _repr_html_(self) -> str:
        return self._html


def _new_output(html: str) -> Any:
    """A handle on a new output of the running cell, or None where there is no notebook."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return None
    return None if get_ipython() is None else display(_Html(html), display_id=True)
