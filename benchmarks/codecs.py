"""How fast codecs and sketches are on one core, how much smaller vectors get, and how much of a real gradient is lost.

    python -m benchmarks.codecs --json                        # all of them, on the gradient of a small ALBERT
    python -m benchmarks.codecs --only "int4(block=32)" topk dct64

The gradient is that of ALBERT tiny (1.3 million parameters) on the Bible after `--steps` steps of AdamW, as one vector,
and of a normal distribution with `--steps 0`. It is repeated to `--elements` and cut into chunks of 262,144 elements.
PyTorch has one thread. Codecs for the means of sparse vectors (gtopk, union) get such a mean, of eight parts of the
gradient that topk sent.

    encode_mb_s    MB (1e6 bytes) of float32 that are encoded in a second; median of five passes
    add_mb_s       the same of `decode_add`, which is what an aggregator does with each contribution
    bits           encoded bits an element
    ratio          float32 bytes by encoded bytes
    error          |decoded - x|**2 / |x|**2; for codecs that send a part, what one round leaves out
    delta          the constant that the codec promises, 1 / (1 - error) at the worst; null if it promises none

Sketches project one layer of GPT-2 small, with its biases and norms: 7.1 million elements, normally distributed.

    project_mb_s   MB of float32 that are projected in a second; median of five passes
    expand_mb_s    the same of expanding the mean
    both_mb_s      the same of one after the other

ok: every codec encodes 100 MB/s, and every sketch projects and expands 25 MB/s.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks._report import emit, finish, note, parser
from benchmarks._strategy_tasks import GLOBAL_BATCH, TASKS, Subject, run_spec
from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.interface import Codec
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.sketches.interface import SKETCHES, Sketch, make_sketch
from minga.core.spec.choices import parse_choice
from minga.core.spec.sections import DEFAULT_SKETCH
from minga.recipes.interface import StreamPosition

CHUNK_ELEMENTS, PASSES = 1 << 18, 5
LEAST_MB_S, LEAST_BOTH_MB_S = 100.0, 25.0
SETTINGS = (
    "int8(rounding=stochastic)",
    "int4(block=32)",
    "int4(block=128)",
    "int4(rounding=stochastic)",
    "e3m0(rounding=stochastic)",
    "natural(rounding=stochastic)",
    "topk(k=32)",
    "topk(values=2bit)",
    "powersgd(rank=32)",
)
"""What is measured beside each codec and sketch as it is without settings; names not installed are left out."""
SENDERS, SENT_BY = 8, "topk"
"""Whose mean a codec for the means of sparse vectors gets."""
LAYER = ((768, 2304), (768, 768), (768, 3072), (3072, 768), *[(768,)] * 6, (2304,), (3072,))
ROUNDS = (1 << 20, (1 << 20) + 1)
"""Two in a row, since the sides of PowerSGD take turns, and late, since its first rounds average whole gradients."""


def all_choices() -> list[str]:
    """Every codec and sketch of this machine, those with settings after the one without."""
    found = []
    for name in (*CODECS.names(), *(name for name in SKETCHES.names() if name != DEFAULT_SKETCH)):
        found += [name, *(choice for choice in SETTINGS if parse_choice(choice).name == name)]
    return found


def sketched(sketch: Sketch) -> dict[str, Any]:
    """The row of a sketch."""
    vector = torch.randn(sketch.whole.total, generator=torch.Generator().manual_seed(1))
    means = [sketch.project(vector, step) for step in ROUNDS]
    project_s = _seconds(lambda: [sketch.project(vector, step) for step in ROUNDS])
    expand_s = _seconds(lambda: [sketch.expand(mean, step) for mean, step in zip(means, ROUNDS, strict=True)])
    megabytes = vector.nbytes * len(ROUNDS) / 1e6
    return {
        "sketch": sketch.choice,
        "project_mb_s": round(megabytes / project_s),
        "expand_mb_s": round(megabytes / expand_s),
        "both_mb_s": round(megabytes / (project_s + expand_s)),
    }


def measured(codec: Codec, vector: torch.Tensor, like: int) -> dict[str, Any]:
    """The row of a codec; the first `like` elements of `vector` are those whose error is told."""
    pieces = torch.split(vector, CHUNK_ELEMENTS)
    rooms = [bytearray(codec.max_encoded_bytes(piece.numel())) for piece in pieces]
    sizes = [0] * len(pieces)

    def encode() -> None:
        for number, (piece, room) in enumerate(zip(pieces, rooms, strict=True)):
            sizes[number] = codec.encode(piece, room, seed=number)

    encode_s = _seconds(encode)
    bodies = [memoryview(room)[:size] for room, size in zip(rooms, sizes, strict=True)]
    total = torch.zeros_like(vector)

    def add() -> None:
        for body, place in zip(bodies, torch.split(total, CHUNK_ELEMENTS), strict=True):
            codec.decode_add(body, place, 3.0)

    add_s = _seconds(add)
    decoded = torch.empty_like(vector)
    for body, place in zip(bodies, torch.split(decoded, CHUNK_ELEMENTS), strict=True):
        codec.decode(body, place)
    error = (decoded[:like].double() - vector[:like].double()).square().sum() / vector[:like].double().square().sum()
    delta = codec.delta(CHUNK_ELEMENTS)
    return {
        "codec": codec.choice,
        "encode_mb_s": round(vector.nbytes / encode_s / 1e6),
        "add_mb_s": round(vector.nbytes / add_s / 1e6),
        "bits": round(8 * sum(sizes) / vector.numel(), 3),
        "ratio": round(vector.nbytes / sum(sizes), 2),
        "error": float(f"{float(error):.3g}"),
        "delta": None if delta is None else round(delta, 4),
    }


def mean_of_sparse(vector: torch.Tensor) -> torch.Tensor:
    """The mean of eight sparse vectors, each with a part of `vector` at every place."""
    upload, total = codec(SENT_BY), torch.zeros_like(vector)
    room = bytearray(upload.max_encoded_bytes(vector.numel()))
    for sender in range(SENDERS):
        part = vector.roll(-sender * (vector.numel() // SENDERS))
        upload.decode_add(memoryview(room)[: upload.encode(part, room)], total, 1.0 / SENDERS)
    return total


def _seconds(work: Callable[[], object]) -> float:
    work()
    found = []
    for _ in range(PASSES):
        begun_s = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun_s)
    return median(found)


def vector_of(steps: int, elements: int, folder: Path) -> tuple[torch.Tensor, int]:
    """At least as many elements as a gradient has, and how many that are."""
    if steps:
        gradient = gradient_of_albert(steps, folder)
    else:
        gradient = torch.randn(elements, generator=torch.Generator().manual_seed(1))
    return gradient.repeat(max(1, elements // gradient.numel())).contiguous(), gradient.numel()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run from the command line; returns the exit status."""
    options = parser(__doc__)
    options.add_argument("--only", nargs="*", default=None, help="choices such as int4(block=32); all if left out")
    options.add_argument("--steps", type=int, default=50, help="steps before the gradient is taken; 0 is normal values")
    options.add_argument("--elements", type=int, default=1 << 22)
    given = options.parse_args(arguments)
    torch.set_num_threads(1)
    choices = given.only if given.only is not None else all_choices()
    layer, names = VectorLayout(LAYER, "float16"), SKETCHES.names()
    sketches = [make_sketch(choice, layer) for choice in choices if parse_choice(choice).name in names]
    codecs = [codec(choice) for choice in choices if parse_choice(choice).name not in names]
    with tempfile.TemporaryDirectory() as folder:
        vector, like = vector_of(given.steps, given.elements, Path(folder))
    rows = []
    for each in codecs:
        is_for_means = each.is_sparse and not each.needs_residual
        rows.append(measured(each, mean_of_sparse(vector) if is_for_means else vector, like))
        emit(**rows[-1])
    for sketch in sketches:
        rows.append(sketched(sketch))
        emit(**rows[-1])
    slow = [row["codec"] for row in rows if row.get("encode_mb_s", LEAST_MB_S) < LEAST_MB_S]
    slow += [row["sketch"] for row in rows if row.get("both_mb_s", LEAST_BOTH_MB_S) < LEAST_BOTH_MB_S]
    return finish("codecs", not slow, given.json, gradient_elements=like, slow=slow, rows=rows)


def gradient_of_albert(steps: int, folder: Path) -> torch.Tensor:
    """The gradient of 32 samples after so many steps of AdamW, flat; `folder` is for the recipe's files."""
    task = TASKS["albert"]
    subject = Subject(task, run_spec(task, seed=0, rounds=max(2, steps), batch=GLOBAL_BATCH, changes={}), folder)
    model = subject.new_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(task.optimizer["learning_rate"]))
    batches = subject.recipe.batches(subject.files, StreamPosition("0" * 64), GLOBAL_BATCH)
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = subject.recipe.total_loss(model, next(batches))
        torch.autograd.backward(loss)
        if step % 10 == 0:
            note(f"step {step}: loss {float(loss.detach()):.3f}")
        if step < steps:
            optimizer.step()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


if __name__ == "__main__":
    raise SystemExit(main())
