"""`minga split stand-by`: follow the server of a run whose model is cut, and serve when it is gone."""

from __future__ import annotations

import time
from collections.abc import Iterator

from rich.markup import escape

from minga.cli.taking_part.status_view import PlainTrouble, headline, organiser_view, run_figures
from minga.cli.terminal.context import Context, collect_again
from minga.cli.terminal.output import Ticker
from minga.cli.terminal.peer_options import apply_threads, wire
from minga.core.errors import ConfigurationError
from minga.core.units import counted
from minga.recipes.registry import check_published
from minga.recipes.split.taking_part import ServerRun, split_recipe
from minga.split.finding import allowed_servers
from minga.split.serving import SplitStatus
from minga.training.join import PeerOptions, join
from minga.training.status.run_status import RunStatus
from minga.training.status.status_reader import StatusReader


def run_stand_by(link: str, peer: PeerOptions, context: Context, *, threads: int | None) -> None:
    """Stand by, and serve where need be, until Ctrl-C."""
    output = context.output
    output.say("Looking for the run …")
    with join(link, peer) as joined:
        wire(context, joined)
        check_published(joined.spec)
        split_recipe(joined.spec)
        if joined.peer_id not in allowed_servers(joined.spec):
            raise ConfigurationError(
                f"clients of this run send nothing to this machine's key, {joined.peer_id}: it has to stand in "
                "split.servers of the run spec with which the run begins"
            )
        apply_threads(threads)
        run = ServerRun(joined, stands_by=True)
        try:
            output.event("split.stands_by", peer=joined.peer_id)
            output.say("Standing by: this machine serves the clients when the server is gone. Ctrl-C ends it.")
            collect_again()
            reader, trouble = StatusReader(joined), PlainTrouble()

            def plain(status: RunStatus) -> Iterator[str]:
                yield f"{headline(status)} · {_own(run.server.status)}"
                yield from trouble.lines(status)

            with Ticker(
                output, lambda: reader.look().status, lambda status: organiser_view(status, {}), plain, run_figures
            ) as ticker:
                while context.parent_watch is None or not context.parent_watch.is_over(run.server.status.steps):
                    ticker.check()
                    run.save_if_due()
                    time.sleep(0.1)
            done = run.server.status
        finally:
            run.close()
    output.say(escape(f"This machine was {_own(done)}{'' if done.stands_by else f'; the part: {run.path}'}."))
    output.summary(ok=True, batches=done.steps, stands_by=done.stands_by)


def _own(status: SplitStatus) -> str:
    if status.stands_by:
        return f"standing by, with a checkpoint of {counted(status.steps, 'batch', 'batches')}"
    return f"serving: {counted(status.steps, 'batch', 'batches')} of {counted(status.clients, 'client')}"
