"""`minga split serve` and `minga split join`: serve the end of a model that is cut, and train it with own data."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

from minga.cli.commands import SplitJoinCommand, SplitServeCommand
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.taking_part.status import run_view
from minga.cli.terminal.context import Context, apply_threads, collect_again
from minga.cli.terminal.options import own_run
from minga.cli.terminal.output import Display, Ticker
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_size
from minga.monitor.history import FILE_NAME, History
from minga.monitor.watcher import Watcher
from minga.recipes.registry import check_published, spelled_out
from minga.recipes.split.taking_part import ClientRun, ServerRun, split_recipe
from minga.training.host import host
from minga.training.join import join
from minga.training.plugins_of_run import with_origins
from minga.training.status.status_reader import StatusReader


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
            output.say_whole(f"minga split join {link}\n")
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
    output.say(f"{served} The server's part: {run.path}")
    output.summary(ok=True, batches=done.steps, samples=done.samples, clients=done.clients, file=str(run.path))


def run_split_join(options: SplitJoinCommand, context: Context) -> None:
    """Train until Ctrl-C, or for so many batches."""
    output = context.output
    output.say("Looking for the run …")
    person = PersonAtTerminal(options.login, options.secret, output)
    with join(options.link, options.peer_options(), person) as joined:
        context.wire(joined)
        check_published(joined.spec)
        split_recipe(joined.spec)
        apply_threads(options.threads)
        run = ClientRun(joined, data=options.data, number=options.part, batch_size=options.batch)
        output.event(
            "split.joined", peer=joined.peer_id, samples=len(run.samples.labels), variant=joined.spec.split.variant
        )
        output.say(_first_words(run))
        collect_again()
        reader = StatusReader(joined)

        def look() -> Display:
            view = run_view(reader.look().status, own=f" · {_own(run)}")
            own = {"batches": run.batches, "loss": run.loss if run.batches else None}
            return replace(view, values={**view.values, "own": own})

        try:
            with Ticker(output, look) as ticker:

                def is_over() -> bool:
                    ticker.check()
                    return _is_over(run.batches, options.batches, context)

                run.train(is_over)
            found = run.evaluate()
            sent, received = joined.on_loop(joined.session.node.traffic)
        finally:
            run.close()
    told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    trained = f"Trained on {counted(run.batches, 'batch', 'batches')}{f': {told}' if told else ''}."
    kept = joined.directory if joined.spec.split.averages_clients else run.folder
    output.say(f"{trained} This client's parts: {kept}")
    output.summary(
        ok=True, batches=run.batches, bytes_sent=sent, bytes_received=received, **found, directory=str(run.folder)
    )


def _is_over(done: int, wanted: int | None, context: Context) -> bool:
    return context.is_over(done) or (wanted is not None and done >= wanted)


def _first_words(run: ClientRun) -> str:
    section, size = run.client.peer.spec.split, run.samples.inputs.numel() * run.samples.inputs.element_size()
    stays = "inputs and labels stay here" if section.variant == "u-shaped" else "inputs stay here, labels do not"
    known = " It goes on with the parts that are in its folder." if run.resumes else ""
    example = "" if run.part is None else f" of the example, part {run.part}"
    return (
        f"This client trains on {counted(len(run.samples.labels), 'sample')}{example} ({format_size(size)}): "
        f"{stays}.{known} "
        "docs/split-learning.md says what the server can find out all the same."
    )


def _own(run: ClientRun) -> str:
    return f"you: {counted(run.batches, 'batch', 'batches')}" + (f", loss {run.loss:.4f}" if run.batches else "")
