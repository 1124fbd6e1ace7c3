"""An explained plan in sentences for people and as values for programs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.solver.division import Binding
from minga.core.units import format_duration, format_size
from minga.simulation.forecast.explanation import Alternatives, Explanation, PeerTask

MAX_REMARKS = 20
COUNTS = 0.02
"""By which fraction something has to become shorter to be called a gain."""


def plan_text(explanation: Explanation, others: Alternatives, names: Sequence[str], work: StepWork) -> Iterator[str]:
    """The plan as a whole, in sentences: how long rounds and steps take, what they wait for, what would help."""
    levels = ", in two levels" if explanation.division.sites else ""
    yield (
        f"A round of {format_size(work.vector_bytes)} takes {format_duration(explanation.round_s)}{levels}; "
        f"it waits for {binding_text(explanation.binding, names)}."
    )
    for site in explanation.division.sites:
        yield f"A site: {', '.join(names[peer] for peer in site)}."
    how = "while the round runs" if work.overlapped else "and then waits for the round"
    computing = format_duration(explanation.computing_s)
    if math.isinf(explanation.step_s):
        yield "How long a step takes is not known: no peer tells a speed at which it computes gradients."
    else:
        yield f"A step takes {format_duration(explanation.step_s)}: computing takes {computing} {how}."
    bound = f"{format_duration(others.bound_s)} at best without sites, " if others.bound_s is not None else ""
    yield (
        f"A round would take {bound}{format_duration(others.equal_parts_s)} with equal parts, "
        f"{format_duration(others.parameter_server_s)} with one server."
    )
    yield _auxiliary_text(explanation, others)
    if others.resting:
        yield (
            f"If {', '.join(names[peer] for peer in others.resting[:10])}"
            f"{' and others' if len(others.resting) > 10 else ''} computed no gradients, a step would take "
            f"{format_duration(others.resting_step_s)}."
        )
    for remark in explanation.remarks[:MAX_REMARKS]:
        to = f" to {names[remark.other]}" if remark.other is not None else ""
        yield f"{names[remark.peer]}{to}: {remark.text}."


def _auxiliary_text(explanation: Explanation, others: Alternatives) -> str:
    times = (
        f"rounds of {format_duration(others.auxiliary_round_s)}, steps of {format_duration(others.auxiliary_step_s)}"
    )
    if others.auxiliary_step_s <= explanation.step_s * (1.0 - COUNTS):
        return f"One more auxiliary of 1 Gbit/s: {times}."
    return f"One more auxiliary of 1 Gbit/s would not make steps shorter ({times})."


def binding_text(binding: Binding | None, names: Sequence[str]) -> str:
    """The link that a round waits for, in words."""
    if binding is None:
        return "nothing that is known"
    if binding.other is None:
        return f"the {binding.kind} of {names[binding.peer]}"
    return f"the path from {names[binding.peer]} to {names[binding.other]}"


def plan_json(explanation: Explanation, others: Alternatives, names: Sequence[str], work: StepWork) -> dict[str, Any]:
    """The plan as JSON values; times that are infinite are null."""
    division, binding = explanation.division, explanation.binding
    return {
        "vector_bytes": round(work.vector_bytes),
        "round_s": seconds_json(explanation.round_s),
        "computing_s": seconds_json(explanation.computing_s),
        "step_s": seconds_json(explanation.step_s),
        "binding": None if binding is None else binding_json(binding, names),
        "two_level": bool(division.sites),
        "sites": [[names[peer] for peer in site] for site in division.sites],
        "parts": [
            {"share": part.share, "root": names[part.root], "relays": [names[peer] for peer in part.relays]}
            for part in division.parts
        ],
        "peers": [_task_json(task, names) for task in explanation.tasks],
        "bound_s": seconds_json(others.bound_s),
        "equal_parts_s": seconds_json(others.equal_parts_s),
        "parameter_server_s": seconds_json(others.parameter_server_s),
        "one_more_auxiliary": {
            "round_s": seconds_json(others.auxiliary_round_s),
            "step_s": seconds_json(others.auxiliary_step_s),
        },
        "resting": [names[peer] for peer in others.resting],
        "resting_step_s": seconds_json(others.resting_step_s),
        "remarks": [
            {
                "peer": names[remark.peer],
                "other": None if remark.other is None else names[remark.other],
                "text": remark.text,
            }
            for remark in explanation.remarks
        ],
    }


def binding_json(binding: Binding, names: Sequence[str]) -> dict[str, str | None]:
    """A link as JSON values."""
    other = None if binding.other is None else names[binding.other]
    return {"kind": binding.kind, "peer": names[binding.peer], "other": other}


def _task_json(task: PeerTask, names: Sequence[str]) -> dict[str, Any]:
    return {
        "name": names[task.peer],
        "reduces": round(task.reduces, 6),
        "relays": round(task.relays, 6),
        "upload_bytes": round(task.upload_bytes),
        "download_bytes": round(task.download_bytes),
        "busy_s": seconds_json(task.busy_s),
        "upload_bytes_per_day": round(task.upload_bytes_per_day),
        "download_bytes_per_day": round(task.download_bytes_per_day),
        "reason": task.reason,
    }


def seconds_json(value: float | None) -> float | None:
    """Seconds as a JSON value: null if they are not known or infinite."""
    return round(value, 4) if value is not None and math.isfinite(value) else None
