"""The process of one trainer in the overhead benchmark: the same loop with bare PyTorch or with minga."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from benchmarks._worker import Channel

CLASSES = 10


@dataclass
class Workload:
    """A model and an endless supply of micro-batches of `batch` samples."""

    model: nn.Module
    batch: int
    inputs: torch.Tensor
    labels: torch.Tensor

    def batches(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Micro-batches, over and over."""
        while True:
            for start in range(0, len(self.inputs) - self.batch + 1, self.batch):
                yield self.inputs[start : start + self.batch], self.labels[start : start + self.batch]


class Transformer(nn.Module):
    """A text classifier: layers of width 256 over 64 tokens, each of its own or (as in ALBERT) all the same one."""

    def __init__(self, layers: int, *, shared: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2048, 256)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(1 if shared else layers)
        )
        self.repeats = layers if shared else 1
        self.head = nn.Linear(256, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of shape (texts, classes)."""
        hidden: torch.Tensor = self.embedding(tokens)
        for _ in range(self.repeats):
            for layer in self.layers:
                hidden = layer(hidden)
        return torch.nn.functional.linear(hidden.mean(1), self.head.weight, self.head.bias)


def workload(name: str, seed: int) -> Workload:
    """Make a workload by its name.

    "albert" applies one layer of 0.8 million parameters six times to 8 texts of 64 tokens, "transformer" has two of
    them, "mlp" 0.4 million parameters and batches of 64, "large" is one matrix of 17.8 million with batches of 2.
    """
    torch.manual_seed(seed)
    labels = torch.randint(CLASSES, (8192,))
    if name in ("albert", "transformer"):
        model: nn.Module = Transformer(6, shared=True) if name == "albert" else Transformer(2, shared=False)
        return Workload(model, 8, torch.randint(2048, (512, 64)), labels[:512])
    if name == "large":
        return Workload(nn.Linear(4219, 4219), 2, torch.randn(64, 4219), labels[:64])
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    return Workload(model, 64, torch.randn(8192, 256), labels)


def trainer(channel: Channel, settings: dict[str, Any]) -> None:
    """Enter the run if there is one, then train as long as told."""
    torch.set_num_threads(1)
    work = workload(settings["workload"], settings["seed"])
    inner = torch.optim.SGD(work.model.parameters(), lr=0.01, momentum=0.9)
    steps: list[tuple[float, int]] = []
    if settings["mode"] == "bare":
        step = bare_step(inner, work.batch, settings["target"], steps)
        channel.send(link=None)
        idle: Callable[[], object] = lambda: time.sleep(0.02)  # noqa: E731
        close: Callable[[], None] = lambda: None  # noqa: E731
    else:
        step, link, idle, close = enter(work, inner, settings, steps)
        channel.send(link=link)
    batches = work.batches()
    while True:
        while (command := channel.poll()) is None:
            idle()
        if command["do"] == "exit":
            close()
            return
        steps.clear()
        begun, cpu_s = time.monotonic(), time.process_time()
        count = 0
        while count < command.get("micro_batches", 1 << 60) and time.monotonic() < begun + command.get("seconds", 3600):
            x, y = next(batches)
            torch.autograd.backward(cross_entropy(work.model(x), y))
            step()
            count += 1
        took = {"seconds": time.monotonic() - begun, "cpu_s": time.process_time() - cpu_s}
        channel.send(**took, samples=count * work.batch, steps=list(steps))


def bare_step(
    inner: torch.optim.Optimizer, batch: int, target: int, steps: list[tuple[float, int]]
) -> Callable[[], None]:
    """Accumulate gradients up to the target batch size, then take the optimizer's step, without anybody else."""
    gathered = 0

    def step() -> None:
        nonlocal gathered
        gathered += batch
        if gathered >= target:
            inner.step()
            inner.zero_grad()
            steps.append((time.monotonic(), gathered))
            gathered = 0

    return step


def enter(
    work: Workload, inner: torch.optim.Optimizer, settings: dict[str, Any], steps: list[tuple[float, int]]
) -> tuple[Callable[[], None], str, Callable[[], object], Callable[[], None]]:
    """Host or join the run: what to call after each backward, the link, what to do while idle, and at the end."""
    import minga

    options = minga.PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    if settings["link"]:
        peer = minga.join(settings["link"], options)
    else:
        peer = minga.host(minga.RunSpec.from_toml(settings["spec"]), options)

    def note(event: minga.Event) -> None:
        if event.kind == "step.applied":
            steps.append((event.time, int(str(event.fields["samples"]))))

    peer.subscribe(note)
    optimizer = minga.Optimizer(inner, peer, model=work.model)

    def step() -> None:
        optimizer.step(samples=work.batch)
        optimizer.zero_grad()

    return step, str(peer.link), lambda: optimizer.follow(0.02), peer.close
