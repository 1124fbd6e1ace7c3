"""How well a causal model guesses held-out text: nats a token, perplexity, and bits a byte, which tokenizers share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig

from minga.core.errors import ConfigurationError
from minga.recipes.causal_lm.model import token_losses
from minga.recipes.data.hold_out import by_rank
from minga.recipes.evaluation_mode import evaluating
from minga.recipes.interface import Sample, SampleOptions
from minga.recipes.text.samples import DOCUMENTS_AT_A_TIME
from minga.recipes.text.tokenizer import encoded_texts, first_tokens, tokens_before
from minga.training.replica.draws import keeping_draws

EVALUATION_BATCH_SIZE = 16
MAX_EVALUATION_ROWS = 512


class HeldOutRows(NamedTuple):
    """Rows of held-out text, the same for everyone: `ids` int64 [rows, length + 1]; of each target, `counts` bool
    [rows, length] whether there is one, `is_text` whether it is no special token, `sizes` int64 its bytes in UTF-8.
    """

    ids: NDArray[np.int64]
    counts: NDArray[np.bool_]
    is_text: NDArray[np.bool_]
    sizes: NDArray[np.int64]


def heldout_rows(
    documents: Sequence[str], tokenizer: Tokenizer, end: int, length: int, *, apart: bool = False
) -> HeldOutRows:
    """The first 512 rows of `length` targets of the documents, one after the other by their ranks, the last row filled
    up; or where these are trained on `apart` from each other, rows of each behind what it is begun from, its last one
    filled up.
    """
    documents, size = by_rank(documents), length + 1
    texts: list[list[tuple[int, int]]] = []
    """Of each document its tokens with their bytes."""
    for start in range(0, len(documents), DOCUMENTS_AT_A_TIME):
        if sum(map(len, texts)) >= MAX_EVALUATION_ROWS * size:
            break
        some = documents[start : start + DOCUMENTS_AT_A_TIME]
        for document, encoding in zip(some, encoded_texts(tokenizer, some, with_places=True), strict=True):
            sizes = _bytes_of(document, (stop for _, stop in encoding.offsets))
            texts.append([*zip(encoding.ids, sizes, strict=True), (end, 0)])
    before = tokens_before(tokenizer, end, apart=apart)
    texts = [[*((token, 0) for token in before), *text] for text in texts]
    if not apart:
        texts = [list(chain.from_iterable(texts))]
    rows = [text[start : start + size] for text in texts for start in range(0, len(text), size)][:MAX_EVALUATION_ROWS]
    found = np.full((2, len(rows), size), [[[end]], [[0]]], dtype=np.int64)
    for place, row in enumerate(rows):
        found[:, place, : len(row)] = np.transpose(row)
    ids, bytes_of = found
    counts = np.arange(size) < np.array([len(row) for row in rows]).reshape(-1, 1)
    is_text = counts & ~np.isin(ids, [end, *before])
    return HeldOutRows(ids, counts[:, 1:], is_text[:, 1:], bytes_of[:, 1:])


def _bytes_of(document: str, ends: Iterable[int]) -> list[int]:
    """The bytes that each token stands for: from the end of the one before it, blanks between them included."""
    places = [0, *accumulate(len(character.encode()) for character in document)]
    sizes, before = [], 0
    for end in ends:
        here = max(before, places[end])
        sizes.append(here - before)
        before = here
    return sizes


def evaluate_model(model: nn.Module, rows: HeldOutRows) -> dict[str, float]:
    """`heldout_loss`: nats a token, all tokens alike; `heldout_perplexity`: its exponential; `heldout_bits_per_byte`:
    bits for each byte of the text, without what special tokens cost.
    """
    nats, text_nats = 0.0, 0.0
    with evaluating(model) as device:
        for start in range(0, len(rows.ids), EVALUATION_BATCH_SIZE):
            part = slice(start, start + EVALUATION_BATCH_SIZE)
            ids = torch.from_numpy(rows.ids[part]).to(device)
            losses = token_losses(model, ids[:, :-1], ids[:, 1:]).cpu().double().numpy()
            nats += float(losses[rows.counts[part]].sum())
            text_nats += float(losses[rows.is_text[part]].sum())
    loss = nats / max(1, int(rows.counts.sum()))
    size = int(rows.sizes[rows.is_text].sum())
    return {
        "heldout_loss": loss,
        "heldout_perplexity": math.exp(min(loss, 700.0)),
        "heldout_bits_per_byte": text_nats / (math.log(2.0) * max(1, size)),
    }


# ---- Continuations of texts: a model draws one token after the other.


def continuations(
    model: nn.Module, tokenizer: Tokenizer, end: int, prompts: Sequence[str], options: SampleOptions, longest: int
) -> list[Sample]:
    """What the model makes of each prompt, the prompt included; an empty one stands for the beginning of a text.

    Stops at the `end` of a text, and at `longest` tokens in all. Raises as `drawn_tokens`.
    """
    first = first_tokens(tokenizer, end)
    asked = [[*first, *encoding.ids] for encoding in encoded_texts(tokenizer, prompts)]
    drawn = zip(prompts, asked, drawn_tokens(model, asked, end, options, longest), strict=True)
    return [Sample(prompt, tokenizer.decode([*ids[len(first) :], *row])) for prompt, ids, rows in drawn for row in rows]


def drawn_tokens(
    model: nn.Module, asked: Sequence[Sequence[int]], end: int, options: SampleOptions, longest: int
) -> list[list[list[int]]]:
    """The tokens with which the model goes on from each of the prompts, which are tokens, too: up to the `end` of a
    text, and to `longest` in all. Leaves the model and torch's generators as they were.

    Raises `ConfigurationError` for a prompt that leaves no room.
    """
    found = []
    with evaluating(model) as device, keeping_draws(device):
        torch.manual_seed(options.seed)
        for number, ids in enumerate(asked, 1):
            if len(ids) >= longest:
                raise ConfigurationError(f"prompt {number} has {len(ids)} tokens; at most {longest - 1}")
            drawn = model.generate(  # type: ignore[operator]
                torch.tensor([ids], device=device),
                generation_config=_generation(options, end, longest - len(ids)),
                attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
            )
            found.append([row[len(ids) :].tolist() for row in drawn])
    return found


def _generation(options: SampleOptions, end: int, room: int) -> GenerationConfig:
    """How tokens are drawn, at most `room` of them."""
    drawn = {"temperature": options.temperature, "top_k": options.top_k, "top_p": options.top_p}
    is_greedy = options.temperature == 0.0
    return GenerationConfig(
        max_new_tokens=min(options.length, room),
        do_sample=not is_greedy,
        num_return_sequences=1 if is_greedy else options.count,
        eos_token_id=end,
        pad_token_id=end,
        **({} if is_greedy else drawn),
    )
