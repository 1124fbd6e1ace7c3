"""Devices that round differently train together: nobody fetches state because of that.

    python -m benchmarks.mixed_devices --json

Six simulated peers of three kinds of device train a linear model for 100 steps, with an AdamW whose last bits depend on
the kind (`tests/worlds/rounding.py`), with the same on devices of one kind, and with AdamW of `minga.optim`. Real
averaging, real optimizers, simulated time. With `--real` three processes with other vector widths train a small
convolutional network with torch's own AdamW besides.

    downloads           states that peers fetched after the start
    drift               largest distance of two peers' parameters at the end, by the length of the parameters
    loss_ratio          loss with three kinds by that with one kind
    averagings          steps after which the parameters were averaged
    said                peers that emitted `parameters.drift`
    equal_digests       whether all peers have equal states with `minga.optim`

ok: no downloads, drift at most 1e-5, loss within 1 %, equal digests.
"""

from __future__ import annotations

import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._report import emit, finish, note, parser
from minga.optim import AdamW
from minga.simulation import run_virtual
from minga.simulation.swarm.swarm import Swarm
from tests.optim.test_mixed_widths import train_together
from tests.optim.test_reproducible_optimizers import widths_here
from tests.worlds.rounding import RoundingAdamW, farthest, learn, loss_of, rounding_replicas
from tests.worlds.swarm_tools import grow, make_spec, same_step

PEERS, STEPS, BATCH = 6, 100, 64
MOST_DRIFT, MOST_LOSS_CHANGE = 1e-5, 0.01


def simulate(kinds: int, make: Any = RoundingAdamW) -> dict[str, Any]:
    """What comes of training on devices of so many kinds."""

    async def train() -> dict[str, Any]:
        replicas = rounding_replicas(kinds, make=make)
        swarm = Swarm(make_spec(BATCH, digest_every=10), seed=4, make_replica=replicas, gradient=learn)
        grow(swarm, PEERS, random.Random(4))
        await swarm.run_until_step(STEPS)
        await same_step(swarm)
        told = swarm.log.of("parameters.drift")
        found = {
            "downloads": sum(int(str(event.fields["step"])) > 1 for _, event in swarm.log.of("sync.finished")),
            "drift": farthest(swarm),
            "loss": loss_of(swarm.alive()[0]),
            "said": len({name for name, _ in told}),
            "averagings": _averagings([event.fields for name, event in told if name == "peer-0"]),
            "equal_digests": len(set(swarm.digests().values())) == 1,
        }
        await swarm.close()
        return found

    found: dict[str, Any] = run_virtual(train(), limit_s=1e6)
    return found


def _averagings(told: list[Any]) -> int:
    """Steps after which parameters were averaged, from the intervals that a peer told."""
    every, count = 0, 0
    changes = {int(fields["step"]): int(fields["every"]) for fields in told}
    for step in range(STEPS):
        every = changes.get(step, every)
        count += bool(every) and (step + 1) % every == 0
    return count


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark; returns the exit status."""
    options_parser = parser(__doc__)
    options_parser.add_argument("--real", action="store_true", help="three processes with other vector widths, too")
    options = options_parser.parse_args(arguments)
    rows = {}
    for name, kinds, make in (("mixed", 3, RoundingAdamW), ("one_kind", 1, RoundingAdamW), ("minga_optim", 3, AdamW)):
        note(f"{name}: {PEERS} peers, {kinds} kinds of device")
        rows[name] = simulate(kinds, make)
        emit(case=name, **rows[name])
    mixed = rows["mixed"]
    loss_ratio = mixed["loss"] / rows["one_kind"]["loss"]
    ok = mixed["downloads"] == 0 and mixed["drift"] <= MOST_DRIFT and abs(loss_ratio - 1) <= MOST_LOSS_CHANGE
    ok = ok and rows["minga_optim"]["equal_digests"] and mixed["said"] == PEERS
    real: dict[str, Any] = {}
    if options.real:
        widths = list(widths_here())
        note(f"processes with vector widths {', '.join(widths)}")
        with tempfile.TemporaryDirectory() as folder:
            results = train_together(Path(folder), "torch", widths[:3], STEPS)
        real = {"real_widths": widths[:3], "real_downloads": [each["fetched"] for each in results]}
        ok = ok and not any(real["real_downloads"])
    return finish(
        "mixed_devices",
        ok,
        options.json,
        downloads=mixed["downloads"],
        drift=mixed["drift"],
        loss_ratio=loss_ratio,
        averagings=mixed["averagings"],
        said=mixed["said"],
        equal_digests=rows["minga_optim"]["equal_digests"],
        **real,
    )


if __name__ == "__main__":
    sys.exit(main())
