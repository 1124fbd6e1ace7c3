"""Scores of masked tokens: the last layers run on the masked places only, about a seventh of all.

The vocabulary layer is by far the largest product of tokens and weights. Which modules it consists of, transformers
does not say; it is known here for some architectures, the values are those that `forward` gives at these places, and
other architectures run as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from torch import Tensor

from minga.recipes.interface import Batch

Head = Callable[[Any, Tensor], Tensor]
"""Scores of the vocabulary for hidden states [m, width] of a model."""

_INPUTS: Final = ("input_ids", "attention_mask", "token_type_ids")


def _lm_head(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.lm_head(hidden)
    return scores


def _predictions_of_cls(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.cls.predictions(hidden)
    return scores


def _decoder_after_head(model: Any, hidden: Tensor) -> Tensor:
    scores: Tensor = model.decoder(model.head(hidden))
    return scores


HEADS: Final[Mapping[str, Head]] = {
    "bert": _predictions_of_cls,
    "roberta": _lm_head,
    "xlm-roberta": _lm_head,
    "camembert": _lm_head,
    "modernbert": _decoder_after_head,
}


def bare_outputs(model: Any, batch: Batch) -> Any:
    """What the layers below the heads give."""
    return model.base_model(**{name: batch[name] for name in _INPUTS if name in batch})


def at_places(states: Tensor, batch: Batch) -> Tensor:
    """The rows [m, …] of [n, length, …] at the masked places."""
    return states.flatten(0, 1).index_select(0, batch["masked_positions"])


def masked_scores(model: Any, batch: Batch) -> Tensor:
    """Scores of the vocabulary at the m masked places, [m, vocabulary]."""
    head = HEADS.get(model.config.model_type)
    if head is None:
        return at_places(model(**{name: batch[name] for name in _INPUTS if name in batch}).logits, batch)
    return head(model, at_places(bare_outputs(model, batch).last_hidden_state, batch))


def masked_and_order_scores(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """The same of a model that was made for pretraining, and its scores of the order of segments, [n, 2]."""
    outputs = bare_outputs(model, batch)
    hidden = at_places(outputs.last_hidden_state, batch)
    return model.cls.predictions(hidden), model.cls.seq_relationship(outputs.pooler_output)
