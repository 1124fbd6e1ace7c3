"""Mixtures: proportions that hold for ever, and filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import datasets
import pytest

from minga.core.errors import ConfigurationError
from minga.recipes.data.hold_out import content_rank
from minga.recipes.text import mixture as mixed_stream
from minga.recipes.text.corpus import pack_documents
from minga.recipes.text.mixture import (
    DocumentFilter,
    MixedSource,
    mixed,
    mixed_sources,
    prepared_documents,
    shipped_file,
)
from minga.recipes.text.settings import SourceSettings, TextData

LENGTHS = {"a": 300, "b": 40, "c": 7}


def everything(document: str) -> str | None:
    return document


def numbered(name: str, count: int) -> MixedSource:
    def open_pass(number: int) -> Iterator[str]:
        return (f"{name} {(place + number) % count}" for place in range(count))

    return MixedSource(open_pass, {"a": 0.7, "b": 0.23, "c": 0.07}[name], everything)


SOURCES = [numbered(name, count) for name, count in LENGTHS.items()]


def test_proportions_hold_though_one_source_is_much_shorter() -> None:
    stream = mixed(SOURCES, seed=3, block_size=500)
    counts = Counter(document[0] for document in islice(stream, 20_000))
    for name, share in {"a": 0.7, "b": 0.23, "c": 0.07}.items():
        assert counts[name] / 20_000 == pytest.approx(share, abs=0.01)


def test_other_seeds_give_other_orders() -> None:
    assert list(islice(mixed(SOURCES, 3, 50), 50)) != list(islice(mixed(SOURCES, 4, 50), 50))


def test_a_block_has_no_document_twice_unless_there_are_no_others() -> None:
    def open_pass(_: int) -> Iterator[str]:
        return (f"d {place // 2}" for place in range(200))

    once = list(islice(mixed([MixedSource(open_pass, 1.0, everything)], 0, 100), 100))
    assert sorted(once) == sorted({f"d {place}" for place in range(100)})
    short = MixedSource(lambda _: iter(["x"]), 1.0, everything)
    assert list(islice(mixed([short], 0, 10), 10)) == ["x"] * 10


def test_weights_are_shares_of_what_the_filters_keep() -> None:
    half = MixedSource(SOURCES[0].open_pass, 0.5, lambda each: each if each.endswith("0") else None)
    other = MixedSource(SOURCES[1].open_pass, 0.5, everything)
    counts = Counter(document[0] for document in islice(mixed([half, other], 0, 400), 8000))
    assert counts["a"] / 8000 == pytest.approx(0.5, abs=0.02)


def test_a_source_that_gives_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mixed_stream, "MAX_LEFT_OUT", 1000)
    with pytest.raises(ConfigurationError, match="source 1 of the mixture: of 1000 documents"):
        next(mixed([MixedSource(SOURCES[0].open_pass, 1.0, lambda _: None)], 0, 10))
    with pytest.raises(ConfigurationError, match="no documents"):
        next(mixed([MixedSource(lambda _: iter([]), 1.0, everything)], 0, 10))
    with pytest.raises(ConfigurationError, match="0 sources"):
        next(mixed([], 0, 10))


def test_filters_are_settings() -> None:
    keep = DocumentFilter(
        SourceSettings(source="hub", name="x/y", min_characters=10, max_characters=60, script="Bengali", drop=("ছাড়",)),
        "bn",
    )
    assert keep("এটি একটি ছোট বাংলা বাক্য|") == "এটি একটি ছোট বাংলা বাক্য\u0964"
    assert keep("ছোট") is None
    assert keep("This one is written in Latin letters") is None
    assert keep("এই নথিটি ছাড় দেওয়া হবে না") is None
    assert keep("এটি একটি বাক্য " * 10) is None
    assert DocumentFilter(SourceSettings(source="bible"), "")("  ") is None
    with pytest.raises(ValueError, match="needs a name"):
        SourceSettings(source="hub")


def test_what_is_shipped_is_mixed_at_every_peer_alike(tmp_path: Path) -> None:
    for name in "xy":
        rows = [json.dumps({"text": f"Document {name} {number} has a sentence."}) for number in range(60)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join([*rows, rows[0]]))
    data = TextData(
        source="mixture",
        sources=tuple(
            SourceSettings(files=(str(tmp_path / f"{n}.jsonl"),), weight=w) for n, w in (("x", 3.0), ("y", 1.0))
        ),
        shuffle_buffer=40,
    )
    files = {}
    for number, source in enumerate(data.sources):
        documents = prepared_documents(source, "")
        assert len(documents) == 60, "a document that is there twice is shipped once"
        files[shipped_file(number)] = tmp_path / shipped_file(number)
        files[shipped_file(number)].write_bytes(pack_documents(documents))
    first, second = (mixed(mixed_sources(data, files, 7), 7, 40) for _ in range(2))
    drawn = list(islice(first, 4000))
    assert drawn == list(islice(second, 4000))
    assert sum(" x " in each for each in drawn) / 4000 == pytest.approx(0.75, abs=0.03)
    with pytest.raises(ConfigurationError, match=r"source-1\.jsonl\.gz"):
        mixed_sources(data, {shipped_file(0): files[shipped_file(0)]}, 7)


def test_held_out_documents_of_a_data_set_never_come(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"A document of number {number}." for number in range(400)]
    rows = datasets.Dataset.from_dict({"text": texts}).to_iterable_dataset(4)
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: rows)
    data = TextData(
        source="mixture",
        sources=(SourceSettings(source="hub", name="owner/name"),),
        shuffle_buffer=100,
        heldout_fraction=0.2,
    )
    drawn = set(islice(mixed(mixed_sources(data, {}, 1), 1, 100), 1000))
    assert drawn == {text for text in texts if content_rank(text) >= 0.2}
