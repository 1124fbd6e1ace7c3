"""`minga status`: look at a run without taking part."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.markup import escape

from minga.cli.commands import StatusCommand
from minga.cli.taking_part.status_view import besides, run_view
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import folder_or_link
from minga.cli.terminal.output import Output, Ticker, View
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration
from minga.keeping.known_runs import FOLDER_DIGITS, ChosenStrategy
from minga.monitor.history import FILE_NAME, Entry, History, number_in, read_history, told_since
from minga.monitor.plot import plot_history
from minga.monitor.watcher import Watcher
from minga.training.join import join
from minga.training.status.run_status import RunStatus

LOOK_S = 3.0
PLOT_LOOK_S = 60.0
JSON_PERIOD_S = 1.0


def run_status(options: StatusCommand, context: Context) -> None:
    """Show a run that a link names, or one that a history file tells of."""
    kept = folder_or_link(options.run, options.directory, file=True)
    if kept is not None:
        if options.watch or options.seconds is not None:
            raise ConfigurationError(f"--watch and --seconds: only with a LINK; {options.run} is what was written here")
        _show_history(kept, options.plot, context.output)
        return
    context.output.say("Looking for the run …")
    peer = options.peer_options()
    with join(options.run, peer, with_files=False) as joined:
        context.wire(joined)
        watcher = Watcher(joined, History(None))
        chosen = ChosenStrategy.read(peer.runs_directory / joined.run_id[:FOLDER_DIGITS])
        if chosen is not None:  # this run is hosted from this machine
            context.output.say(escape(f"Auto: {chosen.reason}."))
        try:
            told = [] if options.watch or context.output.json_output else told_since(joined, 0.0)
            status = _watch(watcher, options, context.output, told)
        finally:  # also after Ctrl-C, the ordinary end of watching
            if options.plot is not None and watcher.history.entries:
                plot_history(watcher.history.entries, options.plot, title=joined.spec.name)
    context.output.summary(ok=True, **status.to_json(), **_as_json(chosen))


def _watch(watcher: Watcher, options: StatusCommand, output: Output, told: Sequence[Entry]) -> RunStatus:
    seconds = options.seconds or (PLOT_LOOK_S if options.plot is not None else LOOK_S)
    endless = options.watch and options.seconds is None
    begun = time.monotonic()
    is_over = _until_seen(watcher) if options.seconds is None and options.plot is None else lambda: False
    if options.watch and not output.json_output:

        def look() -> View:
            status = watcher.look()
            others = besides(status)
            return run_view(status, own=f" · besides: {others}" if others else "")

        with Ticker(output, look) as ticker:
            while endless or time.monotonic() - begun < seconds:
                ticker.check()
                time.sleep(0.1)
        return watcher.look()
    next_line = begun
    while endless or (time.monotonic() - begun < seconds and (options.watch or not is_over())):
        if options.watch and time.monotonic() >= next_line:
            next_line = time.monotonic() + JSON_PERIOD_S
            output.event("status", **watcher.look().to_json())
        watcher.look()
        time.sleep(0.1)
    status = watcher.look()
    output.say(run_view(status).framed())
    if status.loss is None and status.step and status.split is None:
        for line in last_figures(told):
            output.say(line)
    if status.split is not None:
        if status.split.servers and not status.split.clients:
            output.say("No client trains at this moment.")
    elif all(peer.status is None for peer in status.peers):
        output.say("No peer that trains is here to tell its step and loss: the figures above begin at 0.")
    elif status.split is None and not status.is_complete and (said := _how_few(status)):
        output.say(said)
    return status


def _how_few(status: RunStatus) -> str:
    """What a run lacks to be a healthy one; nothing if it has it."""
    if not any(peer.doing in ("training", "averaging", "paused") for peer in status.peers if peer.role != "auxiliary"):
        return "Nobody computes gradients yet: the run begins with the first peer that joins by the link."
    return "" if status.averages else "One peer trains alone: a healthy run averages with at least one other."


def last_figures(told: Sequence[Entry]) -> Iterator[str]:
    """The newest loss, and the newest held-out figure, that histories of others tell of."""
    losses = [entry for entry in told if entry["event"] == "step" and number_in(entry, "loss") is not None]
    held_out = [entry for entry in told if entry["event"] == "evaluation"]
    if losses:
        yield f"Last loss told: {losses[-1]['loss']:.3f}, of step {losses[-1].get('step')}"
    if held_out and (value := number_in(held_out[-1], str(held_out[-1].get("headline")))) is not None:
        yield f"Held out: {held_out[-1]['headline']} {value:.4g}, of step {held_out[-1].get('step')}"


def _until_seen(watcher: Watcher) -> Callable[[], bool]:
    """Whether the loss is known by now: that takes two reports of one trainer."""
    return lambda: watcher.look().loss is not None


def _as_json(chosen: ChosenStrategy | None) -> dict[str, str]:
    """What "auto" became and why, if anything was chosen."""
    return {} if chosen is None else {"strategy": chosen.strategy, "strategy_reason": chosen.reason}


def _show_history(path: Path, plot: Path | None, output: Output) -> None:
    path = path / FILE_NAME if path.is_dir() else path
    entries = read_history(path)
    steps = [entry for entry in entries if entry["event"] == "step"]
    held_out = [entry for entry in entries if entry["event"] == "evaluation"]
    facts: dict[str, Any] = {
        "step": steps[-1].get("step") if steps else 0,
        "loss": steps[-1].get("loss") if steps else None,
        "total_samples": steps[-1].get("total_samples") if steps else 0,
        "seconds": round(entries[-1]["t"] - entries[0]["t"], 3),
        "joined": sum(entry["event"] == "joined" for entry in entries),
        "left": sum(entry["event"] == "left" for entry in entries),
        "lost": sum(entry["event"] == "lost" for entry in entries),
        "evaluation": held_out[-1] if held_out else None,
    }
    facts |= _as_json(ChosenStrategy.read(path.parent))
    if plot is not None:
        plot_history(entries, plot)
        facts["plot"] = str(plot)
    for name, value in facts.items():
        output.say(f"{name.replace('_', ' ')}: {_in_words(name, value)}")
    output.summary(ok=True, **facts)


def _in_words(name: str, value: Any) -> str:
    """A fact of a history for people."""
    if value is None:
        return "none"
    if name == "seconds":
        return format_duration(value)
    if name == "evaluation":
        names = [each for each in value if each not in ("t", "step") and number_in(value, each) is not None]
        return f"{', '.join(f'{each} {value[each]:.4g}' for each in names)}, of step {value.get('step')}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)
