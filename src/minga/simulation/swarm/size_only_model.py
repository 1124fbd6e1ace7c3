"""Ghost models: only the size of a model, no numbers.

Theory of operation. A ghost's vectors are tensors on the device `meta`, and its encoded chunks and its state meta
bytes. All code of production runs on them, every message has the size that it would have, and no element is stored,
computed or copied; so a thousand peers with a large model fit into one process. What a ghost learned is the history of
the rounds that it applied: a hash over their ids. So the states of two peers are equal if and only if they applied the
same rounds in the same order, as with numbers.

A ghost has no loss, nothing to evaluate, and no norm to clip at. The spec's codec counts, and its optimizer does not
but for the vectors that it keeps (`SizeOnlyModel.moments`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import torch
from blake3 import blake3

from minga.averaging.codecs.layout import Cut, VectorLayout
from minga.averaging.codecs.residual import Residuals
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.core.spec.sections import DEFAULT_SKETCH
from minga.simulation.swarm.simulated_peer import SimulatedPeer
from minga.training.lineage import Lineage
from minga.training.replica.gradient_sum import GradientSum
from minga.training.replica.interface import LoopReport
from minga.training.state.manifest import MAX_STATE_BYTES, MAX_TENSORS, Manifest, build_manifest
from minga.training.state.scalars import STRATEGY_NAME, Json, strategy_of
from minga.training.state.sketch import Sketch
from minga.training.state.snapshot import StateSnapshot, TensorEntry, layout_bytes

MAX_MOMENTS = 8


@dataclass(frozen=True)
class SizeOnlyModel:
    """The size of a model: the elements of its trained tensors, which are float32, in the order of the vector.

    To the state belong `moments` vectors of the same size that an optimizer keeps (2 for Adam and LAMB, 1 for SGD with
    momentum), and `coded_bytes` of others in fewer bits. The adaptive codec chooses by tensor: `of_size` stands for a
    model with a single one. Raises `ConfigurationError` for sizes out of range.
    """

    numels: tuple[int, ...]
    moments: int = 2
    coded_bytes: int = 0

    def __post_init__(self) -> None:
        if not self.numels or any(numel < 1 for numel in self.numels):
            raise ConfigurationError("a ghost model needs at least one tensor, and each at least 1 element")
        if not 0 <= self.moments <= MAX_MOMENTS:
            raise ConfigurationError(f"moments = {self.moments}; an optimizer keeps 0 to {MAX_MOMENTS} vectors")
        if len(self.numels) * (1 + self.moments) >= MAX_TENSORS or self.state_bytes > MAX_STATE_BYTES:
            raise ConfigurationError(f"a state has at most {MAX_TENSORS} tensors and {MAX_STATE_BYTES} bytes in all")

    @classmethod
    def of_size(cls, parameters: int, *, moments: int = 2) -> SizeOnlyModel:
        """A model of one tensor with so many elements."""
        return cls((parameters,), moments)

    @classmethod
    def of(cls, parameters: Sequence[torch.Tensor], *, moments: int = 2) -> SizeOnlyModel:
        """The size of a model that has these parameters, which may be on the device `meta`."""
        return cls(tuple(each.numel() for each in parameters if each.requires_grad), moments)

    @property
    def parameters(self) -> int:
        """Elements of the averaged vector."""
        return sum(self.numels)

    @property
    def state_bytes(self) -> int:
        """Bytes that a newcomer downloads: parameters and moments."""
        return layout_bytes(self.tensors)

    @cached_property
    def tensors(self) -> tuple[TensorEntry, ...]:
        """The tensors of the state."""
        names = [f"model/ghost.{i}" for i in range(len(self.numels))]
        kept = [f"optimizer/ghost.{i}/moment{k}" for i in range(len(self.numels)) for k in range(self.moments)]
        sizes = [*self.numels, *(numel for numel in self.numels for _ in range(self.moments))]
        found = [TensorEntry(name, "float32", (numel,)) for name, numel in zip(names + kept, sizes, strict=True)]
        coded = TensorEntry("optimizer/ghost.coded", "uint8", (self.coded_bytes,))
        return (*found, coded) if self.coded_bytes else tuple(found)


class SizeOnlyLayout(VectorLayout):
    """The layout of a vector without numbers, with which no real one can be averaged."""

    @cached_property
    def fingerprint(self) -> str:
        """32 hexadecimal digits, other than those of a real layout of the same sizes."""
        return blake3(f"minga ghost layout 1\n{super().fingerprint}\n".encode()).hexdigest(length=16)


class SizeOnlyVector:
    """The averaged vector of a ghost; as of a real one its end says which parameters had a gradient."""

    def __init__(self, model: SizeOnlyModel, codec: str, download_codec: str | None = None) -> None:
        self.layout: VectorLayout = SizeOnlyLayout((*model.numels, len(model.numels)), codec, download_codec)
        self.numel, self.parameters_numel = self.layout.total, sum(model.numels)

    def new(self, numel: int | None = None) -> torch.Tensor:
        """A float32 vector that takes no memory, of `numel` elements if not as long as this one."""
        return torch.empty(self.numel if numel is None else numel, dtype=torch.float32, device="meta")


class SizeOnlyReplica:
    """One peer's copy of a ghost model; see `ReplicaInterface`. Raises `ConfigurationError` if `spec` needs numbers."""

    trains = ""

    def __init__(self, spec: RunSpec, model: SizeOnlyModel) -> None:
        if spec.averaging.average_parameters_every:
            raise ConfigurationError(
                "averaging.average_parameters_every: it evens out numbers that drift apart, and a ghost model has "
                "none; set it to 0 or simulate a real model"
            )
        if spec.averaging.sketch != DEFAULT_SKETCH:
            raise _no_numbers(f'the sketch "{spec.averaging.sketch}"')
        self.model, self.step, self.lineage = model, 0, Lineage()
        self.history = _hash(f"minga ghost {spec.training.seed}")
        """64 hexadecimal digits that stand for all rounds applied so far."""
        self.strategy = self._first_strategy = spec.training.strategy
        self._vector = SizeOnlyVector(model, spec.averaging.codec, spec.averaging.download_codec)
        self._fragments: tuple[VectorLayout, ...] = (self._vector.layout,)
        self._mean = ""

    @property
    def vector(self) -> SizeOnlyVector:
        """What is averaged."""
        return self._vector

    @property
    def rounds_alike(self) -> bool:
        """There is nothing to round."""
        return True

    def layout_of(self, step: int) -> VectorLayout:
        """All rounds average the whole vector, unless the strategy says something else."""
        return self._fragments[step % len(self._fragments)]

    def define_fragments(
        self,
        fragments: Sequence[VectorLayout],
        tensors: Sequence[Sequence[int]],  # noqa: ARG002
    ) -> None:
        """Average vectors of these layouts in turn."""
        self._fragments = tuple(fragments)

    def project(
        self,
        vector: torch.Tensor | None,
        weight: int,  # noqa: ARG002
        step: int,  # noqa: ARG002
        round_id: str,  # noqa: ARG002
        cut: Cut | None = None,  # noqa: ARG002
    ) -> torch.Tensor | None:
        """All rounds average the whole vector."""
        return vector

    def expand(self, mean: torch.Tensor, step: int, *, counted_in: str | None) -> torch.Tensor:  # noqa: ARG002
        """All rounds average the whole vector."""
        return mean

    @property
    def left_out(self) -> Residuals:
        """Nothing is."""
        return Residuals()

    def new_sum(self) -> GradientSum:
        """A sum without numbers."""
        return GradientSum(self)

    def accumulate(self, vector: torch.Tensor, weight: float) -> bool:  # noqa: ARG002
        """There is nothing to add."""
        return True

    def zero_grad(self) -> None:
        """There are no gradients."""

    def fingerprint(self, mean: torch.Tensor, round_id: str) -> str:  # noqa: ARG002
        """32 hexadecimal digits that stand for the mean of this round, which the next `apply` applies."""
        self._mean = _hash(f"minga ghost mean {round_id}")[:32]
        return self._mean

    def clip_own(self, mean: torch.Tensor) -> float:  # noqa: ARG002
        """There is nothing to scale."""
        return 1.0

    def apply(self, mean: torch.Tensor, step: int) -> None:  # noqa: ARG002
        """Note that the mean of the last round led to `step`."""
        self.step, self.history = step, _hash(f"{self.history} {step} {self._mean}")

    def amend(self, changes: Mapping[str, Any]) -> None:
        """There is no optimizer."""

    @property
    def loop(self) -> LoopReport:
        """There is nothing to tell of it."""
        return LoopReport()

    def look_closely(self) -> None:
        """There are no gradients."""

    def inner_step(self) -> bool:
        """There is nothing to change."""
        return True

    def step_by(self, gradients: torch.Tensor) -> bool:  # noqa: ARG002
        """There is nothing to change."""
        return True

    def adopt(self, values: torch.Tensor, step: int) -> torch.Tensor:
        """Note that the mean of the last round led to `step`."""
        self.apply(values, step)
        return values

    @property
    def moved(self) -> Sequence[torch.Tensor]:
        """There are no buffers."""
        return ()

    def move_buffers(self, moved: torch.Tensor | None) -> None:
        """There are no buffers."""

    def read_values(self) -> torch.Tensor:
        """A vector without numbers."""
        return self._vector.new()

    def rounded(self, values: torch.Tensor) -> torch.Tensor:
        """There is nothing to round."""
        return values

    def write_values(self, values: torch.Tensor) -> None:
        """There is nothing to set."""

    def tensors(self) -> dict[str, torch.Tensor]:
        """None: the state is a history."""
        return {}

    def moments(self) -> dict[str, torch.Tensor]:
        """None."""
        return {}

    def named(self, vector: torch.Tensor) -> dict[str, torch.Tensor]:  # noqa: ARG002
        """None."""
        return {}

    def define_shared(self, shared: Callable[[], Mapping[str, torch.Tensor]], *, optimizer: bool) -> None:
        """The history is shared, whatever a strategy keeps beside it."""

    def hand_over(self, strategy: str, *, keeps_uncounted: bool) -> None:  # noqa: ARG002
        """Have another strategy go on from this state."""
        self.strategy, self._fragments = strategy, (self._vector.layout,)

    def put(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """There is nothing to put back."""

    def strategy_tensors(self) -> dict[str, torch.Tensor]:
        """None."""
        return {}

    def capture(self) -> StateSnapshot:
        """The state after the last step: its sizes and the history."""
        return _snapshot(self.model, self.step, self.history, self._named).of(self.lineage)

    def restore(self, snapshot: StateSnapshot) -> None:
        """Take over a history. Raises `ConfigurationError` if the snapshot is not of this model."""
        self._check(snapshot.tensors, snapshot.scalars)
        self.step, self.lineage = snapshot.step, snapshot.lineage
        self.history = str(snapshot.scalars["history"])
        self.strategy = strategy_of(snapshot.scalars) or self._first_strategy

    def check(self, state: Manifest | StateSnapshot) -> None:
        """Refuse a state of another model, by `ConfigurationError`."""
        self._check(state.tensors, state.scalars)

    def sketch(self) -> Sketch:
        """That of no numbers."""
        return ()

    def digest(self) -> str:
        """The state digest: the hash of the manifest."""
        return _digest(self.model, self.step, self.history, self._named)

    @property
    def _named(self) -> str | None:
        return None if self.strategy == self._first_strategy else self.strategy

    def _check(self, tensors: tuple[TensorEntry, ...], scalars: Mapping[str, Json]) -> None:
        known = scalars.keys() - {STRATEGY_NAME} == {"history"}
        if tensors != self.model.tensors or not known or not isinstance(scalars["history"], str):
            raise ConfigurationError("the state does not fit this ghost model: it is of another model")


def no_gradient(peer: SimulatedPeer, samples: int) -> float:  # noqa: ARG001
    """The gradient of a ghost model, for `Swarm`: there is nothing to compute, and all losses are alike."""
    return 0.0


def _snapshot(model: SizeOnlyModel, step: int, history: str, strategy: str | None) -> StateSnapshot:
    buffer = torch.empty(model.state_bytes, dtype=torch.uint8, device="meta")
    scalars: dict[str, Json] = {"history": history, **({} if strategy is None else {STRATEGY_NAME: strategy})}
    return StateSnapshot(step, model.tensors, scalars, buffer)


@lru_cache(maxsize=64)
def _digest(model: SizeOnlyModel, step: int, history: str, strategy: str | None) -> str:
    """Peers with equal states ask for it one after the other."""
    digest: str = build_manifest(_snapshot(model, step, history, strategy)).digest
    return digest


def _hash(text: str) -> str:
    digest: str = blake3(text.encode()).hexdigest()
    return digest


def _no_numbers(what: str) -> ConfigurationError:
    return ConfigurationError(f"a ghost model has no numbers: {what} is not possible; simulate a real model for that")
