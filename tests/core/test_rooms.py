"""Memory that is used again: only when nobody refers to it, and not kept for what nobody needs."""

from __future__ import annotations

import threading

import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.buffer_pool import BufferPool
from minga.security.parts.equal_parts import EqualParts
from minga.security.parts.part_store import PartStore


def address(view: memoryview) -> int:
    return torch.frombuffer(view, dtype=torch.uint8).data_ptr()


def test_what_nobody_refers_to_is_used_again() -> None:
    pool = BufferPool()
    first = pool.take(5000)
    where = address(first)
    tensor = torch.frombuffer(first[8:16], dtype=torch.float32)
    del first
    other = pool.take(5000)
    assert address(other) != where  # a tensor over a slice still needs the first
    tensor[0] = 1.0
    del tensor
    assert address(pool.take(5000)) == where


def test_another_size_is_other_memory() -> None:
    pool = BufferPool()
    pool.take(5000)
    assert len(pool.take(4999)) == 4999
    assert len(pool.take(0)) == 0


def test_what_is_not_needed_for_a_whole_round_goes_back_to_the_system() -> None:
    pool = BufferPool()
    pool.take(5000)
    pool.trim()
    assert (len(pool._free), len(pool._idle[5000])) == (0, 1)
    pool.take(5000)  # needed, and free again at once
    pool.trim()
    assert len(pool._idle[5000]) == 1
    pool.trim()
    assert not pool._idle


def test_rooms_may_be_taken_in_several_threads() -> None:
    pool, taken = BufferPool(), list[memoryview]()

    def work() -> None:
        for size in range(100, 200):
            pool.take(size)
            taken.append(pool.take(size))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({address(view) for view in taken}) == len(taken) == 400


def test_a_piece_outlives_those_who_gave_it_out() -> None:
    piece = BufferPool().take(5000)
    piece[:] = bytes(5000)
    assert not any(piece)


def test_aggregates_in_their_places_are_the_vector_without_a_copy() -> None:
    division = EqualParts(VectorLayout((10,), "float32"), (0, 5, 5), (5, 5, 10))
    values = torch.arange(10.0)
    store = PartStore(division.part_bytes, division.value_bytes)
    for part in division.parts:
        store.places[part][:] = values[division.starts[part] : division.stops[part]].numpy().tobytes()
        store.values[part] = store.places[part]
    assert address(memoryview(store.vector)) == address(store.places[0])
    assert torch.equal(torch.frombuffer(store.vector, dtype=torch.float32), values)
    store.values[2] = bytes(store.places[2])  # it came on another way
    assert bytes(store.vector) == values.numpy().tobytes()
