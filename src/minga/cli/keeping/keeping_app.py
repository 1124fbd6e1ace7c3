"""The commands about what lies on this machine, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Directory, IdentityFile, Json, OptionalLink, Threads, Voucher, own_run

PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File with the passphrase; without it you are asked.")
]


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    for command in (runs, backup, restore, export, sample, evaluate):
        app.command()(command)


def runs(
    remove: Annotated[
        str | None, typer.Option(help="Delete the folder of the run with an id that begins like this.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="(--remove) Delete it without being asked.")] = False,
    directory: Directory = None,
    json_output: Json = False,
) -> None:
    """List the runs that lie on this machine, with step, age and size; --remove deletes one."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.runs import run_runs

    run_runs(directory, remove, ready, yes=yes)


def backup(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder or id, which `minga host` and `minga runs` show.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write, which must not be there.", show_default=False)],
    identity: IdentityFile = None,
    passphrase_file: PassphraseFile = None,
    json_output: Json = False,
) -> None:
    """Write key, files and newest checkpoint of a run that you organise into one encrypted file."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.backup import run_backup

    run_backup(Path(own_run(str(run))), out, identity, passphrase_file, ready)


def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What `minga backup` wrote.")],
    directory: Directory = None,
    identity: Annotated[
        Path | None, typer.Option(help="Where the organiser's key goes (default: this user's key file, if free).")
    ] = None,
    passphrase_file: PassphraseFile = None,
    json_output: Json = False,
) -> None:
    """Lay a run down on this machine again, from what `minga backup` wrote."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.backup import run_restore

    run_restore(file, directory, identity, passphrase_file, ready)


def export(
    out: Annotated[Path, typer.Option(help="New or empty directory for the model.", show_default=False)],
    link: OptionalLink = None,
    directory: Annotated[
        Path | None, typer.Option(help="Instead of a LINK: the folder, or id, of a run on this machine.")
    ] = None,
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Write the model as transformers loads it, from a live run or from the newest checkpoint of a run's folder."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.export import run_export
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind)
    run_export(link, directory and Path(own_run(str(directory))), out, peer, ready)


def sample(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="The link of a run, or its folder or id here.", show_default=False)
    ],
    prompts: Annotated[
        list[str], typer.Argument(metavar="PROMPT...", help="What the model goes by.", show_default=False)
    ],
    n: Annotated[int, typer.Option("--n", min=1, max=4096, help="Samples of each prompt.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, max=100.0, help="Below 1: likelier ones; 0: likeliest.")] = 1.0,
    top_k: Annotated[int, typer.Option(min=0, max=2**31, help="Choose among so many; 0: among all.")] = 0,
    top_p: Annotated[float, typer.Option(min=0.0, max=1.0, help="Choose among those of this probability.")] = 1.0,
    guidance: Annotated[float, typer.Option(min=0.0, max=1000.0, help="(images) Above 1: closer to the prompt.")] = 1.0,
    length: Annotated[int, typer.Option(min=1, max=2**20, help="(texts) At most so many new tokens.")] = 64,
    seed: Annotated[int, typer.Option(min=0, max=2**63 - 1, help="Equal seeds, equal samples.")] = 0,
    out: Annotated[
        Path | None, typer.Option(metavar="GRID.PNG", help="(images) Where they go (default: samples.png).")
    ] = None,
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Let the model of a run go on from prompts."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.sample import run_sample
    from minga.cli.terminal.peer_options import peer_options
    from minga.recipes.interface import SampleOptions

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind)
    options = SampleOptions(n, temperature, top_k, top_p, guidance, length, seed)
    run_sample(source, prompts, options, out, peer, ready)


def evaluate(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL", help="A folder of `minga export`, or OWNER/NAME on the hub.", show_default=False
        ),
    ],
    task: Annotated[
        str | None,
        typer.Option(
            help="Of language models: ner (named entities), ncc (classes of texts). Default: the first of the recipe.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            help="The examples of the task: a file, a folder or hub:OWNER/NAME[:CONFIG].",
            show_default=False,
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, max=100, help="Repeat so often, each time with another seed.")] = 3,
    examples: Annotated[
        int | None, typer.Option(min=1, help="Train on so many examples only (default: on all of the training part).")
    ] = None,
    threads: Threads = None,
    json_output: Json = False,
) -> None:
    """Try a trained model on a task, beside the same model from scratch."""
    ready = make_context(json_output=json_output, slow_imports=True)
    from minga.cli.keeping.evaluate import run_evaluate
    from minga.cli.terminal.peer_options import apply_threads

    apply_threads(threads)
    run_evaluate(model, task, data, runs, examples, ready)
