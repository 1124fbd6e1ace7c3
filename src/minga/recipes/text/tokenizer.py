"""Tokenizers: trained once by the organiser, shipped with the run as `tokenizer.json`.

The special tokens are ALBERT's, with the ids that its configuration expects: <pad> 0, <unk> 1, [CLS] 2, [SEP] 3,
[MASK] 4. Text is normalised to NFKC and lower case, accents are kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from minga.core.errors import ConfigurationError
from minga.recipes.text.sentences import split_sentences

SPECIAL_TOKENS = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
PAD, UNKNOWN, CLS, SEP, MASK = range(len(SPECIAL_TOKENS))
MAX_TRAINING_CHARACTERS = 16 << 20


def train_tokenizer(
    documents: Iterable[str], vocabulary_size: int, kind: Literal["wordpiece", "unigram"] = "wordpiece"
) -> bytes:
    """Learn a vocabulary of at most `vocabulary_size` entries; returns the content of `tokenizer.json`.

    Stops reading after 16 Mi characters, which bounds time and memory; more text hardly changes the vocabulary.
    """
    if vocabulary_size < 64:
        raise ConfigurationError(f"vocabulary_size = {vocabulary_size}: must be at least 64")
    tokenizer = _untrained(kind)
    # [MASK] takes the blank before it along, so that a word and its mask fill the same place.
    special = [AddedToken(token, lstrip=token == SPECIAL_TOKENS[MASK], special=True) for token in SPECIAL_TOKENS]
    if kind == "wordpiece":
        trainer: trainers.Trainer = trainers.WordPieceTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            limit_alphabet=max(16, vocabulary_size // 4),
            min_frequency=2,
            show_progress=False,
        )
    else:
        trainer = trainers.UnigramTrainer(
            vocab_size=vocabulary_size,
            special_tokens=special,
            unk_token=SPECIAL_TOKENS[UNKNOWN],
            show_progress=False,
        )
    tokenizer.train_from_iterator(_bounded(documents), trainer)
    _finish(tokenizer)
    size = tokenizer.get_vocab_size()
    if size > vocabulary_size:
        raise ConfigurationError(
            f"vocabulary_size = {vocabulary_size}: the characters of this text alone take {size} entries"
        )
    return tokenizer.to_str().encode("utf-8")


def read_tokenizer(data: bytes, vocabulary_size: int) -> Tokenizer:
    """The tokenizer in the content of a `tokenizer.json`.

    Raises `ConfigurationError` if it cannot be read, is larger than the model's vocabulary or has other special tokens.
    """
    try:
        tokenizer = Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises bare `Exception` for whatever it cannot read
        raise ConfigurationError(f"tokenizer.json: not readable: {str(error)[:200]}") from error
    if tokenizer.get_vocab_size() > vocabulary_size:
        raise ConfigurationError(
            f"tokenizer.json: {tokenizer.get_vocab_size()} entries; vocabulary_size allows {vocabulary_size}"
        )
    for number, token in enumerate(SPECIAL_TOKENS):
        if tokenizer.token_to_id(token) != number:
            raise ConfigurationError(f"tokenizer.json: {token} must have the id {number}")
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _untrained(kind: Literal["wordpiece", "unigram"]) -> Tokenizer:
    normalizer = normalizers.Sequence(
        [normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    if kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token=SPECIAL_TOKENS[UNKNOWN]))
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
    tokenizer.normalizer = normalizer
    return tokenizer


def _finish(tokenizer: Tokenizer) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", CLS), ("[SEP]", SEP)],
    )


def _bounded(documents: Iterable[str]) -> Iterator[str]:
    # Sentences keep the trainer's own pieces short; its Unigram would otherwise hold whole documents.
    left = MAX_TRAINING_CHARACTERS
    for document in documents:
        yield from split_sentences(document)
        left -= len(document)
        if left <= 0:
            return
