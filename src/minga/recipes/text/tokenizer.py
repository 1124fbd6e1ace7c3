"""Tokenizers: trained once by the organiser, or taken from elsewhere, and shipped with the run as `tokenizer.json`.

Special tokens have the first ids, in the order given. For WordPiece and Unigram, text is normalised to NFKC and lower
case, accents are kept; byte-level BPE keeps every byte as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from minga.core.errors import ConfigurationError
from minga.recipes.text.foreign_tokenizer import encoded_texts, parsed
from minga.recipes.text.sentence_pairs import Split
from minga.recipes.text.special_tokens import MASKED_TOKENS, tokens_needed
from minga.recipes.writing.by_language import USUAL, Writing

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

    Stops reading after 16 Mi characters, which bounds time and memory; more text hardly changes the vocabulary. Logs a
    warning if that is too small for the letters of the text: words with others cannot be told apart.
    """
    if vocabulary_size < 64:
        raise ConfigurationError(f"vocabulary_size = {vocabulary_size}: must be at least 64")
    tokenizer = _untrained(kind, writing)
    # [MASK] takes the blank before it along, so that a word and its mask fill the same place.
    special = [AddedToken(token, lstrip=token == "[MASK]", special=True) for token in special_tokens]  # noqa: S105
    pieces = _bounded(documents, writing.split if kind != "bpe" else lambda document: [document])
    first = list(islice(pieces, _CHECKED_TEXTS))
    tokenizer.train_from_iterator(chain(first, pieces), _trainer(kind, vocabulary_size, special))
    if "[CLS]" in special_tokens:
        _frame_by_ends(tokenizer)
    size = tokenizer.get_vocab_size()
    if size > vocabulary_size:
        raise ConfigurationError(
            f"vocabulary_size = {vocabulary_size}: the characters of this text alone take {size} entries"
        )
    tokens = [token for encoding in encoded_texts(tokenizer, first) for token in encoding.tokens]
    if (share := tokens.count(UNKNOWN) / max(1, len(tokens))) > _MOST_UNKNOWN:
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
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE())
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
    rules = [normalizers.Replace(Regex(found), replaced) for found, replaced in writing.rules]
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


def _frame_by_ends(tokenizer: Tokenizer) -> None:
    """Let a text begin with [CLS] and end with [SEP], as masked language models expect."""
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )


def _bounded(documents: Iterable[str], split: Split) -> Iterator[str]:
    # Sentences keep the trainer's own pieces short; its Unigram would otherwise hold whole documents.
    left = MAX_TRAINING_CHARACTERS
    for document in documents:
        yield from split(document)
        left -= len(document)
        if left <= 0:
            return
