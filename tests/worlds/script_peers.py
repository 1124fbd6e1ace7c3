"""Scripts of programs as peers of one run, each in a thread of one process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

import minga

LIMIT_S = 150.0


class Machine:
    """The part of one peer in a run: `peer`, its `number`, and what its script needs of the others."""

    def __init__(self, peer: minga.Peer, number: int, together: threading.Barrier) -> None:
        self.peer, self.number = peer, number
        self._together = together

    def meet(self, optimizer: minga.Optimizer) -> None:
        """Take part without gradients until all the others have the state, too: none trains alone before that."""
        arrived = threading.Thread(target=self._arrive, daemon=True)
        arrived.start()
        while arrived.is_alive():
            optimizer.follow(0.01)

    def batches(self, samples: int) -> Iterator[torch.Tensor]:
        """Rows of this machine's own, without an end."""
        return batches_of(self.number, samples)

    def _arrive(self) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            self._together.wait(LIMIT_S)


Script = Callable[[Machine], Any]


def spec_of(batch: int, steps: int | None, **sections: Mapping[str, Any]) -> minga.RunSpec:
    """A run of programs of their own, with `sections` beside or in the place of the usual ones."""
    training = {"target_batch_size": batch, **({} if steps is None else {"stop_after_steps": steps})}
    usual: dict[str, Any] = {
        "name": "scripts",
        "model": {"recipe": "custom"},
        "averaging": {"codec": "float32"},
        "state": {"digest_every": 1},
    }
    given = {"training": training | dict(sections.pop("training", {})), **sections}
    return minga.RunSpec.from_mapping(usual | given)


def run_scripts(spec: minga.RunSpec, scripts: Sequence[Script], folder: Path) -> list[Any]:
    """Run each script with a peer of its own, the first as the host of the run. Returns what each returned, or the
    error of minga's that ended it.
    """
    found: list[Any] = [TimeoutError("the script did not end")] * len(scripts)
    peers: list[minga.Peer] = []
    together = threading.Barrier(len(scripts))

    def run(number: int) -> None:
        try:
            found[number] = scripts[number](Machine(peers[number], number, together))
        except BaseException as error:
            found[number] = error
            together.abort()
        finally:
            peers[number].close()

    try:
        for number in range(len(scripts)):
            place = folder / f"peer{number}"
            place.mkdir()
            options = minga.PeerOptions(ephemeral=True, directory=place, host="127.0.0.1")
            peers.append(minga.join(str(peers[0].link), options) if number else minga.host(spec, options))
        threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(len(scripts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
    finally:
        for peer in peers:
            peer.close()
    for result in found:
        if isinstance(result, BaseException) and not isinstance(result, minga.MingaError):
            raise result
    return found


def batches_of(number: int, samples: int) -> Iterator[torch.Tensor]:
    """Those of the machine with this number."""
    own = torch.Generator().manual_seed(100 + number)
    while True:
        yield torch.randn(samples, 6, generator=own)


def network(number: int = 0) -> nn.Sequential:
    """A small network, equal for equal numbers."""
    chance = torch.Generator().manual_seed(7 + number)
    layers = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.uniform_(-0.4, 0.4, generator=chance)
    return layers


def values(module: nn.Module) -> list[float]:
    """All numbers of a module's state, to compare ends."""
    return [number for tensor in module.state_dict().values() for number in tensor.double().flatten().tolist()]
