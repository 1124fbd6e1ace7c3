"""`minga status`: look at a run without taking part; and how all commands show the status of a run."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from minga.cli.commands import StatusCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.exit_codes import done_so_far
from minga.cli.terminal.options import folder_or_link
from minga.cli.terminal.output import Display, FittedTable, Output, Ticker
from minga.core.errors import ConfigurationError
from minga.core.units import counted, format_duration, format_size
from minga.keeping.known_runs import FOLDER_DIGITS, ChosenStrategy, runs_folder
from minga.monitor.history import FILE_NAME, Entry, History, number_in, read_history, told_since
from minga.monitor.plot import plot_history
from minga.monitor.watcher import Watcher
from minga.training.status.run_status import PeerStatus, PlanStatus, RunStatus

if TYPE_CHECKING:
    from minga.training.peer import Peer

LOOK_S = 3.0
PLOT_LOOK_S = 60.0
JSON_PERIOD_S = 1.0

RESTING = (
    "resting: your upload would cost the others more time than your samples save; nothing to do, "
    "you are asked again every few minutes"
)
RESTED = "no longer resting: this machine computes again"
AUXILIARIES = ("auxiliary", "auxiliaries")
MAX_ROWS = 30
MAX_AMENDMENTS = 5
MAX_SHARES = 6
MUCH_COMPUTING = 0.05
"""Where a round takes less than this part of the computing of a step, what it waits for matters to nobody."""


def run_status(options: StatusCommand, context: Context) -> None:
    """Show a run that a link names, or one that a history file tells of."""
    kept = folder_or_link(options.run, options.directory, file=True)
    if kept is not None:
        if options.watch:
            raise ConfigurationError(f"--watch: only with a LINK; {options.run} is what was written here")
        _show_history(kept, options.plot, context.output)
        return
    with options.looking_into(options.run, context, with_files=False) as joined:
        watcher = Watcher(joined, History(None))
        chosen = ChosenStrategy.read(runs_folder(options.directory) / joined.run_id[:FOLDER_DIGITS])
        if chosen is not None:  # this run is hosted from this machine
            context.output.say(f"Auto: {chosen.reason}.")
        try:
            if options.watch:
                _stay(watcher, context.output)
            status = _glance(watcher, joined, context.output, is_plotted=options.plot is not None)
        finally:  # also after Ctrl-C, the ordinary end of watching
            if options.plot is not None and watcher.history.entries:
                plot_history(watcher.history.entries, options.plot, title=joined.spec.name)
    context.output.summary(ok=True, **status.to_json(), **_as_json(chosen))


def _stay(watcher: Watcher, output: Output) -> NoReturn:
    """Show the run until Ctrl-C."""
    if output.json_output:
        while True:
            output.event("status", **watcher.look().to_json())
            time.sleep(JSON_PERIOD_S)

    def look() -> Display:
        status = watcher.look()
        others = besides(status)
        return run_view(status, own=f" · besides: {others}" if others else "")

    with Ticker(output, look) as ticker:
        while True:
            ticker.check()
            time.sleep(0.1)


def _glance(watcher: Watcher, peer: Peer, output: Output, *, is_plotted: bool) -> RunStatus:
    """Show the run once: as soon as its loss is known, which takes two reports of one trainer, or after a few seconds;
    where it is to be plotted, after a minute.
    """
    until = time.monotonic() + (PLOT_LOOK_S if is_plotted else LOOK_S)
    while ((status := watcher.look()).loss is None or is_plotted) and time.monotonic() < until:
        time.sleep(0.1)
    output.say(run_view(status).framed())
    if not output.json_output and status.loss is None and status.step and status.split is None:
        for line in last_figures(told_since(peer, 0.0)):
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
        if status.step:
            return "Nobody computes gradients: the run goes on with the next peer that joins by the link."
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


# ---- how the status of a run looks, on a terminal and as plain lines


@dataclass(frozen=True)
class OwnPart:
    """What a volunteer sees of their own doing.

    `share` of the last steps is None before the first one, `figures` on held-out text are empty without `--evaluate`.
    `machine` is the device and its micro-batch, empty before they are known; `traffic` what was used of a budget.
    """

    run: RunStatus
    samples: int
    samples_per_second: float
    share: float | None
    bytes_sent: int
    bytes_received: int
    paths: tuple[str, ...]
    sync_done: int
    sync_total: int
    phase: str
    figures: dict[str, float]
    machine: str
    traffic: str = ""


def headline(status: RunStatus) -> str:
    """Step, loss, peers and speed of a run in one line."""
    last = f" of {status.last_step}" if status.last_step else ""
    if status.paused:
        return f"step {status.step}{last} · paused by the organisers"
    if status.founders is not None:
        ready, wanted = status.founders
        return f"step {status.step}{last} · waiting for founders, {ready} of {wanted} are here"
    phase = [status.phase] if status.phase and not status.is_complete else []
    return " · ".join([f"step {status.step}{last}", *phase, _loss(status), *_work(status), _members(status)])


def _loss(status: RunStatus) -> str:
    """The loss, or why it is not known: peers that compute tell it, nobody else does."""
    if status.loss is not None:
        return f"loss {status.loss:.3f}"
    if status.step and status.split is None and not any(_computes(peer) for peer in status.peers):
        return "no trainer is here to tell the loss"
    return "the loss comes with the next step" if status.step else "no loss yet"


def _computes(peer: PeerStatus) -> bool:
    return peer.role not in ("auxiliary", "monitor") and peer.status is not None


def _work(status: RunStatus) -> list[str]:
    """What is done towards the next step, and how fast; after the last one that there is none."""
    if (split := status.split) is not None:
        speed = "" if split.batches_per_second is None else f"{split.batches_per_second:.1f} batches/s, "
        waiting = f" · {counted(split.waiting, 'batch waits', 'batches wait')}" if split.waiting else ""
        return [f"{speed}{status.samples_per_second:.1f} samples/s{waiting}"]
    if status.is_complete:
        return ["the run is complete"]
    towards = f"{status.samples}/{status.target_batch_size} samples towards the next step"
    return [*([] if status.is_verified else [towards]), f"{status.samples_per_second:.1f} samples/s while computing"]


def _members(status: RunStatus) -> str:
    """How many peers take part; an organiser who is still alone shall see that nobody computes gradients."""
    if (split := status.split) is not None:
        clients = counted(len(split.clients), "client")
        if not split.servers:
            return f"{clients}, no server is here: clients wait for it"
        return f"{clients}, {counted(len(split.servers), 'server')}"
    here = f"{counted(status.members, 'peer')} here"
    if status.is_complete:
        return here
    training = sum(_computes(peer) and peer.status != "syncing" for peer in status.peers)
    if not training:
        return f"{here}, none computes gradients"
    helping = status.members - training
    together = "1 peer training" if training == 1 else f"{training} peers training together"
    return together + (f", {counted(helping, *AUXILIARIES)} helping" if helping else "")


def peers_by_kind(status: RunStatus) -> str:
    """How many peers there are of each role and state."""
    kinds = Counter((peer.part or peer.role, "" if peer.part else f" {_state(peer, status)}") for peer in status.peers)
    return ", ".join(f"{_of_role(count, role)}{state}" for (role, state), count in sorted(kinds.items()))


def besides(status: RunStatus) -> str:
    """The peers that the headline does not count, by kind; empty if it counts all."""
    if status.split is not None or status.paused or status.is_complete or status.founders is not None:
        return peers_by_kind(status)
    others = tuple(peer for peer in status.peers if peer.status in (None, "syncing"))
    return peers_by_kind(replace(status, peers=others))


def _of_role(count: int, role: str) -> str:
    if role == "auxiliary":
        return counted(count, *AUXILIARIES)
    return f"{count} unknown" if role == "unknown" else counted(count, role)


def peer_table(status: RunStatus) -> FittedTable:
    """One row for each peer."""
    return FittedTable(
        ("peer", "role", "state", "step", "samples/s", "samples", "sent, received", "path"),
        [_cells(peer, status) for peer in status.peers[:MAX_ROWS]],
        left=("role", "state", "path"),
        least_first=("path", "sent, received", "samples", "role", "step"),
    )


def run_view(status: RunStatus, figures: Mapping[str, float] | None = None, *, own: str = "") -> Display:
    """A run, as those see it who organise or watch it; `own` is what this machine does, beside the headline."""
    figures = figures or {}
    parts: list[RenderableType] = [Text(headline(status), style="bold")]
    if others := besides(status):
        parts.append(f"besides: {others}")
    if figures:
        parts.append(_figures(figures))
    if status.digests_agree is False:
        parts.append(Text("peers disagree about the state; the minority is fetching what differs", style="yellow"))
    if status.plan is not None:
        computing_s = status.target_batch_size / status.samples_per_second if status.samples_per_second else 0.0
        parts.append(plan_line(status.plan, computing_s))
    parts += [*amendment_lines(status), *_trouble(status), "", peer_table(status)]
    if len(status.peers) > MAX_ROWS:
        parts.append(Text(f"… and {len(status.peers) - MAX_ROWS} more", style="dim"))
    disagreeing = " · peers disagree about the state" if status.digests_agree is False else ""
    line = f"{headline(status)}{disagreeing}" + (f" · {_figures(figures)}" if figures else "") + own
    return Display(parts, run_values(status), status.name, lines=[line], notices=notices(status))


def amendment_lines(status: RunStatus) -> list[str]:
    """The newest orders that are in force or will be; what others overruled, such as a pause that is over, is not.

    A resume, or another order that waits for no step, says step 0, whenever it was given: that is left out.
    """
    standing = [each for each in status.amendments if not each.overruled][-MAX_AMENDMENTS:]
    return [
        f"amendment {each.number}, {'in force' if each.due else 'not yet in force'}"
        f"{f' (from step {each.from_step})' if each.from_step else ''}: {each.changes}"
        for each in standing
    ]


def plan_line(plan: PlanStatus, computing_s: float = 0.0) -> str:
    """Who averages how much for the others, and what rounds wait for, or that computing takes nearly all the time."""
    ranked = sorted(plan.reduces.items(), key=lambda each: (-each[1], each[0]))
    shares = [f"{peer[:10]} {share:.0%}" for peer, share in ranked if share][:MAX_SHARES]
    more = sum(1 for share in plan.reduces.values() if share) - len(shares)
    line = f"plan: {', '.join(shares)}{f' and {more} more' if more else ''}{' in two levels' if plan.two_level else ''}"
    if plan.round_s is not None and plan.round_s < MUCH_COMPUTING * computing_s:
        return f"{line} · computing takes {computing_s / (computing_s + plan.round_s):.0%} of a step"
    if plan.binding is not None and plan.round_s is not None:
        kind, peer, other = plan.binding
        to = f" to {other[:10]}" if other else ""
        line += f" · rounds take {format_duration(plan.round_s)} and wait for the {kind} of {peer[:10]}{to}"
    return line


def run_values(status: RunStatus) -> dict[str, Any]:
    """The progress of a run for programs; `loss` is None before the first step."""
    return {
        "step": status.step,
        "last_step": status.last_step,
        "loss": status.loss,
        "members": status.members,
        "samples_per_second": status.samples_per_second,
        "paused": status.paused,
    }


def shown_phase(phase: str, status: RunStatus) -> str:
    """What a volunteer's machine does, by the phase that it is in and by what the run has it do."""
    if phase != "training":
        return phase
    return "paused" if status.paused else "resting" if status.resting else phase


def volunteer_view(part: OwnPart) -> Display:
    """A run, and this machine's part in it. Bytes go to and fro in an idle run as well: they are no news."""
    status = part.run
    parts: list[RenderableType] = [Text(headline(status), style="bold"), _own(part)]
    if part.phase == "downloading the state" and part.sync_total:
        parts.append(f"state {format_size(part.sync_done)} of {format_size(part.sync_total)}")
        parts.append(ProgressBar(total=part.sync_total, completed=part.sync_done, width=50))
    if part.figures:
        parts.append(_figures(part.figures))
    own = {
        "phase": part.phase,
        "machine": part.machine,
        "samples": part.samples,
        "samples_per_second": part.samples_per_second,
        "share": part.share,
        "bytes_sent": part.bytes_sent,
        "bytes_received": part.bytes_received,
    }
    return Display(
        [*parts, *_trouble(status)],
        {**run_values(status), "own": own},
        status.name,
        "Ctrl-C to leave at any time",
        lines=[f"{headline(status)} · {_own(part)}" + (f" · {_figures(part.figures)}" if part.figures else "")],
        news=(headline(status), part.phase, part.machine, part.samples, part.figures),
        notices=notices(status),
    )


def notices(status: RunStatus) -> dict[str, tuple[object, str]]:
    """Whether this peer rests, and its trouble: see `Display`."""
    said: dict[str, tuple[object, str]] = {"resting": (status.resting, RESTING if status.resting else RESTED)}
    if status.trouble is not None:
        said["trouble"] = (status.trouble.number, f"trouble: {status.trouble.text}")
    return said


class CompletionNotice:
    """Says once that a run is complete, where this machine only watches it."""

    def __init__(self, output: Output) -> None:
        self._output, self._said = output, False

    def look(self, status: RunStatus) -> None:
        """Say it if it is so now, and was not said."""
        if status.is_complete and not self._said:
            self._said = True
            done_so_far.append(lambda: {"step": status.step})
            self._output.event("complete", step=status.step)
            self._output.say(
                f"The run is complete after {counted(status.step, 'step')}. The peers that trained have its "
                "state; Ctrl-C ends this host, which is safe now."
            )


def _trouble(status: RunStatus) -> list[Text]:
    lines = [Text(RESTING)] if status.resting else []
    if status.trouble is not None:
        age = format_duration(status.trouble.age_s)
        lines.append(Text(f"trouble {age} ago: {status.trouble.text}", style="yellow"))
    return lines


def _own(part: OwnPart) -> str:
    share = f"you computed {part.share:.0%} of the last steps" if part.share is not None else "no step yet"
    doing = f"{part.phase} on {part.machine}" if part.machine else part.phase
    speed = "" if part.phase == "paused" else f"{part.samples_per_second:.1f} samples/s while computing · "
    return (
        f"you: {doing} · {speed}{share} · "
        f"{counted(part.samples, 'sample')} so far · "
        f"sent {format_size(part.bytes_sent)}, received {format_size(part.bytes_received)} · "
        + (f"{part.traffic} · " if part.traffic else "")
        + f"{' and '.join(part.paths) or 'no'} connection"
    )


def _figures(figures: Mapping[str, float]) -> str:
    shown = ", ".join(
        f"{name.removeprefix('heldout_')} {value:.3f}" for name, value in figures.items() if name != "step"
    )
    return f"held out at step {figures['step']:.0f}: {shown}"


def _is_paused(peer: PeerStatus, status: RunStatus) -> bool:
    """Whether a peer takes part in steps, and there are none for now: it may still say that it trains."""
    return peer.status == "paused" or (status.paused and peer.is_in_step)


def _state(peer: PeerStatus, status: RunStatus) -> str:
    """What a peer does."""
    return "paused" if _is_paused(peer, status) else peer.doing or "watching"


def _cells(peer: PeerStatus, status: RunStatus) -> tuple[str, ...]:
    trip = f" {peer.round_trip_s * 1000:.0f} ms" if peer.round_trip_s is not None else ""
    return (
        "this one" if peer.is_self else peer.peer_id[:10],
        peer.role,
        _state(peer, status) if peer.status else peer.part or "watching",
        str(peer.step),
        "-" if _is_paused(peer, status) else f"{peer.samples_per_second:.1f}",
        _known(peer.total_samples, str),
        f"{_known(peer.bytes_sent, format_size)}, {_known(peer.bytes_received, format_size)}",
        f"{peer.path}{trip}" if peer.path else "-",
    )


def _known(total: int | None, shown: Callable[[int], str]) -> str:
    return "-" if total is None else shown(total)
