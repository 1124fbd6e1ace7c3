"""What a peer needs beside model, gradients and optimizer state: two vectors, and some room for messages."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

import minga
from tests.worlds import forked
from tests.worlds.resident_memory import CAN_BE_MEASURED

pytestmark = pytest.mark.skipif(not CAN_BE_MEASURED, reason="needs Linux")

MOST_VECTORS, ALLOWED_BYTES = 2, 200e6

PEER = """
import json, sys, time, torch, minga
from collections import Counter
from pathlib import Path
from tests.worlds.resident_memory import reset_peak, resident_bytes

folder, name = Path(sys.argv[1]), sys.argv[2]
torch.set_num_threads(1)
minga.join, minga.host, minga.Optimizer  # their rooms are imported
parameter = torch.nn.Parameter(torch.zeros(8))
parameter.sum().backward()  # what torch loads for the first step is no part of what a peer adds
torch.optim.SGD([parameter], lr=0.1).step()
base = resident_bytes()
reset_peak()
model = torch.nn.ParameterList([torch.nn.Parameter(torch.full((4096, 4096), 0.5))])
options = minga.PeerOptions(ephemeral=True, directory=folder / name, host="127.0.0.1")
if name == "host":
    peer = minga.host(minga.RunSpec.from_toml((folder / "run.toml").read_text()), options)
    (folder / "link.part").write_text(str(peer.link))
    (folder / "link.part").replace(folder / "link")
else:
    while not (folder / ("begun" if name == "late" else "link")).exists():
        time.sleep(0.02)
    peer = minga.join((folder / "link").read_text(), options)
seen = Counter()
peer.subscribe(lambda event: seen.update([event.kind]))
optimizer = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=1e-4), peer, model=model)
while not (folder / "done").exists():
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter).uniform_(-1.0, 1.0)
    optimizer.step(samples=1)
    if name == "host" and optimizer.global_step >= 2:
        (folder / "begun").touch()
    if name == "late" and seen["step.applied"] > 3 and seen["checkpoint.saved"]:
        (folder / "done").touch()
vector_bytes = sum(parameter.nbytes for parameter in model.parameters())
extra = resident_bytes("VmHWM:") - base - 2 * vector_bytes
print(json.dumps({"extra": extra, "vector": vector_bytes, "steps": seen["step.applied"]}))
peer.close()
"""


@pytest.mark.soak
def test_a_peer_needs_two_vectors_and_200_mb(tmp_path: Path) -> None:
    """In its whole life: with 17 million parameters, as it joins, serves, averages and writes checkpoints."""
    spec = minga.RunSpec.from_mapping(
        {
            "name": "memory",
            "model": {"recipe": "custom"},
            "network": {"relay": "none"},
            "training": {"target_batch_size": 6},
            "checkpoints": {"every_steps": 3, "keep": 1},
        }
    )
    (tmp_path / "run.toml").write_text(spec.to_toml())

    def start(name: str) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return forked.start("-c", PEER, str(tmp_path), name, stdout=pipe, stderr=pipe)

    told = forked.results_of([start("host"), start("early"), start("late")], 220.0)
    for peer in told:
        assert peer["steps"] > 3
        assert peer["extra"] <= MOST_VECTORS * peer["vector"] + ALLOWED_BYTES, json.dumps(told)
