"""Writing a model for the rest of the world: a directory that `transformers` loads by its Auto classes."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokenizers import Tokenizer
from transformers import AlbertForPreTraining, PreTrainedTokenizerFast
from transformers.utils import logging

from minga.core.errors import ConfigurationError, StorageError
from minga.recipes.text.tokenizer import CLS, MASK, PAD, SEP, SPECIAL_TOKENS, UNKNOWN


def export_model(
    model: AlbertForPreTraining, tokenizer: Tokenizer, directory: Path, *, name: str, run_id: str, step: int
) -> None:
    """Write configuration, weights (safetensors), tokenizer and a README to a new or empty `directory`.

    All is written beside it first and takes its name at the end. Raises `StorageError`, or `ConfigurationError` if the
    directory has content.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigurationError(f"{directory}: already there and not empty; choose another directory")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        unfinished = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    except OSError as error:
        raise StorageError(f"{directory}: cannot be created: {error.strerror}") from error
    try:
        with _without_progress_bars():
            model.save_pretrained(unfinished)
        wrap_tokenizer(tokenizer, model.config.max_position_embeddings).save_pretrained(unfinished)
        (unfinished / "README.md").write_text(_model_card(model, name, run_id, step), encoding="utf-8")
        if directory.exists():
            directory.rmdir()
        unfinished.chmod(0o755)
        unfinished.rename(directory)
    except OSError as error:
        raise StorageError(f"{directory}: cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def wrap_tokenizer(tokenizer: Tokenizer, max_length: int) -> PreTrainedTokenizerFast:
    """The tokenizer as `transformers` uses it, with its special tokens named."""
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        pad_token=SPECIAL_TOKENS[PAD],
        unk_token=SPECIAL_TOKENS[UNKNOWN],
        cls_token=SPECIAL_TOKENS[CLS],
        sep_token=SPECIAL_TOKENS[SEP],
        mask_token=SPECIAL_TOKENS[MASK],
    )


@contextmanager
def _without_progress_bars() -> Iterator[None]:
    """Keep the library from drawing over the displays of minga."""
    enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if enabled:
            logging.enable_progress_bar()


def _model_card(model: AlbertForPreTraining, name: str, run_id: str, step: int) -> str:
    config = model.config
    parameters = sum(parameter.numel() for parameter in model.parameters())
    title = name.replace("\\", "\\\\").replace("`", "\\`")
    return f"""---
library_name: transformers
tags: [albert, minga]
---

# {title}

An ALBERT model of {parameters:,} parameters, trained with minga by peers that pooled their machines: masked language
model and sentence order. These are the parameters after {step} global steps of run `{run_id}`.

| | |
| --- | --- |
| hidden size | {config.hidden_size} |
| layers (sharing one set of weights) | {config.num_hidden_layers} |
| attention heads | {config.num_attention_heads} |
| vocabulary | {config.vocab_size} |
| longest sequence | {config.max_position_embeddings} tokens |

```python
from transformers import AutoModel, AutoTokenizer

model = AutoModel.from_pretrained("PATH OF THIS DIRECTORY")
tokenizer = AutoTokenizer.from_pretrained("PATH OF THIS DIRECTORY")
```
"""
