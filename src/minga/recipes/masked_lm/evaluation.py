"""How well a model does on held-out text: the same samples and the same masks for everyone, every time."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional

from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import Batch
from minga.recipes.text.tokenizer import encoded_texts

EVALUATION_SEED = 20_210_618
EVALUATION_BATCH_SIZE = 32
MAX_EVALUATION_SAMPLES = 512


Samples = TypeVar("Samples")
Scores = Callable[[nn.Module, Batch], tuple[Tensor, Tensor | None]]
"""Scores of the vocabulary at the masked places, and of the order of segments where a model has a head for that."""


def heldout_batches(
    draw: Callable[[np.random.Generator], list[Samples]],
    make_batch: Callable[[Sequence[Samples], np.random.Generator], Batch],
) -> list[Batch]:
    """The batches that every evaluation uses: at most 512 samples, drawn and masked by a fixed seed."""
    random = np.random.default_rng(EVALUATION_SEED)
    samples = draw(random)
    if len(samples) > MAX_EVALUATION_SAMPLES:
        places = np.sort(random.choice(len(samples), MAX_EVALUATION_SAMPLES, replace=False))
        samples = [samples[place] for place in places]
    return [
        make_batch(samples[start : start + EVALUATION_BATCH_SIZE], random)
        for start in range(0, len(samples), EVALUATION_BATCH_SIZE)
    ]


def evaluate_model(model: nn.Module, batches: Sequence[Batch], scores: Scores) -> dict[str, float]:
    """`heldout_mlm_loss`: nats per masked token, all tokens alike; `heldout_mlm_accuracy`: share of them guessed right;
    `heldout_sop_accuracy`: share of pairs put right, where the model has a head for that.
    """
    loss, tokens, guessed, right, pairs = 0.0, 0, 0, 0, 0
    with evaluating(model) as device:
        for cpu_batch in batches:
            batch = {name: tensor.to(device) for name, tensor in cpu_batch.items()}
            masked_logits, sop_logits = scores(model, batch)
            loss += functional.cross_entropy(masked_logits.float(), batch["labels"], reduction="sum").item()
            guessed += int((masked_logits.argmax(dim=1) == batch["labels"]).sum().item())
            tokens += batch["labels"].numel()
            if sop_logits is not None:
                right += int((sop_logits.argmax(dim=1) == batch["sop_labels"]).sum().item())
                pairs += batch["sop_labels"].numel()
    figures = {"heldout_mlm_loss": loss / max(1, tokens), "heldout_mlm_accuracy": guessed / max(1, tokens)}
    return {**figures, "heldout_sop_accuracy": right / pairs} if pairs else figures


def commonest_share(batches: Sequence[Batch]) -> float:
    """The share of the masked tokens that are the commonest of them: what who always says it guesses right."""
    labels = torch.cat([batch["labels"] for batch in batches])
    return float(torch.bincount(labels).max()) / max(1, len(labels))


# ---- Sentences of held-out text with a word left out, and the words that a model puts there: for people to judge.


GAP: Final = "____"
GAPS: Final = 3
EVERYWHERE: Final = 0.2
"""Share of the sentences from which a word is taken to say nothing: its place alone tells it, not the others."""

FEWEST_WORDS, MOST_WORDS = 6, 16
_WORD: Final = re.compile(r"\w(?:[\w\u0981-\u09fe\u200c\u200d])+")
"""A word of two letters or more; the vowel signs and joiners of Bengali are no letters for Python."""


@dataclass(frozen=True)
class WordGap:
    """A sentence as tokens, with the place of the one that is left out."""

    ids: tuple[int, ...]
    place: int
    sentence: str
    word: str


def find_gaps(documents: Iterable[str], split: Callable[[str], list[str]], tokenizer: Tokenizer) -> list[WordGap]:
    """A gap for each of the commonest words that are one token: in the first sentence that has it in its midst.

    Common words are what a model learns first, so a short training is seen there if anywhere. Those that stand nearly
    everywhere come last.
    """
    sentences = [each for document in documents for each in split(document) if _is_short(each)]
    places = defaultdict[str, list[tuple[str, re.Match[str]]]](list)
    for sentence in sentences:
        for match in _WORD.finditer(sentence):
            places[match.group()].append((sentence, match))
    found: list[WordGap] = []
    most = EVERYWHERE * len(sentences)
    for word in sorted(places, key=lambda word: (len(places[word]) > most, -len(places[word]))):
        used = {gap.sentence for gap in found}
        gap = next((gap for gap in _gaps_of(places[word], tokenizer) if gap.sentence not in used), None)
        if gap is not None:
            found.append(gap)
        if len(found) == GAPS:
            break
    return found


def _is_short(sentence: str) -> bool:
    return FEWEST_WORDS <= len(sentence.split()) <= MOST_WORDS


def _gaps_of(places: list[tuple[str, re.Match[str]]], tokenizer: Tokenizer) -> Iterator[WordGap]:
    for sentence, match in places:
        if not 0.25 < match.start() / len(sentence) < 0.75:
            continue
        (encoding,) = encoded_texts(tokenizer, [sentence], with_places=True)
        for place, (start, end) in enumerate(encoding.offsets):
            # Some tokenizers count the blank before a word as a part of it.
            if end == match.end() and sentence[start:end].strip() == match.group():
                shown = f"{sentence[: match.start()]}{GAP}{sentence[match.end() :]}"
                yield WordGap(tuple(encoding.ids), place, shown, match.group())
