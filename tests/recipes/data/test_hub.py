"""Data sets of the hub: names that lead to no file of this machine, and streams that go on where they broke off."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, combinations, islice
from pathlib import Path
from typing import Any

import datasets
import pytest
from pyarrow import parquet

from minga.core.errors import ConfigurationError, LocalError
from minga.recipes.data import hub
from minga.recipes.data.hub import in_order_of, open_hub, resumed_rows, rows_of
from minga.recipes.data.order import next_pass
from minga.recipes.swav.pictures import encoded_pictures
from minga.recipes.swav.settings import ImageData
from minga.recipes.text import corpus
from minga.recipes.text.corpus import mixed, mixed_sources
from minga.recipes.text.settings import SourceSettings, TextData


@pytest.mark.parametrize("name", ["Documents", "private/texts", "text", "json", "imagefolder"])
def test_a_name_of_the_hub_never_leads_to_files_of_this_machine(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("Documents", "private/texts"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "diary.txt").write_text("Nobody shall train on this.")
    (tmp_path / "notes.txt").write_text("Nor on this.")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=r"folder or file of this name|loader of files on this machine"):
        open_hub(name)
    with pytest.raises(ConfigurationError, match=r"folder or file of this name|loader of files on this machine"):
        next(encoded_pictures(ImageData(source="hub", name=name)))


FILES, ROWS = 5, 4


class Line:
    """A data set of five files with four rows each, whose line breaks `breaks` times in the file with the number 3."""

    def __init__(self, breaks: int) -> None:
        self.breaks = breaks
        self.opened: list[int] = []
        self.pauses: list[float] = []

    def file_rows(self, names: list[int]) -> Iterator[dict[str, Any]]:
        for name in names:
            self.opened.append(name)
            for row in range(ROWS):
                if (name, row) == (3, 2) and self.breaks:
                    self.breaks -= 1
                    raise ConnectionResetError("the line is dead")
                yield {"number": name * ROWS + row, "text": f"row {name * ROWS + row}"}

    def data_set(self) -> Any:
        return datasets.IterableDataset.from_generator(_rows_of, gen_kwargs={"names": list(range(FILES))})


_line = Line(0)


def _rows_of(names: list[int]) -> Iterator[dict[str, Any]]:
    """`Line.file_rows` of the line of the test: the library wants a generator that it can pickle."""
    yield from _line.file_rows(names)


def _failing() -> Iterator[int]:
    raise LocalError("nobody answers")
    yield 1


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


@pytest.mark.parametrize("place", [1, 5, 7])
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
    monkeypatch.setattr(hub, "MOST_SKIPPED", 6)
    pauses: list[float] = []

    def read(make: Callable[[Any], Any]) -> list[int]:
        found = datasets.load_dataset("parquet", data_files=paths, split="train", streaming=True)
        stretches = [found] if order is None else in_order_of(order, found, "x")
        rows = chain.from_iterable(resumed_rows(make(each), "x", pauses.append) for each in stretches)
        return [row["number"] for row in rows]

    expected = read(lambda rows: rows)
    assert sorted(expected) == list(range(12))
    assert pauses == []
    assert read(lambda rows: Interrupted(rows, place)) == expected
    assert 1 <= len(pauses) <= 2


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_orders_of_a_data_set_in_one_file_begin_at_different_rows(
    suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = datasets.Dataset.from_dict({"text": [f"document {number}" for number in range(800)]})
    path = tmp_path / f"all.{suffix}"
    if suffix == "parquet":
        parquet.write_table(rows.data.table, path, row_group_size=20)
    else:
        rows.to_json(path)
        monkeypatch.setattr(hub, "MOST_SKIPPED", 600)
    builder = "parquet" if suffix == "parquet" else "json"
    found = datasets.load_dataset(builder, data_files=[str(path)], split="train", streaming=True)
    if suffix == "parquet" and not hasattr(found, "reshard"):
        monkeypatch.setattr(hub, "MOST_SKIPPED", 600)
    orders = [[row["text"] for row in rows_of(found, "x", order)] for order in range(5)]
    assert all(sorted(each) == sorted(orders[0]) and len(each) == 800 for each in orders)
    firsts = [frozenset(each[:40]) for each in orders]
    assert len(set(firsts)) == 5
    assert sum(len(a & b) for a, b in combinations(firsts, 2)) < 100
    assert orders[3] == [row["text"] for row in rows_of(found, "x", 3)]


def test_files_whose_parts_cannot_be_listed_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    found = datasets.Dataset.from_dict({"text": ["a", "b"]}).to_iterable_dataset()

    def fail(_: Any) -> Any:
        raise ConnectionResetError("the line is dead")

    monkeypatch.setattr(datasets.IterableDataset, "reshard", fail, raising=False)
    with pytest.raises(LocalError, match="x: cannot be read: the line is dead"):
        list(rows_of(found, "x", 1))


def test_a_stream_that_stays_broken_is_given_up_after_five_pauses(broken: Callable[[int], Line]) -> None:
    line = broken(100)
    with pytest.raises(LocalError, match=r"x: the stream broke off: .*the line is dead"):
        list(resumed_rows(line.data_set(), "x", line.pauses.append))
    assert line.pauses == [1.0, 2.0, 4.0, 8.0, 16.0]


def test_what_never_gave_a_row_is_not_tried_again(broken: Callable[[int], Line]) -> None:
    line = broken(100)
    nothing = datasets.IterableDataset.from_generator(_rows_of, gen_kwargs={"names": [3]}).skip(2)
    with pytest.raises(LocalError, match="broke off"):
        list(resumed_rows(nothing, "x", line.pauses.append))
    assert line.pauses == []


def test_an_order_in_two_stretches_goes_on_after_a_break_between_them(
    broken: Callable[[int], Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(2)
    files = [datasets.IterableDataset.from_generator(_rows_of, gen_kwargs={"names": [name]}) for name in (0, 3)]
    monkeypatch.setattr(hub, "in_order_of", lambda *_: [files[0], files[1].skip(2)])
    monkeypatch.setattr(hub, "FIRST_PAUSE_S", 0.0)
    assert [row["number"] for row in rows_of(None, "x", 1)] == [0, 1, 2, 3, 14, 15]


def test_what_is_set_up_wrongly_is_not_tried_again() -> None:
    class Wrong:
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise ConfigurationError("no such column")

        def state_dict(self) -> dict[str, Any]:
            return {}

    pauses: list[float] = []
    with pytest.raises(ConfigurationError, match="no such column"):
        list(resumed_rows(Wrong(), "x", pauses.append))
    assert pauses == []


@pytest.mark.parametrize("source", ["datasets", "mixture"])
def test_text_goes_on_after_a_break_and_reads_no_earlier_file_again(
    source: str, broken: Callable[[int], Line], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "FIRST_PAUSE_S", 0.0)
    monkeypatch.setattr(hub, "FEW_PARTS", FILES)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: _line.data_set())
    settings = SourceSettings(source="hub", name="owner/name", text_column="text")

    def drawn() -> list[str]:
        if source == "datasets":
            data = TextData(source="datasets", name="owner/name", text_column="text", shuffle_buffer=3)
            return list(corpus.streamed_documents(data, order=5))
        data = TextData(source="mixture", sources=(settings,), heldout_fraction=0.0)
        return list(islice(mixed(mixed_sources(data, {}, 4), 4, FILES * ROWS), FILES * ROWS))

    broken(0)
    whole = drawn()
    assert sorted(whole) == sorted(f"row {number}" for number in range(FILES * ROWS))
    line = broken(2)
    assert drawn() == whole
    assert sorted(line.opened) == [0, 1, 2, 3, 3, 3, 4]


def test_a_source_that_worked_once_is_tried_again_even_if_it_cannot_be_opened() -> None:
    pauses: list[float] = []
    tries: list[int] = []

    def open_stream() -> Iterator[int]:
        tries.append(len(tries))
        if len(tries) == 1:
            raise ConfigurationError("cannot be opened")
        if len(tries) == 2:
            return _failing()
        return iter(range(3))

    assert list(next_pass(open_stream, pauses.append)) == [0, 1, 2]
    assert pauses == [1.0, 2.0]
    with pytest.raises(LocalError, match="nobody answers"):
        list(next_pass(_failing, pauses.append))
    assert pauses[2:] == [1.0, 2.0, 4.0, 8.0, 16.0]
    assert list(next_pass(lambda: iter(()), pauses.append)) == []
