"""Conversations: read from files, written as the base's template has them, and cut into tokens that carry loss or not.

Theory of operation. A conversation is a document of the run, one line of JSON, so it is held out or not by its text as
any document is. The organiser alone renders templates and cuts tokens. The model learns what the assistant says, its
end included; of a plain text it learns all.

A file of the run holds two arrays for each conversation, one behind the other: the tokens, and for each of them 1 if it
carries loss, else 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from minga.core.errors import ConfigurationError
from minga.recipes.text.packing import DOCUMENTS_AT_A_TIME, Tokens
from minga.recipes.text.sources import matching_files, sentence_answers
from minga.recipes.text.tokenizer import encoded_texts, find_special_tokens

TEMPLATE_FILE = "chat_template.jinja"
MAX_TEMPLATE_BYTES = 256 << 10
MAX_LINE_BYTES = 8 << 20
USUAL_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""Of a base that has none."""
_ROLES: Final = frozenset({"system", "user", "assistant"})

Messages = Sequence[Mapping[str, str]]


def conversations(patterns: Sequence[str]) -> Iterator[str]:
    """The conversations of .jsonl files as documents. Raises `ConfigurationError`, which names the file and line."""
    paths = [path for pattern in patterns for path in matching_files(pattern)]
    if not paths:
        raise ConfigurationError('chats.files: no file of conversations, such as files = ["chats/*.jsonl"]')
    for path in paths:
        try:
            with path.open("rb") as file:
                for number, line in enumerate(file, 1):
                    if line.strip():
                        yield _document(line, f"{path}, line {number}")
        except OSError as error:
            raise ConfigurationError(f"{path}: cannot be read: {error.strerror}") from error


def made_up_conversations() -> Iterator[str]:
    """Questions and answers by rules."""
    for question, answer in sentence_answers():
        yield _conversation(question, answer)


def _conversation(prompt: str, completion: str) -> str:
    turns = (("user", prompt), ("assistant", completion))
    found = {"messages": [{"role": role, "content": content} for role, content in turns]}
    return json.dumps(found, ensure_ascii=False)


def _document(line: bytes, place: str) -> str:
    if len(line) > MAX_LINE_BYTES:
        raise ConfigurationError(f"{place}: more than {MAX_LINE_BYTES >> 20} MiB")
    try:
        said: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{place}: not JSON: {error}") from error
    said = said if isinstance(said, dict) else {}
    if isinstance(said.get("messages"), list):
        found: dict[str, Any] = {"messages": [_message(each, place) for each in said["messages"]]}
        if not any(each["role"] == "assistant" for each in found["messages"]):
            raise ConfigurationError(f"{place}: the assistant says nothing in it")
    elif isinstance(said.get("prompt"), str) and isinstance(said.get("completion"), str):
        return _conversation(said["prompt"], said["completion"])
    elif isinstance(said.get("text"), str):
        found = {"text": said["text"]}
    else:
        raise ConfigurationError(f"{place}: neither messages, nor prompt and completion, nor text")
    return json.dumps(found, ensure_ascii=False)


def _message(said: Any, place: str) -> dict[str, str]:
    if not (isinstance(said, dict) and said.get("role") in _ROLES and isinstance(said.get("content"), str)):
        raise ConfigurationError(f"{place}: a message needs a role ({', '.join(sorted(_ROLES))}) and a content")
    return {"role": said["role"], "content": said["content"]}


class ChatWriter:
    """Conversations as a template writes them, and their tokens. `template` is the text of a Jinja template."""

    def __init__(self, tokenizer: Tokenizer, template: str) -> None:
        special = find_special_tokens(tokenizer)
        self._tokenizer, self._end = tokenizer, special["end"]
        name = special.names["end"]
        self._writer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer, chat_template=template, bos_token=name, eos_token=name, pad_token=name
        )

    def prompt(self, messages: Messages) -> list[int]:
        """The tokens of what the assistant is to answer."""
        return list(encoded_texts(self._tokenizer, [self._written(messages, opens=True)])[0].ids)

    def marked(self, documents: Iterable[str]) -> Iterator[tuple[Tokens, Tokens]]:
        """The tokens of each document, and which of them carry loss (1 or 0); those without any are left out."""
        rest = iter(documents)
        while some := [self._spans(json.loads(each)) for each in islice(rest, DOCUMENTS_AT_A_TIME)]:
            encodings = encoded_texts(self._tokenizer, [text for text, _ in some], with_places=True)
            for (_, spans), encoding in zip(some, encodings, strict=True):
                carries = [any(start < stop <= end for start, end in spans) for _, stop in encoding.offsets]
                if not any(carries):
                    continue
                last = len(carries) - carries[::-1].index(True)
                ids, carries = encoding.ids[:last], carries[:last]
                if ids[-1] != self._end:
                    ids, carries = [*ids, self._end], [*carries, True]
                yield np.array(ids, dtype=np.int32), np.array(carries, dtype=np.int32)

    def _spans(self, document: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """A document as text, and from which character to which it is to be learned."""
        if "text" in document:
            return document["text"], [(0, len(document["text"]))]
        messages, spans = document["messages"], list[tuple[int, int]]()
        text = self._written(messages)
        for place, message in enumerate(messages):
            if message["role"] == "assistant":
                before, after = self._written(messages[:place], opens=True), self._written(messages[: place + 1])
                if not (after.startswith(before) and text.startswith(after)):
                    raise ConfigurationError(
                        "the chat template of the base writes a conversation otherwise when it goes on, so that what "
                        "the assistant says cannot be found in it"
                    )
                spans.append((len(before), len(after.rstrip())))
        return text, spans

    def _written(self, messages: Messages, *, opens: bool = False) -> str:
        try:
            written = self._writer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opens)
        except Exception as error:  # a template raises what it likes
            raise ConfigurationError(f"the chat template of the base: {str(error)[:200]}") from error
        return str(written)
