"""Which of a tokenizer's tokens have a role: padding, the ends of a text, what is masked.

Tokenizers that a run trains have the tokens of `MASKED_TOKENS` or `CAUSAL_TOKENS`. Of one that comes from elsewhere
the roles are found by the names that are usual for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from minga.core.errors import ConfigurationError

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
    """The special tokens of a tokenizer, by the names that are usual for their roles."""
    names: dict[str, str] = {}
    for role, usual in _USUAL_NAMES.items():
        found = next((name for name in usual if tokenizer.token_to_id(name) is not None), None)
        if found is not None:
            names[role] = found
    vocabulary: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    ids = {role: vocabulary[name] for role, name in names.items()}
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    everything = np.fromiter(vocabulary.values(), dtype=np.int64)
    ordinary = np.setdiff1d(everything, np.array(sorted(special | set(ids.values())), dtype=np.int64))
    return SpecialTokens(ids, names, ordinary)


def tokens_needed(tokenizer: Tokenizer) -> int:
    """How many entries a model's vocabulary must have for this tokenizer: its largest id, plus one."""
    return 1 + max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
