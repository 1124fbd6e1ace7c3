"""The number format of one machine: chosen by device, run and owner; float32 outside of it; float16 that overflows."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import minga
from minga.core.spec.run_spec import RunSpec
from minga.recipes.running.devices import choose_device
from minga.recipes.running.precision import Precision, choose_precision
from minga.recipes.running.run import RecipeRun, Work
from tests.worlds.extension_world import hosted
from tests.worlds.recipe_text import prepared_genesis, small_spec

CPU = torch.device("cpu")
OPEN = RunSpec.from_mapping({"name": "open"})


def verified(**security: Any) -> RunSpec:
    return RunSpec.from_mapping({"name": "checked", "security": {"verification": "byzantine", **security}})


def on_gpu(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> torch.device:
    """A made-up CUDA device of that compute capability, which computes whatever it is asked to."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr("minga.recipes.running.precision._try_out", lambda *_: None)
    return torch.device("cuda")


@pytest.mark.parametrize(
    ("capability", "name"), [((9, 0), "bfloat16"), ((8, 0), "bfloat16"), ((7, 5), "float16"), ((6, 1), "float32")]
)
def test_a_gpu_computes_in_the_fastest_format_that_it_has(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], name: str
) -> None:
    device = on_gpu(monkeypatch, capability)
    monkeypatch.setattr(torch.amp, "GradScaler", lambda _: None)
    assert choose_precision("auto", device, OPEN).name == name
    assert choose_precision("float32", device, OPEN).name == "float32"


def test_a_cpu_computes_in_float32_unless_its_owner_wishes_otherwise() -> None:
    assert choose_precision("auto", CPU, OPEN).name == "float32"
    assert choose_precision("bfloat16", CPU, OPEN).name == "bfloat16"
    with pytest.raises(minga.ConfigurationError, match="--precision int8: choose auto, float32, bfloat16 or float16"):
        choose_precision("int8", CPU, OPEN)


def test_a_gpu_that_cannot_be_used_is_named_and_the_processor_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("no kernel image")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.raises(minga.ConfigurationError, match=r"--device cuda: .*no kernel image.*--device cpu$"):
        choose_device("auto")
    with pytest.raises(minga.ConfigurationError, match=r"--device cuda:1: .*no kernel image.*--device auto$"):
        choose_device("cuda:1")  # the machine may have one GPU
    with pytest.raises(minga.ConfigurationError, match=r"in it .no kernel image.; try --device cpu$"):
        choose_precision("float32", torch.device("cuda"), OPEN)


def test_in_a_byzantine_run_the_spec_chooses_and_another_wish_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    device = on_gpu(monkeypatch, (9, 0))
    assert choose_precision("auto", device, verified()).name == "float32"
    assert choose_precision("auto", CPU, verified(precision="bfloat16")).name == "bfloat16"
    with pytest.raises(minga.ConfigurationError, match="in this run all compute in float32, so that each can check"):
        choose_precision("bfloat16", device, verified())
    with pytest.raises(minga.ConfigurationError, match="in this run all compute in bfloat16"):
        choose_precision("float32", device, verified(precision="bfloat16"))
    with pytest.raises(minga.ConfigurationError, match="did you mean bfloat16"):
        verified(precision="float16")


def test_the_format_is_part_of_the_run() -> None:
    other = verified(precision="bfloat16")
    assert other.run_id != verified().run_id
    assert RunSpec.from_canonical(other.canonical_bytes()).security.precision == "bfloat16"


def test_a_format_that_the_device_refuses_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> torch.Tensor:
        raise RuntimeError("BFloat16 is not supported\nat line 3")

    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.raises(minga.ConfigurationError, match=r"cpu cannot compute in it \(BFloat16 is not supported\)"):
        choose_precision("bfloat16", CPU, OPEN)


def trained(folder: Path, precision: str) -> tuple[RecipeRun, float]:
    """A small ALBERT after 12 steps of 16 samples, the same for one key, and the mean loss of the last ten."""
    spec = small_spec(training={"target_batch_size": 16, "stop_after_steps": 12}, network={"relay": "none"})
    options = minga.PeerOptions(identity=folder / "key", directory=folder / precision, host="127.0.0.1")
    losses: list[float] = []
    with minga.host(hosted(spec.model_dump(mode="json")), options, files=dict(prepared_genesis())) as peer:
        run = RecipeRun(peer, Work("cpu", micro_batch=16, precision=precision))
        run.train(lambda _: False, lambda step, samples, loss: losses.append(loss))
        return run, sum(losses[-10:]) / 10


def test_bfloat16_learns_as_float32_does_and_keeps_float32_parameters(tmp_path: Path) -> None:
    _, expected = trained(tmp_path, "float32")
    run, found = trained(tmp_path, "bfloat16")
    assert run.step == 12
    assert found == pytest.approx(expected, rel=0.02)
    assert found != expected, "it did compute in another format"
    state = [value for each in run.optimizer.inner.state.values() for value in each.values() if value.ndim]
    assert {value.dtype for value in (*run.model.parameters(), *state)} == {torch.float32}


def overflowing(weight: torch.Tensor, factor: float) -> torch.Tensor:
    """A loss whose gradient of `factor`, times the loss scale, may be too large for float16."""
    return (weight.to(torch.float16) * factor).sum().float()


def test_float16_divides_by_its_scale_and_drops_what_overflows(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    precision = Precision("float16", CPU)
    found: list[float] = []
    for _ in range(20):
        precision.backward(overflowing(weight, 3.0), optimizer)
        assert weight.grad is not None
        found.append(weight.grad[0].item())
        optimizer.zero_grad()
    dropped = [value for value in found if not math.isfinite(value)]
    assert all(math.isnan(value) for value in dropped)
    assert 0 < len(dropped) < 5
    assert found[len(dropped) :] == [3.0] * (20 - len(dropped)), "as if there were no scale"
    with caplog.at_level(logging.WARNING):
        for _ in range(40):
            precision.backward(weight.sum() * math.inf, optimizer)
            optimizer.zero_grad()
    assert precision.name == "float32"
    assert [record.getMessage() for record in caplog.records] == [
        "float16 overflows whatever the loss scale: this machine goes on in float32"
    ]


def test_a_micro_batch_that_overflowed_is_left_out_and_the_run_goes_on(
    peer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RecipeRun(peer, Work("cpu", micro_batch=16, precision="float16"))
    loss, seen = run.recipe.loss, SimpleNamespace(batches=0)

    def steep(model: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        seen.batches += 1
        return loss(model, batch) * (math.inf if seen.batches == 3 else 1.0)

    monkeypatch.setattr(run.recipe, "loss", steep)
    run.train(lambda _: False, lambda *_: None)
    assert run.finished
    assert run.optimizer.dropped_micro_batches == 1
    assert seen.batches == 6 * 4 + 1
    assert all(parameter.isfinite().all() for parameter in run.model.parameters())
