"""Streams that break off are opened again and go on where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest

from minga.core.errors import ConfigurationError, LocalError
from minga.recipes.broken_streams import next_pass, reread, resumed_rows, streamed_rows

FILES, ROWS = 5, 4


class Line:
    """A data set of five files with four rows each, whose line breaks `breaks` times in the file with the number 3."""

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.opened: list[int] = []
        self.pauses: list[float] = []

    def file_rows(self, names: list[int]) -> Iterator[dict[str, int]]:
        for name in names:
            self.opened.append(name)
            for row in range(ROWS):
                if (name, row) == (3, 2) and self.breaks:
                    self.breaks -= 1
                    raise ConnectionResetError("the line is dead")
                yield {"number": name * ROWS + row}

    def data_set(self) -> Any:
        return datasets.IterableDataset.from_generator(_rows_of, gen_kwargs={"names": list(range(FILES))})


_line = Line(0)


def _rows_of(names: list[int]) -> Iterator[dict[str, int]]:
    """`Line.file_rows` of the line of the test: the library wants a generator that it can pickle."""
    yield from _line.file_rows(names)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Line]:
    def make(breaks: int) -> Line:
        line = Line(breaks)
        monkeypatch.setattr(f"{__name__}._line", line)
        return line

    return make


def test_a_data_set_goes_on_after_its_last_row_and_reads_no_earlier_file_again(broken: Callable[[int], Line]) -> None:
    line = broken(2)
    found = [row["number"] for row in resumed_rows(line.data_set(), "x", line.pauses.append)]
    assert found == list(range(FILES * ROWS))
    assert line.pauses == [1.0, 2.0]
    assert line.opened == [0, 1, 2, 3, 3, 3, 4]


class Interrupted:
    """A data set whose rows break off once, after row `place`."""

    def __init__(self, rows: Any, place: int) -> None:
        self.rows, self.place = rows, place
        self.state_dict, self.load_state_dict = rows.state_dict, rows.load_state_dict

    def __iter__(self) -> Iterator[Any]:
        for number, row in enumerate(self.rows, start=1):
            yield row
            if number == self.place:
                self.place = 0
                raise ConnectionResetError("the line is dead")


@pytest.mark.parametrize("place", [1, 5, 11])
@pytest.mark.parametrize("order", [None, 5])
def test_parquet_files_in_any_order_go_on_after_the_last_row(
    place: int, order: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The library sleeps before it ends the threads that read several files at once.
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0, raising=False)
    for number in range(3):
        rows = datasets.Dataset.from_dict({"number": list(range(4 * number, 4 * number + 4))})
        rows.to_parquet(tmp_path / f"{number}.parquet")
    paths = sorted(map(str, tmp_path.glob("*.parquet")))

    def opened() -> Any:
        found = datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)
        return found if order is None else found.shuffle(seed=order, buffer_size=1)

    expected = [row["number"] for row in opened()]
    assert sorted(expected) == list(range(12))
    pauses: list[float] = []
    assert [row["number"] for row in resumed_rows(Interrupted(opened(), place), "x", pauses.append)] == expected
    assert pauses == [1.0]


def test_a_stream_that_stays_broken_is_given_up_after_five_pauses(broken: Callable[[int], Line]) -> None:
    line = broken(100)
    with pytest.raises(LocalError, match=r"x: the stream broke off: .*the line is dead"):
        list(resumed_rows(line.data_set(), "x", line.pauses.append))
    assert line.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_what_never_gave_a_row_and_what_is_set_up_wrongly_is_not_tried_again() -> None:
    pauses: list[float] = []

    def wrong() -> Iterator[int]:
        yield 1
        raise ConfigurationError("no such column")

    with pytest.raises(ConfigurationError, match="no such column"):
        list(reread(wrong, pauses.append))
    with pytest.raises(LocalError, match="broke off"):
        list(reread(lambda: streamed_rows(iter(_failing()), "x"), pauses.append))
    assert pauses == []


def _failing() -> Iterator[int]:
    raise ConnectionResetError("nobody answers")
    yield 1


def test_a_stream_without_a_state_is_read_again_from_its_beginning() -> None:
    opened: list[int] = []
    pauses: list[float] = []

    def open_stream() -> Iterator[int]:
        opened.append(len(opened))
        for number in range(10):
            if number == 4 and len(opened) <= 3:
                raise LocalError("the line is dead")
            yield number

    assert list(reread(open_stream, pauses.append)) == list(range(10))
    assert pauses == [1.0, 2.0, 4.0]


def test_a_source_that_worked_once_is_tried_again_even_if_it_cannot_be_opened() -> None:
    pauses: list[float] = []
    tries: list[int] = []

    def open_stream() -> Iterator[int]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ConfigurationError("cannot be opened")
        if len(tries) == 2:
            return reread(lambda: streamed_rows(iter(_failing()), "x"))
        return iter(range(3))

    assert list(next_pass(open_stream, pauses.append)) == [0, 1, 2]
    assert pauses == [1.0, 2.0]
    with pytest.raises(LocalError, match="nobody answers"):
        list(next_pass(lambda: streamed_rows(iter(_failing()), "x"), pauses.append))
    assert pauses[2:] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert list(next_pass(lambda: iter(()), pauses.append)) == []
