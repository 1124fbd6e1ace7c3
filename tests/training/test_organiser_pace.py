"""An organiser's order is due after orders have reached all, and not much later where rounds are slow."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from minga.training.organiser import LEAST_LEAD, step_after
from minga.training.status.run_status import RunStatus


@pytest.mark.parametrize(
    ("round_s", "steps"),
    [(None, 60), (0.1, 60), (10.0, 3)],  # a batch is computed in half a second; a round of 10 s counts instead
)
def test_the_lead_is_that_of_steps_as_they_come(round_s: float | None, steps: int) -> None:
    plan = SimpleNamespace(round_s=round_s)
    status = SimpleNamespace(step=100, samples_per_second=512.0, target_batch_size=256, plan=plan)
    assert step_after(cast(RunStatus, status), 30.0) == 100 + LEAST_LEAD + steps


def test_a_run_whose_plan_is_not_known_goes_by_its_speed() -> None:
    status = SimpleNamespace(step=0, samples_per_second=0.0, target_batch_size=256, plan=None)
    assert step_after(cast(RunStatus, status), 30.0) == LEAST_LEAD
