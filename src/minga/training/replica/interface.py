"""The replica seam: what rounds may ask of whatever is trained.

`minga.training.replica.replica` has the one for real models; simulations have one for models of which only the size
matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import torch

from minga.averaging.codecs.layout import Cut, VectorLayout
from minga.averaging.codecs.residual import Residuals
from minga.training.lineage import Lineage
from minga.training.replica.gradient_sum import GradientSum
from minga.training.state.manifest import Manifest
from minga.training.state.sketch import Sketch
from minga.training.state.snapshot import StateSnapshot

LOOP_RATES: Final = "loop_rates"
"""The change by `ReplicaInterface.amend` that is no order of the organisers, but what the organiser's loop sets."""


class LoopReport(NamedTuple):
    """What others have to know of a program's loop: learning `rates` of all groups that the run is to have from the
    next round on, if this is the organiser's, and in its first steps a sketch of the gradient of the `first`
    micro-batch. Empty for nothing.
    """

    rates: tuple[float, ...] = ()
    first: Sketch = ()


class VectorInterface(Protocol):
    """The vector that is averaged: its layout, its elements, and memory for one."""

    layout: VectorLayout
    numel: int
    parameters_numel: int
    """Elements of the parameters, which come first; movements of averaged buffers follow, and which parameters had a
    gradient.
    """

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A zeroed float32 vector, flat and in CPU memory (on the device `meta` if it has no numbers), of `numel`
        elements if not as long as this one.
        """


class ReplicaInterface(Protocol):
    """One peer's copy of what is trained. All but `fingerprint`, `layout_of` and `project` is for one thread only."""

    step: int
    """Global steps that this state has seen."""
    trains: str
    """32 hexadecimal digits that stand for what trains here (`trained_record.py`); empty where nothing is said."""
    lineage: Lineage
    """Where the state comes from."""

    @property
    def vector(self) -> VectorInterface:
        """What is averaged."""

    @property
    def rounds_alike(self) -> bool:
        """Whether equal means give equal bits on every device."""

    def layout_of(self, step: int) -> VectorLayout:
        """The layout of the vector that the round of `step` averages; see `averaging/codecs/residual.py`.

        Any thread may ask.
        """

    def project(
        self, vector: torch.Tensor | None, weight: int, step: int, round_id: str, cut: Cut | None = None
    ) -> torch.Tensor | None:
        """What this peer gives to a round of `step`, for its mean gradient, which counts `weight` there and stays as
        it is; None for nothing. It goes in the chunks of `cut`. On any thread.
        """

    def expand(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:
        """The mean gradient that the mean of the round of `step` stands for; `mean` stays as it is.

        Once for each round that counts, in their order: what `project` left out is known from then on. `counted_in` is
        the id of the round whose contribution of this peer is in the mean, None if none is.
        """

    @property
    def left_out(self) -> Residuals:
        """What `project` left out so far."""

    def define_fragments(self, fragments: Sequence[VectorLayout], tensors: Sequence[Sequence[int]]) -> None:
        """From now on rounds average vectors of these layouts, the round of step r that of place r modulo their number,
        in the place of the whole vector. Each has some tensors of the whole, `tensors` says which by their places.

        `contribution` and `absorb` of the strategy have them, too. Raises `ConfigurationError` for a sketch that has a
        basis of the whole vector only.
        """

    def new_sum(self) -> GradientSum:
        """A sum of gradients, which is 0: to it the present mean gradients are added."""

    def zero_grad(self) -> None:
        """Forget the present gradients."""

    def fingerprint(self, mean: torch.Tensor, round_id: str) -> str:
        """32 hexadecimal digits by which peers tell whether they apply the same mean; asked before each `apply`."""

    def clip_own(self, mean: torch.Tensor) -> float:
        """Scale this peer's mean gradient down to the largest norm of the run, in place, if the run's codec leaves
        something out of it; returns the factor. Then `apply` clips nothing.
        """

    def apply(self, mean: torch.Tensor, step: int) -> None:
        """Take the optimizer step that leads to global step `step`."""

    def amend(self, changes: Mapping[str, Any]) -> None:
        """Go by these settings of the optimizer from now on: `optimizer.learning_rate` (of the first parameter group;
        those of the others change in proportion; None if the state has the amended one already), and
        `optimizer.max_grad_norm`, which without a word is the program's own; or by `loop_rates`, the learning rates of
        all groups in the next update, with all else as it is. To say the same twice changes nothing.
        """

    @property
    def loop(self) -> LoopReport:
        """What others have to know of the program's loop. Any thread may ask."""

    def look_closely(self) -> None:
        """Look at every gradient before it is added from now on. Any thread may call it."""

    def inner_step(self) -> bool:
        """Take an optimizer step of this peer alone by the present gradients; the global step stays. False, with
        nothing changed, if the gradients are not finite.
        """

    def step_by(self, gradients: torch.Tensor) -> bool:
        """The same by the gradients in a vector as `GradientSum.divided` gives it, which are finite; averaged buffers
        stay this peer's.
        """

    def adopt(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """Come to global step `step` with these parameters, as `read_values` has them, instead of by an optimizer step;
        learning-rate schedules go on. Returns them as the model's rules changed them, or `values` itself.
        """

    @property
    def moved(self) -> Sequence[torch.Tensor]:
        """What averaged buffers had moved since the last global step when the last micro-batch ended, wherever they are
        (`buffers.py`). Any thread may ask, and keep it.
        """

    def move_buffers(self, moved: torch.Tensor | None) -> None:
        """Have averaged buffers stand so far from where the last global step left them, as `read_values` has it behind
        the parameters; None is not at all.
        """

    def read_values(self) -> torch.Tensor:
        """The parameters as a vector, with what is `moved`."""

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """What `read_values` gives after such a vector was written, in parameters of fewer bits; or `values` itself."""

    def write_values(self, values: torch.Tensor) -> None:
        """Set the parameters from such a vector."""

    def tensors(self) -> Mapping[str, torch.Tensor]:
        """What this peer has, by name: `model/…` and `optimizer/…`. The tensors themselves, not copies."""

    def moments(self) -> dict[str, torch.Tensor]:
        """Those `optimizer/…`, and what the optimizer keeps as numbers: all that `put` needs for it to go on."""

    def named(self, vector: torch.Tensor) -> Mapping[str, torch.Tensor]:
        """The parameters in a vector as `read_values` makes it, by those names."""

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """From now on the state that peers share consists of the tensors that `shared` returns: all of `model/…`, and
        any of `optimizer/…` and `strategy/…`. Without `optimizer` the numbers that the optimizer keeps are not shared.
        """

    @property
    def strategy(self) -> str:
        """The name of the strategy that goes on from this state."""

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:
        """The strategy of this name goes on from this state, and the state says so, if it is not the one with which
        the run began. Whether it `keeps_uncounted` contributions is a fact of it; it may `define_fragments`.
        """

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Put some of the tensors that `tensors` or `moments` had back in place."""

    def strategy_tensors(self) -> Mapping[str, torch.Tensor]:
        """Those named `strategy/…` of the state that was restored before a strategy said what is shared, for once."""

    def capture(self) -> StateSnapshot:
        """A copy of the whole shared state after the last step."""

    def restore(self, snapshot: StateSnapshot) -> None:
        """Become what `snapshot` holds. Raises `ConfigurationError` if it is of another model or optimizer."""

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Refuse a state of another model, optimizer or strategy, by `ConfigurationError`. A state that names another
        strategy than this replica has may be of any that is installed.
        """

    def sketch(self) -> Sketch:
        """That of the parameters: peers whose optimizers may round differently compare by it."""

    def digest(self) -> str:
        """The digest of the shared state, by which peers compare: the hash of the manifest."""
