"""What clients and the server of a cut model say to each other.

split.begin   BeginRequest -> BeginReply                       a client begins a session, or begins anew
split.batch   BatchRequest, then one bulk frame for each tensor -> BatchReply, then one bulk frame for each tensor

The requests of a session that change anything are numbered from 1. A *vanilla* batch is one request: "train" sends
activations and labels, and gets the gradients of the activations. A *U-shaped* one is two: "forward" sends activations
and gets those of the server's part, "backward" sends their gradients and gets those of the first. "predict" changes
nothing; its number is 0.

Where features are cut *vertically*, "block" sends the activations of one block of a sample set, and who owns the labels
sends these, too; "predict_block" is the same without labels, and changes nothing. In *turns*, "turn" waits for the
client's turn and gets the part that the client before handed over, and "hand_over" sends it at the end of the turn.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from minga.core.spec.sections import MAX_BLOCKS, MAX_ELEMENTS
from minga.network.gossip.record_kinds import Count

BEGIN: Final = "split.begin"
BATCH: Final = "split.batch"

MAX_TENSORS: Final = 8
MAX_AXES: Final = 8
PUBLISH_S: Final = 1.0
"""Shortest time between two records of a peer on the board, of what it serves or of its traffic."""
MAX_LOSS: Final = 1e18

Kind = Literal["train", "forward", "backward", "predict", "block", "predict_block", "turn", "hand_over"]
CHANGES_NOTHING: Final = frozenset[Kind](("predict", "predict_block"))
NEED_LABELS: Final = frozenset[Kind](("train",))
MAY_HAVE_LABELS: Final = frozenset[Kind](("train", "block"))
EXACT: Final = frozenset[Kind](("turn", "hand_over"))
"""Carry a part of a model, if anything, and no batch; it travels as float32, whatever the codec of the run."""

DtypeName = Literal["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]
Axis = Annotated[int, msgspec.Meta(ge=1, le=MAX_ELEMENTS)]
SessionNumber = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]
PartDigest = Annotated[str, msgspec.Meta(pattern=r"\A([0-9a-f]{64})?\Z")]
"""Of what a client hands over, see `split/sharing/round_robin.py`; empty where nothing is."""
Loss = Annotated[float, msgspec.Meta(ge=-MAX_LOSS, le=MAX_LOSS)]


class TensorHeader(msgspec.Struct, frozen=True):
    """One tensor: what it was before it was encoded, and how many bytes follow.

    Floating-point numbers travel by the run's codec for this direction, all others as they are, little-endian.
    """

    dtype: DtypeName
    shape: Annotated[tuple[Axis, ...], msgspec.Meta(max_length=MAX_AXES)]
    size_bytes: Annotated[int, msgspec.Meta(ge=1, le=9 * MAX_ELEMENTS)]


TensorHeaders = Annotated[tuple[TensorHeader, ...], msgspec.Meta(max_length=MAX_TENSORS)]


class BeginRequest(msgspec.Struct, frozen=True):
    """A client begins. If it does not know what became of a request: that of `doubt_session`, `doubt_number`."""

    doubt_session: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    doubt_number: Count = 0


class BeginReply(msgspec.Struct, frozen=True):
    """The client's session; whether the request in doubt was applied (None: not known here); the server's step."""

    session: SessionNumber
    applied: bool | None
    step: Count


class BatchPlace(msgspec.Struct, frozen=True):
    """Where a batch belongs: the `round` of averaging of its client's part; its `sample_set` and `block` of features.
    Each variant reads its own.
    """

    round: Count = 0
    sample_set: Count = 0
    block: Annotated[int, msgspec.Meta(ge=0, lt=MAX_BLOCKS)] = 0


NOWHERE: Final = BatchPlace()
"""Where a batch belongs in variants that do not ask."""


class BatchRequest(msgspec.Struct, frozen=True):
    """Activations (or, "backward", gradients) of a batch, and for "train" the labels.

    A client whose part has nothing to train `wants_gradients` not. `digest` is that of a part that is handed over.
    """

    kind: Kind
    session: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    number: Count
    tensors: TensorHeaders
    labels: TensorHeaders = ()
    wants_gradients: bool = True
    place: BatchPlace = NOWHERE
    digest: PartDigest = ""

    @property
    def changes(self) -> bool:
        """Whether it may change anything, and is numbered for that."""
        return self.kind not in CHANGES_NOTHING

    @property
    def size_bytes(self) -> int:
        """The bytes that follow."""
        return sum(each.size_bytes for each in (*self.tensors, *self.labels))


class BatchReply(msgspec.Struct, frozen=True):
    """What becomes of a request: gradients or activations, the mean `loss` where the server knows it, its step."""

    tensors: TensorHeaders
    loss: Loss | None
    step: Count
    digest: PartDigest = ""
