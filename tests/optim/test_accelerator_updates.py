"""Updates on an accelerator: many tensors in few kernels, with the bits of a processor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from benchmarks._transfers import count_launches
from minga.optim import LAMB, LARC, LARS, SGD, AdamW, MomentStorage, arithmetic, clip_by_global_norm, pieces
from tests.worlds.pretend_device import DEVICE, pretend, pretended_device

MAKERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda each: SGD(each, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adamw": lambda each: AdamW(each, lr=0.1),
    "adamw of 8 bits": lambda each: AdamW(each, lr=0.1, storage=MomentStorage(bits=8, block=64, least_numel=5000)),
    "lamb": lambda each: LAMB(each, lr=0.1),
    "lars": lambda each: LARS(each, lr=0.1, momentum=0.9, weight_decay=0.1),
    "larc": lambda each: LARC(each, lr=0.1, momentum=0.9, weight_decay=0.1),
}
SHAPES = [(90, 100), (3,), (1,), (200, 130), (7, 5), (20_000,), (64,)]


class Tensors(nn.Module):
    """Parameters of several sizes and dtypes, one of them transposed in memory."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        made = [torch.randn(shape, generator=generator) for shape in SHAPES]
        made += [torch.randn(30, 40, generator=generator).t(), made[0].to(torch.bfloat16), made[4].double()]
        self.all = nn.ParameterList([nn.Parameter(each) for each in made])


@pytest.mark.parametrize("is_small", [False, True])
@pytest.mark.parametrize("name", MAKERS)
def test_updates_on_an_accelerator_have_the_bits_of_a_processor(
    name: str, monkeypatch: pytest.MonkeyPatch, *, is_small: bool
) -> None:
    if is_small:  # tensors are cut, and groups are full
        monkeypatch.setattr(pieces, "ACCELERATOR_PIECE", 7000)
    with pretended_device():
        assert arithmetic.is_exact_together(DEVICE)
        here, away = Tensors(), pretend(Tensors())
        optimizers = [MAKERS[name](each.parameters()) for each in (here, away)]
        generator = torch.Generator().manual_seed(5)
        for _ in range(3):
            for one, other in zip(here.parameters(), away.parameters(), strict=True):
                one.grad = torch.randn(one.shape, generator=generator).to(one.dtype)
                other.grad = one.grad.to(DEVICE)
            for optimizer in optimizers:
                optimizer.step()
        for one, other in zip(here.parameters(), away.parameters(), strict=True):
            assert torch.equal(one.detach(), other.detach().cpu())


def test_a_card_that_is_full_for_a_moment_is_tried_again() -> None:
    for trial in (arithmetic._rounds_once, arithmetic._groups):
        trial.cache_clear()
    with pretended_device() as device:
        room = device.room_bytes
        device.room_bytes = 0
        assert arithmetic.work_device(DEVICE) == torch.device("cpu")
        assert not arithmetic.is_exact_together(DEVICE)
        device.room_bytes = room
        assert arithmetic.work_device(DEVICE) == DEVICE
        assert arithmetic.is_exact_together(DEVICE)


class Clipping(torch.optim.SGD):
    """Its step only clips."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """To a norm that gradients of 1 exceed."""
        clip_by_global_norm(self.param_groups[0]["params"], 1.0)


@pytest.mark.parametrize("name", [*MAKERS, "clipping"])
def test_an_update_on_an_accelerator_takes_few_kernels(name: str) -> None:
    assert count_launches("cpu", {**MAKERS, "clipping": Clipping}[name]) < 1.0
