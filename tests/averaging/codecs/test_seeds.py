"""The seeds of a round: equal on all peers, others for each step, chunk and direction, and the same for a repair."""

from __future__ import annotations

import itertools

import torch

from minga.averaging.codecs.dense import CastCodec, CodecPair, codec
from minga.averaging.codecs.layout import Chunk, VectorLayout
from minga.averaging.codecs.residual import Encoder, Residual
from minga.averaging.codecs.seeds import RoundSeeds


class Drawing(CastCodec):
    """float32 and what it draws from its seed."""

    def __init__(self, *, differs_by_peer: bool = False) -> None:
        super().__init__("drawing", torch.float32)
        self.is_identity, self.differs_by_peer = False, differs_by_peer

    def _encode(self, source: torch.Tensor, raw: torch.Tensor, limit: float, seed: int) -> int:
        drawn = torch.rand(source.numel(), generator=torch.Generator().manual_seed(seed & (2**63 - 1)))
        return super()._encode(source + drawn, raw, limit, seed)


def chunk_of(start: int, *, differs_by_peer: bool = False) -> Chunk:
    return Chunk(0, start, start + 8, CodecPair(Drawing(differs_by_peer=differs_by_peer), codec("float32")), 32, 32)


def test_each_layout_step_chunk_and_direction_has_its_own_seed_which_no_peer_changes() -> None:
    places = itertools.product(("a", "b"), (0, 1), (0, 8))
    seeds = {place: RoundSeeds(*place[:2], "p").upload(chunk_of(place[2])) for place in places}
    down = {place: RoundSeeds(*place[:2], "p").download(chunk_of(place[2])) for place in seeds}
    assert len({*seeds.values(), *down.values()}) == 16
    assert all(0 <= seed < 2**64 for seed in seeds.values())
    assert RoundSeeds("a", 0, "q").upload(chunk_of(0)) == seeds["a", 0, 0]
    assert RoundSeeds("a", 0, "q").download(chunk_of(0, differs_by_peer=True)) == down["a", 0, 0]


def test_peers_that_round_by_themselves_draw_apart() -> None:
    one, other = (RoundSeeds("a", 0, peer).upload(chunk_of(0, differs_by_peer=True)) for peer in "pq")
    assert one != other


def test_seeds_are_the_same_for_ever() -> None:
    assert RoundSeeds("00" * 16, 7, "ab").upload(chunk_of(256)) == 17442097319345193248
    assert RoundSeeds("00" * 16, 7, "ab").upload(chunk_of(256, differs_by_peer=True)) == 8434533222306361286
    assert RoundSeeds("00" * 16, 7, "ab").download(chunk_of(256)) == 6038535303677646271


def test_a_repair_sends_the_same_bytes_and_what_was_left_out_is_what_others_lack() -> None:
    seeds, chunk = RoundSeeds("a", 3, "p"), chunk_of(0)
    vector, residual = torch.arange(8.0), Residual(8)
    sealed = residual.seal(vector, 4, 3, seeds)
    sent = bytes(sealed.encode(chunk, memoryview(bytearray(32))))
    assert sent == bytes(sealed.encode(chunk, memoryview(bytearray(32))))
    assert sent != bytes(Encoder(vector, 4, None, RoundSeeds("a", 4, "p")).encode(chunk, memoryview(bytearray(32))))
    sealed.settle([(chunk, True)], vector)
    decoded = torch.frombuffer(bytearray(sent), dtype=torch.float32)
    assert torch.equal(residual.mass, 4 * vector - 4 * decoded)


def test_the_layout_is_in_the_seed() -> None:
    one, other = VectorLayout((9,), "int8").fingerprint, VectorLayout((9,), "int8", label="fragment 1").fingerprint
    assert RoundSeeds(one).upload(chunk_of(0)) != RoundSeeds(other).upload(chunk_of(0))
