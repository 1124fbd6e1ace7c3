"""Whether anybody wants to know when the optimizer of a training loop steps.

Torch wraps the `step` of every optimizer: it marks the call for profilers and asks for hooks, before and after. For a
small micro-batch that takes longer than everything else in a call of `minga.Optimizer.step`, so it is done where there
is a profiler or a hook.
"""

from __future__ import annotations

import torch
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


def is_watched(optimizer: torch.optim.Optimizer) -> bool:
    """Whether a profiler runs, or a hook of this optimizer or of all wants to be called."""
    return bool(
        torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # noqa: SLF001  (nothing else tells)
        or optimizer._optimizer_step_pre_hooks  # noqa: SLF001
        or optimizer._optimizer_step_post_hooks  # noqa: SLF001
        or _global_optimizer_pre_hooks
        or _global_optimizer_post_hooks
    )
