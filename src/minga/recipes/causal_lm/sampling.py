"""Continuations of texts: a model draws one token after the other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers import GenerationConfig

from minga.core.errors import ConfigurationError
from minga.recipes.interface import Sample, SampleOptions
from minga.recipes.text.foreign_tokenizer import encoded_texts


def continuations(
    model: nn.Module, tokenizer: Tokenizer, end: int, prompts: Sequence[str], options: SampleOptions, longest: int
) -> list[Sample]:
    """What the model makes of each prompt, the prompt included; an empty one stands for the beginning of a text.

    Stops at the `end` of a text, and at `longest` tokens in all. Leaves the model and torch's generators as they were.
    """
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    samples: list[Sample] = []
    try:
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(options.seed)
            for prompt in prompts:
                ids = [end, *encoded_texts(tokenizer, [prompt])[0].ids]
                if len(ids) >= longest:
                    raise ConfigurationError(
                        f"the prompt {prompt[:40]!r} … has {len(ids)} tokens; at most {longest - 1}"
                    )
                drawn = model.generate(  # type: ignore[operator]
                    torch.tensor([ids], device=device),
                    generation_config=generation(options, end, longest - len(ids)),
                    attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
                )
                samples += [Sample(prompt, tokenizer.decode(row[1:].tolist())) for row in drawn]
    finally:
        model.train(was_training)
    return samples


def generation(options: SampleOptions, end: int, room: int) -> GenerationConfig:
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
