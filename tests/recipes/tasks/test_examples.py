"""Labelled examples: read from files, split by content, encoded."""

from __future__ import annotations

import json
from pathlib import Path

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
