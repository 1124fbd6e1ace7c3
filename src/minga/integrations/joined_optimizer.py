"""The optimizer that a framework holds: an ordinary one until training begins, then the run's."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.optim.lr_scheduler import LRScheduler

from minga.core.errors import ClosedError, ConfigurationError
from minga.core.units import counted
from minga.integrations.place import RunPlace
from minga.integrations.tally import Tally
from minga.training.optimizer import Optimizer
from minga.training.replica.trained_record import SAMPLES

logger = logging.getLogger("minga.integrations")

TOLD_AT = 10
"""Optimizer calls in a row that are left out, after which the program is told why; one or two may be so by chance."""


def has_other_processes() -> bool:
    """Whether this process is one of several of a `torch.distributed` group, which make the same calls."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


class JoinedOptimizer(torch.optim.Optimizer):
    """Wraps a torch optimizer for frameworks that call `step()` with nothing.

    Before `begin` it is a torch optimizer that cannot step: a framework may load an earlier state into it, with which
    a new run begins. From then on the state is the run's, and what the framework loads is left aside. `tally` knows
    what each call stands for.
    """

    def __init__(self, inner: torch.optim.Optimizer, tally: Tally) -> None:
        if isinstance(inner, JoinedOptimizer | Optimizer):
            raise ConfigurationError("this optimizer takes part in a run already; pass the torch optimizer")
        super().__init__(inner.param_groups, inner.defaults)
        self.inner, self.tally = inner, tally
        self.joined: Optimizer | None = None
        """The optimizer of the run, once training has begun."""
        self.left_out = 0
        """Calls that stood for no sample."""
        self._in_row = 0
        self._show()

    def begin(
        self,
        place: RunPlace,
        *,
        model: torch.nn.Module | None = None,
        scheduler: LRScheduler | None = None,
        unit: str = SAMPLES,
    ) -> Optimizer:
        """Take part from now on; returns when the run's current state is here. Gradients are clipped as the run spec
        says (`optimizer.max_grad_norm`). `unit` is what the tally counts.

        Raises `ConfigurationError` if it has begun before, or for what `minga.Optimizer` refuses.
        """
        self.require_new()
        self.joined = Optimizer(
            self.inner,
            place.peer,
            model=model,
            scheduler=scheduler,
            max_grad_norm=place.spec.optimizer.max_grad_norm,
            unit=unit,
        )
        self._show()
        return self.joined

    def require_new(self) -> None:
        """Raise `ConfigurationError` if training has begun in the run before."""
        if self.joined is not None:
            raise ConfigurationError(
                "training has begun in this run before; make the framework's objects anew, and join"
            )

    def figures(self) -> dict[str, float]:
        """The state of the run for the framework's logs: `run_step`, `run_peers`, and `run_loss` once it is known.

        Empty in processes other than the first, before training begins, and when the peer was closed.
        """
        peer = None if self.joined is None else self.joined.peer
        if peer is None:
            return {}
        try:
            status = peer.status()
        except ClosedError:
            return {}
        figures: dict[str, float] = {"run_step": self.global_step, "run_peers": status.members}
        return figures if status.loss is None else {**figures, "run_loss": status.loss}

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self.joined is not None and self.joined.finished

    @property
    def global_step(self) -> int:
        """Global steps that this peer's state has seen."""
        return 0 if self.joined is None else self.joined.global_step

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Count the gradients of the samples that were counted since the last call. Returns the closure's result.

        Where the samples have no target at all, and so no mean loss, the call is left out. One process of several makes
        it all the same, as the others do, with a weight of 1: its loss is no number then, or its gradient the others'.
        """
        if self.joined is None:
            raise ConfigurationError("training has not begun: the framework has to call the adapter first")
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        samples, loss, scale = self.tally.samples, self.tally.loss, self.tally.scale
        has_loss = loss is not None
        self.tally.clear()
        if samples or has_other_processes():
            self._in_row = 0
            if scale != 1.0:
                self._scale(scale)
            self.joined.step(samples=max(1, samples), loss=loss)
        else:
            self._leave_out(has_loss=has_loss)
        return result

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients, and what was counted for them."""
        self.inner.zero_grad(set_to_none=set_to_none)
        self.tally.clear()

    def train(self) -> None:
        """As the wrapped optimizer has it, if it has such a method."""
        self._mode("train")

    def eval(self) -> None:
        """As the wrapped optimizer has it, if it has such a method."""
        self._mode("eval")

    def _mode(self, name: str) -> None:
        switch = getattr(self.inner if self.joined is None else self.joined, name, None)
        if callable(switch):
            switch()

    def state_dict(self) -> dict[str, Any]:
        """The wrapped optimizer's state, with the key `global_step` added."""
        return {**self.inner.state_dict(), "global_step": self.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Begin a new run with what an optimizer knows in this state, such as its moments; learning rates and other
        settings stay as they are. If training has begun, leave it aside: the state is the run's then.
        """
        if self.joined is not None:
            return
        settings = [{name: value for name, value in group.items() if name != "params"} for group in self.param_groups]
        self.inner.load_state_dict({name: value for name, value in state_dict.items() if name != "global_step"})
        self._show()
        for group, own in zip(self.param_groups, settings, strict=True):
            group.update(own)

    def tell_of_end(self, who: str, last_step: int | None) -> None:
        """Say how far the run came when the training of `who` ended, and warn of what the script may not mean: that it
        ended before the run's `last_step`, or that calls stood for nothing.
        """
        level, end, nothing = logging.INFO, "", ""
        if self.finished:
            end = ", the run's last"
        elif last_step is not None:
            level = logging.WARNING
            end = (
                f", and the run goes on to {last_step} without this peer: epochs, max_steps and the patience of early "
                "stopping count what this peer does, and not the run's steps"
            )
        if self.left_out:
            level = logging.WARNING
            nothing = f"; {counted(self.left_out, 'optimizer call')} stood for no sample with a target"
        logger.log(level, "%s ended at global step %d%s%s", who, self.global_step, end, nothing)

    def pause(self) -> None:
        """Tell the run that this process does something else for a while, such as an evaluation."""
        if self.joined is not None and not self.finished:
            self.joined.follow(0.0)

    @torch.no_grad()
    def _scale(self, scale: float) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.mul_(scale)

    def _leave_out(self, *, has_loss: bool) -> None:
        """Raises `ConfigurationError` where the program never tells its loss, so that it can give nothing."""
        self.left_out, self._in_row = self.left_out + 1, self._in_row + 1
        self.zero_grad()
        if self._in_row != TOLD_AT:
            return
        if not has_loss and self.tally.told_by is not None:
            raise ConfigurationError(
                f"the last {TOLD_AT} optimizer calls came without a loss, so nothing is known of their samples: call "
                f"{self.tally.told_by}, and not loss.backward()"
            )
        logger.warning(
            "the last %d optimizer calls stood for no sample with a target, as where a batch has no loss or its labels "
            "are all -100, and are left out: this peer gives nothing to the run, and alone it takes no step. Look at "
            "the batches and their labels",
            TOLD_AT,
        )

    def _show(self) -> None:
        self.param_groups, self.state, self.defaults = self.inner.param_groups, self.inner.state, self.inner.defaults
