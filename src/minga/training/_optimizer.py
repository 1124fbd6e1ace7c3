"""`minga.Optimizer`: an ordinary torch optimizer whose steps are taken together with the rest of the run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from minga.core._errors import ConfigurationError, RunFinishedError
from minga.training._peer import Peer
from minga.training._port import Work
from minga.training._replica import Replica

IDLE_S = 0.02
"""Longest pause, in seconds, of a thread that has nothing to do but wait."""


class Optimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer so that it steps once per `target_batch_size` samples of all peers together.

    Call `backward()` on the mean loss of each micro-batch, then `step(samples=...)` with the number of samples in it,
    then `zero_grad()`. A call returns at once, except where the swarm's step is complete: there it takes part in the
    averaging (or, with the delayed strategy, collects the result) and applies the same update as every other peer.

    optimizer: any `torch.optim.Optimizer`; its parameters are averaged as gradients in float32.
    peer: from `minga.join` or `minga.host`.
    target_batch_size: samples per global step; None takes the run spec's, another number must agree with it.
    scheduler: a learning-rate scheduler of `optimizer`, advanced once per global step; do not step it yourself.
    model: gives the parameters their names in checkpoints, and its buffers to the buffers policy of the run spec.
    max_grad_norm: clip the norm of the averaged gradient; None takes the run spec's, or with recipe "custom" does not clip.

    The constructor returns when this peer has the swarm's current state. Raises `ConfigurationError` for arguments that
    disagree with the run spec. With `torch.amp.GradScaler`, call `scaler.step(opt, samples=...)`.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        peer: Peer,
        *,
        target_batch_size: int | None = None,
        scheduler: LRScheduler | None = None,
        model: torch.nn.Module | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        spec = peer.spec
        if target_batch_size not in (None, spec.training.target_batch_size):
            raise ConfigurationError(
                f"target_batch_size={target_batch_size} disagrees with the run spec, which all peers share: "
                f"{spec.training.target_batch_size}"
            )
        super().__init__(optimizer.param_groups, optimizer.defaults)
        self.inner, self.scheduler, self.peer = optimizer, scheduler, peer
        self.param_groups, self.state, self.defaults = optimizer.param_groups, optimizer.state, optimizer.defaults
        self.finished = False
        """Whether the run has reached its last step; `step` does nothing from then on."""
        self.dropped_micro_batches = 0
        """Micro-batches that did not count: not finite, or too late for their step."""
        norm = max_grad_norm
        if norm is None and spec.model.recipe != "custom":  # a custom loop's optimizer is not the run spec's
            norm = spec.optimizer.max_grad_norm
        self._replica = Replica(spec, optimizer, model=model, scheduler=scheduler, max_grad_norm=norm)
        checkpoint = peer.newest_checkpoint()
        if checkpoint is not None:
            self._replica.restore(checkpoint)
        self._seen_step = self._replica.step
        self._port = peer.attach(self._replica, contributes=peer.role in ("trainer", "client"))
        self._work_until(peer.is_ready)

    @property
    def global_step(self) -> int:
        """Global steps that this peer's state has seen."""
        return self._replica.step

    def step(  # type: ignore[override]
        self, closure: Callable[[], Any] | None = None, *, samples: int = 0, loss: float | None = None
    ) -> Any:
        """Count the gradients of one micro-batch of `samples` samples; see the class. Returns the closure's result.

        `loss` is for displays only.

        Raises the `LocalError` that ended this peer, if any; other peers' faults never surface here.
        """
        if isinstance(samples, bool) or not isinstance(samples, int) or samples < 1:
            raise ConfigurationError(
                f"step(samples=...) needs the number of samples in this micro-batch, got {samples}"
            )
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        if not self.finished:
            if self._port.add(lambda vector: self._replica.accumulate(vector, samples), samples):
                self.peer.count(samples, loss)
            else:
                self.dropped_micro_batches += 1
                self.peer.emit("micro_batch.dropped", step=self.global_step, samples=samples)
            self._work_until(lambda: True)
        return result

    def follow(self, seconds: float | None = None) -> None:
        """Take part without gradients for a while (None: to the end of the run): aggregate, apply, serve state."""
        self._port.pause()
        self._work_until(lambda: False, seconds)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the micro-batch, as with any optimizer."""
        self.inner.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, with the key `global_step` added."""
        return {**self.inner.state_dict(), "global_step": self.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict` returned, before training; a swarm that is further on overrules it."""
        self.inner.load_state_dict({k: v for k, v in state_dict.items() if k != "global_step"})
        self.param_groups, self.state = self.inner.param_groups, self.inner.state

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible once the vector that peers average is fixed; raises `ConfigurationError`."""
        if hasattr(self, "inner"):
            raise ConfigurationError("parameters cannot be added to a run: all peers average the same vector")
        super().add_param_group(param_group)

    def save_checkpoint(self) -> None:
        """Write the present state to this peer's folder of the run, and wait until it is there."""
        self.peer.save_checkpoint(self._replica.capture(), wait=True)

    # ---- inner workings: all on the thread that trains

    def _work_until(self, is_done: Callable[[], bool], seconds: float | None = None) -> None:
        """Do what the loop asks for; return when nothing holds this thread back and `is_done()`, or after `seconds`."""
        deadline = None if seconds is None else time.monotonic() + seconds
        try:
            while deadline is None or time.monotonic() < deadline:
                work = self._port.poll()
                if isinstance(work, Work):
                    self._port.finish(work)
                    self._after_step()
                elif work is None and is_done():
                    return
                elif work is None:  # not held back by the step, but by `is_done`, which nobody announces
                    time.sleep(IDLE_S)
                else:
                    self._port.wait(IDLE_S)
        except RunFinishedError:
            self.finished = True

    def _after_step(self) -> None:
        if self._replica.step == self._seen_step:
            return
        self._seen_step = self._replica.step
        self.peer.publish_metrics(self._seen_step)
        if self.peer.is_checkpoint_due(self._seen_step):
            self.peer.save_checkpoint(self._replica.capture())
