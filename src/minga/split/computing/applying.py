"""The applying seam: what a server does with the batches of its clients. `one_top.py` has the plain way.

An implementation computes and does nothing else: no clock, no network, one call at a time, all on one thread. It may
answer a batch at once, or keep it until those of other clients are there: `apply` returns what became of it, and of
others that waited for it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.split.wire.messages import EXACT, NOWHERE, BatchPlace, Kind
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot


@dataclass(frozen=True, eq=False)
class BatchWork:
    """One request of a client, decoded and checked: `tensors` are activations or gradients, `labels` come with "train"
    alone; all in CPU memory. `ticket` is its own among all of a server.
    """

    ticket: int
    client: str
    kind: Kind
    tensors: tuple[torch.Tensor, ...]
    labels: tuple[torch.Tensor, ...] = ()
    wants_gradients: bool = True
    place: BatchPlace = NOWHERE
    digest: str = ""

    @property
    def samples(self) -> int:
        """The samples of the batch: the length of the first axis of the first tensor; 0 of what is no batch."""
        return 0 if self.kind in EXACT else self.tensors[0].shape[0]


@dataclass(frozen=True, eq=False)
class BatchOutcome:
    """What became of a work: `tensors` for its client, and the mean `loss` if the server knows it; or a `refusal`, if
    nothing came of it. `applied` says whether the parameters were changed by it.
    """

    work: BatchWork
    tensors: tuple[torch.Tensor, ...] = ()
    loss: float | None = None
    refusal: RejectedError | None = None
    applied: bool = False
    digest: str = ""


class Applying(ABC):
    """What computes with the server's part of a model."""

    kinds: Collection[Kind] = ()
    """The kinds of requests that it takes; a server refuses others before their tensors are read."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """Steps that the server's part has taken."""

    @abstractmethod
    def apply(self, work: BatchWork) -> Sequence[BatchOutcome]:
        """Take a request; return what became of this one and of others, each exactly once, now or by a later call."""

    @abstractmethod
    def capture(self) -> StateSnapshot:
        """A copy of the server's part, with its optimizer, as a standby would go on with it now.

        Raises `ConfigurationError` for a part that has nothing to train, or whose state cannot be described.
        """

    @abstractmethod
    def check(self, state: Manifest | StateSnapshot) -> None:
        """Raise `ConfigurationError` unless such a state can be put in here."""

    @abstractmethod
    def restore(self, snapshot: StateSnapshot) -> None:
        """Go on from what `capture` returned elsewhere; what is half done is forgotten. Raises as `check`."""

    def settle(self) -> None:  # noqa: B027
        """Leave the server's part, as the program has it, with all that was applied; nothing is applied after that."""

    @abstractmethod
    def half_done(self) -> Collection[str]:
        """The clients of which something is kept that waits for a further request, of theirs or of others."""

    @abstractmethod
    def drop(self, client: str) -> Sequence[BatchOutcome]:
        """Forget what is half done of this client; return what becomes of those that waited, itself included."""


def refused(why: str) -> RejectedError:
    """A refusal of a batch that no other server would take either."""
    return RejectedError(why, code=RefusalCode.REFUSED)
