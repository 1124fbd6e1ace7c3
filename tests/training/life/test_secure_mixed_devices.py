"""A Byzantine-tolerant run of processes whose gradients differ in last bits: vector widths, threads, float64, a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import minga
from tests.optim.test_reproducible_optimizers import widths_here
from tests.worlds.width_processes import results_of

STEPS = 4

SCRIPT = """
import json, pathlib, sys, numpy, torch, minga
from blake3 import blake3
from minga.optim import AdamW

folder, name, threads, dtype = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), getattr(torch, sys.argv[4])
device = torch.device(sys.argv[5])
torch.set_num_threads(threads)
drawn = numpy.random.default_rng(1)
samples = torch.from_numpy(drawn.standard_normal((64, 2, 20))).to(device, dtype)
wanted = torch.from_numpy(drawn.integers(0, 5, 64)).to(device)
model = torch.nn.Sequential(
    torch.nn.Conv1d(2, 20, 5), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(320, 40), torch.nn.GELU(),
    torch.nn.Linear(40, 5),
).to(device)
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
    hashed.update(parameter.grad.cpu().numpy().tobytes())
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
    backward(torch.from_numpy(batch.indices(64)).to(device))
    optimizer.step(samples=batch.size)
    optimizer.zero_grad()
print(json.dumps({
    "gradient": hashed.hexdigest(), "digest": optimizer.digest(), "step": optimizer.global_step,
    "banned": kinds.count("secure.banned"), "lost": kinds.count("member.out_of_sync"),
}), flush=True)
peer.close()
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.cuda)])
def test_members_whose_gradients_differ_in_the_last_bits_agree(device: str, tmp_path: Path) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("this machine has no CUDA device")
    spec = {
        "name": "kernels",
        "model": {"recipe": "custom"},
        "training": {"target_batch_size": 24, "stop_after_steps": STEPS},
        "averaging": {"codec": "float32"},
        "checkpoints": {"every_steps": 0},
        "security": {"verification": "byzantine", "founders": 3, "micro_batch_size": 4, "peers_per_validator": 2},
    }
    (tmp_path / "run.toml").write_text(minga.RunSpec.from_mapping(spec).to_toml())
    widest = widths_here()[-1]
    members = [
        ("first", "default", ("1", "float32", device)),
        ("second", widest, ("2", "float32", "cpu")),
        ("third", widest, ("1", "float64", "cpu")),
    ]
    results = results_of(SCRIPT, tmp_path, members)
    assert len({result["gradient"] for result in results}) >= 2
    assert len({result["digest"] for result in results}) == 1
    assert [(each["step"], each["banned"], each["lost"]) for each in results] == [(STEPS, 0, 0)] * 3
