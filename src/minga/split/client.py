"""`minga.split.Client`: a peer that has the data, and the clients' parts of a model."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from torch import nn

from minga.core.errors import ConfigurationError, MingaError, RemoteError
from minga.core.events.split import SplitSuspicious
from minga.identity.links.links import Link
from minga.split.computing.halves import Conversation
from minga.split.computing.parts import LossFunction, OptimizerChoice, as_tensors, cross_entropy
from minga.split.exchange import PATIENCE_S, Exchange
from minga.split.held_out import HeldOutWatch
from minga.split.no_peek import Penalty
from minga.split.sharing.round_robin import TurnHalf
from minga.split.sharing.splitfed import AveragedPart
from minga.split.sharing.variants import check_split, half_for, part_for, server_of
from minga.split.sharing.vertical import BlockHalf
from minga.split.wire.messages import PUBLISH_S
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer

LEAVE_S: Final = 2.0
"""Seconds that a client has, at its end, to hand over in the middle of its turn."""

T = TypeVar("T")


class Client:
    """A client of a run with a model that is cut: `train` it, batch by batch, with a server that never sees the inputs.

    run: a link, or a peer that is in the run already.
    bottom: the part that takes the inputs: a tensor, a sequence of positional or a mapping of named arguments. What it
        returns, a tensor or several, the server gets to see.
    head: (u-shaped) the end of the model; takes what the server's part returns, one argument for each tensor.
    optimizer: of the parameters of both, or what makes one of them; None is that of the run spec.
    loss: mean loss by outputs and labels; but for U-shaped runs the server has its own, and this one is for `evaluate`.
    penalty: a further loss of the bottom, by the inputs and what it returns, such as `NoPeek()`; it stays here, and is
        not in the loss that `train` returns.
    max_grad_norm: scales down the gradient of this part of the model alone, None by that of the run spec, if the
        optimizer is; where clients' parts are averaged, by the same number at all of them.
    block: (vertical) the number, from 0, of the block of features that is here.
    options: settings of the peer that joins by a link, as of `minga.join`.
    patience_s: seconds to wait for the server, or for one that comes back, before a call fails.
    resume: a file that `save` wrote, from which to go on; one that is not there yet says nothing.

    One thread at a time may use it. Raises `ConfigurationError` for arguments that make no sense in this run, and as
    `minga.join`.
    """

    def __init__(
        self,
        run: Link | str | Peer,
        bottom: nn.Module,
        head: nn.Module | None = None,
        *,
        optimizer: OptimizerChoice | None = None,
        loss: LossFunction = cross_entropy,
        penalty: Penalty | None = None,
        max_grad_norm: float | None = None,
        block: int | None = None,
        options: PeerOptions | None = None,
        patience_s: float = PATIENCE_S,
        resume: Path | None = None,
    ) -> None:
        peer = self.peer = run if isinstance(run, Peer) else join(run, options)
        self._owns_peer, self._busy, self._closed = peer is not run, threading.Lock(), False
        self._loss = loss
        self._watch: HeldOutWatch | None = None
        try:
            spec = peer.spec
            check_split(spec)
            part = part_for(peer, [bottom] if head is None else [bottom, head], optimizer, max_grad_norm)
            if resume is not None:
                part.load(resume)
            self._half = half_for(spec.split, bottom, head, part, loss, peer.peer_id, block, penalty)

            def begin() -> Exchange:
                session = peer.session
                return Exchange(session.node, session.board, server_of(spec), spec.split, patience_s=patience_s)

            self._exchange = peer.on_loop(begin)
        except BaseException:
            if self._owns_peer:
                peer.close()
            raise

    @property
    def steps(self) -> int:
        """Steps that the parts of this client have taken."""
        return self._half.part.steps

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step, where clients' parts are averaged; `train` does nothing then."""
        return isinstance(self._half.part, AveragedPart) and self._half.part.finished

    def train(self, inputs: Any, labels: Any = None, *, sample_set: int | None = None) -> float | None:
        """Train all parts on one batch, and return its mean loss, as it was before.

        Vertical: all clients call it for the same samples, whose `sample_set` numbers ascend (None: the last one and
        1); one of them has the labels. Round-robin: it waits for this client's turn.

        The loss is None if the server may have trained on the batch while its gradients were lost, as when it ended in
        the middle, or if the others went on without it: then this client's parts are as before. Waits while no server
        is there. Raises `RemoteError` if none is for longer than `patience_s` or if the server refuses the batch, and
        `LocalError` for one that cannot be sent, because it is not finite or too large.
        """
        if self.finished:
            return None
        conversation = (
            self._half.train(inputs, labels)
            if sample_set is None
            else self._block_half().train(inputs, labels, sample_set)
        )
        loss = self._lead(conversation)
        self._count(loss, labels)
        if self._watch is not None and self._watch.is_due():
            self._look(self._watch)
        return loss

    def watch(self, inputs: Any, labels: Any, *, every_batches: int = 50) -> None:
        """Look, from now on, at samples that nobody trains on, after every so many batches of this client.

        A loss of theirs that rises far, or never falls, is an event, "split.suspicious", and a line in the status. Not
        more than `split.max_samples` samples, and not where clients have blocks of features; raises
        `ConfigurationError` if they cannot be looked at.
        """
        if isinstance(self._half, BlockHalf):
            raise ConfigurationError(
                'watch(…) is not for runs with split.variant = "vertical": nobody has all features'
            )
        self._watch = HeldOutWatch(
            inputs,
            labels,
            every_batches,
            is_cross_entropy=self._loss is cross_entropy,
            max_samples=self.peer.spec.split.max_samples,
        )

    def predict(self, inputs: Any, *, sample_set: int | None = None) -> Any:
        """What the whole model, in evaluation mode, makes of the inputs; raises as `train`. Vertical: all clients call
        it for the same samples.
        """
        if sample_set is None:
            return self._lead(self._half.predict(inputs))
        return self._lead(self._block_half().predict(inputs, sample_set))

    def evaluate(self, inputs: Any, labels: Any) -> float:
        """The mean loss of the whole model, in evaluation mode, by this client's own loss; the labels stay here.

        Raises as `train`.
        """
        return self._lead(self._half.evaluate(inputs, labels))

    def save(self, path: Path) -> None:
        """Write this client's parts, and what their optimizer keeps, to a file from which `resume` goes on. Where
        clients' parts are averaged it writes a checkpoint to the peer's folder instead, from which the peer goes on.

        Raises `StorageError`, with the file as before, if the disk refuses, and `ConfigurationError` if there is
        nothing to train.
        """
        self._half.part.save(path)

    def close(self) -> None:
        """End; a peer that this client made leaves the run. May be called twice."""
        is_closed, self._closed = self._closed, True
        with contextlib.ExitStack() as rest:  # done in any case: a second Ctrl-C may break off the goodbye
            if self._owns_peer:
                rest.callback(self.peer.close)
            if isinstance(self._half.part, AveragedPart) and not is_closed:
                with contextlib.suppress(MingaError):
                    self._half.part.save(self.peer.directory)
            if isinstance(self._half, TurnHalf) and not is_closed:
                with contextlib.suppress(MingaError, TimeoutError):
                    self._lead(self._half.leave(), LEAVE_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _count(self, loss: float | None, labels: Any) -> None:
        """Let displays see what this client does, and how much it sends. An averaged part tells of itself."""
        if isinstance(self._half.part, AveragedPart):
            return
        if loss is not None and labels is not None:
            self.peer.metrics.count(len(as_tensors(labels)[0]), loss)
        self.peer.metrics.publish(self._exchange.step, every_s=PUBLISH_S)

    def _look(self, watch: HeldOutWatch) -> None:
        try:
            found = watch.rule.take(self.evaluate(watch.inputs, watch.labels))
        except RemoteError:
            return  # no server now: the next batch will say so
        if found is not None:
            event = SplitSuspicious(loss=found.loss, why=found.why)
            self.peer.on_loop(lambda: self.peer.session.events.emit(event))

    def _block_half(self) -> BlockHalf:
        if not isinstance(self._half, BlockHalf):
            raise ConfigurationError('sample_set=… is for runs with split.variant = "vertical"')
        return self._half

    def _lead(self, conversation: Conversation[T], limit_s: float | None = None) -> T:
        """Compute on this thread, and let the peer's own carry the questions."""
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError("one thread at a time may use a client")
        try:
            question = next(conversation)
            while True:
                question = conversation.send(self.peer.call(asyncio.wait_for(self._exchange.ask(question), limit_s)))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            conversation.close()
            self._busy.release()
