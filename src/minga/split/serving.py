"""`minga.split.serve`: the peer that has the server's part of a model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, TypeVar

from torch import nn

from minga.core.errors import ClosedError, ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.identity.links.links import Link
from minga.split.computing.applying import BrokenPartError
from minga.split.computing.parts import LossFunction, ModelPart, OptimizerChoice, cross_entropy
from minga.split.server.batch_server import BatchServer, Finished
from minga.split.server.service import SplitService
from minga.split.sharing.variants import applying_for, check_schedule, check_split, server_of
from minga.split.wire.messages import PUBLISH_S
from minga.split.wire.tensors import EncodedReply
from minga.training.bridge.loop_thread import LOOK_S
from minga.training.host import host, read_spec
from minga.training.join import PeerOptions
from minga.training.peer import Peer

ROOM_BYTES: Final = 512 << 20
"""Of batches that wait to be computed."""

T = TypeVar("T")


@dataclass(frozen=True)
class SplitStatus:
    """What a server has done: steps, samples, the last mean loss (None: it knows none), clients that began, batches
    that wait.
    """

    steps: int
    samples: int
    loss: float | None
    clients: int
    waiting: int


class SplitServer:
    """The server of a run with a model that is cut, made by `serve`. Use it as a context manager, or call `close`."""

    def __init__(self, peer: Peer, core: BatchServer, *, owns_peer: bool) -> None:
        self.peer, self._owns_peer, self._core = peer, owns_peer, core
        self._loss: float | None = None
        self.broken: BrokenPartError | None = None
        """Why it serves no more, if nobody closed it; then `top` has half a step, or cannot be read."""
        self._stepped = threading.Condition()
        self._closed = False

        def begin() -> SplitService:
            session = peer.session
            service = SplitService(session.node, session.board, core, room_bytes=ROOM_BYTES)
            service.on_finished, service.on_broken = self._note, self._break
            return service

        self._service = peer.on_loop(begin)

    @property
    def link(self) -> Link:
        """An invitation to the run, for clients."""
        return self.peer.link

    @property
    def status(self) -> SplitStatus:
        """What the server has done so far. Raises `ClosedError` after `close`, and what is `broken`."""
        self._check()
        core = self._core

        def look() -> SplitStatus:
            steps, clients = core.applying.steps, len(core.sessions)
            return SplitStatus(steps, core.samples, self._loss, clients, self._service.waiting)

        return self.peer.on_loop(look)

    def between_batches(self, function: Callable[[], T]) -> T:
        """Run a function while no batch is computed, such as one that saves or evaluates the top; returns its result.

        Raises `ClosedError` after `close`, what is `broken`, and what the function raises.
        """
        self._check()
        return self.peer.call(self._service.between_batches(function))

    def save(self, path: Path) -> None:
        """Write the top, and all that goes with it, to a file from which `serve(…, resume=path)` goes on; between two
        batches, or after `close`.

        Raises what is `broken`, and `StorageError`, with the file as before, if the disk refuses.
        """
        if self._closed:
            self._check()
            self._core.applying.save(path)
        else:
            self.between_batches(lambda: self._core.applying.save(path))

    def wait(self, steps: int | None = None) -> None:
        """Wait until the top has taken so many steps, or (None) for good; also ended by `close`.

        Raises what is `broken`.
        """

        def is_over() -> bool:
            return self._closed or self.broken is not None or (steps is not None and self._core.applying.steps >= steps)

        with self._stepped:
            while not self._stepped.wait_for(is_over, LOOK_S):
                pass  # in slices, so that Ctrl-C is heard everywhere
        self._check()

    def close(self) -> None:
        """Serve no more; a peer that `serve` made leaves the run. May be called twice."""
        if self._closed:
            return
        with contextlib.ExitStack() as rest:  # done in any case: a second Ctrl-C may break off each part
            rest.callback(self._tell_closed)
            if self._owns_peer:
                rest.callback(self.peer.close)
            rest.callback(self._service.join)
            with contextlib.suppress(ClosedError):  # the program closed the peer first
                self.peer.call(self._end())

    def __enter__(self) -> SplitServer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _tell_closed(self) -> None:
        with self._stepped:
            self._closed = True
            self._stepped.notify_all()

    async def _end(self) -> None:
        """Leave the program's part of the model with all that was applied."""
        self._service.close()  # first, so that nothing that waits is computed before
        if self.broken is None:
            await self._service.between_batches(self._core.applying.settle)

    def _check(self) -> None:
        if self.broken is not None:
            raise self.broken

    def _break(self, error: BrokenPartError) -> None:
        with self._stepped:
            self.broken = error
            self._stepped.notify_all()

    def _note(self, finished: Finished) -> None:
        if isinstance(finished.reply, EncodedReply) and finished.reply.message.loss is not None:
            self._loss = finished.reply.message.loss
        self.peer.metrics.publish(self._core.applying.steps, every_s=PUBLISH_S)  # its traffic, for displays
        with self._stepped:
            self._stepped.notify_all()


def serve(
    run: RunSpec | Mapping[str, Any] | Path | str | Peer,
    top: nn.Module,
    *,
    bottom: nn.Module | None = None,
    optimizer: OptimizerChoice | None = None,
    loss: LossFunction = cross_entropy,
    max_grad_norm: float | None = None,
    options: PeerOptions | None = None,
    resume: Path | None = None,
) -> SplitServer:
    """Serve the server's part of a model to the clients of a run, which is begun, or of which `run` is a peer already.

    top: takes what the clients' bottoms return, one argument for each tensor; vertical, one tensor, in which the blocks
        are joined along axis 1. It returns what `loss` compares with the labels; U-shaped, what clients' heads take.
    bottom: (round-robin) the clients' part, with which the first client begins; of clients with another one, none is
        handed on. None: the first client begins with its own.
    optimizer: of the parameters of `top`, or what makes one of them; None is that of the run spec. It takes one step
        for each batch.
    loss: mean loss by outputs and labels; U-shaped runs have no use for it.
    max_grad_norm: scales down the gradient of `top` alone; None is that of the run spec, if the optimizer is.
    options: settings of the peer that begins the run, as of `minga.host`.
    resume: a file that `SplitServer.save` wrote, from which to go on; one that is not there yet says nothing.

    Raises `ConfigurationError` for arguments that make no sense, a run whose model is not cut, and a peer to which its
    clients would not send anything.
    """
    if isinstance(run, Peer):
        check_split(run.spec)
        peer = run
    else:
        check_split(spec := read_spec(run))
        peer = host(spec, options)
    try:
        if peer.peer_id != server_of(peer.spec):
            raise ConfigurationError(
                f"clients of this run send nothing to {peer.peer_id[:10]}…: name its whole key in split.server"
            )
        if optimizer is None and peer.spec.split.averages_clients:
            check_schedule(peer.spec)
        part = ModelPart([top], optimizer, peer.spec.optimizer, max_grad_norm)
        applying = applying_for(peer.spec.split, part, loss, bottom)
        if resume is not None:
            applying.load(resume)
        return SplitServer(peer, BatchServer(applying, peer.spec.split), owns_peer=peer is not run)
    except BaseException:
        if peer is not run:
            peer.close()
        raise
