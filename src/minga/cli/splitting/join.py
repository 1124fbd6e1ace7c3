"""`minga split join`: train a model that is cut with the samples of this machine."""

from __future__ import annotations

from dataclasses import replace

from rich.markup import escape

from minga.cli.commands import SplitJoinCommand
from minga.cli.taking_part.login import PersonAtTerminal
from minga.cli.taking_part.status_view import run_view
from minga.cli.terminal.context import Context, apply_threads, collect_again
from minga.cli.terminal.output import Display, Ticker
from minga.core.units import counted, format_size
from minga.recipes.registry import check_published
from minga.recipes.split.taking_part import ClientRun, split_recipe
from minga.training.join import join
from minga.training.status.status_reader import StatusReader


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
        output.say(escape(_first_words(run)))
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
                    if context.parent_watch is not None and context.parent_watch.is_over(run.batches):
                        return True
                    return options.batches is not None and run.batches >= options.batches

                run.train(is_over)
            found = run.evaluate()
            sent, received = joined.on_loop(joined.session.node.traffic)
        finally:
            run.save()
    told = ", ".join(f"{name} {value:.4f}" for name, value in found.items())
    trained = f"Trained on {counted(run.batches, 'batch', 'batches')}{f': {told}' if told else ''}."
    output.say(escape(f"{trained} This client's parts: {run.folder}"))
    output.summary(
        ok=True, batches=run.batches, bytes_sent=sent, bytes_received=received, **found, directory=str(run.folder)
    )


def _first_words(run: ClientRun) -> str:
    section, size = run.client.peer.spec.split, run.samples.inputs.numel() * run.samples.inputs.element_size()
    stays = "inputs and labels stay here" if section.variant == "u-shaped" else "inputs stay here, labels do not"
    known = " It goes on with the parts that are in its folder." if run.resumes else ""
    return (
        f"This client trains on {counted(len(run.samples.labels), 'sample')} ({format_size(size)}): {stays}.{known} "
        "docs/split-learning.md says what the server can find out all the same."
    )


def _own(run: ClientRun) -> str:
    return f"you: {counted(run.batches, 'batch', 'batches')}" + (f", loss {run.loss:.4f}" if run.batches else "")
