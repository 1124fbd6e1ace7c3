"""The aggregator seam: one vector out of many, of which some may be hostile.

An aggregator gets the rows of one part, one from each sender, and gives the vector that stands for all of them; how far
a minority of hostile rows can move it is bounded, whatever they hold. `minga.testing` has the suite that each
aggregator must pass.

Members see the rows of nobody else, so they cannot compute an aggregate again. They check an equation instead, of which
each sender publishes its own term (`security/verification/claims.py`):

    sum_i min(1, tau / ||x_i - v||) (x_i - v) = 0        value v, clipping radius tau

A result that solves it, however it was found, is verified by the sum of all terms, and tau by the published norms
||x_i - v||, of whose median it has to be about `radius_factor` times. A coordinate-wise median, a trimmed mean or Krum
solves no sum of terms that one sender knows; a mean does (tau = infinity), but a radius that any row may stretch bounds
nothing. To verify these, every member would have to fetch every row of every part: the traffic of a step times the
number of members. That is done for single parts that raise a doubt, and not for whole runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final

import torch

from minga.core.spec.plugins import Registry
from minga.security.robust.rows import Rows


@dataclass(frozen=True, slots=True)
class Aggregate:
    """What came out, with what the equation has to be checked by."""

    value: torch.Tensor
    """float32 [numel]."""
    clip_radius: float
    """tau, at least 0; it is 0 where half of the rows or more lie at one point."""
    residual_norm: float
    """Bound of the norm of the equation's left side at the value: what the solver left, and the rounding to float32."""


class Aggregator(ABC):
    """One way to solve the equation above; without state, so that instances may be shared by threads.

    An instance is made with `radius_factor` > 0: tau is to be within a factor of 2 of so many times the median distance
    of the rows from the value, where most rows lie about equally far from it. Members call an aggregator that names
    another radius, or leaves more than `residual_norm`, a liar and ban it, so a class that breaks this costs its users
    their places; the suite in `minga.testing` finds that out.
    """

    name: ClassVar[str]

    @abstractmethod
    def __init__(self, *, radius_factor: float = 1.0) -> None: ...

    def aggregate(self, rows: Sequence[torch.Tensor]) -> Aggregate:
        """Aggregate float32 rows [numel], which are not changed; in another order they give the same value to the last
        bit.

        Raises `NonFiniteRowsError` that names the rows with NaN or infinity, and `ValueError` for rows of another kind
        or of unequal length, and for no rows.
        """
        return self._aggregate(Rows(rows))

    @abstractmethod
    def limits(self, rows: Sequence[torch.Tensor]) -> tuple[float, float]:
        """What a member is held to who says that it aggregated these finite rows: about the radius tau, and the most
        that it may leave of the equation.

        Each member decides by it alone who is banned, so it has the same bits on every machine. The sums of a library
        have not: their order depends on the processor and on the number of threads.
        """

    @abstractmethod
    def _aggregate(self, rows: Rows) -> Aggregate: ...

    def __repr__(self) -> str:
        return f"<aggregator {self.name}>"


AGGREGATORS: Final[Registry[type[Aggregator]]] = Registry(
    "minga.aggregators",
    "aggregator",
    {"centered_clip": "minga.security.robust.centered_clip:CenteredClip"},
    base="minga.security.robust.interface:Aggregator",
)
"""By their names: minga's own, and those of other packages (entry points `minga.aggregators`)."""
