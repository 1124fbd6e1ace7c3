"""The base of a run: a folder, a commit of the Hugging Face hub, or a small one that minga trains.

Its files of weights travel with the run as they are. So the digests in the run spec say which base it is, and whoever
has the files, from the hub or elsewhere, need not fetch them from peers.
"""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import save

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import BASE_FOLDER, FileEntry
from minga.recipes.causal_lm.recipe import CausalLmRecipe
from minga.recipes.data.files import keep
from minga.recipes.fine_tune.settings import HUB, TINY
from minga.recipes.init_from import INDEX, SINGLE, downloaded, safetensors_in
from minga.recipes.initial import new_model
from minga.recipes.interface import RecipeContext, StreamPosition
from minga.recipes.text.tokenizer import TOKENIZER_FILE

KEY: Final = "recipe.fine-tune.base"
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
_WANTED: Final = (SINGLE, INDEX, "model-*.safetensors", "config.json", "tokenizer*.json", "chat_template.jinja")

TINY_STEPS, TINY_BATCH, TINY_LENGTH, TINY_VOCABULARY = 160, 8, 128, 512

logger = logging.getLogger("minga.recipes")


def folder_of(base: str) -> Path:
    """Where the files of a base lie on this machine; those of the hub are downloaded into its cache.

    Raises `ConfigurationError` if they cannot be had, or are those of adapters.
    """
    if base.startswith(HUB):
        return _of_hub(base)
    folder = Path(base).expanduser()
    if not folder.is_dir():
        searched = "" if folder.is_absolute() else f" in {Path.cwd()}, where this command was typed"
        raise ConfigurationError(
            f"{KEY} = {base!r}: no such folder{searched}; a model of the hub is named {HUB}OWNER/NAME@REVISION"
        )
    if (folder / "adapter_config.json").is_file():
        raise ConfigurationError(f"{KEY} = {base!r}: it holds adapters; name what `minga export --merge` writes")
    return folder


@cache
def _of_hub(base: str) -> Path:
    """Asked once, so that all that is read is of one commit."""
    return downloaded(base.removeprefix(HUB), KEY, _WANTED)


def pinned(base: str, folder: Path) -> str:
    """What the run publishes of its base: the commit of the hub, or nothing of a folder of this machine."""
    if not base.startswith(HUB):
        return ""
    if not _COMMIT.fullmatch(folder.name):
        raise ConfigurationError(f"{KEY} = {base!r}: the hub does not say which commit that is")
    return f"{base.partition('@')[0]}@{folder.name}"


def weights_in(folder: Path) -> dict[str, Path]:
    """The files of weights of a base by the names that they have in the run. Raises `ConfigurationError`."""
    return {f"{BASE_FOLDER}{path.name}": path for path in safetensors_in(folder, f"{KEY} = {str(folder)!r}")}


def downloaded_weights(base: str, files: Mapping[str, FileEntry]) -> Path | None:
    """The folder into which the hub's cache takes the weights of a published base; None for one of no hub, or if the
    hub does not give them, which is told: peers have them as well.

    Nothing is downloaded that is larger than the run spec says.
    """
    if not base.startswith(HUB):
        return None
    name, _, commit = base.removeprefix(HUB).partition("@")
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    folder = None
    try:
        for file, entry in files.items():
            if file.startswith(BASE_FOLDER):
                own = file.removeprefix(BASE_FOLDER)
                kept = try_to_load_from_cache(name, own, revision=commit)
                if not isinstance(kept, str):
                    size = get_hf_file_metadata(hf_hub_url(name, own, revision=commit)).size
                    if size != entry.size_bytes:
                        raise ValueError(f"{own} has {size} bytes there, and {entry.size_bytes} in this run")
                    kept = hf_hub_download(name, own, revision=commit)
                folder = Path(kept).parent
    except Exception as error:  # the hub's library lets errors of its HTTP client through
        why = str(error).strip().split("\n")[0][:200]
        logger.warning("the hub does not give the base %s, so it comes from peers: %s", name, why)
        return None
    return folder


# ---- A base without any hub: a small model that has learned plain sentences, and no answers.


@cache
def tiny_recipe() -> CausalLmRecipe:
    """What trains it."""
    settings = CausalLmRecipe.Settings.model_validate(
        {
            "size": "tiny",
            "data": {"source": "sentences"},
            "vocabulary_size": TINY_VOCABULARY,
            "max_length": TINY_LENGTH,
        }
    )
    return CausalLmRecipe(settings, RecipeContext("causal-lm", TINY, "", seed=0))


def train_tiny() -> dict[str, bytes]:
    """The files of the small base, with its tokenizer. Takes about half a minute."""
    recipe = tiny_recipe()
    prepared = recipe.prepare()
    model = new_model(recipe)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.9, 0.95))
    with tempfile.TemporaryDirectory() as folder:
        files = {name: keep(Path(folder) / name, content) for name, content in prepared.items()}
        for batch in islice(recipe.batches(files, StreamPosition("00" * 32), TINY_BATCH), TINY_STEPS):
            torch.autograd.backward(recipe.total_loss(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}  # a tied one once
    return {TOKENIZER_FILE: prepared[TOKENIZER_FILE], f"{BASE_FOLDER}{SINGLE}": save(weights, {"format": "pt"})}
