"""The commands that plan a run, and their options."""

from __future__ import annotations

from typing import Annotated

import typer

from minga.cli.terminal.context import make_context
from minga.cli.terminal.options import Bind, Json, Threads, Voucher
from minga.recipes.registry import USUAL_MODEL


def add_commands(app: typer.Typer) -> None:
    """Add them to the command `minga`."""
    app.command()(plan)
    app.command(name="bench-device")(bench_device)
    app.command()(recipes)
    app.command()(new)
    app.command()(notebook)


def plan(
    source: Annotated[
        str | None,
        typer.Argument(metavar="[FILE|LINK]", help="A TOML file of peers, or a run's link.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead: a model (gpt2, …), 18M (parameters), a run spec or .safetensors file"),
    ] = None,
    peers: Annotated[
        str | None, typer.Option(help='Such as "20x(t4, up=50Mbit, down=200Mbit); 4x(a100, 1Gbit); (aux, 1Gbit)".')
    ] = None,
    target_batch: Annotated[
        int | None, typer.Option(min=1, max=2**24, help="Samples of a step (default: 4096).")
    ] = None,
    codec: Annotated[
        str | None, typer.Option(help='adaptive, float16, int8, "int4(block=64)", topk, … (default: the best).')
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(help="synchronous, delayed, local, leader, elastic or demo (default: the best).")
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="lamb, adamw, sgd, lars or larc, for memory (default: lamb).")
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(min=1, max=1 << 20, help="Tokens of a sample (default: by model).")
    ] = None,
    precision: Annotated[
        str, typer.Option(help="single, half, or auto: half where `minga join` computes in it.")
    ] = "auto",
    memory: Annotated[
        str | None,
        typer.Option(help="Instead of --peers: what one device has, such as 8GB; shows which micro-batch fits."),
    ] = None,
    state_bits: Annotated[int | None, typer.Option(help="With --memory: 8 or 32 bits for each moment.")] = None,
    offload: Annotated[
        bool, typer.Option("--offload", help="With --memory: the optimizer works in RAM, as with `minga join`.")
    ] = False,
    checkpoint_activations: Annotated[
        bool, typer.Option("--checkpoint-activations", help="With --memory: activations are computed twice.")
    ] = False,
    identity: Voucher = None,
    bind: Bind = None,
    json_output: Json = False,
) -> None:
    """What a run will reach with given machines, before it exists; or who reduces how much and why, in a live one."""
    ready = make_context(json_output=json_output)
    ways = [source is not None, model is not None and peers is not None, model is not None and memory is not None]
    if sum(ways) != 1 or (source is not None and (model or peers or memory)):
        raise typer.BadParameter("give a FILE or LINK, or --model with either --peers or --memory")
    if memory is None and (state_bits is not None or offload or checkpoint_activations):
        raise typer.BadParameter("--state-bits, --offload and --checkpoint-activations: only with --memory")
    if memory is not None and (target_batch is not None or codec is not None):
        raise typer.BadParameter("--target-batch and --codec: only with --peers")
    given = {
        "target-batch": target_batch,
        "codec": codec,
        "strategy": strategy,
        "optimizer": optimizer,
        "tokens": tokens,
    }
    if source is not None and (idle := [f"--{name}" for name, value in given.items() if value is not None]):
        raise typer.BadParameter(f"{', '.join(idle)}: only with --model; the FILE or LINK says what its run does")
    if memory is not None:
        from minga.cli.planning.memory import MemoryOptions, run_memory

        asked = MemoryOptions(
            str(model), memory, strategy, optimizer, state_bits, tokens, precision, offload, checkpoint_activations
        )
        run_memory(asked, ready)
        return
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


def recipes(json_output: Json = False) -> None:
    """List what can be trained: the recipes that come with minga, and those of installed packages."""
    ready = make_context(json_output=json_output)
    from minga.cli.planning.recipes import run_recipes

    run_recipes(ready)


def new(
    recipe: Annotated[str, typer.Argument(help="One of `minga recipes`.", show_default=False)],
    size: Annotated[
        str | None, typer.Option(help="One of its sizes (default: what a demo on two CPU cores takes).")
    ] = None,
    json_output: Json = False,
) -> None:
    """Print a run spec to begin with: every setting, with its meaning and what is allowed."""
    ready = make_context(json_output=json_output)
    from minga.cli.planning.recipes import run_new

    run_new(recipe, size, ready)


def notebook(
    link: Annotated[
        str | None, typer.Argument(metavar="[LINK]", help="The run to take part in.", show_default=False)
    ] = None,
    organise: Annotated[bool, typer.Option("--organise", help="One that describes, plans and hosts a run.")] = False,
    install: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE",
            help="Where the notebook gets minga: a wheel's address, a folder or a file (default: it holds a copy).",
        ),
    ] = None,
    json_output: Json = False,
) -> None:
    """Print a notebook for Colab, Kaggle or Jupyter that joins a run, or begins one; write it to a file with `>`."""
    ready = make_context(json_output=json_output)
    if organise and link is not None:
        raise typer.BadParameter("a notebook with --organise begins a run of its own, without a LINK")
    from minga.cli.planning.notebook import run_notebook

    run_notebook(link, install, ready, organise=organise)
