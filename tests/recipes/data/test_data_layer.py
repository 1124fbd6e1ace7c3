"""Orders without end, what is held out, and batches that are made ahead."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator

import pytest

from minga.core.errors import ConfigurationError, LocalError
from minga.recipes import StreamPosition
from minga.recipes.data.hold_out import content_rank, held_out, parted
from minga.recipes.data.order import block_chances, chance_within, endless, shuffled_blocks, streamed
from minga.recipes.data.prefetch import prefetched


def test_a_stream_shows_each_item_once_a_pass_in_an_order_of_each_peer() -> None:
    orders = []
    for peer in ("a" * 64, "b" * 64):

        def open_pass(epoch: int, peer: str = peer) -> Iterator[int]:
            return shuffled_blocks(range(50), 20, block_chances(3, StreamPosition(peer), epoch))

        stream = endless(open_pass, "nothing")
        passes = [list(itertools.islice(stream, 50)) for _ in range(2)]
        assert [sorted(each) for each in passes] == [list(range(50))] * 2
        assert passes[0] != passes[1]
        assert sorted(passes[0][:20]) == list(range(20)), "blocks stay together"
        orders.append(passes[0])
    assert orders[0] != orders[1]
    with pytest.raises(ConfigurationError, match="nothing"):
        next(endless(lambda _: iter(()), "nothing"))


def test_micro_batches_of_a_stream_lie_across_its_passes() -> None:
    position = StreamPosition("a" * 64)
    stream = streamed(lambda epoch: range(10 * epoch, 10 * epoch + 5), 3, position, 4, "nothing")
    (first, chance), (second, same), (third, _) = itertools.islice(stream, 3)
    assert [first, second, third] == [[0, 1, 2, 3], [4, 10, 11, 12], [13, 14, 20, 21]]
    assert chance is same
    assert chance.random() == chance_within(3, position).random()
    with pytest.raises(ConfigurationError, match="nothing"):
        next(streamed(lambda _: (), 3, position, 4, "nothing"))


def test_a_stream_that_failed_gives_nothing_more() -> None:
    """Its next pass is not taken for the rest of this one."""

    def broken(_: int) -> Iterator[int]:
        yield 1
        raise LocalError("the line is dead")

    stream = endless(broken, "nothing")
    assert next(stream) == 1
    with pytest.raises(LocalError):
        next(stream)
    assert next(stream, None) is None


def test_about_the_share_asked_for_is_held_out_by_content_alone() -> None:
    contents = [f"content {number}" for number in range(2000)]
    streamed = [content_rank(each) < 0.2 for each in contents]
    assert 0.17 < sum(streamed) / len(streamed) < 0.23
    assert streamed == [content_rank(each.encode()) < 0.2 for each in contents]
    chosen = held_out([*contents, *contents], 0.2)
    assert chosen[:2000] == chosen[2000:]
    assert sum(held_out(contents, 1e-9)) == 1, "at least one"
    assert held_out(contents, 0.0) == [False] * 2000
    with pytest.raises(ConfigurationError, match="none is left"):
        held_out(["a", "a"], 0.5)


def test_items_are_parted_by_their_contents_and_keep_their_order() -> None:
    contents = [f"content {number % 40}" for number in range(80)]
    training, heldout = parted(range(80), contents, 0.2)
    assert sorted(training + heldout) == list(range(80))
    assert (training, heldout) == (sorted(training), sorted(heldout))
    assert all((content_rank(contents[number]) < 0.2) == (number in heldout) for number in range(80))
    assert not {contents[number] for number in training} & {contents[number] for number in heldout}


def test_what_was_trained_on_is_not_held_out_once_there_is_more() -> None:
    """The limit was a rank of the contents themselves, so it moved: of 30 held-out ones up to 6 had been trained on."""
    for start in range(20):
        old = [f"content {start} {number}" for number in range(400)]
        trained, _ = parted(old, old, 0.05)
        _, heldout = parted(all_of_them := [*old, *(f"further {start} {n}" for n in range(200))], all_of_them, 0.05)
        assert heldout
        assert not set(trained) & set(heldout)


def test_of_few_contents_one_is_held_out_and_one_is_not() -> None:
    for start in range(20):
        few = [f"content {start} {number}" for number in range(2)]
        assert sum(held_out(few, 0.5)) == sum(held_out(few, 0.01)) == 1


def test_batches_are_made_ahead_and_errors_come_in_their_place() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for number in range(8):
            made.append(number)
            yield number
        raise LocalError("no more")

    ahead = prefetched(source(), depth=2)
    assert next(ahead) == 0
    assert len(made) <= 5
    assert [next(ahead) for _ in range(7)] == list(range(1, 8))
    with pytest.raises(LocalError, match="no more"):
        next(ahead)
    endless = prefetched(itertools.count(), depth=2)
    assert next(endless) == 0
    endless.close()  # type: ignore[attr-defined]
    assert list(prefetched(iter([1, 2]))) == [1, 2]


def test_the_end_does_not_wait_for_a_source_that_pauses() -> None:
    goes_on, went_on = threading.Event(), threading.Event()

    def source() -> Iterator[int]:
        yield 0
        goes_on.wait(30)
        went_on.set()
        yield 1

    ahead = prefetched(source())
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not went_on.is_set()
    goes_on.set()
    (thread,) = [each for each in threading.enumerate() if each.name == "minga-batches"]
    thread.join(30)
    assert not thread.is_alive()
