"""Labelled examples: read from files, split by content, encoded."""

from __future__ import annotations

import json
import math
from pathlib import Path

import datasets
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from minga.core.errors import ConfigurationError
from minga.recipes.tasks.evaluate import IGNORED, encode_tagged, encode_texts
from minga.recipes.tasks.examples import (
    LabelledText,
    TaggedSentence,
    read_classes,
    read_entities,
    shuffled,
    split_examples,
)


def texts(count: int) -> list[LabelledText]:
    return [LabelledText(f"text number {number}", "even" if number % 2 == 0 else "odd") for number in range(count)]


def test_a_text_stands_on_one_side_whatever_its_order_and_its_copies() -> None:
    once = split_examples(texts(400), ["even", "odd"])
    again = split_examples([*reversed(texts(400)), *texts(7)], ["odd", "even"])
    for side in ("training", "validation", "test"):
        assert set(getattr(once, side)) == set(getattr(again, side))
    assert 300 < len(once.training) < 340
    assert len(once.training) + len(once.validation) + len(once.test) == 400
    assert once.labels == ("even", "odd")
    assert once.first(8) == again.first(8)
    assert len(once.first(8).training) == 8
    assert sorted(shuffled(once.test, 1), key=str) == sorted(once.test, key=str)


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="3 examples are too few"):
        split_examples(texts(3), ["even"])


def test_a_task_with_a_single_label_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="all examples have the label 'animals'"):
        split_examples(texts(100), ["animals"] * 100)


def tagged_file(path: Path, sentences: int) -> Path:
    lines = [f"Ada{n}\tB-person\nLovelace\tI-person\nwrote\tO\nprograms{n}\tO\n" for n in range(sentences)]
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_entities_come_from_lines_of_word_and_tag(tmp_path: Path) -> None:
    data = read_entities(str(tagged_file(tmp_path / "ner.txt", 200)))
    assert data.labels == ("O", "B-person", "I-person")
    assert data.test[0].tags == ("B-person", "I-person", "O", "O")
    for text, reason in (("word without tag\n", "line 1"), ("a\tO\nb\tperson\n", "line 2"), ("\tO\n", "line 1")):
        (tmp_path / "bad.txt").write_text(text)
        with pytest.raises(ConfigurationError, match=reason):
            read_entities(str(tmp_path / "bad.txt"))
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe\tO\n")
    with pytest.raises(ConfigurationError, match="UTF-8"):
        read_entities(str(tmp_path / "bad.txt"))
    with pytest.raises(ConfigurationError, match="cannot be read"):
        read_entities(str(tmp_path / "missing.txt"))


def test_classes_come_from_folders_and_from_lines(tmp_path: Path) -> None:
    rows = []
    for number, example in enumerate(texts(120)):
        path = tmp_path / "classes" / example.label / f"{number}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(example.text)
        rows.append(json.dumps({"text": example.text, "label": example.label}))
    (tmp_path / "classes.jsonl").write_text("\n".join(rows))
    folder, lines = read_classes(str(tmp_path / "classes")), read_classes(str(tmp_path / "classes.jsonl"))
    assert set(folder.training) == set(lines.training)
    for text, reason in (("[1]\n", "not an object"), ("{\n", "not JSON"), ('{"text": "x"}\n', "text and label")):
        (tmp_path / "bad.jsonl").write_text(text)
        with pytest.raises(ConfigurationError, match=reason):
            read_classes(str(tmp_path / "bad.jsonl"))


@pytest.mark.parametrize("where", ["hub", "lines"])
def test_what_has_no_label_is_left_out_and_counted(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if where == "hub":
        kinds = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
        rows = [{"text": f"text {number}", "label": number % 2 if number < 200 else -1} for number in range(300)]
        rows += [{"text": None, "label": 1}]
        found = datasets.DatasetDict(all=datasets.Dataset.from_list(rows, features=datasets.Features(kinds)))
        monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: found)
        data = read_classes("hub:owner/name")
    else:
        labels = ["neg", "pos", None, -1, math.nan]
        lines = [json.dumps({"text": f"text {n}", "label": labels[n % 5]}) for n in range(300)]
        (tmp_path / "some.jsonl").write_text("\n".join([*lines, '{"text": null, "label": "pos"}', ""]))
        data = read_classes(str(tmp_path / "some.jsonl"))
    assert data.labels == ("neg", "pos")
    every = [*data.training, *data.validation, *data.test]
    assert len(every) == (200 if where == "hub" else 120)
    assert "None" not in {each.text for each in every}
    assert f"{101 if where == 'hub' else 181} examples without a text or a label" in caplog.text


def test_a_sentence_with_a_word_without_tag_is_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tags = datasets.Sequence(datasets.ClassLabel(names=["O", "B-person"]))
    rows = [{"tokens": ["Ada", f"ran{n}"], "ner_tags": [1, 0 if n < 200 else -1]} for n in range(210)]
    kinds = datasets.Features({"tokens": datasets.Sequence(datasets.Value("string")), "ner_tags": tags})
    found = datasets.DatasetDict(all=datasets.Dataset.from_list(rows, features=kinds))
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: found)
    data = read_entities("hub:owner/name")
    assert data.labels == ("O", "B-person")
    assert len(data.training) + len(data.validation) + len(data.test) == 200
    assert "10 examples without a text or a label" in caplog.text


@pytest.mark.parametrize("tag", [1, "PER", "S-person"])
def test_a_data_set_with_tags_of_another_scheme_is_refused(tag: object, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"tokens": ["Ada"], "ner_tags": [tag]}]
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: {"all": datasets.Dataset.from_list(rows)})
    with pytest.raises(ConfigurationError, match=f"{tag}.* in ner_tags is no tag such as B-person"):
        read_entities("hub:owner/name")


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x1c"])
def test_only_a_line_feed_ends_a_line(separator: str, tmp_path: Path) -> None:
    rows = [{"text": f"one{separator}other {number}", "label": "xy"[number % 2]} for number in range(100)]
    lines = "\r\n".join(json.dumps(each, ensure_ascii=False) for each in rows)
    (tmp_path / "some.jsonl").write_bytes(f"{lines}\r\n".encode())
    data = read_classes(str(tmp_path / "some.jsonl"))
    assert all(separator in each.text for each in data.training)
    words = "\n".join(f"one{separator}other{number}\t{('O', 'B-x')[number % 2]}\n" for number in range(100))
    (tmp_path / "ner.txt").write_bytes(words.encode())
    assert len(read_entities(str(tmp_path / "ner.txt")).training[0].words) == 1


def tokenizer() -> PreTrainedTokenizerFast:
    """Cuts words longer than three characters into pieces."""
    pieces = {"[PAD]": 0, "[UNK]": 1, "Ada": 2, "##Love": 3, "Love": 4, "##lace": 5, "ran": 6}
    inner = Tokenizer(models.WordPiece(pieces, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]")


def test_a_tag_stands_on_the_first_piece_of_its_word() -> None:
    sentence = TaggedSentence(("Ada", "Lovelace", "ran"), ("B-p", "I-p", "O"))
    short = TaggedSentence(("ran",), ("O",))
    batch = encode_tagged(tokenizer(), [sentence, short], {"O": 0, "B-p": 1, "I-p": 2}, 16)
    assert batch["input_ids"].tolist() == [[2, 4, 5, 6], [6, 0, 0, 0]]
    assert batch["labels"].tolist() == [[1, 2, IGNORED, 0], [0, IGNORED, IGNORED, IGNORED]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]
    cut = encode_texts(tokenizer(), [LabelledText("Ada ran ran", "x")], {"x": 3}, 2)
    assert cut["input_ids"].tolist() == [[2, 6]]
    assert cut["labels"].tolist() == [3]
