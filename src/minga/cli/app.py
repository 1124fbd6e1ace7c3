"""The commands and their options. Everything heavy is imported by the command that needs it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from minga.cli.access import amend_app, authority_app, members_app
from minga.cli.terminal.command_groups import arrange
from minga.cli.terminal.context import collect_again, make_context
from minga.cli.terminal.exit_codes import EXPLANATION
from minga.cli.terminal.options import Bind, Directory, Json, LinkArgument, OptionalLink
from minga.recipes.registry import USUAL_MODEL, USUAL_RECIPE

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

IdentityFile = Annotated[Path | None, typer.Option("--identity", help="Key file (default: in the user's data folder).")]
Voucher = Annotated[
    Path | None,
    typer.Option("--identity", help="In a run for members: the key file of a member (default: in the data folder)."),
]
Ephemeral = Annotated[bool, typer.Option("--ephemeral", help="Use a new key that is forgotten at the end.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps, …")]
MicroBatch = Annotated[
    int | None, typer.Option("--micro-batch", min=1, help="Samples per backward pass (default: by device).")
]
Threads = Annotated[int | None, typer.Option(min=1, max=1024, help="CPU threads to compute with (default: all cores).")]
Upload = Annotated[
    str | None,
    typer.Option("--max-upload", help='Send no faster than this, such as 10Mbit or "10Mbit, 50Mbit 23:00-07:00".'),
]
Download = Annotated[str | None, typer.Option("--max-download", help="Receive no faster than this; as above.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="UDP port; keep it, and the link stays valid. 0: any.")]
ParentWatchFlag = Annotated[bool, typer.Option("--leash", hidden=True)]


def run_folder_here() -> Path | None:
    """The working directory, if it is the folder of a run."""
    from minga.training.run_folder.rejoin import SPEC_FILE

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
        Path | None, typer.Argument(metavar="RUN.TOML", help="The run spec; --example shows one.", show_default=False)
    ] = None,
    role: Annotated[
        str, typer.Option(help="auxiliary (no gradients; in byzantine runs trainer), trainer, or monitor.")
    ] = "auxiliary",
    device: Device = "auto",
    micro_batch: MicroBatch = None,
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
        typer.Option(help="Go on with the run in this folder, in the place of RUN.TOML.", show_default=False),
    ] = None,
    begin_from: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="RUN", help="Begin with the parameters of this run's folder; see model.init_from."
        ),
    ] = None,
    announce: Annotated[
        list[str] | None,
        typer.Option(
            metavar="IP[:PORT]", help="Address at which others reach this machine behind NAT; may be repeated."
        ),
    ] = None,
    qr: Annotated[bool, typer.Option(help="Show the link as a QR code, too.")] = True,
    landing_page: Annotated[
        Path | None, typer.Option(metavar="OUT.HTML", help="Write a web page with the link and how to join.")
    ] = None,
    example: Annotated[bool, typer.Option("--example", help="Print a commented run spec and exit.")] = False,
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Begin a run, or go on with one: prints ONE link, and stays as monitor, seed and auxiliary.

    Without RUN.TOML, in the folder of a run, it goes on with that run.
    """
    if example:
        from minga.recipes.registry import example_toml

        typer.echo(example_toml(USUAL_RECIPE), nl=False)
        return
    if spec is not None and resume is not None:
        raise typer.BadParameter("a run keeps its settings: name either a run spec or --resume DIRECTORY")
    if begin_from is not None and spec is None:
        raise typer.BadParameter("--from begins a new run: name its run spec, too, such as run.toml")
    if spec is None:
        resume = resume or run_folder_here()
    path = spec or resume
    if path is None:
        raise typer.BadParameter("name a run spec, such as run.toml; `minga host --example > run.toml` makes one")
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    from minga.cli.taking_part.host import LinkOptions, run_host
    from minga.cli.terminal.peer_options import WorkOptions, peer_options

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
    links = LinkOptions(qr, landing_page)
    run_host(
        path, peer, WorkOptions(device, micro_batch, threads), ready, links, resume=spec is None, begin_from=begin_from
    )


@app.command()
def join(
    link: LinkArgument,
    role: Annotated[str, typer.Option(help="trainer, client (never dialled), auxiliary or monitor.")] = "trainer",
    device: Device = "auto",
    micro_batch: MicroBatch = None,
    threads: Threads = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Own .txt or .jsonl files to train on instead of the run's; may be repeated."),
    ] = None,
    evaluate: Annotated[
        bool, typer.Option("--evaluate", help="Measure the loss on held-out text beside training, as the host does.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Take part without being asked.")] = False,
    only: Annotated[
        str | None, typer.Option(metavar="HOURS", help='Take part only then, such as "22:00-07:00", in local time.')
    ] = None,
    max_traffic: Annotated[
        str | None, typer.Option(metavar="SIZE/PERIOD", help="Up and down together, such as 50GB/month.")
    ] = None,
    pause_on_battery: Annotated[
        bool, typer.Option("--pause-on-battery", help="Do not take part while this laptop is unplugged.")
    ] = False,
    leave_after_step: Annotated[int | None, typer.Option(min=1, help="Leave once this step is taken.")] = None,
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
    parent_watch: ParentWatchFlag = False,
    json_output: Json = False,
) -> None:
    """Take part in a run with this machine; everything else comes with the link. Ctrl-C leaves at any time."""
    if pause and resume:
        raise typer.BadParameter("--pause and --resume exclude each other")
    if pause or resume:
        from minga.cli.taking_part.pause import run_pause

        run_pause(link, directory, make_context(json_output=json_output), paused=pause)
        return
    ready = make_context(json_output=json_output, parent_watch=parent_watch, slow_imports=True)
    from minga.cli.taking_part.join import JoinOptions, run_join
    from minga.cli.taking_part.login import LoginOptions
    from minga.cli.taking_part.pause import availability_rules
    from minga.cli.terminal.peer_options import WorkOptions, peer_options

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
    options = JoinOptions(LoginOptions(login, secret), evaluate, yes, rules, leave_after_step)
    run_join(link, peer, WorkOptions(device, micro_batch, threads, tuple(data or ())), options, ready)


@app.command()
def status(
    link: OptionalLink = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay and update until Ctrl-C.")] = False,
    seconds: Annotated[
        float | None, typer.Option(min=0.1, help="How long to look (default: 3, with --plot 60).")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw loss against time and samples into this PNG.")] = None,
    history: Annotated[
        Path | None, typer.Option(help="Instead of a LINK: the history.jsonl that `minga host` keeps in its folder.")
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
    run_status(link, peer, StatusOptions(watch, seconds, plot, history), ready)


@app.command()
def plan(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|LINK]", help="A TOML file of peers, or a run's link.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="Instead, with --peers: a model (gpt2, …), 18M (parameters), a run spec or .safetensors file"
        ),
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help='Such as "20x(t4, up=50Mbit, down=200Mbit); 4x(a100, 1Gbit); (aux, 1Gbit)".')
    ] = None,
    target_batch: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="Samples of a step (default: 4096).")
    ] = None,
    codec: Annotated[
        str | None, typer.Option(help="adaptive, float32, float16, bfloat16, int8 (default: the best).")
    ] = None,
    strategy: Annotated[str | None, typer.Option(help="synchronous or delayed (default: the best).")] = None,
    optimizer: Annotated[str | None, typer.Option(help="lamb, adamw, sgd or lars, for memory (default: lamb).")] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="Tokens of a sample (default: by model).")
    ] = None,
    precision: Annotated[str, typer.Option(help="single, as recipes train, or half; for estimated speeds.")] = "single",
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """What a run will reach with given machines, before it exists; or who reduces how much and why, in a live one."""
    ready = make_context(json_output=json_output)
    if (source is None) == (model is None or peers is None) or (source is not None and (model or peers)):
        raise typer.BadParameter("give either a FILE or LINK, or both --model and --peers")
    given = {
        "target-batch": target_batch,
        "codec": codec,
        "strategy": strategy,
        "optimizer": optimizer,
        "tokens": tokens,
    }
    if source is not None and (idle := [f"--{name}" for name, value in given.items() if value is not None]):
        raise typer.BadParameter(f"{', '.join(idle)}: only with --model; the FILE or LINK says what its run does")
    if source is None:
        from minga.cli.planning.forecast import ForecastOptions, run_forecast

        wanted = ForecastOptions(str(model), str(peers), target_batch, codec, strategy, optimizer, tokens, precision)
        run_forecast(wanted, ready)
        return
    from minga.cli.planning.plan import run_plan
    from minga.cli.terminal.peer_options import peer_options

    run_plan(
        source,
        peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind),
        ready,
    )


@app.command(name="bench-device")
def bench_device(
    model: Annotated[str, typer.Option(help="A recipe and its size, or a run spec.")] = USUAL_MODEL,
    device: Annotated[list[str] | None, typer.Option(help="Only this device; may be repeated (default: all).")] = None,
    tokens: Annotated[int | None, typer.Option(min=16, max=8192, help="Tokens of a sample (default: 512).")] = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=600.0, help="How long to measure each micro-batch.")] = 5.0,
    threads: Threads = None,
    json_output: Json = False,
) -> None:
    """Measure how fast this machine trains a model; `minga plan` calls it `this` from then on."""
    ready = make_context(json_output=json_output, slow_imports=True)
    from minga.cli.planning.bench_device import run_bench_device

    run_bench_device(model, device, tokens, seconds, threads, ready)


@app.command()
def sim(
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="FILE|NAME", help="A scenario in TOML, or one that comes with minga.", show_default=False
        ),
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Another value, such as peers.home.count=20; may be repeated."),
    ] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option("--sweep", metavar="KEY=A,B,C", help="One run for each value; several: for each combination."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw loss, round anatomy, peers and traffic into this folder.")
    ] = None,
    log: Annotated[Path | None, typer.Option(help="Write the event log, for `minga replay`.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the scenarios that come with minga, and exit.")] = False,
    json_output: Json = False,
) -> None:
    """Run a swarm on virtual time: the code that runs in the wild, with simulated lines, churn and faults."""
    if source is None and not listed:
        raise typer.BadParameter(
            "name a scenario, such as home-150; `minga sim --list` names those that come with minga"
        )
    ready = make_context(json_output=json_output, slow_imports=True)
    from minga.cli.simulating.sim import SimOptions, list_scenarios, run_sim

    collect_again()
    if source is None or listed:
        list_scenarios(ready)
        return
    raise typer.Exit(run_sim(source, SimOptions(tuple(changes or ()), tuple(sweep or ()), plot, log), ready))


@app.command()
def replay(
    log: Annotated[Path, typer.Argument(metavar="LOG", help="What `minga sim --log` wrote.", show_default=False)],
    step: Annotated[int | None, typer.Option(min=1, help="Only this step, with all that happened in it.")] = None,
    json_output: Json = False,
) -> None:
    """Show a simulation step by step: who led, who took part, where the time went, faults and recoveries."""
    ready = make_context(json_output=json_output)
    from minga.cli.simulating.replay import run_replay

    run_replay(log, step, ready)


@app.command()
def trace(
    seed: Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Another swarm; equal seeds, equal traces.")] = 0,
    peer: Annotated[
        list[str] | None, typer.Option(help="Only this one, such as peer-1; may be repeated (default: two).")
    ] = None,
    whole: Annotated[bool, typer.Option("--all", help="Every peer and every call from file to file.")] = False,
    json_output: Json = False,
) -> None:
    """Show one step of four simulated trainers as a sequence: which file and function, when, what peers send."""
    ready = make_context(json_output=json_output, slow_imports=True)
    from minga.cli.simulating.trace import run_trace

    collect_again()
    run_trace(seed, peer or (), ready, whole=whole)


@app.command()
def evidence(
    directory: Annotated[
        Path, typer.Argument(metavar="DIRECTORY", help="The folder of a run, as told by events.", show_default=False)
    ],
    json_output: Json = False,
) -> None:
    """Check why members of a run with strangers were banned, from the evidence in the run's folder."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.evidence import run_evidence

    raise typer.Exit(run_evidence(directory, ready))


@app.command()
def doctor(
    link: Annotated[
        str | None,
        typer.Argument(metavar="[LINK]", help="The link of a run, to check the way into it.", show_default=False),
    ] = None,
    identity: IdentityFile = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Check this machine, and with a LINK the way into its run; names the hop that fails and what to do."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.doctor import run_doctor

    raise typer.Exit(run_doctor(link, identity, bind, ready.output))


@app.command()
def runs(
    remove: Annotated[
        str | None, typer.Option(help="Delete the folder of the run with an id that begins like this.")
    ] = None,
    directory: Directory = None,
    json_output: Json = False,
) -> None:
    """List the runs that lie on this machine, with step, age and size; --remove deletes one."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.runs import run_runs

    run_runs(directory, remove, ready)


PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File with the passphrase; without it you are asked.")
]


@app.command()
def backup(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The run's folder, which `minga host` and `minga runs` show.")
    ],
    out: Annotated[Path, typer.Option(help="The file to write, which must not be there.", show_default=False)],
    identity: IdentityFile = None,
    passphrase_file: PassphraseFile = None,
    json_output: Json = False,
) -> None:
    """Write key, files and newest checkpoint of a run that you organise into one encrypted file."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.backup import run_backup

    run_backup(run, out, identity, passphrase_file, ready)


@app.command()
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


@app.command()
def version(json_output: Json = False) -> None:
    """Show the versions of minga, of its wire format, and of the libraries under it."""
    ready = make_context(json_output=json_output)
    from minga.cli.diagnosing.version import run_version

    run_version(ready)


@app.command()
def export(
    out: Annotated[Path, typer.Option(help="New or empty directory for the model.", show_default=False)],
    link: OptionalLink = None,
    directory: Annotated[
        Path | None, typer.Option(help="Instead of a LINK: the folder of a run on this machine.")
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
    run_export(link, directory, out, peer, ready)


@app.command()
def sample(
    source: Annotated[
        str, typer.Argument(metavar="RUN", help="The link of a run, or its folder on this machine.", show_default=False)
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
    clip: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER|ID", help="(images) Draw 128 a prompt, and keep those that this CLIP model likes."
        ),
    ] = None,
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """Let the model of a run go on from prompts."""
    ready = make_context(json_output=json_output)
    from minga.cli.keeping.sample import Pictures, run_sample
    from minga.cli.terminal.peer_options import peer_options
    from minga.recipes.interface import SampleOptions

    peer = peer_options("monitor", identity=None, ephemeral=True, voucher=identity, directory=None, host=bind)
    options = SampleOptions(n, temperature, top_k, top_p, guidance, length, seed)
    run_sample(source, prompts, options, Pictures(out, clip), peer, ready)


members_app.add_commands(app)
amend_app.add_commands(app)
authority_app.add_commands(app)
arrange(app)
