"""`minga split serve`: begin a run whose model is cut, or go on with one, and serve its end."""

from __future__ import annotations

import time
from pathlib import Path

from rich.markup import escape

from minga.cli.commands import SplitServeCommand
from minga.cli.taking_part.status_view import run_view
from minga.cli.terminal.context import Context, apply_threads, collect_again
from minga.cli.terminal.options import own_run
from minga.cli.terminal.output import Ticker
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted
from minga.monitor.history import FILE_NAME, History
from minga.monitor.watcher import Watcher
from minga.recipes.registry import spelled_out
from minga.recipes.split.taking_part import ServerRun, split_recipe
from minga.training.host import host
from minga.training.plugins_of_run import with_origins


def run_serve(options: SplitServeCommand, context: Context) -> None:
    """Begin the run of a spec, or go on with the one of a folder, until Ctrl-C or for so many batches."""
    output, path = context.output, Path(own_run(str(options.run), options.directory))
    folder = path if path.is_dir() else None
    spec = None if folder is not None else spelled_out(with_origins(RunSpec.from_file(path)), str(path))
    if spec is not None:
        split_recipe(spec)
    apply_threads(options.threads)
    with host(spec, options.peer_options(), resume=folder) as hosted:
        context.wire(hosted)
        run = ServerRun(hosted)
        try:
            collect_again()
            link = str(hosted.link)
            output.event("link", link=link, run_id=hosted.run_id, directory=str(hosted.directory))
            if folder is not None:
                kept = "with the part that is in its folder" if run.resumes else "anew: its folder has no part yet"
                output.say(f"The run goes on {kept}.")
            output.say("Clients, each with data of its own, take part by this link:\n")
            output.say(escape(f"minga split join {link}\n"))
            history = History(hosted.directory / FILE_NAME, most_remembered=0)
            watcher = Watcher(hosted, history, from_start=folder is None)
            with Ticker(output, lambda: run_view(watcher.look())) as ticker:
                while not _is_over(run.server.status.steps, options.batches, context):
                    ticker.check()
                    run.save_if_due()
                    time.sleep(0.1)
            done = run.server.status
        finally:
            run.close()
    served = f"Served {counted(done.steps, 'batch', 'batches')} of {counted(done.clients, 'client')}."
    output.say(escape(f"{served} The server's part: {run.path}"))
    output.summary(ok=True, batches=done.steps, samples=done.samples, clients=done.clients, file=str(run.path))


def _is_over(steps: int, batches: int | None, context: Context) -> bool:
    if batches is not None and steps >= batches:
        return True
    return context.parent_watch is not None and context.parent_watch.is_over(steps)
