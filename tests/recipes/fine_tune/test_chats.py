"""Conversations: which rows are read, how a base writes them, and what of them is learned."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from tokenizers import AddedToken, Tokenizer
from tokenizers.processors import TemplateProcessing

from minga.core.errors import ConfigurationError
from minga.recipes.fine_tune import chats as chats_module
from minga.recipes.fine_tune.chats import FORMAT_FILE, TEMPLATE_FILE, ChatFormat, ChatWriter, conversations
from minga.recipes.fine_tune.settings import ChatData, ChatSource
from minga.recipes.text.tokenizer import read_tokenizer

TURNS = [("user", "where is the cow"), ("assistant", "at the hill"), ("user", "and"), ("assistant", "the barn")]
MESSAGES = [{"role": role, "content": content} for role, content in TURNS]


@pytest.fixture
def tokenizer(base: Path) -> Tokenizer:
    return read_tokenizer((base / "tokenizer.json").read_bytes(), 300)


def learned(writer: ChatWriter, tokenizer: Tokenizer, document: dict[str, Any]) -> str:
    """What carries loss."""
    ((ids, carries),) = writer.chats([json.dumps(document)])
    return str(tokenizer.decode(ids[carries == 1].tolist(), skip_special_tokens=False))


def test_only_what_the_assistant_says_carries_loss(tokenizer: Tokenizer) -> None:
    writer = ChatWriter(tokenizer, ChatFormat.usual(tokenizer))
    end = "<|endoftext|>"
    assert learned(writer, tokenizer, {"messages": MESSAGES}) == f" at the hill{end} the barn{end}"
    assert learned(writer, tokenizer, {"text": "the cow is at the hill"}) == f"the cow is at the hill{end}"


@pytest.mark.parametrize("where", ["file", "config", "named"])
def test_the_base_says_how_it_is_talked_to(where: str, base: Path, tokenizer: Tokenizer) -> None:
    template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    said: dict[str, Any] = {"eos_token": {"content": "<unk>"}, "bos_token": None}
    if where == "file":
        (base / TEMPLATE_FILE).write_text(template)
    elif where == "config":
        said["chat_template"] = template
    else:
        said["chat_template"] = [{"name": "tools", "template": "no"}, {"name": "default", "template": template}]
    (base / FORMAT_FILE).write_text(json.dumps(said))
    form = ChatFormat.of_base(base, tokenizer)
    assert ChatFormat.read(form.written()) == form
    writer = ChatWriter(tokenizer, form)
    asked = form.prompt("where is the cow", tokenizer)
    assert tokenizer.decode(asked, skip_special_tokens=False) == "<user>where is the cow<unk><assistant>"
    assert learned(writer, tokenizer, {"messages": MESSAGES}) == "at the hill<unk>the barn<unk>"


def test_a_token_that_ends_a_sentence_and_the_turn_is_learned(tokenizer: Tokenizer) -> None:
    tokenizer.add_tokens([AddedToken(".\n\n", normalized=False)])
    blank = "{% for m in messages %}{{ m.content }}\n\n{% endfor %}"
    form = ChatFormat.of_template(blank, "<|endoftext|>", "<|endoftext|>", tokenizer)
    said = [("user", "where"), ("assistant", "at the hill."), ("user", "and"), ("assistant", "the barn.")]
    document = {"messages": [{"role": role, "content": content} for role, content in said]}
    assert learned(ChatWriter(tokenizer, form), tokenizer, document) == "at the hill.\n\nthe barn.\n\n<|endoftext|>"


@pytest.mark.parametrize(
    ("closing", "expected"),
    [
        (
            "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
            "at the hill<|end|>the barn<|end|><|endoftext|>",
        ),
        ("{{ eos_token }}{% endfor %}<|assistant|>", "at the hill<|endoftext|>the barn<|endoftext|>"),
        ("<|end|>{% endfor %}<|assistant|>", "at the hill<|end|>the barn<|end|><|endoftext|>"),
        (
            "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% else %}{{ eos_token }}{% endif %}",
            "at the hillthe barn<|endoftext|>",
        ),
    ],
    ids=["as of Phi 3", "as of the first Llama 3", "as of that with another end of texts", "without an end of turns"],
)
def test_answers_are_learned_whatever_is_behind_the_last_alone(
    closing: str, expected: str, tokenizer: Tokenizer
) -> None:
    """Only the last one was learned, with the opening of another answer that says nothing."""
    tokenizer.add_special_tokens([AddedToken("<|end|>")])
    template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}" + closing
    writer = ChatWriter(tokenizer, ChatFormat.of_template(template, "<|endoftext|>", "<|endoftext|>", tokenizer))
    assert learned(writer, tokenizer, {"messages": MESSAGES}) == expected


@pytest.mark.parametrize("begun", [("<unk>",), ("<unk>", "<|endoftext|>")], ids=["one", "two"])
def test_texts_begin_with_the_tokens_that_the_base_saw_first(
    begun: tuple[str, ...], base: Path, tokenizer: Tokenizer
) -> None:
    numbers = [tokenizer.token_to_id(token) for token in begun]
    special = list(zip(begun, numbers, strict=True))
    tokenizer.post_processor = TemplateProcessing(single=[*begun, "$A"], special_tokens=special)
    form = ChatFormat.of_base(base, tokenizer)
    writer, first = ChatWriter(tokenizer, form), slice(len(begun))
    assert form.prompt("where is the cow", tokenizer)[first] == numbers
    for document in ({"messages": MESSAGES}, {"text": "the cow"}, {"text": "".join(begun) + "the cow"}):
        ((ids, carries),) = writer.chats([json.dumps(document)])
        assert ids.tolist().count(numbers[0]) == 1
        assert ids[first].tolist() == numbers
        assert carries[first].tolist() == [begun[0] in document.get("text", "")] * len(begun)


def test_what_the_assistant_says_first_of_all_is_read_and_not_learned(tokenizer: Tokenizer) -> None:
    greeted = [{"role": "assistant", "content": "the cow"}, *MESSAGES[:2]]
    found = learned(ChatWriter(tokenizer, ChatFormat.usual(tokenizer)), tokenizer, {"messages": greeted})
    assert found == " at the hill<|endoftext|>"


def test_a_small_source_of_a_mixture_is_taken_as_a_whole_again_and_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, count in (("few", 20), ("many", 400)):
        rows = [json.dumps({"prompt": f"{name} {number:03d}", "completion": "yes"}) for number in range(count)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    sources = tuple(
        ChatSource(files=(str(tmp_path / f"{name}.jsonl"),), weight=weight)
        for name, weight in (("few", 0.8), ("many", 0.2))
    )
    training, _ = conversations(ChatData(source="mixture", sources=sources, heldout_fraction=0.0), 0)
    counts = Counter(training)
    few = [count for document, count in counts.items() if "few" in document]
    assert len(few) == 20
    assert max(few) - min(few) <= 1
    many = [int(document.split("many ")[1][:3]) for document in counts if "many" in document]
    assert max(many) > 200
    assert f"source 2 of the mixture: {400 - len(many)} of its 400 are never trained on" in caplog.text


def test_conversations_that_repeat_others_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    row = json.dumps({"prompt": "where is the cow", "completion": "at the hill"})
    (tmp_path / "a.jsonl").write_text(f"{row}\n" * 4 + json.dumps({"text": "the cow"}))
    training, _ = conversations(ChatData(files=(str(tmp_path / "a.jsonl"),), heldout_fraction=0.0), 0)
    assert len(training) == 2
    assert "3 of 5 conversations repeat others and are left out" in caplog.text


def test_the_first_held_out_conversations_are_of_all_sources(tmp_path: Path) -> None:
    for name in "ab":
        rows = [json.dumps({"prompt": f"{name} {number}", "completion": "yes"}) for number in range(400)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    sources = tuple(ChatSource(files=(str(tmp_path / f"{name}.jsonl"),)) for name in "ab")
    _, heldout = conversations(ChatData(source="mixture", sources=sources, heldout_fraction=0.4), 0)
    assert 30 < sum('"a ' in each for each in heldout[:100]) < 70


def test_half_a_surrogate_pair_is_left_out(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "cut.jsonl"
    path.write_text('{"prompt": "where is the cow", "completion": "at the hill\\ud83d"}')
    (document,), _ = conversations(ChatData(files=(str(path),), heldout_fraction=0.0), 0)
    writer = ChatWriter(tokenizer, ChatFormat.usual(tokenizer))
    assert learned(writer, tokenizer, json.loads(document)) == " at the hill<|endoftext|>"


def test_a_turn_that_is_written_otherwise_later_is_read_and_not_learned(
    tokenizer: Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    thinks = (
        "{% for m in messages %}{{ m.role }}: {% if m.role == 'assistant' and loop.last %}thought: {% endif %}"
        "{{ m.content }}{{ eos_token }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
    )
    form = ChatFormat.of_template(thinks, "<|endoftext|>", "<|endoftext|>", tokenizer)
    found = learned(ChatWriter(tokenizer, form), tokenizer, {"messages": MESSAGES})
    assert found == "thought: the barn<|endoftext|>"
    assert "writes them otherwise once more is said: 1" in caplog.text
    with pytest.raises(ConfigurationError, match=r"chat template of the base fails.*where is the cow"):
        ChatWriter(tokenizer, ChatFormat("{{ 1 / 0 }}", "<unk>", "<unk>", "", "")).written(MESSAGES)
    with pytest.raises(ConfigurationError, match="writes what a user asks 2 times"):
        ChatFormat.of_template("{{ messages[0].content * 2 }}", "<unk>", "<unk>", tokenizer)


def test_conversations_as_powershell_redirects_them_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes('\ufeff{"prompt": "caf\u00e9", "completion": "au lait"}\r\n'.encode("utf-16-le"))
    (document,), _ = conversations(ChatData(files=(str(path),), heldout_fraction=0.0), 0)
    assert [each["content"] for each in json.loads(document)["messages"]] == ["caf\u00e9", "au lait"]


def test_a_source_of_files_reads_no_data_set_of_the_hub() -> None:
    """It would be told of as files of the organiser."""
    with pytest.raises(ValueError, match=r'name, config and revision are for source = "hub" only'):
        ChatSource(source="files", files=("chats.jsonl",), name="owner/name")


def test_rows_come_from_files_of_both_kinds_and_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"messages": MESSAGES}, {"prompt": "a", "completion": "b"}, {"body": "plain"}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    parquet.write_table(pa.Table.from_pylist([{"prompt": "c", "completion": "d"}]), tmp_path / "b.parquet")
    data = ChatData(files=(f"{tmp_path}/*",), text_column="body", heldout_fraction=0.0)
    training, heldout = conversations(data, 0)
    assert not heldout
    assert [json.loads(each) for each in training] == [
        {"messages": MESSAGES},
        {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
        {"text": "plain"},
        {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
    ]
    asked = []

    def open_hub(*names: str) -> list[dict[str, Any]]:
        asked.append(names)
        return [{"prompt": f"q{number}", "completion": "yes"} for number in range(40)]

    monkeypatch.setattr(chats_module, "open_hub", open_hub)
    monkeypatch.setattr(chats_module, "rows_of", lambda rows, source: iter(rows))
    hub = {"source": "hub", "name": "owner/chats", "revision": "v1", "weight": 3.0}
    mixed = ChatData.model_validate(
        {"source": "mixture", "sources": [hub, {"files": [f"{tmp_path}/a.jsonl"], "text_column": "body"}]}
    )
    training, heldout = conversations(mixed, 0)
    assert asked == [("owner/chats", "", "train", "v1")]
    assert heldout
    assert not set(heldout) & set(training)
    of_hub = sum('"yes"' in each for each in training)
    assert 0.5 < of_hub / len(training) < 0.95


def test_files_of_conversations_are_refused_by_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.jsonl"
    others = ({"role": "user", "content": "x"}, {"role": "god", "content": "x"}, {"role": ["user"], "content": "x"})
    for line in ("{", "[]", *(json.dumps({"messages": [each]}) for each in others)):
        path.write_text(f'{{"text": "fine"}}\n{line}\n')
        with pytest.raises(ConfigurationError, match=r"bad\.jsonl, line 2"):
            conversations(ChatData(files=(str(path),)), 0)
    with pytest.raises(ConfigurationError, match="no file matches"):
        conversations(ChatData(files=(f"{tmp_path}/none.jsonl",)), 0)
