"""`minga.split.Client`: a peer that has the data, and the clients' parts of a model."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any, TypeVar

from torch import nn

from minga.core.errors import ConfigurationError
from minga.identity.links.links import Link
from minga.split.computing.halves import ClientHalf, Conversation
from minga.split.computing.one_top import LossFunction, cross_entropy
from minga.split.computing.parts import OptimizerChoice, Part
from minga.split.exchange import PATIENCE_S, Exchange
from minga.split.finding import allowed_servers, check_split, find_server
from minga.training.join import PeerOptions, join
from minga.training.peer import Peer

T = TypeVar("T")


class Client:
    """A client of a run with a model that is cut: `train` it, batch by batch, with a server that never sees the inputs.

    run: a link, or a peer that is in the run already.
    bottom: the part that takes the inputs: a tensor, a sequence of positional or a mapping of named arguments. What it
        returns, a tensor or several, the server gets to see.
    head: (u-shaped) the end of the model; takes what the server's part returns, one argument for each tensor.
    optimizer: of the parameters of both, or what makes one of them; None is that of the run spec.
    loss: mean loss by outputs and labels; in vanilla runs the server has its own, and this one is for `evaluate`.
    max_grad_norm: scales down the gradient of this part of the model alone.
    options: settings of the peer that joins by a link, as of `minga.join`.
    patience_s: seconds to wait for a server, or for one that comes back, before a call fails.

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
        max_grad_norm: float | None = None,
        options: PeerOptions | None = None,
        patience_s: float = PATIENCE_S,
    ) -> None:
        peer = self.peer = run if isinstance(run, Peer) else join(run, options)
        self._owns_peer, self._busy = peer is not run, threading.Lock()
        try:
            spec = peer.spec
            check_split(spec)
            allowed = allowed_servers(spec)
            part = Part([bottom] if head is None else [bottom, head], optimizer, spec.optimizer, max_grad_norm)
            self._half = ClientHalf(bottom, head, part, loss, spec.split, peer.peer_id)

            def begin() -> Exchange:
                board = peer.session.board
                return Exchange(
                    peer.session.node,
                    lambda last: find_server(board, allowed, last),
                    spec.split,
                    patience_s=patience_s,
                )

            self._exchange = peer.on_loop(begin)
        except BaseException:
            if self._owns_peer:
                peer.close()
            raise

    @property
    def steps(self) -> int:
        """Steps that the parts of this client have taken."""
        return self._half.part.steps

    def train(self, inputs: Any, labels: Any) -> float | None:
        """Train all parts on one batch, and return its mean loss, as it was before.

        The loss is None if the server may have trained on the batch while its gradients were lost, as when it ended in
        the middle: then this client's parts are as before. Waits while no server is there. Raises `RemoteError` if none
        is for longer than `patience_s` or if the server refuses the batch, and `LocalError` for one that cannot be
        sent, because it is not finite or too large.
        """
        return self._lead(self._half.train(inputs, labels))

    def predict(self, inputs: Any) -> Any:
        """What the whole model, in evaluation mode, makes of the inputs; raises as `train`."""
        return self._lead(self._half.predict(inputs))

    def evaluate(self, inputs: Any, labels: Any) -> float:
        """The mean loss of the whole model, in evaluation mode, by this client's own loss; the labels stay here.

        Raises as `train`.
        """
        return self._lead(self._half.evaluate(inputs, labels))

    def close(self) -> None:
        """End; a peer that this client made leaves the run. May be called twice."""
        if self._owns_peer:
            self.peer.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _lead(self, conversation: Conversation[T]) -> T:
        """Compute on this thread, and let the peer's own carry the questions."""
        if not self._busy.acquire(blocking=False):
            raise ConfigurationError("one thread at a time may use a client")
        try:
            question = next(conversation)
            while True:
                question = conversation.send(self.peer.call(self._exchange.ask(question)))
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            conversation.close()
            self._busy.release()
