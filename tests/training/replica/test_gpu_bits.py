"""A run has the same bits whether a peer keeps its state on a GPU, on a processor, or in RAM beside a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.core.spec.run_spec import RunSpec
from minga.optim import LAMB, AdamW, MomentStorage
from tests.worlds.own_state_run import CHECKPOINT_EVERY, LAST, begin, train_with_checkpoints
from tests.worlds.script_peers import Machine, run_scripts

GPU, CPU = torch.device("cuda"), torch.device("cpu")

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device"),
]


def model_of(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 9, 3),
        nn.BatchNorm2d(9),
        nn.GELU(),
        nn.Flatten(),
        nn.Linear(9 * 36, 130),
        nn.GELU(),
        nn.Linear(130, 7),
    )


def loop_spec(samples: int, steps: int, **training: Any) -> RunSpec:
    return RunSpec.from_mapping(
        {
            "name": "gpu",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": samples, "stop_after_steps": steps, "buffers": "average", **training},
            "state": {"digest_every": 1},
            "checkpoints": {"every_steps": 0},
        }
    )


def options(folder: Path) -> minga.PeerOptions:
    return minga.PeerOptions(ephemeral=True, directory=folder, host="127.0.0.1")


def train(optimizer: minga.Optimizer, model: nn.Module, device: torch.device, seed: int) -> None:
    for number in itertools.count(1000 * seed):
        if optimizer.finished:
            return
        images = torch.randn(8, 1, 8, 8, generator=torch.Generator().manual_seed(number)).to(device)
        nn.functional.cross_entropy(model(images), torch.arange(8, device=device) % 7).backward()
        optimizer.step(samples=8)
        optimizer.zero_grad()


def lamb(parameters: Any) -> torch.optim.Optimizer:
    return LAMB(parameters, lr=0.01, storage=MomentStorage(bits=8, block=16, least_numel=100))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return AdamW(parameters, lr=0.01, weight_decay=0.1)


@pytest.mark.parametrize("strategy", ["synchronous", "delayed", "local"])
@pytest.mark.parametrize("make", [lamb, adamw])
def test_a_gpu_and_a_processor_end_with_equal_bits(
    make: Callable[[Any], torch.optim.Optimizer], strategy: str, tmp_path: Path
) -> None:
    def run(machine: Machine, device: torch.device) -> tuple[str, int]:
        together = list[int]()
        machine.peer.subscribe(
            lambda event: together.append(int(str(event.fields["members"]))) if event.kind == "step.applied" else None
        )
        model = model_of().to(device)
        optimizer = minga.Optimizer(make(model.parameters()), machine.peer, model=model, max_grad_norm=0.5)
        machine.meet(optimizer)
        train(optimizer, model, device, machine.number)
        return optimizer.digest(), together.count(2)

    scripts = [partial(run, device=device) for device in (GPU, CPU)]
    (first, together), (second, _) = run_scripts(loop_spec(32, 12, strategy=strategy), scripts, tmp_path)
    assert first == second
    assert together >= 6


@pytest.mark.parametrize("strategy", ["synchronous", "local"])
def test_updates_in_ram_end_with_the_bits_of_the_gpu(strategy: str, tmp_path: Path) -> None:
    digests, places = [], []
    for offload in (False, True):
        model = model_of().to(GPU)
        with minga.host(loop_spec(8, 4, strategy=strategy), options(tmp_path / str(offload))) as peer:
            optimizer = minga.Optimizer(adamw(model.parameters()), peer, model=model, offload=offload)
            train(optimizer, model, GPU, 0)
            digests.append(optimizer.digest())
        kept = [value for each in optimizer.inner.state.values() for value in each.values() if value.ndim]
        places.append({value.device.type for value in kept})
        assert {value.device.type for value in model.parameters()} == {"cuda"}
    assert digests[0] == digests[1]
    assert places == [{"cuda"}, {"cpu"}]


@pytest.mark.parametrize("second", ["cuda", "cpu"])
def test_what_a_peer_on_a_gpu_alone_had_comes_back_in_its_next_process(second: str, tmp_path: Path) -> None:
    values = []
    for folder, stops in (("interrupted", (CHECKPOINT_EVERY, LAST)), ("whole", (LAST,))):
        for device, stop in zip(("cuda", second), stops, strict=False):
            peer, optimizer, model = begin(tmp_path / folder, "local", device)
            with peer:
                train_with_checkpoints(peer, optimizer, model, stop)
        assert optimizer.global_step == LAST
        values.append([value.detach().cpu() for value in model.parameters()])
    for one, other in zip(*values, strict=True):
        torch.testing.assert_close(one, other, rtol=0.0, atol=0.0 if second == "cuda" else 1e-5)
