"""What a run spec may say to the recipe `fine-tune`, in `[recipe.fine-tune]`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from minga.core.spec.fields import Printable, Real, Section, choice, described, real, whole
from minga.recipes.causal_lm.settings import CausalLmSettings


class LoraSettings(Section):
    """The adapters, as `peft` has them."""

    rank: int = whole(8, 1, 1024, "rank of the two matrices of an adapter")
    alpha: Real = real(16.0, 0.0, 1e6, "adapters count alpha / rank", above_low=True)
    rslora: bool = described(False, "adapters count alpha / sqrt(rank) instead", "true or false")
    targets: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=100)], ...], Field(strict=False, max_length=64)
    ] = described(
        ("all-linear",),
        "layers that get an adapter, by the ends of their names",
        'a list of at most 64 names, or ["all-linear"]',
    )


class ChatData(Section):
    """What the adapters learn from."""

    source: Literal["sentences", "files"] = choice(
        "files",
        "where conversations come from; sentences: questions and answers that minga makes by rules, for first tries",
        "sentences",
        "files",
    )
    files: Annotated[
        tuple[Annotated[Printable, Field(min_length=1, max_length=1024)], ...], Field(strict=False, max_length=256)
    ] = described(
        (),
        ".jsonl files or globs here, a conversation a line: messages, prompt and completion, or text; peers that join "
        "get what is in them, not their paths",
        "a list of at most 256 paths",
        private=True,
    )
    heldout_fraction: Real = real(0.05, 0.0, 0.5, "share of the conversations kept for evaluation")


class FineTuneSettings(CausalLmSettings):
    """Adapters of the model that `model.init_from` names, which is the base of the run and comes with it."""

    lora: LoraSettings = LoraSettings()
    chats: ChatData = ChatData()
