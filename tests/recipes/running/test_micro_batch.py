"""How many samples one backward pass takes: found on a made-up device, remembered, halved when memory runs out."""

from __future__ import annotations

import contextlib
import logging
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import minga
from minga.optim.arithmetic import is_out_of_memory
from minga.recipes.running.micro_batch import (
    FILE_NAME,
    MadeUpPasses,
    RememberedSizes,
    check_wished,
    largest_fit,
    measure_speed,
)
from minga.recipes.running.run import RecipeRun, Work
from tests.worlds.pretend_device import DEVICE, pretend, pretended_device

MESSAGES = (
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED",
    "MPS backend out of memory (MPS allocated: 8.00 GB)",
    "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9",
)


class Device:
    """It has memory for so many samples, and computes no faster with more than `fastest` of them."""

    def __init__(self, room: int, fastest: int = 1 << 20) -> None:
        self.room, self.fastest = room, fastest
        self.tried: list[int] = []

    def __call__(self, size: int) -> float:
        self.tried.append(size)
        if size > self.room:
            raise RuntimeError(MESSAGES[size % len(MESSAGES)])
        return max(1.0, size / self.fastest)


@pytest.mark.parametrize(
    ("room", "start", "most", "found"),
    [
        (100, 64, 4096, 64),  # 128 is too much, 72 is not
        (64, 64, 4096, 56),  # there is no room for one eighth more
        (1000, 64, 4096, 512),
        (1000, 64, 200, 128),
        (5, 64, 4096, 4),
        (1, 64, 4096, 1),
        (1000, 64, 3, 3),
    ],
)
def test_the_largest_size_that_leaves_a_margin_is_found(room: int, start: int, most: int, found: int) -> None:
    assert largest_fit(Device(room), start, most) == found


def test_a_size_that_makes_nothing_faster_is_not_taken() -> None:
    device = Device(1 << 16, fastest=64)
    assert largest_fit(device, 16, 1 << 16) == 64
    assert max(device.tried) == 128


@pytest.mark.parametrize("start", [64, 512])
def test_a_size_that_a_library_refuses_in_words_of_its_own_is_too_large(start: int) -> None:
    def try_out(size: int) -> float:
        if size > 260:
            words = "CUDNN_STATUS_NOT_SUPPORTED" if size % 3 else "CUDA error: invalid configuration argument"
            raise RuntimeError(words)
        return 1.0

    assert largest_fit(try_out, start, 4096) == 224


def test_what_the_search_took_of_a_second_card_is_given_back_and_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    module = SimpleNamespace(empty_cache=lambda: told.append("empty"), reset_peak_memory_stats=told.append)
    monkeypatch.setattr(torch, "lazy", module, raising=False)
    monkeypatch.setattr(MadeUpPasses, "seconds", lambda _, size, **__: Device(100)(size))
    second = torch.device("lazy", 1)
    stub: Any = None
    assert MadeUpPasses(stub, stub, second, stub).fit(64, 4096, moments=0, total=0) == 64
    assert told == ["empty", second] * 2  # after the size that was too large, and at the end


def test_a_pass_is_over_when_the_device_has_done_it_whatever_kind_it_is() -> None:
    with pretended_device() as device:
        done: list[str] = []
        model = pretend(torch.nn.Linear(2, 2))
        model.weight.register_post_accumulate_grad_hook(  # type: ignore[union-attr]
            lambda _: device.current_stream().ask(lambda: done.append("gradient"))
        )
        recipe: Any = SimpleNamespace(total_loss=lambda model, _: model.weight.sum())
        precision: Any = SimpleNamespace(autocast=contextlib.nullcontext)
        MadeUpPasses(recipe, model, DEVICE, precision)._once({})
        assert done == ["gradient"]


def test_a_device_without_room_for_one_sample_is_named() -> None:
    with pytest.raises(minga.ConfigurationError, match="one sample of this model"):
        largest_fit(Device(0), 64, 64)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    assert all(is_out_of_memory(RuntimeError(text)) for text in MESSAGES)
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_out_of_memory(ValueError("out of memory"))

    def broken(size: int) -> float:
        raise RuntimeError("device-side assert triggered")

    with pytest.raises(RuntimeError, match="assert triggered"):
        largest_fit(broken, 4, 4)


def test_sizes_are_remembered_by_device(tmp_path: Path) -> None:
    sizes = RememberedSizes(tmp_path)
    assert sizes.get("cuda") is None
    sizes.keep("cuda", 24)
    sizes.keep("mps", 8)
    assert (RememberedSizes(tmp_path).get("cuda"), RememberedSizes(tmp_path).get("mps")) == (24, 8)
    for damaged in (b"", b"\xff", b"[1]", b'{"cuda": true}', b'{"cuda": 0}', b'{"cuda": "8"}', b"[" * 5000):
        (tmp_path / FILE_NAME).write_bytes(damaged)
        assert RememberedSizes(tmp_path).get("cuda") is None


def test_trying_sizes_out_leaves_model_and_random_numbers_as_they_were(peer: Any) -> None:
    run = RecipeRun(peer, Work("cpu"))
    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.rand(1)
    torch.manual_seed(5)
    assert MadeUpPasses(run.recipe, run.model, run.device, run.precision).seconds(3) > 0.0
    assert torch.equal(torch.rand(1), drawn)
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.model.state_dict().items())
    assert all(parameter.grad is None for parameter in run.model.parameters())


def test_a_speed_is_that_of_the_micro_batches_that_a_run_takes(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RecipeRun(peer, Work("cpu"))
    found = measure_speed(run.recipe, peer.spec, run.device, 0.0, run.precision)
    assert found.micro_batch == run.micro_batch_size == 16
    assert found.samples_per_s > 0.0 < found.update_s
    loss = run.recipe.loss

    def limited(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        if len(batch["x"]) > 5:
            raise RuntimeError(MESSAGES[0])
        return loss(model, batch)

    monkeypatch.setattr(run.recipe, "loss", limited)
    assert measure_speed(run.recipe, peer.spec, run.device, 0.0, run.precision).micro_batch == 4
    monkeypatch.setattr(type(run.recipe), "fixed_micro_batch_size", 8)
    with pytest.raises(minga.ConfigurationError, match="too little memory to train with 8 samples"):
        measure_speed(run.recipe, peer.spec, run.device, 0.0, run.precision)


def test_no_micro_batch_has_more_samples_than_the_smallest_round_of_a_run() -> None:
    change = {"from_step": 5, "strategy": "local", "target_batch_size": 64}
    training = {"target_batch_size": 512, "strategy_changes": [change]}
    spec = minga.RunSpec(name="test", training=training, strategy={"local": {"fragments": 2}})
    recipe: Any = SimpleNamespace(context=SimpleNamespace(micro_batch_size=None), fixed_micro_batch_size=None)
    check_wished(32, spec, recipe)
    with pytest.raises(minga.ConfigurationError, match="from 1 to the run's target batch size, 32"):
        check_wished(33, spec, recipe)


def short_of_memory(monkeypatch: pytest.MonkeyPatch, run: RecipeRun, room: int, after: int) -> None:
    """From micro-batch number `after` on, the device has room for no more than `room` samples."""
    loss, count = run.recipe.loss, [0]

    def limited(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        count[0] += 1
        if count[0] > after and len(batch["x"]) > room:
            raise RuntimeError(MESSAGES[0])
        return loss(model, batch)

    monkeypatch.setattr(run.recipe, "loss", limited)


def test_a_device_that_runs_out_of_memory_goes_on_with_half_as_much(
    peer: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = RecipeRun(peer, Work("cpu"))
    short_of_memory(monkeypatch, run, room=4, after=5)
    sizes: list[int] = []
    with caplog.at_level(logging.WARNING):
        run.train(lambda _: False, lambda step, samples, loss: sizes.append(samples))
    assert run.finished
    assert sizes[:5] == [16] * 5
    assert set(sizes[5:]) == {4}, "16 and 8 were too much, and nothing of these batches counts"
    assert sum(sizes) >= 6 * 64
    assert [record.getMessage() for record in caplog.records if "ran out of memory" in record.getMessage()] == [
        "cpu ran out of memory: micro-batches have 8 samples now",
        "cpu ran out of memory: micro-batches have 4 samples now",
    ]
    assert RememberedSizes(peer.directory).get("cpu") == 4


def test_samples_that_counted_before_the_memory_ran_out_do_not_come_again(
    peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RecipeRun(peer, Work("cpu"))
    short_of_memory(monkeypatch, run, room=8, after=2)
    seen: list[torch.Tensor] = []
    backward = run._backward

    def noted(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = backward(batch)
        seen.append(batch["x"])
        return loss

    monkeypatch.setattr(run, "_backward", noted)
    run.train(lambda _: len(seen) >= 4, lambda *_: None)
    assert [len(each) for each in seen] == [16, 16, 8, 8]
    assert not torch.equal(torch.cat(seen[2:]), seen[0])


@pytest.mark.parametrize(("role", "found"), [("trainer", 32), ("client", 32), ("auxiliary", 16)])
def test_every_peer_that_computes_on_a_gpu_looks_for_the_size_that_fits(
    peer: Any, monkeypatch: pytest.MonkeyPatch, role: str, found: int
) -> None:
    """One that others cannot dial computes as well as any. Moments are there, and the sum of the gradients if it fits:
    without that the sum is made elsewhere.
    """
    run, others = RecipeRun(peer, Work("cpu")), set[tuple[int, int]]()
    size = sum(parameter.numel() for parameter in run.model.parameters())

    def seconds(_: MadeUpPasses, size: int, *, beside: tuple[int, int]) -> float:
        others.add(beside)
        return Device(room=37 if sum(beside) <= room else 0)(size)

    monkeypatch.setattr(run, "peer", SimpleNamespace(spec=peer.spec, role=role))
    monkeypatch.setattr(run, "device", torch.device("lazy"))
    monkeypatch.setattr(MadeUpPasses, "seconds", seconds)
    room = 8 * size
    assert run._choose_micro_batch(Work()) == found
    assert others == (set() if role == "auxiliary" else {(8 * size, 0), (8 * size, 4 * size)})
    if found == 32:
        room = 8 * size - 1
        with pytest.raises(minga.ConfigurationError, match="too little memory for one sample"):
            run._choose_micro_batch(Work())
        assert run._choose_micro_batch(Work(offload=True)) == found


def test_a_size_that_a_person_chose_is_kept(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RecipeRun(peer, Work("cpu", micro_batch=8))
    short_of_memory(monkeypatch, run, room=4, after=2)
    with pytest.raises(minga.ConfigurationError, match=r"too little memory for a micro-batch of 8 samples; try .* 4"):
        run.train(lambda _: False, lambda *_: None)


def test_a_recipe_whose_batches_end_is_named(peer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RecipeRun(peer, Work("cpu", micro_batch=16))
    batches = run.recipe.batches
    monkeypatch.setattr(run.recipe, "batches", lambda *given: islice(batches(*given), 5))
    with pytest.raises(minga.ConfigurationError, match="the recipe corners has no more batches"):
        run.train(lambda _: False, lambda *_: None)
