"""Elements that a seed draws: the same of all peers, all of them in time, and no indices in the bytes."""

from __future__ import annotations

import pytest
import torch

from minga.averaging.codecs.dense import codec
from minga.averaging.codecs.interface import InvalidEncodingError
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.seeds import RoundSeeds
from minga.averaging.compressors.topk import drawn
from minga.testing.codecs.cases import decoded_of


def sent(source: torch.Tensor, seed: int) -> torch.Tensor:
    made = codec("randomk")
    room = bytearray(made.max_encoded_bytes(source.numel()))
    made.encode(source, room, seed=seed)
    return decoded_of(made, room, source.numel())


def test_all_peers_of_a_round_send_the_same_elements_and_other_rounds_send_others() -> None:
    layout = VectorLayout((20_000,), "randomk")
    (chunk, *_) = layout.chunks(0, 20_000, 10_000)
    support = []
    for step in (4, 5):
        one, other = (
            sent(torch.randn(20_000).abs() + 1, RoundSeeds(layout.fingerprint, step, peer).upload(chunk)) != 0
            for peer in ("a", "b")
        )
        assert torch.equal(one, other)
        assert int(one.sum()) == 4 * 64 + round(64 * (20_000 - 4 * 4096) / 4096)
        support.append(one)
    assert not torch.equal(*support)
    assert layout.download_choice == "union"


def test_each_element_comes_equally_often() -> None:
    times = torch.zeros(4096)
    for seed in range(640):
        times[torch.from_numpy(drawn(seed, 64, 4096).copy())] += 1
    assert float(times.mean()) == 10.0
    assert 0.8 * 10.0 < float(times.var()) < 1.2 * 10.0


def test_a_draw_is_the_same_on_all_machines() -> None:
    """Pinned: peers of two versions must agree on it."""
    wanted = [[0, 43, 54, 66], [3, 66, 78, 90], [37, 56, 83, 94]]
    assert [drawn(seed, 4, 100).tolist() for seed in (0, 1, 2**32 - 1)] == wanted


def test_nothing_but_a_seed_and_values_is_sent() -> None:
    assert codec("randomk").max_encoded_bytes(4096) == 4 + 2 * 64
    assert torch.equal(sent(torch.ones(100), 2**64 - 1), sent(torch.ones(100), 2**32 - 1))


def test_a_seed_of_its_own_for_each_block_is_refused() -> None:
    """Each would cost a draw of 4096 elements, a hundred times the work of reading what an encoder writes."""
    made, numel = codec("randomk"), 64 * 4096
    room, target = bytearray(made.max_encoded_bytes(numel)), torch.full((numel,), 7.0)
    made.encode(torch.ones(numel), room, seed=1)
    room[132 * 40] ^= 1
    with pytest.raises(InvalidEncodingError, match="different seeds"):
        made.decode(room, target)
    assert bool((target == 7.0).all())
