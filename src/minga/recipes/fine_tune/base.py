"""The base of a run: a folder, a commit of the Hugging Face hub, or a small one that minga trains; and how a device
holds it in 8 or 4 bits.

Its files of weights travel with the run as they are. So the digests in the run spec say which base it is, and whoever
has the files, from the hub or elsewhere, need not fetch them from peers.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.files import store
from minga.core.spec.sections import BASE_FOLDER, FileEntry
from minga.recipes.causal_lm.recipe import CausalLmRecipe
from minga.recipes.data_source import COMMIT
from minga.recipes.fine_tune.settings import HUB, TINY
from minga.recipes.init_from import SINGLE, WEIGHTS, safetensors_in
from minga.recipes.initial import new_model
from minga.recipes.interface import RecipeContext, StreamPosition
from minga.recipes.language.export import without_progress_bars
from minga.recipes.model_files import downloaded
from minga.recipes.text.tokenizer import TOKENIZER_FILE

KEY: Final = "recipe.fine-tune.base"
_TRIED: Final = 64
"""Rows and columns of a layer that is quantised to see whether that goes."""
_WANTED: Final = (*WEIGHTS, "config.json", "tokenizer*.json", "chat_template.jinja")

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
    if not COMMIT.fullmatch(folder.name):
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


# ---- A base in 8 or 4 bits: transformers quantises the linear layers while it loads them onto a device, one after the
# other, and leaves the rest in bfloat16.


def quantisation(bits: int, device: torch.device) -> Any:
    """How transformers is to quantise linear layers: by the first library that does it on this device, tried out.

    Raises `ConfigurationError`, with what to install or to choose, if none does.
    """
    found = []
    for library, configured in (("bitsandbytes", _by_bitsandbytes), ("torchao", _by_torchao)):
        try:
            import accelerate  # noqa: F401  by which transformers loads onto a device

            return configured(bits, device)
        except ImportError as error:
            found.append(f"{error.name or library} is not installed")
        except Exception as error:  # libraries have errors of their own for what a device lacks
            found.append(f"{library}: {(str(error).strip() or type(error).__name__).splitlines()[0][:160]}")
    raise ConfigurationError(
        f"the base cannot be held in {bits} bits on {device} ({'; '.join(dict.fromkeys(found))}): pip install "
        "bitsandbytes accelerate, or choose --base-bits 16"
    )


def _by_bitsandbytes(bits: int, device: torch.device) -> Any:
    from bitsandbytes.nn import Linear4bit, Linear8bitLt
    from transformers import BitsAndBytesConfig

    if bits == 8:
        _try_out(Linear8bitLt(_TRIED, _TRIED, bias=False, has_fp16_weights=False), device)
        return BitsAndBytesConfig(load_in_8bit=True)
    _try_out(Linear4bit(_TRIED, _TRIED, bias=False, compute_dtype=torch.bfloat16, quant_type="nf4"), device)
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.bfloat16,
    )


def _by_torchao(bits: int, device: torch.device) -> Any:
    from torchao.quantization import Int8WeightOnlyConfig, quantize_
    from transformers import TorchAoConfig

    if bits != 8:
        raise ValueError("adapters are trained on 8 bits only")  # by peft
    layer = nn.Linear(_TRIED, _TRIED, bias=False, dtype=torch.bfloat16, device=device)
    quantize_(layer, Int8WeightOnlyConfig())
    _try_out(layer, device)
    return TorchAoConfig(Int8WeightOnlyConfig())


def _try_out(layer: nn.Module, device: torch.device) -> None:
    inputs = torch.ones(1, _TRIED, dtype=torch.bfloat16, device=device, requires_grad=True)
    layer.to(device)(inputs).sum().backward()


def quantised(shape: Any, given: Mapping[str, torch.Tensor], device: torch.device, configuration: Any) -> nn.Module:
    """The base on the device, quantised as `configuration` of `quantisation` says: a model of the class and settings of
    `shape`, with the weights that are `given` by their names in that one, which may have adapters and no memory.

    Raises `ConfigurationError` if transformers does not load it.
    """
    weights = {name.replace(".base_layer.", "."): each for name, each in given.items()}
    for name, each in weights.items():
        if not each.isfinite().all():
            raise ConfigurationError(f"the base: {name} holds numbers that are not finite")
    try:
        with without_progress_bars():
            model, told = type(shape).from_pretrained(
                None,
                config=shape.config,
                state_dict=weights,
                quantization_config=configuration,
                device_map={"": device},
                dtype=torch.bfloat16,
                output_loading_info=True,
            )
    except Exception as error:  # each library has errors of its own
        why = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
        raise ConfigurationError(
            f"transformers does not load this base quantised: {why}; try --base-bits 16"
        ) from error
    if lost := sorted({*told["missing_keys"], *told["unexpected_keys"], *map(str, told["mismatched_keys"])}):
        raise ConfigurationError(f"transformers does not load this base quantised: it takes no {lost[0]}")
    trains: nn.Module = model.train()
    return trains


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
        files = {name: store(Path(folder) / name, content) for name, content in prepared.items()}
        for batch in islice(recipe.batches(files, StreamPosition("00" * 32), TINY_BATCH), TINY_STEPS):
            torch.autograd.backward(recipe.total_loss(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    weights = {name: each.detach().clone() for name, each in model.named_parameters()}  # a tied one once
    return {TOKENIZER_FILE: prepared[TOKENIZER_FILE], f"{BASE_FOLDER}{SINGLE}": save(weights, {"format": "pt"})}
