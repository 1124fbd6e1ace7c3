"""Two processes with different vector widths train together: neither fetches state because of rounding."""

from __future__ import annotations

from pathlib import Path

import pytest

import minga
from tests.optim.test_reproducible_optimizers import widths_here
from tests.worlds.width_processes import results_of

STEPS = 16

SCRIPT = """
import json, pathlib, sys, torch, minga
from minga.optim import AdamW

folder, role, threads = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
torch.set_num_threads(threads)
options = minga.PeerOptions(ephemeral=True, directory=folder / role, host="127.0.0.1")
if role == "host":
    peer = minga.host(minga.RunSpec.from_toml((folder / "run.toml").read_text()), options)
    (folder / "link.part").write_text(str(peer.link))
    (folder / "link.part").replace(folder / "link")
else:
    peer = minga.join((folder / "link").read_text(), options)
events = []
peer.subscribe(lambda event: events.append((event.kind, event.fields.get("members"))))
model = torch.nn.Sequential(
    torch.nn.Conv2d(1, 9, 3), torch.nn.GELU(), torch.nn.Flatten(), torch.nn.Linear(9 * 36, 130), torch.nn.GELU(),
    torch.nn.Linear(130, 7),
)
optimizer = minga.Optimizer(AdamW(model.parameters(), lr=0.01), peer, model=model, max_grad_norm=0.5)
if role == "host":
    while not (folder / "joined").exists():  # the first steps are for both
        optimizer.follow(0.05)
else:
    (folder / "joined").touch()
generator = torch.Generator().manual_seed(len(role) + threads)
started = len(events)
while not optimizer.finished:
    images = torch.randn(8, 1, 8, 8, generator=generator)
    torch.nn.functional.cross_entropy(model(images), torch.arange(8) % 7).backward()
    optimizer.step(samples=8)
    optimizer.zero_grad()
kinds = [kind for kind, _ in events[started:]]
print(json.dumps({
    "width": torch.backends.cpu.get_cpu_capability(), "digest": optimizer.digest(), "step": optimizer.global_step,
    "fetched": kinds.count("sync.finished"), "diverged": kinds.count("member.diverged"),
    "together": sum(members == 2 for kind, members in events if kind == "step.applied"),
}), flush=True)
peer.close()
"""


def test_peers_with_different_vector_widths_hold_equal_states(tmp_path: Path) -> None:
    widest = widths_here()[-1]
    if widest == "default":
        pytest.skip("this processor has one vector width")
    spec = {
        "name": "widths",
        "model": {"recipe": "custom"},
        "training": {"target_batch_size": 32, "stop_after_steps": STEPS},
        "state": {"digest_every": 1},
        "checkpoints": {"every_steps": 0},
    }
    (tmp_path / "run.toml").write_text(minga.RunSpec.from_mapping(spec).to_toml())
    results = results_of(SCRIPT, tmp_path, [("host", "default", ("1",)), ("join", widest, ("2",))])
    assert [result["step"] for result in results] == [STEPS, STEPS]
    assert [result["width"].lower() for result in results] == ["default", widest]
    assert len({result["digest"] for result in results}) == 1
    assert [(result["fetched"], result["diverged"]) for result in results] == [(0, 0), (0, 0)]
    assert all(result["together"] >= STEPS // 2 for result in results)
