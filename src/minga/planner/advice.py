"""What to tell an organiser who plans a run: what will go wrong, what binds, and what would help, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

from minga.averaging.matchmaking.attempt import Patience
from minga.combinations import cautions
from minga.core.units import format_duration, format_size
from minga.planner.comparison import IDLE_SHARE, Compared, advised_batch
from minga.planner.device_memory import FILLED
from minga.planner.forecast import Forecast, memory_of
from minga.planner.planned_run import spec_of


def warnings(found: Forecast) -> tuple[str, ...]:
    """What an organiser about to start this run should know, the worst first."""
    if not found.step_s < math.inf:
        return ("no step would ever end: nobody gets all of the batch, or the vector, to the others",)
    kinds = (_cautions, _newcomers, _memory, _unheard, _few_inner_steps, _idle, _resting)
    return tuple(text for kind in kinds for text in kind(found))


def never(chosen: Compared) -> tuple[str, ...]:
    """What to say of a way that is the only one to choose from, and never arrives."""
    if chosen.arrives:
        return ()
    return (
        f"{chosen.way.name} with {chosen.way.codec} never came to the loss of synchronous steps with float16 in our "
        "benchmark (docs/benchmarks.md): take another strategy or codec",
    )


def _cautions(found: Forecast) -> Iterator[str]:
    for each in cautions(spec_of(found.setting)):
        yield f"the setting {each.reason}"


def _newcomers(found: Forecast) -> Iterator[str]:
    volunteers, members = found.setting.volunteers, sum(each.peers.count for each in found.setting.volunteers)
    upload = sum(each.peers.upload * each.peers.count for each in volunteers if each.peers.role != "client")
    giving_s = found.setting.state_bytes / upload if upload else 0.0
    patience_s = Patience(found.step_s, members, giving_s).longest_s(1)
    slowest = max(range(len(found.classes)), key=lambda place: found.classes[place].sync_s)
    name, sync_s = found.setting.volunteers[slowest].name, found.classes[slowest].sync_s
    if sync_s == math.inf:
        yield "nobody can give a newcomer the state beside the rounds"
    elif sync_s > patience_s:
        yield (
            f"a newcomer ({name}) needs {format_duration(sync_s)} to sync, your step takes "
            f"{format_duration(found.step_s)}: the others wait {format_duration(patience_s)} for it and then go on, "
            "and it has to begin again; raise the target batch, or it will hardly get in"
        )


def _memory(found: Forecast) -> Iterator[str]:
    for place, each in enumerate(found.setting.volunteers):
        if each.memory_bytes is None or not each.computes:
            continue
        needed, room = memory_of(found, place).device(each.micro_batch), FILLED * each.memory_bytes
        if needed > room:
            advice = "join with a smaller --micro-batch" if each.micro_batch > 1 else "the model does not fit there"
            if found.setting.model.base is not None and found.setting.model.base.bits > 4:
                advice += ", or take a base of fewer bits"
            yield (
                f"{each.name} has {format_size(each.memory_bytes)} of memory, and a micro-batch of {each.micro_batch} "
                f"takes {format_size(needed)}; {advice}"
            )
        elif each.has_to_be_told:
            yield (
                f"the memory of {each.name} has room for micro-batches of {each.micro_batch}, and a processor takes "
                f"larger ones unasked: join there with --micro-batch {each.micro_batch}"
            )


def _unheard(found: Forecast) -> Iterator[str]:
    for each, figures in zip(found.setting.volunteers, found.classes, strict=True):
        if each.computes and figures.samples == 0 and figures.resting < each.peers.count:
            micro_batch_s = each.micro_batch / each.samples_per_s
            yield (
                f"a micro-batch of {each.micro_batch} takes {each.name} {format_duration(micro_batch_s)}, longer than "
                f"a step fills ({format_duration(found.filling_s)}): it never contributes; join there with a smaller "
                "--micro-batch"
            )


def _few_inner_steps(found: Forecast) -> Iterator[str]:
    strategy, facts = found.setting.strategy.name, found.setting.strategy.facts
    local_batch = int(found.setting.strategy.table.get("local_batch", 0))
    for each, figures in zip(found.setting.volunteers, found.classes, strict=True):
        at_work = max(1, each.peers.count - figures.resting)
        inner = each.micro_batch * max(1, math.ceil(local_batch / each.micro_batch))
        taken = facts.fragments * figures.samples / at_work / inner if each.computes else math.inf
        if 0 < taken < facts.least_micro_batches:
            advice = _rounded_up(found.setting.target_batch_size * facts.least_micro_batches / taken)
            yield (
                f'{each.name} takes about {taken:.0f} inner steps between two means, and strategy = "{strategy}" wants '
                f"{facts.least_micro_batches} with this momentum: raise the target batch to {advice:,}, or lower that"
            )
            return


def _idle(found: Forecast) -> Iterator[str]:
    if found.idle <= IDLE_SHARE + 0.005:
        return
    yield (
        f"communication takes {found.idle:.0%} of each step: raise the target batch to {advised_batch(found):,}, which "
        f"brings that down to {IDLE_SHARE:.0%}"
    )


def _resting(found: Forecast) -> Iterator[str]:
    rested = [
        f"{figures.resting} of {each.peers.count} {each.name}"
        for each, figures in zip(found.setting.volunteers, found.classes, strict=True)
        if figures.resting
    ]
    if rested:
        yield (
            f"{' and '.join(rested)} will be asked to rest: sending their gradients takes longer than their samples "
            f"save; with a target batch of {advised_batch(found):,} all would have work"
        )


def _rounded_up(number: float) -> int:
    """To two digits: more would say that it is known so well."""
    unit: int = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / unit) * unit
