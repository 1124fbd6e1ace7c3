"""The heart of a split server, without a network: a request comes in, what becomes of it comes out.

    check (limits) ─▶ admit (session, number) ─▶ take (decode, apply, encode) ─▶ note (the answer is kept)

All but `take` are quick and belong to the thread that serves; `take` computes, one call at a time, on any thread.
`split/server/service.py` puts this on a node; tests and variants use it as it is.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from minga.core.errors import ConfigurationError, NonFiniteError, ProtocolError, RejectedError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.sections import SplitSection
from minga.split.computing.applying import Applying, BatchOutcome, BatchWork
from minga.split.server.sessions import Sessions
from minga.split.wire.messages import (
    EXACT,
    MAY_HAVE_LABELS,
    NEED_LABELS,
    BatchReply,
    BatchRequest,
    BeginReply,
    BeginRequest,
    Kind,
)
from minga.split.wire.tensors import Body, EncodedReply, EncodedTensors, InvalidTensorsError, TensorWire

KEPT_BYTES: Final = 512 << 20
"""Of the answers that a server keeps for clients that may ask again."""


@dataclass(frozen=True)
class Finished:
    """What became of one work: an answer, or a refusal. `applied`: it changed the top."""

    work: BatchWork
    reply: EncodedReply | RejectedError
    applied: bool = False


class BatchServer:
    """Serves the batches of all clients by `applying`. Raises `ConfigurationError` for a codec that cannot be made."""

    def __init__(
        self,
        applying: Applying,
        section: SplitSection,
        *,
        entropy: Callable[[int], bytes] = secrets.token_bytes,
        kept_bytes: int = KEPT_BYTES,
    ) -> None:
        self.applying, self.section = applying, section
        self.sessions = Sessions(entropy, kept_bytes)
        self.samples = 0
        """Samples of all batches that were applied."""
        self._upload = TensorWire(section.upload_codec, section.max_elements)
        self._download = TensorWire(section.download_codec, section.max_elements)
        self._exact = TensorWire("float32", section.max_elements)

    # ---- quick

    def begin(self, client: str, request: BeginRequest) -> tuple[BeginReply, Sequence[Finished]]:
        """Begin a session of `client`; also what becomes of those that waited for the rest of its last batch."""
        dropped = self.applying.drop(client)
        return self.sessions.begin(client, request, self.applying.steps), [self.finished(each) for each in dropped]

    def check(self, client: str, request: BatchRequest) -> None:
        """Check all that can be known before memory is reserved for the tensors.

        Raises `ProtocolError` for what no honest client sends.
        """
        if request.kind not in self.applying.kinds:
            raise ProtocolError(f'a "{request.kind}" where split.variant = "{self.section.variant}"', peer=client)
        lacks_labels = request.kind in NEED_LABELS and not request.labels
        if lacks_labels or (request.labels and request.kind not in MAY_HAVE_LABELS):
            raise ProtocolError(f'a "{request.kind}" with {len(request.labels)} labels', peer=client)
        if request.kind not in EXACT:
            if not request.tensors or not request.tensors[0].shape:
                raise ProtocolError(f'a "{request.kind}" without samples', peer=client)
            if request.tensors[0].shape[0] > self.section.max_samples:
                raise ProtocolError(f"more samples than split.max_samples = {self.section.max_samples}", peer=client)
        try:
            self._uploads(request.kind).check(request.tensors)
            self._exact.check(request.labels)
        except InvalidTensorsError as error:
            raise ProtocolError(str(error), peer=client) from error

    def admit(self, client: str, request: BatchRequest) -> EncodedReply | None:
        """The answer to a request, if it was given before; None if it is due now.

        Raises `RejectedError` for any other: the client has to begin anew.
        """
        return self.sessions.check(client, request.session, request.number) if request.changes else None

    def note(self, request: BatchRequest, finished: Finished) -> None:
        """Keep the answer to a request that was taken."""
        reply = finished.reply if isinstance(finished.reply, EncodedReply) else None
        if request.changes and (reply is not None or finished.applied):
            self.sessions.note(finished.work.client, request.session, request.number, reply)
        if finished.applied:
            self.samples += finished.work.samples

    def _uploads(self, kind: Kind) -> TensorWire:
        return self._exact if kind in EXACT else self._upload

    # ---- on the thread that computes

    def take(self, client: str, request: BatchRequest, bodies: Sequence[Body], ticket: int = 0) -> Sequence[Finished]:
        """Decode the tensors of a request that was admitted, apply it, and encode what becomes of it and of others.

        Raises `ProtocolError` for bytes that are no such tensors.
        """
        count = len(request.tensors)
        try:
            tensors = self._uploads(request.kind).decode(EncodedTensors(request.tensors, tuple(bodies[:count])))
            labels = self._exact.decode(EncodedTensors(request.labels, tuple(bodies[count:])))
        except InvalidTensorsError as error:
            raise ProtocolError(str(error), peer=client) from error
        work = BatchWork(
            ticket, client, request.kind, tensors, labels, request.wants_gradients, request.place, request.digest
        )
        return [self.finished(each) for each in self.applying.apply(work)]

    def finished(self, outcome: BatchOutcome) -> Finished:
        """An outcome as it travels."""
        if outcome.refusal is not None:
            return Finished(outcome.work, outcome.refusal)
        steps = self.applying.steps
        try:
            wire = self._exact if outcome.work.kind in EXACT else self._download
            encoded = wire.encode(outcome.tensors, f"download {steps} {outcome.work.ticket}")
        except (NonFiniteError, ConfigurationError) as error:
            why = f"what the server's part of the model makes of this batch cannot be sent: {error}"
            code = RefusalCode.SESSION if outcome.applied else RefusalCode.REFUSED  # it must not be sent again
            return Finished(outcome.work, RejectedError(why, code=code), outcome.applied)
        message = BatchReply(encoded.headers, outcome.loss, steps, digest=outcome.digest)
        return Finished(outcome.work, EncodedReply(message, encoded.bodies), outcome.applied)
