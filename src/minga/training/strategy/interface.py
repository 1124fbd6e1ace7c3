"""The strategy seam: what is sent when, and what becomes of gradients that come while a round runs.

A strategy turns micro-batches into contributions, and applies the mean of a round to the replica. The port
(`training/bridge/gradient_port.py`) keeps the phases of a step and asks the strategy's facts whether to wait. Entry
points "minga.strategies" of installed packages bring further ones; `minga.testing` has the suite that each must pass.

    close ──▶ contribution ──▶ absorb         the round counted: the mean goes into the replica
      ▲             └────────▶ take_back      it came to nothing: all of it counts again, later micro-batches too
      └─ micro_batch, merge ◀──────┘

The counts, and which buffer is which, change under the `condition` of the port that this belongs to; numbers change
under `arithmetic`, which is taken first. So a count can be read at once, however long the vectors are. The replica is
changed by the training thread only: in `micro_batch`, `absorb` and what follows a download.
"""

from __future__ import annotations

import enum
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.messages import PeerScore
from minga.averaging.strategy_choice import NoSettings, StrategyFacts
from minga.core.spec.fields import Section
from minga.training.replica.accelerator import LateVerdict
from minga.training.replica.interface import ReplicaInterface

Settings = Section
"""What the settings of a strategy derive from; fields are declared by `whole`, `real`, `choice` and `described`."""


class Recovery(enum.Enum):
    """What a peer that missed rounds does with the state of the others, once it has it."""

    FETCH = "fetch"
    """It begins anew with that, as a newcomer does."""
    REBASE = "rebase"
    """It takes over the shared part and keeps its own."""


class Strategy(ABC):
    """What one peer sends and takes up, by its `settings`. A contribution over `unit` samples has weight 1.

    The defaults are those of a strategy whose trainer waits while a round runs.
    """

    Settings: ClassVar[type[Section]] = NoSettings
    """What [strategy.NAME] of a run spec may say, each with a default."""
    most_windows: int = 1
    """How many times the samples of a step may come while a round is in flight, before the trainer waits."""
    facts: StrategyFacts
    """Of the class where its settings change nothing about them, else of each strategy."""

    def __init__(self, condition: threading.Condition, *, unit: int, settings: Section | None = None) -> None:
        self.settings = self.Settings() if settings is None else settings
        self.facts = self.facts_for(self.settings)
        self.arithmetic = threading.Lock()
        self._condition, self._unit = condition, unit
        self._samples = 0
        self.contributors = 1
        """How many contributions the last round had, as far as its plan foresaw."""
        self.target_batch = unit
        """The target batch size of the step of the last round."""

    @classmethod
    def facts_for(cls, settings: Section) -> StrategyFacts:  # noqa: ARG003
        """What follows from these `Settings`, the same on all peers; each is within its own bounds. Raises
        `ConfigurationError` for settings that do not go together.
        """
        return cls.facts

    def begin(self, replica: ReplicaInterface) -> None:
        """Work on `replica` from now on, which is at a global step; called once.

        From then on the replica's digest, the state that it serves and checkpoints have the `shared_tensors`.
        """
        self.replica = replica
        replica.define_shared(self.shared_tensors, optimizer=self.facts.shares_optimizer)

    # ---- under the condition: nothing here touches a number

    @property
    def samples(self) -> int:
        """All samples that are here and not dropped."""
        return self._samples

    @property
    def complete_samples(self) -> int:
        """Samples that go into the round, once it is closed."""
        return self._samples

    @property
    def has_leftover(self) -> bool:
        """Whether there is something that `merge` would count towards the open step."""
        return False

    def is_ahead(self, micro_batch: int) -> bool:  # noqa: ARG002
        """Whether there is enough for the step after this one already, micro-batches having so many samples."""
        return False

    def close(self) -> None:  # noqa: B027
        """What was added is complete for its step."""

    def count(self, samples: int) -> None:
        """Samples were added."""
        self._samples += samples

    def _count_anew(self, samples: int = 0) -> None:
        """From now on so many samples are here; takes the condition itself."""
        with self._condition:
            self._samples = samples

    @property
    def score(self) -> PeerScore | None:
        """How good this peer's contribution would be if it alone counted; None if there is none. Asked for where the
        facts say that rounds take that of the best.
        """
        return None

    # ---- under `arithmetic`

    def note_loss(self, loss: float | torch.Tensor | None) -> None:  # noqa: B027
        """The micro-batch that comes next has this mean loss, a single number, which a device may still be computing;
        None if the program does not say it.

        Raises `ConfigurationError` where the strategy cannot do without.
        """

    @abstractmethod
    def micro_batch(self, samples: int) -> bool | LateVerdict:
        """The replica has the mean gradients of so many samples: add them. False, with nothing changed, if they are
        not finite; a verdict where that is known later. Until then the strategy is not closed.
        """

    def merge(self) -> None:  # noqa: B027
        """What was closed for a round that came to nothing counts towards the open step again."""

    @abstractmethod
    def contribution(self) -> tuple[torch.Tensor | None, int]:
        """What is complete, and its samples; None and 0 if it is empty. It must not be changed; where the facts say
        `keeps_uncounted`, not after `take_back` either, until a round of the step counts: an earlier one may.

        Until `absorb` or `take_back` it is the same however often it is asked for. It is asked for on any thread, so
        the replica may be read at most. A gradient goes through `replica.clip_own` first, unless the strategy owns the
        optimizer. Raises `NonFiniteError`, with what was complete forgotten, if it holds NaN, infinity or numbers too
        large to be sent.
        """

    @abstractmethod
    def take_back(self) -> None:
        """The round came to nothing: undo `contribution`, unless that is done already."""

    def counted_earlier(self, attempts: int) -> None:  # noqa: B027
        """The mean that is absorbed next adopts a result, and has what `contribution` gave so many attempts before the
        last one. By default the last one is taken for it. A strategy whose facts say `keeps_uncounted` keeps what it
        did since, if that is no more than `KEPT_ATTEMPTS` before (`averaging/codecs/residual.py`).
        """

    def note_round(self, contributors: int, batch: int) -> None:
        """The mean that is absorbed next is one of so many contributions, in a step with this target batch size."""
        self.contributors, self.target_batch = contributors, batch

    @abstractmethod
    def absorb(self, round: int, mean: torch.Tensor, fate: ContributionFate) -> None:
        """The round that leads to global step `round` counted: bring the replica there, and forget what is complete,
        unless it is `UNCOUNTED` and the facts say that the strategy keeps that.

        What peers share is to be a function of what they shared before, `mean` and `round` alone, whatever the `fate`
        of this peer's own contribution. `mean` is served to other peers and must not be changed.
        """

    # ---- on the training thread, between two micro-batches

    def conclude(self) -> None:
        """The run is over: leave the replica with the parameters and buffers that all share, if they are not there
        anyway.
        """
        self.replica.move_buffers(None)

    # ---- state: on the training thread, between two micro-batches

    def shared_tensors(self) -> Mapping[str, torch.Tensor]:
        """What is the same for all peers at one global step, by name: all of `model/…`, and any of `optimizer/…` and
        `strategy/…`. In this order it is hashed.

        By default what the replica has: then micro-batches must not change it.
        """
        return self.replica.tensors()

    def local_tensors(self) -> Mapping[str, torch.Tensor]:
        """What this peer alone has, by other names than the shared part: it keeps that where it rebases, and in a file
        beside its checkpoints. A peer that is started anew with the state of such a checkpoint gets it back.
        """
        return {}

    @abstractmethod
    def restored(
        self, shared: Mapping[str, torch.Tensor], round: int, local: Mapping[str, torch.Tensor] | None
    ) -> None:
        """The replica was given the `shared` state of global step `round`: take over the rest of it.

        `local` is what `local_tensors` returned in this state, if need be in an earlier process, or in an earlier state
        if `missed` says to rebase; None for a peer that begins anew. What of it is not in `local` is forgotten.
        """

    def missed(self, rounds: int) -> Recovery:  # noqa: ARG002
        """What a peer does that missed so many rounds, at least 1.

        It is not asked where others may have counted what this peer gave to one of them: then it begins anew.
        """
        return Recovery.FETCH
