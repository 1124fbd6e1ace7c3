"""`minga split leakage`: what a client's activations tell about its data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from rich.markup import escape

from minga.cli.terminal.context import Context
from minga.split.leakage.comparison import compare_leakage
from minga.split.leakage.settings import LeakageSettings


def run_leakage(
    example: str, weights: tuple[float, ...], epochs: int | None, seed: int, folder: Path, context: Context
) -> None:
    """Make a report of an example, write it to `folder`, and show it."""
    settings = LeakageSettings(example=example)
    if epochs is not None:
        settings = replace(settings, epochs=epochs, decoder_epochs=epochs)
    if weights:
        settings = replace(settings, weights=weights)
    context.output.say(escape(f"Training on {example} without NoPeek and with {len(settings.weights)} weights of it …"))
    report = compare_leakage(settings, seed)
    written = report.write(folder)
    context.output.say(escape(report.text()))
    context.output.say(escape("Written: " + ", ".join(map(str, written))))
    context.output.summary(ok=True, **report.figures(), files=[str(path) for path in written])
