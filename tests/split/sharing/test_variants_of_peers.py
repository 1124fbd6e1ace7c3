"""Each variant as real peers on this machine: what `serve` and `Client` do with the run spec's variant."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
from minga.core.errors import ConfigurationError
from minga.core.events.bus import Event
from minga.split import Client, serve
from tests.worlds.sharing_world import two_parts
from tests.worlds.split_world import batch, values

sgd = partial(torch.optim.SGD, lr=0.1)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def options(tmp_path: Path) -> Callable[[str], minga.PeerOptions]:
    """Settings of peers that are bound to this machine, by their names."""

    def make(name: str, **own: Any) -> minga.PeerOptions:
        given = {"ephemeral": True, **own}
        return minga.PeerOptions(directory=tmp_path / name, host="127.0.0.1", **given)

    return make


def spec_of(variant: str, **split: Any) -> minga.RunSpec:
    return minga.RunSpec.from_mapping(
        {
            "name": "split",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 16, "stop_after_steps": 2},
            "averaging": {"codec": "float32"},
            "checkpoints": {"every_steps": 0},
            "split": {"variant": variant, **split},
        }
    )


def together(*functions: Callable[[], None]) -> None:
    """Run each on a thread of its own, and raise what one of them raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(each,)) for each in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_clients_of_splitfed_average_their_parts(options: Callable[[str], minga.PeerOptions]) -> None:
    _, top = two_parts()
    bottoms = [two_parts()[0] for _ in range(2)]
    with serve(spec_of("splitfed-1"), top, optimizer=sgd, options=options("server")) as server:
        link = server.link
        both = threading.Barrier(2)  # none is alone from the first round to the last, and has left then
        told: list[tuple[int, Event]] = []

        def train(index: int) -> None:
            with minga.join(link, options(f"client {index}")) as peer:
                peer.on_loop(lambda: peer.session.events.subscribe(lambda event: told.append((index, event))))
                both.wait(60)  # before the client is made: a newcomer's state comes from a thread that trains
                with Client(peer, bottoms[index], optimizer=sgd) as client:
                    number = 1000 * index
                    while not client.finished:
                        client.train(*batch(number))
                        number += 1
                    assert client.train(*batch(number)) is None, "the run is over"
                    both.wait(60)

        together(partial(train, 0), partial(train, 1))
        assert server.status.samples >= 32
        assert not torch.equal(values(bottoms[0]), values(two_parts()[0]))
        assert torch.equal(values(bottoms[0]), values(bottoms[1])), told
    assert not torch.equal(values(top), values(two_parts()[1])), "the last round's average is in the program's module"


def test_a_client_of_splitfed_that_is_the_last_to_leave_comes_again_with_what_it_had(
    options: Callable[[str], minga.PeerOptions],
) -> None:
    _, top = two_parts()
    with serve(spec_of("splitfed-2"), top, optimizer=sgd, options=options("server")) as server:
        found = []
        for _ in range(2):
            bottom = two_parts()[0]
            with Client(server.link, bottom, optimizer=sgd, options=options("client")) as client:
                begun = client._half.part.round
                number = 0
                while client._half.part.round < 1:
                    client.train(*batch(number))
                    number += 1
                found.append((begun, values(bottom)))
    assert [begun for begun, _ in found] == [0, 1]
    assert torch.equal(found[0][1], found[1][1])


def test_clients_in_turns_hand_over_also_at_their_end(options: Callable[[str], minga.PeerOptions]) -> None:
    bottoms = [two_parts(seed=10 + index)[0] for index in range(2)]
    spec, (_, top) = spec_of("round-robin", turn_batches=3), two_parts()
    with serve(spec, top, optimizer=sgd, options=options("server")) as server:
        link = server.link

        def train(index: int) -> None:
            with Client(link, bottoms[index], optimizer=sgd, options=options(f"client {index}")) as client:
                assert all(client.train(*batch(1000 * index + number)) is not None for number in range(5))

        together(partial(train, 0), partial(train, 1))
        assert server.status.steps == 10
        distance = (values(bottoms[0]) - values(bottoms[1])).abs().max()
        assert distance < 0.5, "each was the other's, two batches before the end"


def test_blocks_of_features(options: Callable[..., minga.PeerOptions]) -> None:
    torch.manual_seed(1)
    bottoms, top = [nn.Linear(3, 4) for _ in range(2)], nn.Linear(8, 3)
    losses: list[list[float | None]] = [[], []]
    with serve(spec_of("vertical", blocks=2), top, optimizer=sgd, options=options("server")) as server:
        link = server.link

        def train(block: int) -> None:
            with Client(link, bottoms[block], optimizer=sgd, block=block, options=options(f"client {block}")) as client:
                with pytest.raises(ConfigurationError):
                    Client(client.peer, bottoms[block], optimizer=sgd)
                for number in range(6):
                    inputs, labels = batch(number)
                    mine = inputs[:, 3 * block : 3 * block + 3]
                    losses[block].append(client.train(mine, labels if block else None, sample_set=number + 1))

        together(partial(train, 0), partial(train, 1))
        assert losses[0] == losses[1]
        assert all(loss is not None for loss in losses[0])
        assert server.status.steps == 6
