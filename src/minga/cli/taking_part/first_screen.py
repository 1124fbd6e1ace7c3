"""What a run will cost this machine, shown before anything large is downloaded."""

from __future__ import annotations

import math
import shutil
import time
from dataclasses import asdict, dataclass, replace
from typing import Final

import typer

from minga.averaging.solver.division import PeerRates
from minga.averaging.strategy_choice import largest_strategy
from minga.cli.commands import JoinCommand
from minga.cli.diagnosing.machine import Needs, data_folder, model_of, total_memory
from minga.cli.terminal.output import Output
from minga.core.errors import ConfigurationError
from minga.core.rate_cap import RateCap
from minga.core.spec.run_spec import RunSpec
from minga.core.units import counted, format_duration, format_size
from minga.keeping.availability import ADVANCE, TrafficLimit
from minga.network.probing import MAX_DAY_BYTES, most_probe_bytes
from minga.planner.device_memory import counted_passes, device_memory
from minga.planner.explanation import PeerTask, explain
from minga.planner.model_facts import facts_of_recipe
from minga.recipes.registry import CUSTOM, check_installed, load_recipe
from minga.recipes.running.devices import choose_devices, machine_name
from minga.recipes.running.micro_batch import check_wished
from minga.recipes.running.precision import FORMATS, Precision, choose_precision
from minga.training.join import PeerOptions
from minga.training.prospect import Prospect
from minga.training.transfer.run_files import lies_in

USUAL_UPLOAD: Final = 20e6 / 8
USUAL_DOWNLOAD: Final = 100e6 / 8
"""Bytes per second of a line that nothing is known of: 20 and 100 Mbit/s, as many homes have."""


@dataclass(frozen=True)
class Costs:
    """What this machine would give. Bytes; None where it is not known before joining.

    `is_streamed`: training data come from elsewhere all the time. `download_bytes` is what comes at the start: the
    files of the run (`files_bytes`) and its state. Beside that a probe of the line takes `probe_upload_bytes` and
    `probe_download_bytes` at most, and all of a day `probes_day_bytes`. `upload` and `download` are the rates, in bytes
    per second, that `upload_per_day` and `download_per_day` were worked out with; `capped` says whether the owner of
    the machine set them; `traffic_limit` is the budget that they set, in words, of `limit_bytes`. `limit_days` and
    `limit_steps` say how long that lasts at these rates, beside what starts take. If it is not enough for one
    start and some steps, `least_limit` is the smallest that is.
    """

    name: str
    run_id: str
    organiser: str
    recipe: str
    parameters: int | None
    device: str
    memory_bytes: int | None
    memory_here: int | None
    disk_bytes: int | None
    disk_free: int
    files_bytes: int
    is_streamed: bool
    download_bytes: int | None
    probe_upload_bytes: int
    probe_download_bytes: int
    probes_day_bytes: int
    peers: int
    upload: float
    download: float
    capped: bool
    traffic_limit: str | None
    limit_bytes: float | None
    least_limit: str | None
    limit_days: float | None
    limit_steps: int | None
    upload_per_day: float | None
    download_per_day: float | None

    @property
    def start_bytes(self) -> int:
        """What a start takes, in both directions together."""
        return (self.download_bytes or 0) + self.probe_upload_bytes + self.probe_download_bytes


def affords_probes(peer: PeerOptions, limit: TrafficLimit | None) -> bool:
    """Whether to measure the line: a small budget of traffic is not spent on that."""
    return limit is None or sum(most_probe_bytes(_rate(cap)) for cap in peer.caps()) <= ADVANCE * limit.limit_bytes


def costs_of(prospect: Prospect, peer: PeerOptions, work: JoinCommand, limit: TrafficLimit | None = None) -> Costs:
    """Work it out, by the recipe's facts and by the plan that the run's next leader would make with this peer in it."""
    spec = prospect.spec
    if work.base_bits is not None:
        spec = spec.with_recipe_settings(load_recipe(spec).own_base(work.base_bits).settings.model_dump(mode="json"))
    model = model_of(spec)
    parameters = None if model is None else model.parameters
    needs = None if model is None else Needs.of(spec, model)
    caps = [_rate(cap) for cap in peer.caps()]
    upload, download = caps[0] or USUAL_UPLOAD, caps[1] or USUAL_DOWNLOAD
    device = "cpu" if spec.split.is_on else work.device  # parts of a cut model compute there
    devices = [] if peer.role == "monitor" else choose_devices(device, work.devices, spec, peer.role)
    here = total_memory(devices[0] if devices else None)
    if devices:  # what cannot be is said before anything is agreed
        if model is not None:
            recipe = load_recipe(spec)
            recipe.check_device(devices[0])
            work.work().check(recipe, spec.files)
        precision = choose_precision(work.precision, devices[0], spec)
        if work.micro_batch is not None and model is not None and not spec.split.is_on:
            _check_micro_batch(work.micro_batch, work, spec, precision, here)
    own = PeerRates(upload, download, sends=peer.role != "auxiliary", aggregates=peer.role != "client")
    plans = peer.role != "monitor" and spec.security.verification != "byzantine" and not spec.split.is_on
    task = _task(prospect, own) if plans else None
    places = [peer.run_directory(prospect.run_id) / "files", *([] if work.base is None else [work.base])]
    files = sum(
        entry.size_bytes
        for name, entry in spec.files.items()
        if all(lies_in(folder, name, entry.size_bytes) is None for folder in places)
    )
    gets_state = not spec.split.is_on or spec.split.averages_clients  # at most that of the whole model
    at_start = None if needs is None else needs.state * gets_state + files
    trains_on_the_runs = model is not None and peer.role in ("trainer", "client") and not work.data
    streams = trains_on_the_runs and load_recipe(spec).is_streamed
    probe = (0, 0) if peer.role == "monitor" or not affords_probes(peer, limit) else tuple(map(most_probe_bytes, caps))
    start_bytes = (at_start or 0) + sum(probe)
    least = None if limit is None or peer.role == "monitor" else limit.least_for(start_bytes)
    days, steps = (None, None) if limit is None or task is None or least else _lasts(limit, task, start_bytes)
    return Costs(
        name=spec.name,
        run_id=prospect.run_id,
        organiser=prospect.organiser,
        recipe=spec.model.recipe,
        parameters=parameters,
        device=machine_name(devices) if devices else "none",
        memory_bytes=None if needs is None else needs.memory,
        memory_here=here,
        disk_bytes=None if needs is None else needs.disk + files,
        disk_free=shutil.disk_usage(data_folder(peer.runs_directory)).free,
        files_bytes=files,
        is_streamed=streams,
        download_bytes=at_start,
        probe_upload_bytes=probe[0],
        probe_download_bytes=probe[1],
        probes_day_bytes=MAX_DAY_BYTES if sum(probe) else 0,
        peers=len(prospect.live.peers),
        upload=upload,
        download=download,
        capped=any(cap is not None for cap in caps),
        traffic_limit=None if limit is None else f"{format_size(limit.limit_bytes)} a {limit.period}",
        limit_bytes=None if limit is None else limit.limit_bytes,
        least_limit=least,
        limit_days=days,
        limit_steps=steps,
        upload_per_day=None if task is None else task.upload_bytes_per_day,
        download_per_day=None if task is None else task.download_bytes_per_day,
    )


def require_recipe(spec: RunSpec) -> None:
    """Raise `ConfigurationError`, with what to do, unless this command can train the model of the run."""
    if spec.model.recipe == CUSTOM:
        raise ConfigurationError(
            "this run trains a model of the organiser's own (recipe custom), which this command does not have; "
            "use the program that the organiser gave you: it calls minga.join with this link"
        )
    check_installed(spec)
    load_recipe(spec).check_received()


def show_and_ask(
    prospect: Prospect,
    peer: PeerOptions,
    options: JoinCommand,
    output: Output,
    *,
    max_files: float,
    limit: TrafficLimit | None = None,
) -> Costs:
    """Show the costs, and return them; unless the options say yes, ask once. To decline ends the command; without a
    terminal, as under a service manager, it goes on and says so.

    Raises `ConfigurationError` if the files of the run take more than `max_files` bytes, or a start more than the
    budget of traffic is good for.
    """
    costs = costs_of(prospect, peer, options, limit)
    output.event("costs", **asdict(costs))
    for line in lines(costs):
        output.say(line)
    if costs.files_bytes > max_files:
        raise ConfigurationError(
            f"the files of this run take {format_size(costs.files_bytes)}, more than the {format_size(max_files)} that "
            f"this machine takes without being told to: --max-files {math.ceil(costs.files_bytes / 1e9)}GB allows it"
        )
    if costs.least_limit is not None:
        raise ConfigurationError(
            f"a start of this run takes {format_size(costs.start_bytes)}, so this machine would never train with "
            f"{costs.traffic_limit}: give at least --max-traffic {costs.least_limit}"
        )
    if options.yes:
        return costs
    if not output.can_ask:
        output.say("There is no terminal to ask, so this machine takes part.")
    elif not typer.confirm("Take part?", default=True):
        output.say("Nothing was downloaded. To look at the run without taking part: minga status LINK")
        raise typer.Exit
    return costs


def lines(costs: Costs) -> list[str]:
    """The costs for people."""
    size = "of a size that the organiser's program knows"
    if costs.parameters is not None:
        size = f"{costs.parameters:,} parameters"
    here = counted(costs.peers, "peer takes", "peers take") if costs.peers else "no peer takes"
    told = [
        f"{costs.name}: {costs.recipe}, {size}; organiser's key {costs.organiser[:10]}; {here} part now",
        f"This machine: {costs.device}",
    ]
    if costs.memory_bytes is not None and costs.disk_bytes is not None:
        here = "" if costs.memory_here is None else f" of {format_size(costs.memory_here)}"
        told.append(
            f"Memory at least {format_size(costs.memory_bytes)}{here}; disk {format_size(costs.disk_bytes)}, with "
            f"{format_size(costs.disk_free)} free; {format_size(costs.download_bytes or 0)} to download at the start"
        )
    if costs.probe_upload_bytes:
        told.append(
            f"Now and then peers measure their lines for a second. That takes at most "
            f"{format_size(costs.probe_upload_bytes)} up and {format_size(costs.probe_download_bytes)} down each time, "
            f"and at most {format_size(costs.probes_day_bytes)} a day"
        )
    if costs.disk_bytes is not None and costs.disk_bytes > costs.disk_free:
        told.append(
            "The disk has too little room: files of the run may not come, and checkpoints will fail. Free some, or "
            "name a folder on another disk with --directory"
        )
    line = f"{costs.upload * 8 / 1e6:.3g} Mbit/s up and {costs.download * 8 / 1e6:.3g} down"
    basis = f"with your limit, {line}" if costs.capped else f"on a line of {line} (yours is measured later)"
    if costs.upload_per_day is None or costs.download_per_day is None:
        told.append("Traffic: not known yet; status shows it later")
    else:
        told.append(
            f"Traffic: about {format_size(costs.upload_per_day)} up and {format_size(costs.download_per_day)} down a "
            f"day, {basis}"
        )
    if costs.is_streamed:
        told.append(
            "Training data come from the hub, all the time and beside this traffic: no limit here counts or caps them"
        )
    if costs.traffic_limit is not None:
        told += _of_limit(costs)
    elif not costs.capped:
        told.append("No limit is set: --max-traffic 50GB/month or --max-upload 10Mbit sets one")
    return told


def _of_limit(costs: Costs) -> list[str]:
    """What a budget is enough for."""
    said = [f"At most {costs.traffic_limit}, up and down together: this machine pauses in between, so that it lasts"]
    if costs.limit_days is not None and costs.limit_steps is not None:
        time_left = format_duration(costs.limit_days * 86_400)
        steps = counted(costs.limit_steps, "step")
        said.append(f"Beside what starts take that is about {steps}, or {time_left} of training")
    return said


def _check_micro_batch(size: int, work: JoinCommand, spec: RunSpec, precision: Precision, here: int | None) -> None:
    """Raise `ConfigurationError` for a micro-batch that the run does not take, or that the device has no memory for,
    of which it has `here` bytes.
    """
    check_wished(size, spec, load_recipe(spec))
    dtype = None if precision.name == "float32" else FORMATS[precision.name]
    passes = counted_passes(spec, dtype=dtype, checkpoints_activations=work.checkpoint_activations)
    model = facts_of_recipe(spec, spec.model.recipe)
    needs = device_memory(model, spec.optimizer, largest_strategy(spec), passes, offload=work.offload)
    if here is not None and needs.device(size) > here:
        most = needs.largest_micro_batch(here)
        advice = f"choose at most {most}, or leave it out" if most else "that is too little for a single sample"
        raise ConfigurationError(
            f"--micro-batch {size}: that takes {format_size(needs.device(size))} of memory, and here are "
            f"{format_size(here)}; {advice}"
        )


def _task(prospect: Prospect, own: PeerRates) -> PeerTask | None:
    """What this machine would do in each step; None if there is nothing to plan with."""
    live = prospect.live
    if not live.peers or not live.vector_bytes:
        return None
    explained = explain(replace(live.rates, peers=(*live.rates.peers, own)), prospect.work)
    if not 0.0 < explained.step_s < math.inf:
        return None
    return explained.tasks[-1]


def _lasts(limit: TrafficLimit, task: PeerTask, start_bytes: float) -> tuple[float, int]:
    """The days, and the steps, in which a machine that does this at full speed uses its budget of one period up. It
    rests after each advance, and then starts again.
    """
    left = limit.limit_bytes * (1.0 - start_bytes / limit.advance(start_bytes))
    a_day, a_step = task.upload_bytes_per_day + task.download_bytes_per_day, task.upload_bytes + task.download_bytes
    return left / max(1.0, a_day), int(left / max(1.0, a_step))


def _rate(cap: RateCap | None) -> float | None:
    """The rate of this hour."""
    return None if cap is None else cap.now(time.time())
