"""How close a peer on an accelerator comes to bare PyTorch: for one run of some minutes on a card.

    python -m benchmarks.gpu --json                     # on a card
    python -m benchmarks.gpu --device cpu --json        # tiny models, which say nothing about speed

transfers    by strategy, counted by a dispatch mode (without a card on a device that is none):
             full_vector_transfers_per_micro_batch, host_reads_per_micro_batch, and how many vectors cross in a round
             to the host and to the device
alone        by workload (GPT-2 of 124 M with 512 tokens, ALBERT-large, ResNet-50 with SwAV; bfloat16 by autocast), a
             peer that trains alone beside the same loop in bare PyTorch, in one process and in turns: `slowdown` by
             micro-batches alone, `round_s` what the end of a step takes beyond the update of bare PyTorch, by
             vector bytes / `pinned_gb_per_s` as `round_by_bus`; `micro_batch_s`; `extra_memory_mb` on the card; and
             `state`, seconds that the trainer stands for a digest and for a checkpoint
pinned_gb_per_s    what a vector in page-locked memory takes to cross
pairs        by strategy, two peers on the card over loopback: samples_per_s of both together, steps, and `held_s`,
             seconds that the trainer stands when a step ends [median, least, most]
updates      seconds of a step of torch's AdamW (fused on a card) and of minga.optim, by optimizer [median, least, most]
launches     by optimizer, operations for each of 96 tensors in a step
device       what was measured

ok: no full vector crosses for a micro-batch, the host reads at most one number for it with synchronous and delayed, and
at most one vector crosses each way a round with these. On a card also: slowdown at most 0.02 where a micro-batch takes
50 ms or more, and round_by_bus of synchronous at most 1.3.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._plain_spec import plain_spec
from benchmarks._processes import Workers
from benchmarks._report import emit, finish, parser, spread
from benchmarks._transfers import count_launches, count_transfers
from benchmarks._worker import Channel
from minga import Optimizer, PeerOptions, RunSpec, host, join
from minga.optim import LAMB, SGD, AdamW, MomentStorage
from minga.planner.model_facts import recipe_spec
from minga.recipes.initial import new_model
from minga.recipes.registry import load_recipe


@dataclass
class GpuWorkload:
    """A model on its device, and `loss`, which computes the mean loss of a micro-batch of `samples` samples."""

    model: nn.Module
    samples: int
    loss: Callable[[], torch.Tensor]

    def optimizer(self) -> torch.optim.Optimizer:
        """The one that both sides of a comparison use."""
        is_away = next(self.model.parameters()).is_cuda
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=is_away)


NAMES = ("gpt2-124m", "albert-large", "swav-resnet50")
_RECIPES = {"albert-large": ("albert-large", "albert-tiny", 16, 4), "swav-resnet50": ("swav-paper", "swav-tiny", 16, 4)}
"""By workload: the model on a card and without one, and the samples of a micro-batch on both."""


def gpu_workload(name: str, device: str, *, is_tiny: bool) -> GpuWorkload:
    """One of `NAMES`, under autocast to bfloat16 on a card; with random initial values, the same each time."""
    torch.manual_seed(0)
    if name == "gpt2-124m":
        return _gpt2(device, is_tiny=is_tiny)
    large, tiny, samples, few = _RECIPES[name]
    spec = recipe_spec(tiny if is_tiny else large)
    samples = few if is_tiny else samples
    if load_recipe(spec).fixed_micro_batch_size is not None:
        spec = spec.with_recipe_settings({**spec.recipe_settings, "micro_batch_size": samples})
    recipe = load_recipe(spec)
    model = new_model(recipe).to(device)
    batch = {key: value.to(device) for key, value in recipe.synthetic_batch(samples).items()}
    return GpuWorkload(model, samples, lambda: _loss_of(device, lambda: recipe.total_loss(model, batch)))


def _gpt2(device: str, *, is_tiny: bool) -> GpuWorkload:
    from transformers import GPT2Config, GPT2LMHeadModel

    size: dict[str, Any] = {"n_layer": 2, "n_head": 2, "n_embd": 32, "vocab_size": 500} if is_tiny else {}
    config = GPT2Config(n_positions=512, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, **size)
    model: nn.Module = GPT2LMHeadModel(config).to(device)
    samples, tokens = (2, 32) if is_tiny else (8, 512)
    text = torch.randint(config.vocab_size, (samples, tokens)).to(device)
    return GpuWorkload(model, samples, lambda: _loss_of(device, lambda: model(text, labels=text).loss))


def _loss_of(device: str, loss: Callable[[], torch.Tensor]) -> torch.Tensor:
    with torch.autocast(torch.device(device).type, torch.bfloat16, enabled=device != "cpu"):
        return loss()


STRATEGIES = ("synchronous", "delayed", "local")
COUNTED = ("synchronous", "delayed")
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda each: SGD(each, momentum=0.9),
    "AdamW": AdamW,
    "AdamW 8 bits": lambda each: AdamW(each, storage=MomentStorage(bits=8, least_numel=4096)),
    "LAMB": LAMB,
}
SLOWDOWN_LIMIT, BUS_LIMIT, LONG_S = 0.02, 1.3, 0.05


def spec_of(target: int, strategy: str = "synchronous") -> RunSpec:
    """A run of some samples a step."""
    return plain_spec(
        "gpu", target, training={"strategy": strategy}, averaging={"codec": "float16"}, state={"digest_every": 1000}
    )


class Card:
    """The device under test."""

    def __init__(self, name: str) -> None:
        self.name, self.is_cpu = name, name == "cpu"

    def wait(self) -> None:
        """Until all is done that was asked."""
        if not self.is_cpu:
            torch.cuda.synchronize()

    def seconds(self, work: Callable[[], object]) -> float:
        """How long this takes, to its end."""
        self.wait()
        began = time.perf_counter()
        work()
        self.wait()
        return time.perf_counter() - began

    def used_bytes(self, *, reset: bool = False) -> int:
        """The most memory that was in use since the last reset."""
        if self.is_cpu:
            return 0
        found = torch.cuda.max_memory_allocated()
        if reset:
            torch.cuda.reset_peak_memory_stats()
        return found

    def pinned_bytes_per_s(self) -> float:
        """What crosses in a second, to the host or back, whichever is slower."""
        near = torch.empty(1 << (20 if self.is_cpu else 27), pin_memory=not self.is_cpu)
        far = near.to(self.name, copy=True)
        times = [self.seconds(lambda: a.copy_(b, non_blocking=True)) for a, b in ((near, far), (far, near)) * 4]  # noqa: B023
        return near.nbytes / max(times[2:])

    @property
    def description(self) -> str:
        """What it is called."""
        return "cpu" if self.is_cpu else f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def block(work: GpuWorkload, step: Callable[[torch.Tensor], object], count: int) -> None:
    """So many micro-batches."""
    for _ in range(count):
        loss = work.loss()
        loss.backward()
        step(loss)


def measure_alone(card: Card, name: str, turns: int, count: int, bytes_per_s: float) -> dict[str, Any]:
    """What a peer alone loses, by micro-batches and by the end of a step."""
    works = [gpu_workload(name, card.name, is_tiny=card.is_cpu) for _ in range(2)]
    bare, own = (work.optimizer() for work in works)
    seconds: dict[str, list[float]] = {"bare": [], "minga": [], "bare_end": [], "minga_end": []}
    peaks = [0, 0]
    with (
        tempfile.TemporaryDirectory() as folder,
        host(
            spec_of((count + 1) * works[1].samples),
            PeerOptions(ephemeral=True, directory=Path(folder), host="127.0.0.1"),
        ) as peer,
    ):
        optimizer = Optimizer(own, peer, model=works[1].model)

        def end_bare(_: torch.Tensor) -> None:
            bare.step()
            bare.zero_grad()

        def add(loss: torch.Tensor) -> None:
            optimizer.step(samples=works[1].samples, loss=loss)

        for turn in range(turns + 1):
            for which in (0, 1) if turn % 2 else (1, 0):
                card.used_bytes(reset=True)
                work = works[which]
                middle: Callable[[torch.Tensor], object] = (lambda _: None) if which == 0 else add
                end: Callable[[torch.Tensor], object] = end_bare if which == 0 else add
                took = [
                    card.seconds(lambda: block(work, middle, count)),  # noqa: B023
                    card.seconds(lambda: block(work, end, 1)),  # noqa: B023
                ]
                if turn:  # the first one chooses kernels
                    kind = ("bare", "minga")[which]
                    seconds[kind].append(took[0] / count)
                    seconds[f"{kind}_end"].append(took[1] - took[0] / count)
                    peaks[which] = max(peaks[which], card.used_bytes())
        state = {
            "digest_s": round(card.seconds(optimizer.digest), 4),
            "checkpoint_s": round(card.seconds(lambda: optimizer._replica.capture()), 4),
        }
    size_bytes = 4 * sum(parameter.numel() for parameter in works[0].model.parameters())
    micro_s = statistics.median(seconds["bare"])
    slower = [m / b for m, b in zip(seconds["minga"], seconds["bare"], strict=True)]
    round_s = statistics.median(m - b for m, b in zip(seconds["minga_end"], seconds["bare_end"], strict=True))
    return {
        "slowdown": round(statistics.median(slower) - 1, 4),
        "micro_batch_s": round(micro_s, 4),
        "round_s": round(round_s, 4),
        "round_by_bus": round(round_s * bytes_per_s / size_bytes, 3),
        "parameters": size_bytes // 4,
        "extra_memory_mb": round((peaks[1] - peaks[0]) / 1e6, 1),
        "state": state,
    }


def measure_pair(card: Card, strategy: str, seconds: float) -> dict[str, Any]:
    """Two peers on the card, each in a process of its own."""
    settings = {
        "workload": "gpt2-124m",
        "device": card.name,
        "is_tiny": card.is_cpu,
        "spec": spec_of(64 if card.is_cpu else 512, strategy).to_toml(),
        "link": "",
    }
    with Workers() as workers:
        for index in range(2):
            directory = str(workers.directory / f"peer-{index}")
            worker = workers.start(f"peer-{index}", "benchmarks.gpu:peer", {**settings, "directory": directory})
            settings["link"] = settings["link"] or worker.receive(90)["link"]
            if index:
                worker.receive(90)
            worker.receive(90)
        told = workers.ask("train", seconds + 60, seconds=seconds)
    return {
        "samples_per_s": round(sum(each["samples_per_s"] for each in told), 1),
        "steps": min(each["steps"] for each in told),
        "held_s": spread(held for each in told for held in each["held_s"]),
    }


def measure_updates(card: Card) -> dict[str, Any]:
    """A step of each optimizer on the tensors of the first workload."""
    figures: dict[str, Any] = {}
    makers: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
        "torch.AdamW": lambda each: torch.optim.AdamW(each, fused=not card.is_cpu),
        **OPTIMIZERS,
    }
    for name, make in makers.items():
        parameters = list(gpu_workload(NAMES[0], card.name, is_tiny=card.is_cpu).model.parameters())
        for parameter in parameters:
            parameter.grad = torch.randn_like(parameter)
        optimizer = make(parameters)
        figures[name] = spread([card.seconds(optimizer.step) for _ in range(8)][2:], 5)
        del optimizer, parameters
    return figures


def main() -> int:
    options = parser(__doc__)
    options.add_argument("--device", default="cuda", help='"cpu" runs tiny models; default: cuda')
    options.add_argument("--turns", type=int, default=6, help="turns of bare PyTorch and minga")
    options.add_argument("--micro-batches", type=int, default=8, help="micro-batches of a turn, beside the last one")
    options.add_argument("--seconds", type=float, default=20.0, help="how long two peers train with each strategy")
    options.add_argument("--only", choices=["transfers", "alone", "pairs", "updates"], help="measure just this")
    arguments = options.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        options.error("this machine has no CUDA device: --device cpu runs everything on tiny models")
    figures, ok = measure(arguments)
    return finish("gpu", ok, arguments.json, **figures)


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """All figures that were asked for, and whether they are within their limits."""
    card, only = Card(arguments.device), arguments.only
    figures: dict[str, Any] = {"device": card.description}
    ok = True
    if only in (None, "transfers"):
        figures["transfers"] = {strategy: count_transfers(card.name, strategy) for strategy in STRATEGIES}
        emit(**figures)
        ok = all(_is_lean(figures["transfers"][strategy]) for strategy in COUNTED)
    if only in (None, "alone"):
        rate = card.pinned_bytes_per_s()
        figures |= {"pinned_gb_per_s": round(rate / 1e9, 2), "alone": {}}
        for name in NAMES:
            figures["alone"][name] = found = measure_alone(card, name, arguments.turns, arguments.micro_batches, rate)
            emit(workload=name, **found)
            if not card.is_cpu:
                slow = found["slowdown"] > SLOWDOWN_LIMIT and found["micro_batch_s"] >= LONG_S
                ok = ok and not slow and found["round_by_bus"] <= BUS_LIMIT
    if only in (None, "updates"):
        figures["updates"] = measure_updates(card)
        figures["launches"] = {name: count_launches(card.name, make) for name, make in OPTIMIZERS.items()}
        emit(updates=figures["updates"], launches=figures["launches"])
    if only in (None, "pairs"):
        figures["pairs"] = {strategy: measure_pair(card, strategy, arguments.seconds) for strategy in STRATEGIES}
    return figures, ok


def _is_lean(found: dict[str, Any]) -> bool:
    return (
        found["full_vector_transfers_per_micro_batch"] == 0
        and found["host_reads_per_micro_batch"] <= 1.25  # one each, and in a round of four whether values were changed
        and found["crossings_to_host_per_round"] <= 1
        and found["crossings_to_device_per_round"] <= 1
    )


# ---- the process of one of two peers on a card


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Enter the run, and train for some seconds."""
    torch.set_num_threads(1)
    work = gpu_workload(settings["workload"], settings["device"], is_tiny=settings["is_tiny"])
    link, options = (
        settings["link"],
        PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1"),
    )
    entered = join(link, options) if link else host(RunSpec.from_toml(settings["spec"]), options)
    channel.send(link=str(entered.link))
    optimizer = Optimizer(AdamW(work.model.parameters(), lr=1e-4), entered, model=work.model)
    channel.send(ready=True)
    while (command := channel.poll()) is None:
        optimizer.follow(0.02)
    began = time.perf_counter()
    micro_batches, steps, held_s = 0, optimizer.global_step, list[float]()
    while time.perf_counter() - began < command["seconds"]:
        loss = work.loss()
        loss.backward()
        before, asked = optimizer.global_step, time.perf_counter()
        optimizer.step(samples=work.samples, loss=loss)
        if optimizer.global_step != before:
            held_s.append(time.perf_counter() - asked)
        micro_batches += 1
    seconds = time.perf_counter() - began
    channel.send(
        samples_per_s=micro_batches * work.samples / seconds, steps=optimizer.global_step - steps, held_s=held_s
    )
    while channel.poll() is None:
        optimizer.follow(0.02)
    entered.close()


if __name__ == "__main__":
    raise SystemExit(main())
