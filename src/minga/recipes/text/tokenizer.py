"""Tokenizers: trained once by the organiser, or taken from elsewhere, and shipped with the run as `tokenizer.json`.

Special tokens have the first ids, in the order given. For WordPiece and Unigram, text is normalised to NFKC and lower
case, accents are kept; byte-level BPE keeps every byte as it is, but for what the writing of a language changes.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray
from tokenizers import (
    AddedToken,
    Encoding,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from minga.core.errors import ConfigurationError, reason_of
from minga.recipes.data.hold_out import by_rank
from minga.recipes.model_files import downloaded, names_of_hub
from minga.recipes.text.writing import USUAL, Split, Writing

# ---- Tokenizers of strangers, used with bounded memory and with errors in words.
#
# A `tokenizer.json` may put long texts in the place of short ones, hold expressions that never come to an end, or lack
# the token for what it does not know; the library then fills the memory, panics, or raises a bare `Exception`.


MOST_GROWTH: Final = 256
"""Characters that one character of a text may become; the tables of NFKC have 33 bytes for one."""

_PANIC: Final = "PanicException"
_TRIE_SIZE_BYTES: Final = 4


def parsed(data: bytes) -> Tokenizer:
    """The tokenizer in the content of a `tokenizer.json`, without padding and truncation.

    Raises `ConfigurationError` if it cannot be read, or lets texts grow too much.
    """
    try:
        text = data.decode("utf-8")
        described = json.loads(text)
        for part in ("normalizer", "pre_tokenizer", "decoder"):
            if isinstance(described, dict) and (growth := _growth(described.get(part))) > MOST_GROWTH:
                raise ValueError(f"its {part} lets a text grow {growth} times; at most {MOST_GROWTH} times are taken")
        tokenizer = Tokenizer.from_str(text)
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except BaseException as error:  # the library raises bare `Exception` for what it cannot read, and panics
        raise _in_words(error, "not readable") from error
    return tokenizer


def encoded_texts(tokenizer: Tokenizer, texts: Sequence[str], *, with_places: bool = False) -> list[Encoding]:
    """Each text as tokens, without special ones; `with_places` also says where in the text each token is.

    Raises `ConfigurationError` if the tokenizer fails at one of them.
    """
    encode = tokenizer.encode_batch if with_places else tokenizer.encode_batch_fast
    try:
        return list(encode(list(texts), add_special_tokens=False))
    except BaseException as error:  # see above
        raise _in_words(error, "it fails at a text") from error


def _in_words(error: BaseException, what: str) -> BaseException:
    """The error to raise: a panic derives from no class of errors, as an interrupt does, which passes as it is."""
    if isinstance(error, Exception) or type(error).__name__ == _PANIC:
        return ConfigurationError(f"tokenizer.json: {what}: {str(error)[:200]}")
    return error


def _growth(part: Any) -> int:
    """At most so many characters one character becomes in all steps of a part of the tokenizer."""
    if isinstance(part, list):
        grown = 1
        for each in part:
            grown *= _growth(each)
            if grown > MOST_GROWTH:
                break
        return grown
    if not isinstance(part, dict):
        return 1
    grown = _growth([value for value in part.values() if isinstance(value, list | dict)])
    if part.get("type") == "Replace":
        content, pattern = str(part.get("content", "")), part.get("pattern")
        matches_nothing = isinstance(pattern, dict) and "Regex" in pattern and bool(content)
        grown *= max(1, len(content) + matches_nothing)  # an expression may also match between two characters
    elif part.get("type") == "Prepend":
        grown *= 1 + len(str(part.get("prepend", "")))
    elif part.get("type") == "Precompiled":
        grown *= _longest(str(part.get("precompiled_charsmap") or ""))
    return grown


def _longest(table: str) -> int:
    """Bytes of the longest text in a table of replacements, each of which ends with a zero."""
    try:
        content = base64.b64decode(table, validate=True)
    except binascii.Error as error:
        raise ValueError("its table of replacements is damaged") from error
    trie = int.from_bytes(content[:_TRIE_SIZE_BYTES], "little")
    return max(1, *map(len, content[_TRIE_SIZE_BYTES + trie :].split(b"\0")))


# ---- Tokenizers from elsewhere: the `tokenizer.json` of a folder, or of a model of the Hugging Face hub.


TOKENIZER_FILE = "tokenizer.json"
MAX_TOKENIZER_BYTES = 64 << 20


def given_file(source: str, name: str, key: str) -> Path:
    """The file `name` of what `source` names: a folder, or `OWNER/NAME` or `OWNER/NAME@REVISION` of the hub.

    `key` is the setting that named it. Raises `ConfigurationError` if it is not there.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / name).is_file():
            raise ConfigurationError(f"{key} = {source!r}: there is no {name} in it")
        return folder / name
    if not names_of_hub(source):
        searched = "" if folder.is_absolute() else f" in {Path.cwd()}, where this command was typed"
        raise ConfigurationError(
            f"{key} = {source!r}: no such folder{searched}, and not a name such as OWNER/NAME of the hub"
        )
    found = downloaded(source, key, (name,)) / name
    if not found.is_file():
        raise ConfigurationError(f"{key} = {source!r}: the hub does not give {name}")
    return found


def given_content(source: str, name: str, key: str, most: int) -> bytes:
    """The content of such a file. Raises `ConfigurationError` if it has more than `most` bytes or cannot be read."""
    path = given_file(source, name, key)
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise ConfigurationError(f"{path}: cannot be read: {reason_of(error)}") from error
    if len(content) > most:
        raise ConfigurationError(f"{path}: more than {most >> 10} KiB")
    return content


# ---- Which of a tokenizer's tokens have a role: padding, the ends of a text, what is masked.
#
# Tokenizers that a run trains have the tokens of `MASKED_TOKENS` or `CAUSAL_TOKENS`. Of one that comes from elsewhere
# the roles are found by the names that are usual for them.


MASKED_TOKENS: Final = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
END_OF_TEXT: Final = "<|endoftext|>"
CAUSAL_TOKENS: Final = (END_OF_TEXT, "<unk>")
_USUAL_NAMES: Final[Mapping[str, tuple[str, ...]]] = {
    "pad": ("<pad>", "[PAD]", "<|pad|>", "<|padding|>"),
    "unknown": ("<unk>", "[UNK]"),
    "cls": ("[CLS]", "<s>"),
    "sep": ("[SEP]", "</s>"),
    "mask": ("[MASK]", "<mask>"),
    "end": (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|im_end|>", "[SEP]"),
}


@dataclass(frozen=True)
class SpecialTokens:
    """Names of tokens by role, None where a tokenizer has none; and the ids of those that a text may hold.

    `ordinary` are the ids that are no special token, ascending, int64.
    """

    ids: Mapping[str, int]
    names: Mapping[str, str]
    ordinary: NDArray[np.int64]

    def __getitem__(self, role: str) -> int:
        """The id of the token with a role. Raises `ConfigurationError` if there is none."""
        if role not in self.ids:
            known = ", ".join(_USUAL_NAMES[role])
            raise ConfigurationError(f"tokenizer.json: it has no token for {role}, that is, none of {known}")
        return self.ids[role]


def trained_special_tokens(names: Sequence[str]) -> SpecialTokens:
    """Those of a tokenizer that is yet to be trained: `names` have the first ids, and no text has a token yet."""
    by_role = {role: next((name for name in usual if name in names), None) for role, usual in _USUAL_NAMES.items()}
    found = {role: name for role, name in by_role.items() if name is not None}
    return SpecialTokens({role: names.index(name) for role, name in found.items()}, found, np.empty(0, dtype=np.int64))


def find_special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """The special tokens of a tokenizer, by the names that are usual for their roles; one that it calls special comes
    before others, which may be words of a text.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    names: dict[str, str] = {}
    for role, usual in _USUAL_NAMES.items():
        found = [name for name in usual if name in vocabulary]
        if found:
            names[role] = next((name for name in found if vocabulary[name] in special), found[0])
    ids = {role: vocabulary[name] for role, name in names.items()}
    everything = np.fromiter(vocabulary.values(), dtype=np.int64)
    ordinary = np.setdiff1d(everything, np.array(sorted(special | set(ids.values())), dtype=np.int64))
    return SpecialTokens(ids, names, ordinary)


def beginning_of(tokenizer: Tokenizer) -> dict[str, int]:
    """The tokens that a tokenizer sets before each text, as those of Llama do, and their ids: its model was trained so.

    Raises `ConfigurationError` if the tokenizer fails.
    """
    before, _ = _frame_of(tokenizer)
    return {token: number for token in before if (number := tokenizer.token_to_id(token)) is not None}


def first_tokens(tokenizer: Tokenizer, end: int) -> list[int]:
    """What a causal model goes on from at the beginning of a text: the tokens that the tokenizer sets before it, or
    else the `end` of another.
    """
    return [*beginning_of(tokenizer).values()] or [end]


def tokens_before(tokenizer: Tokenizer, end: int, *, apart: bool) -> list[int]:
    """What stands before each text in the rows that a causal model is trained on: the same, unless the `end` of the
    text before it does that, or no row holds two texts: they are `apart`.
    """
    first = first_tokens(tokenizer, end)
    return first if apart or first != [end] else []


def frame_texts(tokenizer: Tokenizer, before: Sequence[str], after: Sequence[str]) -> None:
    """Let the tokenizer set these special tokens before and after a text, and no others."""
    if _frame_of(tokenizer) == ([*before], [*after]):
        return
    single = [*before, "$A", *after]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=" ".join(single),
        pair=" ".join([*single, "$B:1", *(f"{token}:1" for token in after)]),
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (*before, *after)],
    )


def _frame_of(tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """What it sets before and after any text: of a real one it need not know the words."""
    text = Encoding()
    text.pad(1, pad_token="$A")  # noqa: S106
    try:
        tokens: list[str] = tokenizer.post_process(text).tokens
        place = tokens.index("$A")
    except BaseException as error:  # see above
        raise _in_words(error, "it fails at a text") from error
    return tokens[:place], tokens[place + 1 :]


def tokens_needed(tokenizer: Tokenizer) -> int:
    """How many entries a model's vocabulary must have for this tokenizer: its largest id, plus one."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)


Kind = Literal["bpe", "wordpiece", "unigram"]
MAX_TRAINING_CHARACTERS = 16 << 20
UNKNOWN: Final = "<unk>"
_CHECKED_TEXTS: Final = 1000
_MOST_UNKNOWN: Final = 0.01

logger = logging.getLogger("minga.recipes")


def train_tokenizer(
    documents: Iterable[str],
    vocabulary_size: int,
    kind: Kind = "wordpiece",
    special_tokens: Sequence[str] = MASKED_TOKENS,
    writing: Writing = USUAL,
) -> bytes:
    """Learn a vocabulary of at most `vocabulary_size` entries; returns the content of `tokenizer.json`.

    Of more than 16 Mi characters it reads so many, of documents in the order of their ranks, which bounds time and
    memory: more text hardly changes the vocabulary. Logs a warning if that is too small for the letters of the text:
    words with others cannot be told apart.
    """
    if vocabulary_size < 64:
        raise ConfigurationError(f"vocabulary_size = {vocabulary_size}: must be at least 64")
    tokenizer = _untrained(kind, writing)
    # [MASK] takes the blank before it along, so that a word and its mask fill the same place.
    special = [AddedToken(token, lstrip=token == "[MASK]", special=True) for token in special_tokens]  # noqa: S105
    pieces = _bounded(list(documents), writing.split if kind != "bpe" else lambda document: [document])
    first = list(islice(pieces, _CHECKED_TEXTS))
    tokenizer.train_from_iterator(chain(first, pieces), _trainer(kind, vocabulary_size, special))
    if "[CLS]" in special_tokens:
        frame_texts(tokenizer, ["[CLS]"], ["[SEP]"])  # as masked language models expect
    size = tokenizer.get_vocab_size()
    if size > vocabulary_size:
        raise ConfigurationError(
            f"vocabulary_size = {vocabulary_size}: the characters of this text alone take {size} entries"
        )
    ids = [number for encoding in encoded_texts(tokenizer, first) for number in encoding.ids]
    unknown = sum(number == tokenizer.token_to_id(UNKNOWN) for number in ids)
    if (share := unknown / max(1, len(ids))) > _MOST_UNKNOWN:
        logger.warning(
            "tokenizer: %.0f%% of the tokens are words with letters for which a vocabulary of %d has no room; raise it",
            100 * share,
            vocabulary_size,
        )
    return tokenizer.to_str().encode("utf-8")


def read_tokenizer(data: bytes, vocabulary_size: int) -> Tokenizer:
    """The tokenizer in the content of a `tokenizer.json`.

    Raises `ConfigurationError` if it cannot be read or is larger than the model's vocabulary.
    """
    tokenizer = parsed(data)
    if (size := tokens_needed(tokenizer)) > vocabulary_size:
        raise ConfigurationError(f"tokenizer.json: {size} entries; vocabulary_size allows {vocabulary_size}")
    return tokenizer


def _untrained(kind: Kind, writing: Writing) -> Tokenizer:
    rules = [normalizers.Replace(Regex(found), replaced) for found, replaced in writing.rules]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
        if rules:
            tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), *rules])
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))  # noqa: S106
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
    else:
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Metaspace(),
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.Punctuation(),
            ]
        )
        tokenizer.decoder = decoders.Metaspace()
    tokenizer.normalizer = normalizers.Sequence(
        [*rules, normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    return tokenizer


def _trainer(kind: Kind, vocabulary_size: int, special: list[AddedToken]) -> trainers.Trainer:
    if kind == "bpe":
        return trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    if kind == "wordpiece":
        return trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            limit_alphabet=max(16, vocabulary_size // 4),
            min_frequency=2,
            show_progress=False,
        )
    return trainers.UnigramTrainer(
        vocab_size=vocabulary_size,
        special_tokens=special,
        unk_token=UNKNOWN,
        show_progress=False,
    )


def _bounded(documents: Sequence[str], split: Split) -> Iterator[str]:
    # Sentences keep the trainer's own pieces short; its Unigram would otherwise hold whole documents.
    left = MAX_TRAINING_CHARACTERS
    if sum(map(len, documents)) > left:  # the first ones may all be of one source
        documents = by_rank(documents)
    for document in documents:
        yield from split(document)
        left -= len(document)
        if left <= 0:
            return
