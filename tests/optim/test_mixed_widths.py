"""Two processes with different vector widths train together: neither fetches state because of rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import minga
from tests.optim.test_reproducible_optimizers import widths_here
from tests.worlds.seeds import soaked
from tests.worlds.width_processes import results_of

pytestmark = pytest.mark.promise("other-optimizers-on-mixed-devices")

STEPS = 10

SCRIPT = """
import json, pathlib, sys, torch, minga, minga.optim
from tests.worlds.side_by_side import SideBySide

folder, role, threads, library = pathlib.Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4]
AdamW = {"minga": minga.optim.AdamW, "torch": torch.optim.AdamW}[library]
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
beside = SideBySide(folder, role, ["host", "join"], peer, steps=1000)  # more than there are
generator = torch.Generator().manual_seed(len(role) + threads)
started = len(events)
while not optimizer.finished:
    images = torch.randn(8, 1, 8, 8, generator=generator)
    torch.nn.functional.cross_entropy(model(images), torch.arange(8) % 7).backward()
    optimizer.step(samples=8)
    optimizer.zero_grad()
    beside.keep_pace(optimizer)
kinds = [kind for kind, _ in events[started:]]
print(json.dumps({
    "width": torch.backends.cpu.get_cpu_capability(), "digest": optimizer.digest(), "step": optimizer.global_step,
    "drifting": "parameters.drift" in kinds,
    "fetched": kinds.count("sync.finished"), "diverged": kinds.count("member.diverged"),
    "together": sum(members == 2 for kind, members in events if kind == "step.applied"),
}), flush=True)
peer.close()
"""


def train_together(folder: Path, library: str, widths: list[str], steps: int) -> list[dict[str, Any]]:
    """What two processes with these vector widths say that train with AdamW of "minga" or "torch"."""
    spec = {
        "name": "widths",
        "model": {"recipe": "custom"},
        "training": {"target_batch_size": 32, "stop_after_steps": steps},
        "state": {"digest_every": 1},
        "checkpoints": {"every_steps": 0},
    }
    (folder / "run.toml").write_text(minga.RunSpec.from_mapping(spec).to_toml())
    members = [("host", widths[0], ("1", library)), ("join", widths[1], ("2", library))]
    results = results_of(SCRIPT, folder, members)
    assert [result["width"].lower() for result in results] == widths
    return results


@pytest.mark.parametrize("library", [soaked("minga"), "torch"])
def test_no_peer_fetches_state_because_of_its_vector_width(library: str, tmp_path: Path) -> None:
    """With optimizers of minga states are equal; torch's differ in last bits, and peers average their parameters."""
    widest = widths_here()[-1]
    if widest == "default":
        pytest.skip("this processor has one vector width")
    results = train_together(tmp_path, library, ["default", widest], STEPS)
    assert [result["step"] for result in results] == [STEPS, STEPS]
    if library == "minga":
        assert len({result["digest"] for result in results}) == 1
    assert [result["drifting"] for result in results] == [library == "torch"] * 2
    assert [(result["fetched"], result["diverged"]) for result in results] == [(0, 0), (0, 0)]
    assert [result["together"] for result in results] == [STEPS, STEPS]
