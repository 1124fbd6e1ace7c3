"""`minga amend`: settings that change while a run goes on, a pause, the end of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from minga.access.access_files import read_order
from minga.access.standing_orders import PAUSED, STOP
from minga.cli.access.members import NOT_TOLD, pass_on
from minga.cli.commands import AmendCommand
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.files import parse_value, split_setting
from minga.identity.access.orders import MAX_AMENDED_STEP, Amendment, Regroup
from minga.training.organiser import PAUSE_LEAD_S, Organiser

WITHDRAWN: Final = "Until then another order takes its place: `minga amend LINK resume` withdraws a pause."


def parse_changes(texts: Sequence[str]) -> dict[str, Any]:
    """The settings in texts such as training.target_batch_size=512. Raises `ConfigurationError`."""
    settings = (split_setting(text, "", "optimizer.learning_rate=0.001") for text in texts)
    return {key: parse_value(value) for key, value in settings}


def run_amend(options: AmendCommand, context: Context) -> None:
    """Change settings of a running run, pause, resume or stop it, or add a signature to the file of an order."""
    if not options.changes and options.order is None:
        raise ConfigurationError("name what changes, such as optimizer.learning_rate=0.001")
    if options.at_step is not None and not 0 <= options.at_step <= MAX_AMENDED_STEP:
        raise ConfigurationError(f"--at-step {options.at_step}: from 0 to {MAX_AMENDED_STEP}")
    actions = {"pause": _pause, "resume": _resume, "stop": _stop}
    named = [each for each in options.changes if each in actions]
    if named and len(options.changes) > 1:
        raise ConfigurationError(f"{named[0]}: alone, without further changes")
    if options.with_present and named != ["resume"]:
        raise ConfigurationError("--with-present: only with resume")
    if options.at_step is not None and named == ["resume"]:
        raise ConfigurationError("--at-step: a run that is paused takes no step, so it resumes at once")
    if not named:
        parse_changes(options.changes)  # a mistake is told before the run is looked for
    act = _regroup if options.with_present else actions[named[0]] if named else _amend
    with options.desk(context) as organiser:
        act(organiser, options, context)


def _amend(organiser: Organiser, options: AmendCommand, context: Context) -> None:
    _check_goes_on(organiser)
    if options.changes:
        order = organiser.amend(parse_changes(options.changes), options.at_step)
    elif options.order is not None:
        order = read_order(options.order, Amendment)
    organiser.check_end(order)
    _issue(organiser, order, options, context)


def _pause(organiser: Organiser, options: AmendCommand, context: Context) -> None:
    """Let the run hold its state, with its members connected and no rounds."""
    _check_goes_on(organiser)
    step = organiser.step_ahead(PAUSE_LEAD_S) if options.at_step is None else options.at_step
    _issue(organiser, organiser.amend({PAUSED: True}, step), options, context, "The run pauses there.")


def _resume(organiser: Organiser, options: AmendCommand, context: Context) -> None:
    _check_goes_on(organiser)
    _issue(organiser, organiser.amend({PAUSED: False}, 0), options, context, "The run goes on.")


def _regroup(organiser: Organiser, options: AmendCommand, context: Context) -> None:
    """Let a run that lost its majority at once go on with the members that are present."""
    output = context.output
    is_passed_on = options.order is not None and options.order.exists()
    order = read_order(options.order, Regroup) if is_passed_on and options.order is not None else organiser.regroup()
    order, in_force = organiser.put_in_force(order)
    if not in_force:
        pass_on(order, options.order, "minga amend LINK resume --with-present", context)
    else:
        output.say(f"The run goes on from step {order.step} with the members that are present, {len(order.members)}:")
        for peer in order.present:
            output.say(f"  {peer}")
        output.say("All other peers drop what they did since, and fetch the state of these when they are back.")
    output.summary(
        ok=True, step=order.step, members=list(order.present), in_force=in_force, told=organiser.is_connected
    )


def _stop(organiser: Organiser, options: AmendCommand, context: Context) -> None:
    """End the run soon, or after the step that is named, at one step for all."""
    _check_goes_on(organiser)
    if options.at_step is None and organiser.ledger.organisers.needed > 1:
        raise ConfigurationError(
            "more organisers have to sign: name with --at-step a step that the run reaches when all of them have"
        )
    last = max(1, organiser.step_ahead(PAUSE_LEAD_S)) if options.at_step is None else options.at_step
    order = organiser.amend({STOP: last, PAUSED: False}, 0)
    if options.at_step is not None:
        organiser.check_end(order)
    _issue(organiser, order, options, context, f"The run ends when its trainers have taken step {last}.")


def _check_goes_on(organiser: Organiser) -> None:
    """Raise `ConfigurationError` if the run takes no further steps."""
    organiser.hear()
    organiser.check_goes_on()


def _issue(organiser: Organiser, order: Amendment, options: AmendCommand, context: Context, effect: str = "") -> None:
    """Put it in force and say so; `effect` says in plain words what it does."""
    output = context.output
    order, in_force = organiser.put_in_force(order)
    said = ", ".join(f"{key} = {text}" for key, text in order.changes)
    if not in_force:
        pass_on(order, options.order, "minga amend LINK", context)
    elif not organiser.is_connected:
        output.say(f"{NOT_TOLD} {WITHDRAWN}")
    else:
        step, _ = organiser.progress()
        when = (
            f"from step {order.from_step} on; the run is at step {step}" if order.from_step else "once it reaches them"
        )
        output.say(f"Amendment {order.number}: {said}. All members go by it {when}. {effect}".rstrip())
    output.summary(
        ok=True,
        number=order.number,
        from_step=order.from_step,
        changes=dict(order.changes),
        in_force=in_force,
        told=organiser.is_connected,
    )
