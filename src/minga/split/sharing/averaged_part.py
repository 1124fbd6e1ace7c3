"""SplitFed's clients: their part of the model is averaged between them, by the ordinary averaging of the run.

Each batch is a micro-batch of `minga.Optimizer`, so groups, plans, weights by samples, and what happens when a client
dies are those of any run. By the strategy "local" clients take steps of their own between two averagings of the
parameters; by "synchronous" they average gradients, which for plain SGD and one batch a round is the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import OptimizerSection
from minga.split.computing.parts import ModelPart, OptimizerChoice
from minga.training.optimizer import Optimizer
from minga.training.peer import Peer


class AveragedPart(ModelPart):
    """A client's part, averaged with those of the other clients of the run of `peer`; all begin with equal parameters.

    Made and used on the thread that trains. Raises `ConfigurationError` for a part that has nothing to train.
    """

    def __init__(
        self,
        modules: Sequence[nn.Module],
        optimizer: OptimizerChoice | None,
        section: OptimizerSection,
        max_grad_norm: float | None,
        peer: Peer,
    ) -> None:
        super().__init__(modules, optimizer, section)
        if self.optimizer is None:
            raise ConfigurationError("a client's part that has nothing to train cannot be averaged")
        model = modules[0] if len(modules) == 1 else nn.ModuleList(modules)
        self._averaging = Optimizer(
            self.optimizer, peer, model=model, scheduler=self.scheduler, max_grad_norm=max_grad_norm
        )

    @property
    def round(self) -> int:
        """The run's global step: rounds of averaging that this part has seen."""
        return self._averaging.global_step

    @property
    def finished(self) -> bool:
        """Whether the run has reached its last step."""
        return self._averaging.finished

    def step(self, samples: int = 1, loss: float | None = None) -> None:
        """Let the gradients of so many samples count in the round; waits where the round has to be averaged first."""
        self._averaging.step(samples=samples, loss=loss)
        self.steps += 1
