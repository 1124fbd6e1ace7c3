"""Conversations: read from files or from the hub, and written as tokens in the form that the base knows.

Theory of operation. A conversation is a document of the run, one line of JSON, so it is held out or not by its text as
any document is. The organiser alone reads rows, renders templates and cuts tokens. The model learns what the assistant
says, its end included; of a plain text it learns all.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from minga.core.decoding import DECODING_ERRORS, decode_json
from minga.core.errors import ConfigurationError, reason_of
from minga.recipes.data.hold_out import by_rank
from minga.recipes.data.hub import open_hub, opened, rows_of
from minga.recipes.fine_tune.samples import Chat
from minga.recipes.fine_tune.settings import ChatData
from minga.recipes.text.corpus import (
    MAX_DOCUMENTS,
    MAX_TEXT_CHARACTERS,
    MixedSource,
    mixed,
    reordered_passes,
    split_documents,
    warn_of_rest,
)
from minga.recipes.text.samples import DOCUMENTS_AT_A_TIME
from minga.recipes.text.settings import TextSource
from minga.recipes.text.sources import jsonl_rows, named_files, sentence_answers
from minga.recipes.text.tokenizer import beginning_of, encoded_texts, find_special_tokens
from minga.recipes.text.writing import as_it_is

_BLOCK: Final = 10_000
"""Conversations of a mixture that are shuffled among each other."""
_ROLES: Final = frozenset({"system", "user", "assistant"})

Messages = Sequence[Mapping[str, str]]

logger = logging.getLogger("minga.recipes")


# ---- Documents.


def conversations(data: ChatData, seed: int) -> tuple[list[str], list[str]]:
    """The conversations of a run as documents: those to train on, and those held out, by their ranks.

    Raises `ConfigurationError` where there are none, or too much to travel; it names file and line of a bad row.
    """
    places = data.sources if data.source == "mixture" else [data]
    weights = [each.weight for each in data.sources] or [1.0]
    found = [_once(list(_documents(each))) for each in places]
    _, heldout = split_documents([each for documents in found for each in documents], data.heldout_fraction)
    heldout, left_out = by_rank(heldout), set(heldout)
    training = [[each for each in documents if each not in left_out] for documents in found]
    if empty := [number + 1 for number, documents in enumerate(training) if not documents]:
        raise ConfigurationError(f"data: source {empty[0]} has no conversation to train on besides the held-out")
    if len(training) == 1:
        return training[0], heldout
    sources = [
        MixedSource(reordered_passes(documents, seed + number), weight, as_it_is)
        for number, (documents, weight) in enumerate(zip(training, weights, strict=True))
    ]
    total = sum(map(len, training))
    drawn = list(islice(mixed(sources, seed, min(_BLOCK, total)), total))
    warn_of_rest(training, drawn)
    return drawn, heldout


def _once(documents: Sequence[str]) -> list[str]:
    found = list(dict.fromkeys(documents))
    if repeated := len(documents) - len(found):
        logger.warning("%d of %d conversations repeat others and are left out", repeated, len(documents))
    return found


def _documents(place: TextSource) -> Iterator[str]:
    if isinstance(place, ChatData) and place.source == "sentences":
        yield from (_conversation(question, answer) for question, answer in sentence_answers())
        return
    size = 0
    for number, (where, row) in enumerate(_rows(place), 1):
        document = _document(row, where, place.text_column)
        size += len(document)
        if size > MAX_TEXT_CHARACTERS or number > MAX_DOCUMENTS:
            raise ConfigurationError(
                f"data: more than {MAX_TEXT_CHARACTERS >> 20} Mi characters or {MAX_DOCUMENTS >> 20} Mi conversations, "
                "too much to travel with a run; take fewer files, or another split or config"
            )
        yield document


def _rows(place: TextSource) -> Iterator[tuple[str, Any]]:
    """The rows, each with where it stands."""
    if place.name:
        dataset = open_hub(place.name, place.config, place.split, place.revision)
        for number, row in enumerate(rows_of(dataset, f"data.name = {place.name!r}"), 1):
            yield f"{place.name}, row {number}", row
        return
    if not place.files:
        raise ConfigurationError('data.files: no file of conversations is named, such as files = ["chats/*.jsonl"]')
    for path in named_files(place.files):
        if path.suffix == ".jsonl":
            yield from jsonl_rows(path)
        elif path.suffix == ".parquet":
            what = f"data.files: {path}"
            rows = rows_of(opened(what, "parquet", data_files=[str(path)], split="train"), what)
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
        else:
            raise ConfigurationError(f"data.files: {path}: must end in .jsonl or .parquet")


def _document(row: Any, where: str, text_column: str) -> str:
    """A row as one line of JSON. Columns that are there and hold nothing do not count."""
    said = row if isinstance(row, dict) else {}
    if isinstance(said.get("messages"), list):
        messages = [_message(each, where) for each in said["messages"]]
        if not any(each["role"] == "assistant" for each in messages):
            raise ConfigurationError(f"{where}: the assistant says nothing in it")
        return _line({"messages": messages})
    if isinstance(said.get("prompt"), str) and isinstance(said.get("completion"), str):
        return _conversation(said["prompt"], said["completion"])
    if isinstance(said.get(text_column), str):
        return _line({"text": said[text_column]})
    raise ConfigurationError(f"{where}: neither messages, nor prompt and completion, nor {text_column}")


def _message(said: Any, where: str) -> dict[str, str]:
    if not (
        isinstance(said, dict)
        and all(isinstance(said.get(key), str) for key in ("role", "content"))
        and said["role"] in _ROLES
    ):
        raise ConfigurationError(f"{where}: a message needs a role ({', '.join(sorted(_ROLES))}) and a content")
    return {"role": said["role"], "content": said["content"]}


def _conversation(prompt: str, completion: str) -> str:
    turns = (("user", prompt), ("assistant", completion))
    return _line({"messages": [{"role": role, "content": content} for role, content in turns]})


def _line(found: Mapping[str, Any]) -> str:
    """One line of JSON, without halves of surrogate pairs, at which tokenizers fail."""
    return json.dumps(found, ensure_ascii=False).encode("utf-8", "ignore").decode()


# ---- The form of a conversation: a template and the tokens that it names, as `tokenizer_config.json` has them.


FORMAT_FILE: Final = "tokenizer_config.json"
TEMPLATE_FILE: Final = "chat_template.jinja"
MAX_FORMAT_BYTES: Final = 1 << 20
USUAL_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + eos_token + '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)
"""Of a base that has none. The assistant says the blank: tokenizers make one token of it and the word after it."""
_QUESTION: Final = "mingaquestion5f0c2b9e"
_ANSWER: Final = "mingaanswer5f0c2b9e"
"""These stand for what a user asks and the assistant says, while the organiser finds out what a template writes around
them.
"""


class ChatFormat(msgspec.Struct, frozen=True):
    """How a base writes conversations: the text of a Jinja template, the tokens for end and beginning, and what stands
    `before` and `after` what a user asks first.

    The template is a program, and nothing bounds how long it takes. So nobody but the organiser renders it.
    """

    chat_template: str
    eos_token: str
    bos_token: str
    before: str
    after: str

    @classmethod
    def of_template(cls, template: str, eos_token: str, bos_token: str, tokenizer: Tokenizer) -> ChatFormat:
        """With what the template writes around a question. Raises `ConfigurationError` for one that fails at that."""
        form = cls(template, eos_token, bos_token, "", "")
        written = ChatWriter(tokenizer, form).written([{"role": "user", "content": _QUESTION}], opens=True)
        before, *after = written.split(_QUESTION)
        if len(after) != 1:
            raise ConfigurationError(
                f"the chat template of the base writes what a user asks {len(after)} times, and not once; put another "
                f"{TEMPLATE_FILE} into its folder"
            )
        return msgspec.structs.replace(form, before=before, after=after[0])

    @classmethod
    def usual(cls, tokenizer: Tokenizer) -> ChatFormat:
        """That of a base that says nothing of conversations."""
        special = find_special_tokens(tokenizer)
        special["end"]  # raises if there is none
        return cls._usual(special.names["end"], tokenizer)

    @classmethod
    def _usual(cls, end: str, tokenizer: Tokenizer) -> ChatFormat:
        begun = beginning_of(tokenizer)
        return cls.of_template("".join(begun) + USUAL_TEMPLATE, end, [*begun, end][0], tokenizer)

    @classmethod
    def of_base(cls, folder: Path, tokenizer: Tokenizer) -> ChatFormat:
        """That of a base, of what lies in its folder. Raises `ConfigurationError` if its files cannot be read."""
        said: Any = {}
        if body := _small_file(folder / FORMAT_FILE):
            try:
                said = json.loads(body)
            except (ValueError, RecursionError) as error:
                raise ConfigurationError(f"{folder / FORMAT_FILE}: not JSON: {str(error)[:200]}") from error
        said = said if isinstance(said, dict) else {}
        template = _small_file(folder / TEMPLATE_FILE).decode("utf-8", "replace") or _template(said)
        end = _token(said.get("eos_token"), tokenizer) or cls.usual(tokenizer).eos_token
        if not template:
            logger.warning("%s has no chat template: conversations are written in a usual one", folder)
            return cls._usual(end, tokenizer)
        return cls.of_template(template, end, _token(said.get("bos_token"), tokenizer) or end, tokenizer)

    @classmethod
    def read(cls, body: bytes) -> ChatFormat:
        """What came with the run. Raises `ConfigurationError` if it is something else."""
        try:
            if len(body) > MAX_FORMAT_BYTES:
                raise ValueError(f"more than {MAX_FORMAT_BYTES >> 10} KiB")
            return decode_json(body, cls)
        except DECODING_ERRORS as error:
            raise ConfigurationError(f"{FORMAT_FILE}: not what the organiser writes: {str(error)[:200]}") from error

    def written(self) -> bytes:
        """The content of the run's `tokenizer_config.json`."""
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"

    def end_of(self, tokenizer: Tokenizer) -> int:
        """The id of the token with which the assistant ends. Raises `ConfigurationError`."""
        number = tokenizer.token_to_id(self.eos_token)
        if number is None:
            raise ConfigurationError(f"{FORMAT_FILE}: the tokenizer has no token {self.eos_token[:40]!r}")
        return int(number)

    def prompt(self, question: str, tokenizer: Tokenizer) -> list[int]:
        """The tokens of what the assistant is to answer."""
        return list(encoded_texts(tokenizer, [f"{self.before}{question}{self.after}"])[0].ids)


def _small_file(path: Path) -> bytes:
    """What a file holds, nothing if it is not there."""
    try:
        with path.open("rb") as file:
            body = file.read(MAX_FORMAT_BYTES + 1)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    if len(body) > MAX_FORMAT_BYTES:
        raise ConfigurationError(f"{path}: more than {MAX_FORMAT_BYTES >> 10} KiB")
    return body


def _template(said: Mapping[str, Any]) -> str:
    """The template in a `tokenizer_config.json`, which may have several by name."""
    found = said.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("default")
    return found if isinstance(found, str) else ""


def _token(said: Any, tokenizer: Tokenizer) -> str:
    """A token that a `tokenizer_config.json` names, by itself or with how it is to be treated."""
    name = said.get("content") if isinstance(said, dict) else said
    return name if isinstance(name, str) and tokenizer.token_to_id(name) is not None else ""


# ---- Tokens.


class ChatWriter:
    """Conversations as a base writes them, and their tokens; for the organiser, who trusts its template."""

    def __init__(self, tokenizer: Tokenizer, form: ChatFormat) -> None:
        self._tokenizer, self._end = tokenizer, form.end_of(tokenizer)
        self._beginning = [*beginning_of(tokenizer).values()]
        self._writer = PreTrainedTokenizerFast(
            tokenizer_object=tokenizer,
            chat_template=form.chat_template,
            bos_token=form.bos_token,
            eos_token=form.eos_token,
            pad_token=form.eos_token,
        )

    def chats(self, documents: Iterable[str]) -> Iterator[Chat]:
        """The documents as tokens; those without anything to learn are left out.

        Raises `ConfigurationError` for a template that fails.
        """
        rest, unfound, unlearned = iter(documents), 0, 0
        while some := [json.loads(each) for each in islice(rest, DOCUMENTS_AT_A_TIME)]:
            written = [self._spans(each) for each in some]
            encodings = encoded_texts(self._tokenizer, [text for text, _ in written], with_places=True)
            for document, (_, spans), encoding in zip(some, written, encodings, strict=True):
                # The last token of what was said may hold the blanks behind it, too.
                carries = [
                    any(start < stop and first < end for start, end in spans) for first, stop in encoding.offsets
                ]
                if not any(carries):
                    unfound += 1
                    continue
                last = len(carries) - carries[::-1].index(True)
                ids, carries = encoding.ids[:last], carries[:last]
                if ids[-1] != self._end:
                    ids, carries = [*ids, self._end], [*carries, True]
                begun = self._beginning
                if "text" in document and ids[: len(begun)] != begun:  # a template writes what begins conversations
                    ids, carries = [*begun, *ids], [False] * len(begun) + carries
                if "messages" in document:
                    answers = sum(each["role"] == "assistant" for each in document["messages"][1:])
                    unlearned += answers - len(spans)
                yield Chat(np.array(ids, dtype=np.int32), np.array(carries, dtype=np.uint8))
        if unfound:
            logger.warning(
                "%d conversations are left out: they hold no answer of the assistant as the template writes it", unfound
            )
        if unlearned:
            logger.warning(
                "answers that are read and not learned, as the template writes them otherwise once more is said: %d",
                unlearned,
            )

    def written(self, messages: Messages, *, opens: bool = False) -> str:
        """As the template writes them; it `opens` what the assistant answers. Raises `ConfigurationError`."""
        try:
            written = self._writer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=opens)
        except Exception as error:  # a template raises what it likes
            raise ConfigurationError(
                f"the chat template of the base fails: {str(error)[:200]} (in {_line({'messages': messages})[:200]})"
            ) from error
        return str(written)

    def save(self, folder: Path) -> None:
        """Write what `PreTrainedTokenizerFast.from_pretrained` loads. Raises `OSError`."""
        self._writer.save_pretrained(folder)

    def _spans(self, document: Mapping[str, Any]) -> tuple[str, list[tuple[int, int]]]:
        """A document as text, and from which character to which it is to be learned.

        Some templates write what was said otherwise once more is said; such a turn is read and not learned. So is what
        the assistant says first of all, which answers nothing.
        """
        if "text" in document:
            return document["text"], [(0, len(document["text"]))]
        messages, spans = document["messages"], list[tuple[int, int]]()
        text = self.written(messages).removesuffix(self._closing)
        for place, message in enumerate(messages):
            if place and message["role"] == "assistant":
                before = self.written(messages[:place], opens=True)
                after = self.written(messages[: place + 1]).removesuffix(self._closing).rstrip()
                if after.startswith(before) and text.startswith(after):
                    spans.append((len(before), len(after)))
        return text, spans

    @cached_property
    def _closing(self) -> str:
        """What the template writes behind the last answer and behind no other: an end of the whole text, as Phi-3 has
        it, or the opening of what the assistant says next, which the first Llama 3 has though nobody asks for it.
        """
        asked, said = {"role": "user", "content": _QUESTION}, {"role": "assistant", "content": _ANSWER}
        try:
            conversations = self.written([asked, said]), self.written([asked, said, asked])
        except ConfigurationError:  # it takes no conversation of this form
            return ""
        last, inner = (each.partition(_ANSWER)[2] for each in conversations)
        common = next(last[:size] for size in range(len(last), -1, -1) if inner.startswith(last[:size]))
        # A turn ends with the token that ends texts, or with the first of the tokenizer's that are no words; what
        # follows may begin alike, too.
        end = self._writer.eos_token
        marks = [end] if end in common else [each for each in self._writer.get_added_vocab() if each.strip()]
        first = re.search("|".join(map(re.escape, sorted(marks, key=len, reverse=True))), last)
        if first is not None:
            common = common[: first.end() if first.end() <= len(common) else first.start()]
        return last.removeprefix(common).lstrip()
