"""Fine-tuning on tasks beside the same model from scratch, and entities out of tags."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from minga.core.errors import ConfigurationError
from minga.recipes.task_report import TaskOptions
from minga.recipes.tasks import evaluate
from minga.recipes.tasks.evaluate import (
    IGNORED,
    FineTuning,
    SpanScores,
    encode_tagged,
    evaluate_model,
    score_spans,
)
from minga.recipes.tasks.examples import TaggedSentence
from minga.recipes.text.tokenizer import train_tokenizer

WORDS = ["Ada", "Alan", "Grace", "saw", "met", "the", "a", "dog", "tree", "and"]

QUICK = FineTuning(learning_rates=(3e-3,), batch_size=16, max_length=16, epochs=4)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    vocabulary = {token: number for number, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]").save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        BertModel(config).save_pretrained(folder)
    return folder


def sentences(count: int) -> list[list[str]]:
    draw = random.Random(1)
    return [[draw.choice(WORDS) for _ in range(draw.randint(3, 8))] for _ in range(count)]


@pytest.fixture
def names(tmp_path: Path) -> str:
    """Sentences in which the three names are entities."""
    path = tmp_path / "ner.txt"
    tag = dict.fromkeys(WORDS[:3], "B-person")
    path.write_text("\n\n".join("\n".join(f"{w}\t{tag.get(w, 'O')}" for w in each) for each in sentences(120)))
    return str(path)


def test_named_entities_are_learned_and_reported_beside_the_model_from_scratch(model: Path, names: str) -> None:
    said: list[str] = []
    options = TaskOptions("ner", names, runs=2)
    report = evaluate_model(model, options, said.append, QUICK)
    assert report.trained["f1"].mean > 0.9, "the entities are three words"
    assert set(report.trained) == set(report.from_scratch) == {"precision", "recall", "f1", "accuracy"}
    assert report.runs == 2
    assert len(said) == 4
    json.dumps(report.as_json())


@pytest.mark.parametrize("kind", ["bpe", "wordpiece", "unigram", "blanks count"])
def test_tagged_words_are_the_tokens_that_they_are_in_text(kind: str) -> None:
    """Of "the" by itself byte-level BPE made "t" and "he", which stand for it in no text."""
    text = [f"On day {number} the cow eats Grass, and the café's owner (Åsa) sees it." for number in range(40)]
    is_trained = kind in ("bpe", "wordpiece", "unigram")
    inner = Tokenizer.from_str(train_tokenizer(text, 300, kind if is_trained else "bpe").decode())  # type: ignore[arg-type]
    if not is_trained:
        inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    shown = [text[3].split(), ["the", "cow", "sees", "Åsa"]]
    labels = {"O": 0, "B-name": 1}
    tagged = [TaggedSentence(tuple(each), tuple("B-name" if "sa" in word else "O" for word in each)) for each in shown]
    batch = encode_tagged(tokenizer, tagged, labels, 64)
    as_text = tokenizer([" ".join(each) for each in shown], padding=True, return_tensors="pt")
    assert all(torch.equal(batch[name], as_text[name]) for name in ("input_ids", "attention_mask"))
    for words, ids, tags in zip(shown, batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        starts = [place for place, tag in enumerate(tags) if tag != IGNORED]
        stops = [*starts[1:], next((n for n, one in enumerate(ids) if one == tokenizer.pad_token_id), len(ids))]
        pieces = [tokenizer.decode(ids[a:b], skip_special_tokens=True) for a, b in zip(starts, stops, strict=True)]
        assert ["".join(each.split()).lower() for each in pieces] == [each.lower() for each in words]
        assert [tags[place] for place in starts] == [int("sa" in word) for word in words]
    cut = encode_tagged(tokenizer, tagged, labels, 5)
    assert cut["input_ids"].shape == cut["labels"].shape == (2, 5)


def test_classes_are_learned_from_as_many_examples_as_asked_for(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "classes.jsonl"
    rows = [{"text": " ".join(each), "label": "name" if each[0] in WORDS[:3] else "none"} for each in sentences(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    options = TaskOptions("ncc", str(path), runs=1, training_examples=64)
    report = evaluate_model(model, options, how=QUICK)
    assert report.examples == 64
    assert set(report.trained) == {"accuracy"}
    assert 0.0 <= report.trained["accuracy"].mean <= 1.0
    assert report.trained["accuracy"].deviation == 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(99)
        again = evaluate_model(model, options, how=QUICK)
    assert again.as_json() == report.as_json(), "chance comes from the seeds alone"


def test_a_causal_model_classifies_texts_by_their_last_token(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "causal")
    config = LlamaConfig(
        vocab_size=len(WORDS) + 4,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(tmp_path / "causal")
    path = tmp_path / "classes.jsonl"
    rows = [{"text": " ".join(each), "label": "name" if each[-1] in WORDS[:3] else "none"} for each in sentences(300)]
    path.write_text("\n".join(map(json.dumps, rows)))
    report = evaluate_model(tmp_path / "causal", TaskOptions("ncc", str(path), runs=1), how=QUICK)
    assert report.trained["accuracy"].mean > 0.9, "the last word tells the class"


def test_beside_a_model_in_16_bits_the_one_from_scratch_is_trained_in_32(
    model: Path, names: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(model, tmp_path / "half")
    BertModel.from_pretrained(model, dtype=torch.bfloat16).save_pretrained(tmp_path / "half")
    found, as_ever = list[torch.dtype](), evaluate.fine_tune

    def spied(tuned: torch.nn.Module, *arguments: Any) -> float:
        found.extend({each.dtype for each in tuned.parameters()})
        return as_ever(tuned, *arguments)

    monkeypatch.setattr(evaluate, "fine_tune", spied)
    evaluate_model(tmp_path / "half", TaskOptions("ner", names, runs=1), how=replace(QUICK, epochs=1))
    assert found == [torch.float32] * 2


def test_examples_are_cut_where_the_tokenizer_of_a_model_cuts_texts(model: Path, names: str, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "short")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
    tokenizer.model_max_length = 6
    tokenizer.save_pretrained(tmp_path / "short")
    for folder, longest in ((model, 16), (tmp_path / "short", 6)):
        work = evaluate._Work.load(str(folder), TaskOptions("ner", names), names, QUICK)
        shapes = [batch["input_ids"].shape[1] for batch in work._batches("training", 0)]
        assert max(shapes) == min(longest, 10)


def test_what_is_no_model_is_refused(tmp_path: Path, names: str) -> None:
    with pytest.raises(ConfigurationError, match="--data: name the examples of the task"):
        evaluate_model(tmp_path / "nothing", TaskOptions("ner", None, runs=1))
    with pytest.raises(ConfigurationError, match="no such folder; `minga export` writes one"):
        evaluate_model(tmp_path / "nothing", TaskOptions("ner", names, runs=1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigurationError, match="no model that transformers can load"):
        evaluate_model(tmp_path / "empty", TaskOptions("ner", names, runs=1))


def test_a_model_that_names_a_kernel_of_the_hub_is_refused(tmp_path: Path, names: str) -> None:
    values = {"model_type": "gpt2", "n_layer": 1, "n_embd": 4, "n_head": 1, "_attn_implementation": "owner/kernel"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigurationError, match="names a program, 'owner/kernel'"):
        evaluate_model(str(tmp_path), TaskOptions("ner", names, runs=1))


DATA = Path(__file__).parents[2] / "data"


def test_nothing_found_of_nothing_is_zero() -> None:
    assert score_spans([(["O", "O"], ["O", "O"])]) == SpanScores(0.0, 0.0, 0.0, 1.0)


def test_scores_are_those_of_seqeval() -> None:
    """The figures were made by seqeval 1.2.2 (MIT) on random tags."""
    for group in json.loads((DATA / "seqeval_scores.json").read_text()):
        scores = score_spans(zip(group["true"], group["predicted"], strict=True))
        found = [scores.precision, scores.recall, scores.f1, scores.accuracy]
        assert found == pytest.approx(group["scores"], abs=1e-9)
