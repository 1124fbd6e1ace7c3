"""`minga amend`, `minga pause`, `minga resume`, `minga stop`: settings that change while a run goes on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minga.access.access_files import read_order, write_order
from minga.access.standing_orders import PAUSED, STOP
from minga.cli.access.members import NOT_TOLD, OrganiserOptions
from minga.cli.access.stop import WAIT_S, wait_for_end
from minga.cli.terminal.context import Context
from minga.cli.terminal.peer_options import wire
from minga.core.errors import ConfigurationError
from minga.core.files import parse_value, split_setting
from minga.identity.access.orders import MAX_AMENDED_STEP, Amendment, Regroup
from minga.identity.links.links import Link
from minga.training.organiser import PAUSE_LEAD_S, Organiser, organiser_desk


@dataclass(frozen=True)
class AmendOptions:
    """From which step on (None: soon), and the file that several organisers pass around to sign. `waits`: the command
    stays until the run has ended.
    """

    at_step: int | None = None
    file: Path | None = None
    waits: bool = False


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """The settings in texts such as training.target_batch_size=512. Raises `ConfigurationError`."""
    settings = (split_setting(text, "", "optimizer.learning_rate=0.001") for text in texts)
    return {key: parse_value(value) for key, value in settings}


def run_amend(
    link: str, changes: Mapping[str, Any], options: AmendOptions, desk: OrganiserOptions, context: Context
) -> None:
    """Change settings of a running run, or add a signature to the file of an amendment."""
    if not changes and options.file is None:
        raise ConfigurationError("name what changes, such as optimizer.learning_rate=0.001")
    if options.at_step is not None and not 0 <= options.at_step <= MAX_AMENDED_STEP:
        raise ConfigurationError(f"--at-step {options.at_step}: from 0 to {MAX_AMENDED_STEP}")
    with _enter_going_on(link, desk, context) as organiser:
        if changes:
            order = organiser.amend(changes, options.at_step)
        elif options.file is not None:
            order = read_order(options.file, Amendment)
        step = None if PAUSED in dict(order.changes) else organiser.paused_step()
        effect = "" if step is None else f"The run is paused, at step {step}: it takes effect once the run goes on."
        _issue(organiser, order, options, context, effect)


def run_pause(link: str, options: AmendOptions, desk: OrganiserOptions, context: Context) -> None:
    """Let the run hold its state, with its members connected and no rounds."""
    with _enter_going_on(link, desk, context) as organiser:
        if (paused := organiser.paused_step()) is not None:
            _nothing_to_do(f"The run is paused already, at step {paused}.", context, step=paused, paused=True)
            return
        step = organiser.step_ahead(PAUSE_LEAD_S) if options.at_step is None else options.at_step
        _issue(organiser, organiser.amend({PAUSED: True}, step), options, context, "The run pauses there.")


def run_resume(link: str, options: AmendOptions, desk: OrganiserOptions, context: Context) -> None:
    """Let a paused run go on."""
    with _enter_going_on(link, desk, context) as organiser:
        if not organiser.may_be_paused():
            step, _ = organiser.progress()
            _nothing_to_do("The run is not paused.", context, step=step, paused=False)
            return
        _issue(organiser, organiser.amend({PAUSED: False}, 0), options, context, "The run goes on.")


def run_regroup(link: str, options: AmendOptions, desk: OrganiserOptions, context: Context) -> None:
    """Let a run that lost its majority at once go on with the members that are present."""
    output = context.output
    with _enter(link, desk, context) as organiser:
        is_passed_on = options.file is not None and options.file.exists()
        order = read_order(options.file, Regroup) if is_passed_on and options.file is not None else organiser.regroup()
        order, in_force = organiser.put_in_force(order)
        told = organiser.is_connected
    if not in_force and options.file is None:
        raise ConfigurationError("more organisers have to sign: name a file with --order, and pass it on to them")
    if not in_force and options.file is not None:
        write_order(options.file, order)
        output.say(
            f"More organisers have to sign: each runs `minga resume LINK --with-present --order {options.file}`."
        )
    else:
        output.say(f"The run goes on from step {order.step} with the members that are present, {len(order.members)}:")
        for peer in order.present:
            output.say(f"  {peer}")
        output.say("All other peers drop what they did since, and fetch the state of these when they are back.")
    output.summary(ok=True, step=order.step, members=list(order.present), in_force=in_force, told=told)


def run_stop(link: str, options: AmendOptions, desk: OrganiserOptions, context: Context) -> None:
    """End the run soon, or after the step that is named, at one step for all."""
    with _enter(link, desk, context) as organiser:
        organiser.hear()
        if (step := organiser.completed_step()) is not None:
            said = f"The run is complete: it has taken its last step, {step}. There is nothing to stop."
            _nothing_to_do(said, context, step=step, ended=True)
            return
        last = organiser.step_ahead(PAUSE_LEAD_S) if options.at_step is None else options.at_step
        last = max(1, last)
        effect = f"The run ends when its trainers have taken step {last}."

        def wait() -> dict[str, bool]:
            return {"ended": wait_for_end(organiser, last, context, wait_s=WAIT_S if options.waits else 0.0)}

        _issue(organiser, organiser.amend({STOP: last, PAUSED: False}, 0), options, context, effect, wait)


def _enter(link: str, desk: OrganiserOptions, context: Context) -> AbstractContextManager[Organiser]:
    return organiser_desk(Link.parse(link), desk.peer, desk.identity, lambda joined: wire(context, joined))


@contextlib.contextmanager
def _enter_going_on(link: str, desk: OrganiserOptions, context: Context) -> Iterator[Organiser]:
    """The desk in a run that takes further steps. Raises `ConfigurationError` if it is complete."""
    with _enter(link, desk, context) as organiser:
        organiser.hear()
        organiser.check_goes_on()
        yield organiser


def _nothing_to_do(said: str, context: Context, **facts: int) -> None:
    """Say that the run is already as it should be: no order is given."""
    context.output.say(said)
    context.output.summary(ok=True, **facts)


def _issue(
    organiser: Organiser,
    order: Amendment,
    options: AmendOptions,
    context: Context,
    effect: str = "",
    then: Callable[[], dict[str, bool]] = dict,
) -> None:
    """Put it in force and say so; `effect` says in plain words what it does. What `then` returns, once members know of
    it, is told as well.
    """
    output = context.output
    order, in_force = organiser.put_in_force(order)
    if not in_force and options.file is None:
        raise ConfigurationError("more organisers have to sign: name a file with --order, and pass it on to them")
    if not in_force and options.file is not None:
        write_order(options.file, order)
    said = ", ".join(f"{key} = {text}" for key, text in order.changes)
    if not in_force:
        output.say(f"More organisers have to sign: each runs `minga amend LINK --order {options.file}`.")
    elif not organiser.is_connected:
        output.say(NOT_TOLD)
    else:
        when = f"from step {order.from_step} on" if order.from_step else "as soon as it reaches them"
        output.say(f"Amendment {order.number}: {said}. All members go by it {when}. {effect}".rstrip())
    further = then() if in_force and organiser.is_connected else {}
    output.summary(
        ok=True,
        number=order.number,
        from_step=order.from_step,
        changes=dict(order.changes),
        in_force=in_force,
        told=organiser.is_connected,
        **further,
    )
