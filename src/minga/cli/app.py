"""The command `minga`, with those by which people take part; the others stand in their folders. Everything heavy is
imported by the command that needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.access import amend_app, authority_app, members_app
from minga.cli.diagnosing import diagnosing_app
from minga.cli.keeping import keeping_app, receipts_app
from minga.cli.planning import planning_app
from minga.cli.simulating import simulating_app
from minga.cli.splitting import split_app
from minga.cli.terminal.command_groups import arrange
from minga.cli.terminal.context import make_context
from minga.cli.terminal.exit_codes import EXPLANATION
from minga.cli.terminal.options import (
    Announce,
    Bind,
    Directory,
    Download,
    Ephemeral,
    IdentityFile,
    Json,
    OptionalLink,
    ParentWatchFlag,
    Port,
    Threads,
    Upload,
    Voucher,
    own_run,
)
from minga.cli.watching import watching_app
from minga.recipes.registry import USUAL_RECIPE

app = typer.Typer(
    name="minga",
    help="Train one neural network together with people you do not know, over the internet.",
    epilog=EXPLANATION,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")]
MicroBatch = Annotated[
    int | None,
    typer.Option("--micro-batch", min=1, help="Samples per backward pass (default: what fits; on a processor 16)."),
]
Precision = Annotated[
    str, typer.Option(help="auto, float32, bfloat16 or float16; auto is bfloat16 on GPUs that have it.")
]
CheckpointActivations = Annotated[
    bool,
    typer.Option(
        "--checkpoint-activations", help="Compute activations twice instead of keeping them: less memory, more time."
    ),
]
Offload = Annotated[
    bool,
    typer.Option(
        "--offload", help="Keep the optimizer's state in RAM and update parameters there: less memory of the GPU."
    ),
]
Compiled = Annotated[bool, typer.Option("--compile", help="Let PyTorch compile the model, which takes minutes.")]
Devices = Annotated[
    str, typer.Option(metavar="all|N", help="Compute on all GPUs of this machine, or so many, as one peer.")
]
LogTo = Annotated[
    list[str] | None,
    typer.Option(
        metavar="LOGGER[:PROJECT]", help="Send figures to tensorboard, wandb or trackio, too; may be repeated."
    ),
]


def run_folder_here() -> Path | None:
    """The working directory, if it is the folder of a run."""
    from minga.keeping.rejoin import SPEC_FILE

    here = Path.cwd()
    return here if (here / SPEC_FILE).is_file() else None


@app.callback(invoke_without_command=True)
def _root(
    only_version: Annotated[bool, typer.Option("--version", help="Show the version of minga and exit.")] = False,
) -> None:
    if only_version:
        from importlib import metadata

        typer.echo(metadata.version("minga"))
        raise typer.Exit


@app.command()
def demo(
    minutes: Annotated[float, typer.Option(min=0.1, max=600.0, help="How long to train.")] = 3.0,
    peers: Annotated[int, typer.Option(min=2, max=16, help="Trainers at the start.")] = 3,
    recipe: Annotated[str, typer.Option(metavar="NAME", help="What they train.")] = USUAL_RECIPE,
    directory: Annotated[
        Path | None, typer.Option(help="Where the results go (default: ./minga-demo, numbered).")
    ] = None,
    json_output: Json = False,
) -> None:
    """Train a small model on bundled data with several peers on this machine; kill one, let one join late."""
    ready = make_context(json_output=json_output)
    from minga.cli.demo.demo import DemoOptions, run_demo

    raise typer.Exit(run_demo(DemoOptions(minutes, peers, recipe, directory), ready.output, ready.interruption))


@app.command()
def host(
    spec: Annotated[
        Path | None,
        typer.Argument(metavar="RUN.TOML", help="The run spec; `minga new albert` prints one.", show_default=False),
    ] = None,
    role: Annotated[
        str, typer.Option(help="auxiliary (no gradients; in byzantine runs trainer), trainer, or monitor.")
    ] = "auxiliary",
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    precision: Precision = "auto",
    checkpoint_activations: CheckpointActivations = False,
    offload: Offload = False,
    compiled: Compiled = False,
    threads: Threads = None,
    max_upload: Upload = None,
    max_download: Download = None,
    bind: Bind = None,
    port: Port = 0,
    directory: Directory = None,
    identity: IdentityFile = None,
    ephemeral: Ephemeral = False,
    resume: Annotated[
        Path | None,
        typer.Option(help="Go on with the run in this folder, or of this id, instead of RUN.TOML.", show_default=False),
    ] = None,
    begin_from: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="Begin with the parameters of this run, by folder or id; see model.init_from."
        ),
    ] = None,
    peers: Annotated[
        str | None,
        typer.Option(help='For training.strategy = "auto": who will take part, as `minga plan --peers` takes them.'),
    ] = None,
    announce: Announce = None,
    qr: Annotated[bool, typer.Option(help="Show the link as a QR code, too.")] = True,
    landing_page: Annotated[
        Path | None,
        typer.Option(metavar="OUT.HTML", help="Write a web page with the link and how to join, and beside it minga."),
    ] = None,
    announce_lan: Annotated[
        bool,
        typer.Option("--announce-lan", help="Announce the run in this local network: `minga join` there lists it."),
    ] = False,
    log_to: LogTo = None,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="Serve web pages about the run, too.")] = False,
    dashboard_listen: Annotated[
        str, typer.Option("--dashboard-listen", metavar="ADDRESS:PORT", help="Where; port 0 is any.")
    ] = "127.0.0.1:8471",
    dashboard_url: Annotated[
        str | None, typer.Option("--dashboard-url", help="Where viewers reach it, behind a proxy: https://…")
    ] = None,
    dashboard_public: Annotated[
        bool, typer.Option("--dashboard-public", help="Beyond this machine, every viewer may look.")
    ] = False,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Begin a run, or go on with one: prints ONE link, and stays as monitor, seed and auxiliary.

    Without RUN.TOML, in the folder of a run, it goes on with that run.
    """
    if spec is not None and resume is not None:
        raise typer.BadParameter("a run keeps its settings: name either a run spec or --resume DIRECTORY")
    if begin_from is not None and spec is None:
        raise typer.BadParameter("--from begins a new run: name its run spec, too, such as run.toml")
    if peers is not None and spec is None:
        raise typer.BadParameter("--peers decides with which strategy a run begins: name its run spec, too")
    if spec is None:
        resume = resume or run_folder_here()
    path = spec or (resume and Path(own_run(str(resume), directory)))
    if path is None:
        raise typer.BadParameter("name a run spec, such as run.toml; `minga new albert > run.toml` makes one")
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    from minga.cli.taking_part.host import LinkOptions, run_host
    from minga.cli.terminal.peer_options import peer_options
    from minga.integrations.loggers import LoggerChoice
    from minga.recipes.running.run import Work

    peer = peer_options(
        role,
        identity=identity,
        ephemeral=ephemeral,
        directory=directory,
        max_upload=max_upload,
        max_download=max_download,
        host=bind,
        port=port,
        announce=tuple(announce or ()),
    )
    links = LinkOptions(qr, landing_page, announce_lan)
    work = Work(
        device=device,
        micro_batch=micro_batch,
        threads=threads,
        precision=precision,
        checkpoint_activations=checkpoint_activations,
        compiled=compiled,
        offload=offload,
    )
    loggers = tuple(map(LoggerChoice.parse, log_to or ()))
    shown = None
    if dashboard:
        from minga.cli.watching.open_dashboard import checked_settings

        shown = checked_settings(dashboard_listen, public=dashboard_public, url=dashboard_url)
    run_host(
        path,
        peer,
        work,
        ready,
        links,
        resume=spec is None,
        begin_from=begin_from and own_run(begin_from, directory),
        expected_peers=peers,
        log_to=loggers,
        shown=shown,
    )


@app.command()
def join(
    link: OptionalLink = None,
    role: Annotated[str, typer.Option(help="trainer, client (never dialled), auxiliary or monitor.")] = "trainer",
    device: Device = "auto",
    devices: Devices = "all",
    micro_batch: MicroBatch = None,
    precision: Precision = "auto",
    checkpoint_activations: CheckpointActivations = False,
    offload: Offload = False,
    compiled: Compiled = False,
    threads: Threads = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Own .txt or .jsonl files to train on instead of the run's; may be repeated."),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the loss on held-out text beside training, as the host does.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Take part without being asked, as without a terminal.")
    ] = False,
    only: Annotated[
        str | None, typer.Option(metavar="HOURS", help='Take part only then, such as "22:00-07:00", in local time.')
    ] = None,
    max_traffic: Annotated[
        str | None, typer.Option(metavar="SIZE/PERIOD", help="Up and down together, such as 50GB/month.")
    ] = None,
    max_files: Annotated[
        str, typer.Option(metavar="SIZE", help="Decline a run whose files take more on this disk.")
    ] = "2GB",
    pause_on_battery: Annotated[
        bool, typer.Option("--pause-on-battery", help="Do not take part while this laptop is unplugged.")
    ] = False,
    leave_after_steps: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Leave once this machine took part in N steps.")
    ] = None,
    pause: Annotated[
        bool, typer.Option("--pause", help="Let the peers of this machine pause, from another terminal.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="End such a pause.")] = False,
    max_upload: Upload = None,
    max_download: Download = None,
    bind: Bind = None,
    port: Port = 0,
    directory: Directory = None,
    identity: IdentityFile = None,
    ephemeral: Ephemeral = False,
    login: Annotated[
        str | None, typer.Option(metavar="NAME", help="Log in as this person, where the run asks for it.")
    ] = None,
    secret: Annotated[
        Path | None, typer.Option(help="File with the code or access token to log in with (default: ask).")
    ] = None,
    log_to: LogTo = None,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Take part in a run with this machine; everything else comes with the link. Ctrl-C leaves at any time.

    Without LINK it lists the runs that are announced in this local network, to choose one.
    """
    if pause and resume:
        raise typer.BadParameter("--pause and --resume exclude each other")
    if pause or resume:
        if link is None:
            raise typer.BadParameter("name the LINK of the run, of which the peers of this machine are to pause")
        from minga.cli.taking_part.pause import run_pause

        run_pause(link, directory, make_context(json_output=json_output), paused=pause)
        return
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    if link is None:
        from minga.cli.taking_part.nearby import choose_run

        link = choose_run(bind, ready.output)
    from minga.cli.taking_part.join import JoinOptions, run_join
    from minga.cli.taking_part.login import LoginOptions
    from minga.cli.taking_part.pause import availability_rules
    from minga.cli.terminal.peer_options import peer_options
    from minga.core.units import parse_size
    from minga.integrations.loggers import LoggerChoice
    from minga.recipes.running.run import Work

    peer = peer_options(
        role,
        identity=identity,
        ephemeral=ephemeral,
        directory=directory,
        max_upload=max_upload,
        max_download=max_download,
        host=bind,
        port=port,
    )
    rules = availability_rules(only, max_traffic, pause_on_battery=pause_on_battery)
    most = parse_size(max_files, "--max-files")
    loggers = tuple(map(LoggerChoice.parse, log_to or ()))
    options = JoinOptions(LoginOptions(login, secret), evaluate, yes, rules, leave_after_steps, most, loggers)
    work = Work(
        device, devices, micro_batch, precision, tuple(data or ()), threads, checkpoint_activations, compiled, offload
    )
    run_join(link, peer, work, options, ready)


@app.command()
def status(
    link: OptionalLink = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and update until Ctrl-C.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long to look (default: 3, with --plot 60).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw loss against time and samples into this PNG.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Instead of a LINK: the folder or id of a run here, or the history.jsonl in it.")
    ] = None,
    identity: Voucher = None,
    bind: Bind = None,
    directory: Directory = None,
    json_output: Json = False,
) -> None:
    """Look at a run without taking part: step, loss, peers by role and state, speed."""
    ready = make_context(json_output=json_output)
    from minga.cli.taking_part.status import StatusOptions, run_status
    from minga.cli.terminal.peer_options import peer_options

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=directory, host=bind)
    kept = history and Path(own_run(str(history), directory))
    run_status(link, peer, StatusOptions(watch, seconds, plot, kept), ready)


for group in (
    members_app,
    amend_app,
    authority_app,
    watching_app,
    keeping_app,
    receipts_app,
    split_app,
    planning_app,
    simulating_app,
    diagnosing_app,
):
    group.add_commands(app)
arrange(app)
