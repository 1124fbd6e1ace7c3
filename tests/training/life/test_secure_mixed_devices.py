"""A Byzantine-tolerant run of processes whose gradients differ in the last bits: vector widths, threads, float64."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import minga
from tests.optim.test_reproducible_optimizers import widths_here

STEPS = 6

SCRIPT = """
import json, pathlib, sys, numpy, torch, minga
from blake3 import blake3
from minga.optim import AdamW

folder, name, threads, dtype = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), getattr(torch, sys.argv[4])
torch.set_num_threads(threads)
drawn = numpy.random.default_rng(1)
samples = torch.from_numpy(drawn.standard_normal((64, 40))).to(dtype)
wanted = torch.from_numpy(drawn.integers(0, 5, 64))
model = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.GELU(), torch.nn.Linear(300, 5))
with torch.no_grad():
    for parameter in model.parameters():
        parameter.copy_(torch.from_numpy(drawn.standard_normal(tuple(parameter.shape)) * 0.1))

def backward(chosen):
    values = {name: parameter.to(dtype) for name, parameter in model.named_parameters()}
    out = torch.func.functional_call(model, values, (samples[chosen],))
    torch.nn.functional.cross_entropy(out, wanted[chosen]).backward()

backward(torch.arange(48))
hashed = blake3()
for parameter in model.parameters():
    hashed.update(parameter.grad.numpy().tobytes())
    parameter.grad = None

directory = folder / name
directory.mkdir()
options = minga.PeerOptions(ephemeral=True, directory=directory, host="127.0.0.1")
if (folder / "link").exists():
    peer = minga.join((folder / "link").read_text(), options)
else:
    peer = minga.host(minga.RunSpec.from_toml((folder / "run.toml").read_text()), options)
    (folder / "link.part").write_text(str(peer.link))
    (folder / "link.part").replace(folder / "link")
kinds = []
peer.subscribe(lambda event: kinds.append(event.kind))
optimizer = minga.Optimizer(AdamW(model.parameters(), lr=0.01), peer, model=model)
for batch in optimizer.batches():
    backward(torch.from_numpy(batch.indices(64)))
    optimizer.step(samples=batch.size)
    optimizer.zero_grad()
print(json.dumps({
    "gradient": hashed.hexdigest(), "digest": optimizer.digest(), "step": optimizer.global_step,
    "banned": kinds.count("secure.banned"), "lost": kinds.count("member.out_of_sync"),
}), flush=True)
peer.close()
"""


def start(folder: Path, name: str, width: str, threads: int, dtype: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": width}
    command = [sys.executable, "-c", SCRIPT, str(folder), name, str(threads), dtype]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_members_whose_gradients_differ_in_the_last_bits_agree(tmp_path: Path) -> None:
    spec = {
        "name": "kernels",
        "model": {"recipe": "custom"},
        "training": {"target_batch_size": 24, "stop_after_steps": STEPS},
        "averaging": {"codec": "float32"},
        "checkpoints": {"every_steps": 0},
        "security": {"mode": "byzantine", "founders": 3, "micro_batch_size": 4, "peers_per_validator": 2},
    }
    (tmp_path / "run.toml").write_text(minga.RunSpec.from_mapping(spec).to_toml())
    kinds = [("first", "default", 1, "float32"), ("second", widths_here()[-1], 2, "float32")]
    kinds.append(("third", widths_here()[-1], 1, "float64"))
    processes: list[subprocess.Popen[str]] = []
    results: list[dict[str, Any]] = []
    try:
        for each in kinds:
            processes.append(start(tmp_path, *each))
            while not (tmp_path / "link").exists():
                assert processes[0].poll() is None, processes[0].communicate()[1]
                time.sleep(0.05)
        for process in processes:
            output, errors = process.communicate(timeout=150)
            assert process.returncode == 0, errors
            results.append(json.loads(output.splitlines()[-1]))
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    assert len({result["gradient"] for result in results}) >= 2
    assert len({result["digest"] for result in results}) == 1
    assert [(each["step"], each["banned"], each["lost"]) for each in results] == [(STEPS, 0, 0)] * 3
