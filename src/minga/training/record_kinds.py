"""What the peers of a run tell each other about their training, and all kinds of records of a run together."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from minga.averaging.links import LINKS
from minga.averaging.matchmaking.votes import MOST_DISTANCE
from minga.network.gossip.record_kinds import (
    MAX_PAYLOAD_BYTES,
    NETWORK_KINDS,
    Amount,
    Count,
    Digest,
    Kind,
    Number,
    Payload,
)
from minga.network.rpc.handshake import UnixTime, Word
from minga.training.lineage import Lineage

MAX_SKETCH_NUMBERS = 32
MAX_WHY_CHARACTERS = 400

Status = Literal["training", "syncing", "averaging", "paused", "finished"]
IN_STEP: Final = ("training", "averaging")
"""The statuses of a peer that takes part in a step just now."""


class Progress(Payload, frozen=True):
    """Name "progress": the global step the owner is at, samples accumulated towards the next, and its speed.

    `vector_bytes` is what the vector that the run averages takes as encoded, 0 if the owner does not say.
    `target_batch_size` is that of the step, 0 likewise. `lineage` is that of the owner's state: peers of different
    foundings or epochs have nothing in common. `status` is a `Status`, or one that is not known here. `distance` is 0
    for who took part in the last round or brought a state of its own, else one more than for those from whom it has it.
    """

    step: Count
    samples: Count
    samples_per_second: Amount
    status: Word
    client: bool = False
    vector_bytes: Count = 0
    target_batch_size: Count = 0
    lineage: Lineage = Lineage()
    distance: Annotated[int, msgspec.Meta(ge=0, le=MOST_DISTANCE)] = 0

    @property
    def is_settled(self) -> bool:
        """Whether the owner has a state of its own: all but those that fetch one."""
        return self.status != "syncing"

    @property
    def is_active(self) -> bool:
        """Whether the owner takes part in rounds at present."""
        return self.status not in ("syncing", "finished")

    @property
    def is_in_step(self) -> bool:
        """Whether the owner takes part in a step just now."""
        return self.status in IN_STEP


class StateInfo(Payload, frozen=True):
    """Name "state": digest (64 hexadecimal digits) of the owner's training state after `step`.

    Where the owner's optimizer may round differently from those of others: the `sketch` of its parameters
    (`minga.training.state.sketch`), how far from them others may be that count as the same (L2 distance), and what
    stands for the record of what it trains (`minga.training.replica.trained_record`), which has to be the same.
    """

    step: Count
    digest: Digest
    sketch: Annotated[tuple[Number, ...], msgspec.Meta(max_length=MAX_SKETCH_NUMBERS)] = ()
    tolerance: Amount = 0.0
    trains: Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{32})?\Z")] = ""


class Unfit(Payload, frozen=True):
    """Name "unfit": the owner takes part in no step, since its program trains something else than the run; `why` says
    what, in its own words.
    """

    why: Annotated[str, msgspec.Meta(max_length=MAX_WHY_CHARACTERS)]


class Metrics(Payload, frozen=True):
    """Name "metrics": running totals for displays. `loss_sum` is summed over `mini_steps` local micro-batches. `since`
    is when the owner's process told them first, in Unix seconds: it stands for the process.
    """

    step: Count
    loss_sum: Number
    samples: Count
    mini_steps: Count
    bytes_sent: Count = 0
    bytes_received: Count = 0
    since: UnixTime = 0.0


def is_another_process(since: float, before: float) -> bool:
    """Whether totals `since` then are not those of `before` grown on; 0 is what older versions say of any process."""
    return since != before and 0.0 not in (since, before)


class SplitServing(Payload, frozen=True):
    """Name "split": the owner has the server's part of a model that is cut between clients and a server.

    `step` counts the steps of that part, and `samples` those of all clients so far. `clients` have begun, and `waiting`
    batches are not computed yet.
    """

    step: Count
    samples: Count = 0
    clients: Count = 0
    waiting: Count = 0


PROGRESS = Kind("progress", 2, Progress, 512)
UNFIT = Kind("unfit", 10, Unfit, 4 * MAX_WHY_CHARACTERS + 16, is_urgent=True)

RUN_KINDS = NETWORK_KINDS.extended(
    PROGRESS,
    Kind("state", 3, StateInfo, 512),
    Kind("metrics", 4, Metrics, MAX_PAYLOAD_BYTES),
    LINKS,
    Kind("split", 9, SplitServing, 256),
    UNFIT,
)
"""What every peer of a run can say; a peer that knows more kinds extends it."""
