"""What a plan has to know of a model: how many numbers travel, and how much work a sample is.

A model is named in one of four ways: a size of a recipe ("RECIPE-large"), another well-known model, a number
of parameters ("18M"), or a file: a run spec (.toml) or .safetensors, of which only the header is read.

Operations of a sample, forward and backward, of a transformer with L layers of width h over n tokens:

    6 n (P_used + masked head) + 12 L h n²

P_used are the parameters that each token meets: 12 L h² of the layers. The second term is attention. Nothing is said
of what a bare number of parameters does with them: 6 P for each token, and no attention, is assumed. What a recipe's
model takes the recipe says itself (`Recipe.facts`).

Activations that are kept for the backward pass are counted as 34 h bytes for each token and layer in half precision
(Korthikanti et al. 2022, arXiv:2205.05198, without dropout masks and with attention that keeps no scores), twice that
in float32.

Adapters on a frozen base (`Decoder.tuned`), by what their papers and libraries say:

    adapters     r (rows + columns) for each linear layer of the blocks (LoRA, Hu et al. 2021, arXiv:2106.09685;
                 "all-linear", as QLoRA has it)
    base         2 bytes for each parameter of embeddings, output layer and norms, and for each of the linear layers
                 16 bits: 2, 8 bits: 1 (LLM.int8(), Dettmers et al. 2022, arXiv:2208.07339; the scale of each row is
                 left out), 4 bits: 0.5 + 0.127 / 8 (QLoRA with double quantisation, Dettmers et al. 2023,
                 arXiv:2305.14314, section 3)
    operations   6 n P_used + 16 L h n²: forward, forward again, and backward without gradients of weights, a third
                 each, since activations are computed twice
    activations  n (2 h L + 41 h + 10 vocabulary) bytes: the inputs of blocks, the inside of one (as above, with a gated
                 inner layer of 3.5 h), and logits in 16 bits, in float32, and their gradient
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from minga.core.errors import ConfigurationError
from minga.recipes.fine_tune.settings import BASE_BYTES

if TYPE_CHECKING:
    from minga.core.spec.run_spec import RunSpec


MAX_PARAMETERS: Final = 10**12
MAX_TENSORS: Final = 1_000_000
USUAL_TOKENS: Final = 512

OptimizerName = Literal["lamb", "adamw", "muon", "sgd", "lars", "larc"]
WITH_SCRATCH: Final[tuple[OptimizerName, ...]] = ("lamb", "muon", "lars", "larc")
"""Optimizers that make an update before they know its size, and so need memory of the size of the parameters."""

PlannedBits = Literal[16, 8, 4]
"""In which a plan holds a base: who has little memory does not take 32."""
USUAL_RANK: Final = 16

_NUMBER = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmbtKMBT]?)", re.ASCII)


@dataclass(frozen=True)
class FrozenBase:
    """What adapters are trained on, and no step changes: parameters of linear layers, in so many `bits`, those of the
    largest of them, and all others, of 16 bits.
    """

    linear: int
    largest: int
    others: int
    bits: PlannedBits

    @property
    def parameters(self) -> int:
        """Of all of it."""
        return self.linear + self.others

    @property
    def size_bytes(self) -> int:
        """What it takes on a device."""
        return round(BASE_BYTES[self.bits] * self.linear) + 2 * self.others

    @property
    def unpacked_bytes(self) -> int:
        """What the largest layer takes while it computes, if it has fewer bits than that."""
        return 2 * self.largest if self.bits < 16 else 0


@dataclass(frozen=True)
class ModelFacts:
    """A model as plans see it. `tensors` are the numbers of elements of what is averaged; `base` is what is frozen, or
    `frozen_bytes` where no more is known of it.

    `operations` are those of one sample; `activation_bytes` those that one sample takes in float32, None if unknown.
    `origin` says where all this is from. `measured_by` are the options with which `minga plan --measure` measures it,
    None if that cannot.
    """

    name: str
    tensors: tuple[int, ...]
    operations: float
    tokens: int
    activation_bytes: float | None
    origin: str
    measured_by: str | None = None
    base: FrozenBase | None = None
    frozen_bytes: int = 0

    @property
    def parameters(self) -> int:
        """Numbers that are trained and averaged."""
        return sum(self.tensors)


@dataclass(frozen=True)
class Transformer:
    """A transformer by its shape: parameters in all, and those that each token meets in its layers and its head."""

    parameters: int
    layers: int
    hidden: int
    tokens: int
    head: float

    def operations(self, tokens: int) -> float:
        """Operations of one sample of so many tokens, forward and backward."""
        used = 12.0 * self.layers * self.hidden**2 + self.head
        return 6.0 * tokens * used + 12.0 * self.layers * self.hidden * tokens**2

    def activation_bytes(self, tokens: int) -> float:
        """Bytes that are kept of one sample, in float32."""
        return 2.0 * 34.0 * self.hidden * self.layers * tokens


@dataclass(frozen=True)
class Decoder:
    """A decoder with gated inner layers and grouped keys by its shape: `keys` is the width of keys and of values."""

    layers: int
    hidden: int
    keys: int
    inner: int
    vocabulary: int
    is_tied: bool = False

    @property
    def matrices(self) -> tuple[tuple[int, int], ...]:
        """The rows and columns of the linear layers of a block: query, key, value, output, gate, up and down."""
        attention = ((self.hidden, self.hidden), (self.keys, self.hidden)) * 2
        return (*attention, *(((self.inner, self.hidden),) * 3))

    @property
    def linear(self) -> int:
        """Parameters of the linear layers of all blocks."""
        return self.layers * sum(rows * columns for rows, columns in self.matrices)

    @property
    def others(self) -> int:
        """Those of embeddings, output layer and norms."""
        tables = 1 if self.is_tied else 2
        return self.vocabulary * self.hidden * tables + (2 * self.layers + 1) * self.hidden

    def whole(self, name: str, tokens: int) -> ModelFacts:
        """The model, all of it trained."""
        kept = 2.0 * 41.0 * self.hidden * self.layers * tokens
        operations = 6.0 * tokens * self._used + 12.0 * self.layers * self.hidden * tokens**2
        origin = f"its published shape, {tokens} tokens"
        return ModelFacts(name, (self.linear + self.others,), operations, tokens, kept, origin)

    def tuned(self, name: str, tokens: int, rank: int, bits: PlannedBits) -> ModelFacts:
        """Adapters of this rank for all linear layers of the blocks, on the model with so many bits."""
        adapters = tuple(rank * side for sides in self.matrices for side in sides) * self.layers
        kept = tokens * (2.0 * self.hidden * self.layers + 41.0 * self.hidden + 10.0 * self.vocabulary)
        operations = 6.0 * tokens * self._used + 16.0 * self.layers * self.hidden * tokens**2
        base = FrozenBase(self.linear, max(rows * columns for rows, columns in self.matrices), self.others, bits)
        origin = f"adapters of rank {rank} on {name} of {base.parameters:,} parameters in {bits} bits, {tokens} tokens"
        return ModelFacts(name, adapters, operations, tokens, 2.0 * kept, origin, base=base)

    @property
    def _used(self) -> int:
        """Parameters that each token meets."""
        return self.linear + self.vocabulary * self.hidden


DECODERS: Final = {
    # Layers, width, width of keys, inner width, vocabulary, whether the output layer is the embedding: as published.
    "llama-1b": Decoder(16, 2048, 512, 8192, 128_256, is_tied=True),
    "llama-3b": Decoder(28, 3072, 1024, 8192, 128_256, is_tied=True),
    "llama-8b": Decoder(32, 4096, 1024, 14_336, 128_256),
    "llama-70b": Decoder(80, 8192, 1024, 28_672, 128_256),
    "mistral-7b": Decoder(32, 4096, 1024, 14_336, 32_000),
}

_MLM = 0.15
KNOWN: Final = {
    # Parameters, layers, width and positions as published with each model; the head's products with the vocabulary.
    "bert-base": Transformer(109_482_240, 12, 768, 512, _MLM * 30_522 * 768),
    "bert-large": Transformer(335_141_888, 24, 1024, 512, _MLM * 30_522 * 1024),
    "gpt2": Transformer(124_439_808, 12, 768, 1024, 50_257 * 768),
    "gpt2-medium": Transformer(354_823_168, 24, 1024, 1024, 50_257 * 1024),
    "gpt2-large": Transformer(774_030_080, 36, 1280, 1024, 50_257 * 1280),
    "gpt2-xl": Transformer(1_557_611_200, 48, 1600, 1024, 50_257 * 1600),
}
RESNET_50_PARAMETERS: Final = 25_557_032
RESNET_50_OPERATIONS: Final = 3 * 2 * 4.1e9
"""Three times the forward pass, of 4.1 billion multiplications with additions for an image of 224 x 224."""


def model_facts(text: str, tokens: int | None = None) -> ModelFacts:
    """The model that `text` names; `tokens` of a sample, None for as many as is usual for it.

    Raises `ConfigurationError` if there is no such model or file, with what is allowed.
    """
    name = text
    if name in KNOWN:
        return _known(name, KNOWN[name], tokens)
    if name in DECODERS:
        return DECODERS[name].whole(name, tokens or USUAL_TOKENS)
    if name == "resnet-50":
        if tokens is not None:
            raise ConfigurationError("--tokens: samples of resnet-50 are images, which have none; leave it out")
        origin = "as published, with images of 224 x 224"
        return ModelFacts(name, (RESNET_50_PARAMETERS,), RESNET_50_OPERATIONS, 1, None, origin)
    if (match := _NUMBER.fullmatch(name)) is not None:
        return _by_number(name, match, tokens)
    if Path(name).suffix.lower() == ".safetensors":
        return _in_safetensors(Path(name), tokens)
    if (spec := named_spec(name, tokens)) is not None:
        found = facts_of_recipe(spec, name)
        return found if tokens is None else replace(found, measured_by=f"{found.measured_by} --tokens {tokens}")
    names = ", ".join([*_recipe_names(), *KNOWN, *DECODERS, "resnet-50"])
    raise ConfigurationError(
        f"--model {name[:60]!r}: no model of this name; there are: {names}; or a number of parameters such as 18M, "
        "a run spec (.toml) or a .safetensors file"
    )


def tuned_facts(text: str, tokens: int | None, rank: int, bits: PlannedBits) -> ModelFacts:
    """Adapters on the model that `text` names. Raises `ConfigurationError` if the shape of its layers is not known."""
    if text not in DECODERS:
        raise ConfigurationError(
            f"--fine-tune: the layers of {text[:60]!r}, to which adapters would be added, are not known; there are: "
            f"{', '.join(DECODERS)}"
        )
    return DECODERS[text].tuned(text, tokens or USUAL_TOKENS, rank, bits)


def named_spec(text: str, tokens: int | None = None) -> RunSpec | None:
    """As `recipe_spec`; None where `text` names neither a run spec nor a size of a recipe."""
    if text.lower().endswith(".toml") or _recipe_in(text) is not None:
        return recipe_spec(text, tokens)
    return None


def recipe_spec(text: str, tokens: int | None = None) -> RunSpec:
    """The run spec in the file `text`, or one for a size of a recipe, such as "RECIPE-large", with so many tokens; with
    the recipe's settings as they are published.

    Raises `ConfigurationError` unless a recipe says what the model is.
    """
    from minga.core.spec.run_spec import RunSpec
    from minga.recipes.registry import CUSTOM, RECIPES, spelled_out

    if text.lower().endswith(".toml"):
        spec = RunSpec.from_file(Path(text))
        if spec.model.recipe == CUSTOM:
            raise ConfigurationError(
                f"{text}: model.recipe = {CUSTOM!r} does not say how large the model is; give --model a "
                "number of parameters or a .safetensors file of it"
            )
        if tokens is not None:
            raise ConfigurationError(f"--tokens: {text} says how long samples are")
        return spelled_out(spec, text)
    name = _recipe_in(text)
    size = text.removeprefix(f"{name}-")
    if name is None or size not in RECIPES.get(name).sizes:
        raise ConfigurationError(
            f"--model {text[:60]!r}: the recipe has no such model; there are: {', '.join(_recipe_names())}; "
            "or a run spec"
        )
    settings = RECIPES.get(name).size_settings(size, tokens)
    spec = RunSpec.from_mapping({"name": "plan", "model": {"recipe": name}, "recipe": {name: settings}}, "--tokens")
    return spelled_out(spec, text)


def facts_of_recipe(spec: RunSpec, source: str) -> ModelFacts:
    """The model that the recipe of `spec` builds, as the recipe says; `source` is where the spec is from."""
    from minga.recipes.registry import load_recipe

    found = load_recipe(spec, source).facts()
    return ModelFacts(
        found.name if _recipe_in(source) is None else source,
        found.tensors,
        found.operations,
        found.tokens,
        found.activation_bytes,
        found.origin,
        measured_by=f"--model {shlex.quote(source)}",
        frozen_bytes=found.frozen_bytes,
    )


def _recipe_in(text: str) -> str | None:
    """The recipe of which `text` seems to name a size."""
    from minga.recipes.registry import RECIPES

    return next((name for name in RECIPES.names() if text.startswith(f"{name}-")), None)


def _recipe_names() -> list[str]:
    from minga.recipes.registry import RECIPES

    return [f"{name}-{size}" for name in RECIPES.names() for size in RECIPES.get(name).sizes]


def _known(name: str, shape: Transformer, tokens: int | None) -> ModelFacts:
    tokens = tokens or shape.tokens
    kept = shape.activation_bytes(tokens)
    origin = f"its published shape, {tokens} tokens"
    return ModelFacts(name, (shape.parameters,), shape.operations(tokens), tokens, kept, origin)


def _of_parameters(name: str, tensors: tuple[int, ...], tokens: int | None, origin: str) -> ModelFacts:
    tokens = tokens or USUAL_TOKENS
    operations = 6.0 * sum(tensors) * tokens
    return ModelFacts(name, tensors, operations, tokens, None, f"{origin}, each used once by each of {tokens} tokens")


def _by_number(name: str, match: re.Match[str], tokens: int | None) -> ModelFacts:
    scale = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}[match[2].lower()]
    number = round(float(match[1]) * scale)
    if not 1 <= number <= MAX_PARAMETERS:
        raise ConfigurationError(f"--model {name!r}: a model has from 1 to {MAX_PARAMETERS} parameters")
    return _of_parameters(name, (number,), tokens, "a number of parameters")


def _in_safetensors(path: Path, tokens: int | None) -> ModelFacts:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            sizes = []
            for key in file.keys():  # noqa: SIM118
                elements = 1
                for length in file.get_slice(key).get_shape():
                    elements *= length
                sizes.append(elements)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or str(error).splitlines()[0][:160]
        raise ConfigurationError(f"--model {path}: cannot be read as safetensors: {why}") from error
    if not 1 <= sum(sizes) <= MAX_PARAMETERS or len(sizes) > MAX_TENSORS:
        raise ConfigurationError(f"--model {path}: {sum(sizes)} numbers in {len(sizes)} tensors; is it a model?")
    return _of_parameters(path.stem, tuple(sizes), tokens, f"the shapes in {path.name}")
