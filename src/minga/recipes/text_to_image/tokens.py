"""Image tokens: a picture as a grid of whole numbers, which a decoder can predict like words.

    pictures ─▶ encoder ─▶ scalar quantisation ─▶ codes ─▶ decoder ─▶ pictures

The tokenizer is a small convolutional auto-encoder, which the organiser trains once on the pictures of the run. A
picture of p pixels a side becomes p/4 by p/4 codes, or p/8 by p/8 with a third halving.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional

from minga.core.errors import ConfigurationError, StorageError, reason_of
from minga.recipes.initial import EqualDraws

# ---- Finite scalar quantisation: a few channels, each rounded to a few levels, together name a code.
#
# With L_j levels in channel j (Mentzer et al. 2023, arXiv:2309.15505):
#
#     z = tanh(h + shift) · half - offset,   half = (L - 1)(1 - 10⁻³)/2, offset = ½ for even L, else 0,
#     shift = atanh(offset / half);   id = Σ_j (round(z_j) + ⌊L_j/2⌋) · Π_{i<j} L_i
#
# Gradients pass through the rounding as if it were not there. There is no codebook to collapse.


_MARGIN: Final = 1e-3


class ScalarQuantiser:
    """Quantises the last dimension, of as many channels as there are `levels`, each at least 3."""

    def __init__(self, levels: Sequence[int]) -> None:
        self.levels = tuple(levels)
        self.codes = math.prod(self.levels)
        half = [(level - 1) * (1 - _MARGIN) / 2 for level in self.levels]
        offset = [0.5 if level % 2 == 0 else 0.0 for level in self.levels]
        shift = [math.atanh(o / h) for o, h in zip(offset, half, strict=True)]
        places = [math.prod(self.levels[:channel]) for channel in range(len(self.levels))]
        # On the CPU even where a model is built on `meta`: nothing would fill them there.
        self._half, self._offset, self._shift = (torch.tensor(each, device="cpu") for each in (half, offset, shift))
        self._lowest = torch.tensor([level // 2 for level in self.levels], device="cpu")
        self._places = torch.tensor(places, device="cpu")

    def quantise(self, h: Tensor) -> Tensor:
        """`h` float [..., channels] to rounded values within the levels; the gradient passes through the rounding."""
        z = torch.tanh(h + self._shift) * self._half - self._offset
        return z + (z.round() - z).detach()

    def ids(self, quantised: Tensor) -> Tensor:
        """The code of each vector of rounded values: int64 [...] from 0 to below `codes`."""
        return ((quantised.round().long() + self._lowest) * self._places).sum(dim=-1)

    def values(self, ids: Tensor) -> Tensor:
        """The rounded values of codes int64 [...]: float32 [..., channels]."""
        digits = torch.div(ids[..., None], self._places, rounding_mode="floor") % torch.tensor(self.levels)
        return (digits - self._lowest).float()

    def scaled(self, quantised: Tensor) -> Tensor:
        """Rounded values as a decoder takes them, within -1 to 1."""
        return quantised / self._lowest.clamp(min=1)


HALVINGS: Final = (2, 3, 4)
"""How often the sides of a picture can be halved."""

_NARROW, _WIDE = 48, 96
_AT_A_TIME: Final = 256

Pictures = npt.NDArray[np.uint8]
"""Pictures, uint8 [n, height, width, 3]."""

Codes = npt.NDArray[np.int64]
"""Image tokens, int64 [n, S²], row by row."""


class ResidualBlock(nn.Module):
    """x + conv1(relu(conv3(relu(x))))."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.near = nn.Conv2d(channels, channels, 3, padding=1)
        self.mix = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """[n, channels, height, width] to the same shape."""
        result: Tensor = x + self.mix(functional.relu(self.near(functional.relu(x))))
        return result


class FsqTokenizer(nn.Module):
    """Pictures to codes and back; one code stands for 2^`halvings` pixels along each side.

    The code of a square also depends on what is around it, which tells photographs better. Where `is_local`, it depends
    on the square alone: equal squares have equal codes wherever they are, so that drawings are easier to predict.
    """

    kind = "fsq"

    def __init__(self, levels: Sequence[int], halvings: int = 2, *, is_local: bool = False) -> None:
        super().__init__()
        self.quantiser = ScalarQuantiser(levels)
        self.halvings, self.is_local = halvings, is_local
        channels = len(self.quantiser.levels)
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for _ in range(halvings - 2):
            down += [nn.ReLU(), nn.Conv2d(_WIDE, _WIDE, 4, stride=2, padding=1)]
            up += [nn.ConvTranspose2d(_WIDE, _WIDE, 4, stride=2, padding=1), nn.ReLU()]
        seen: list[nn.Module] = [
            nn.Conv2d(3, _NARROW, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(_NARROW, _WIDE, 4, stride=2, padding=1),
            *down,
            ResidualBlock(_WIDE),
        ]
        if is_local:
            square = 2**halvings
            seen = [nn.Conv2d(3, _WIDE, square, stride=square), nn.ReLU(), nn.Conv2d(_WIDE, _WIDE, 1), nn.ReLU()]
        self.encoder = nn.Sequential(*seen, nn.Conv2d(_WIDE, channels, 1))
        self.decoder = nn.Sequential(
            nn.Conv2d(channels, _WIDE, 3, padding=1),
            ResidualBlock(_WIDE),
            nn.ReLU(),
            *up,
            nn.ConvTranspose2d(_WIDE, _NARROW, 4, stride=2, padding=1),
            nn.ReLU(),
            nn.ConvTranspose2d(_NARROW, 3, 4, stride=2, padding=1),
        )

    @property
    def codes(self) -> int:
        """How many codes there are."""
        return self.quantiser.codes

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        """Pictures float32 [n, 3, p, p] within -1 to 1 as the decoder gives them back, and their rounded values."""
        quantised = self.quantiser.quantise(self.encoder(pictures).movedim(1, -1))
        return self._drawn(quantised), quantised

    def encode(self, pictures: Pictures) -> Codes:
        """The codes of `pictures`."""
        parts = []
        with torch.no_grad():
            for start in range(0, len(pictures), _AT_A_TIME):
                x = as_tensor(pictures[start : start + _AT_A_TIME])
                quantised = self.quantiser.quantise(self.encoder(x).movedim(1, -1))
                parts.append(self.quantiser.ids(quantised).flatten(1).numpy())
        return np.concatenate(parts) if parts else np.empty((0, 0), dtype=np.int64)

    def decode(self, codes: Codes) -> Pictures:
        """The pictures of codes [n, S²]; S is a whole number."""
        side = round(codes.shape[1] ** 0.5)
        parts = []
        with torch.no_grad():
            for start in range(0, len(codes), _AT_A_TIME):
                ids = torch.from_numpy(codes[start : start + _AT_A_TIME]).reshape(-1, side, side)
                drawn = self._drawn(self.quantiser.values(ids))
                pixels = ((drawn.clamp(-1, 1) + 1) * 127.5).round().to(torch.uint8)
                parts.append(pixels.movedim(1, -1).numpy())
        return np.concatenate(parts)

    def description(self) -> dict[str, Any]:
        """What `read_image_tokenizer` needs besides the parameters."""
        return {"levels": list(self.quantiser.levels), "halvings": self.halvings, "is_local": self.is_local}

    def _drawn(self, quantised: Tensor) -> Tensor:
        drawn: Tensor = self.decoder(self.quantiser.scaled(quantised).movedim(-1, 1))
        return drawn


def as_tensor(pictures: Pictures) -> Tensor:
    """float32 [n, 3, height, width] within -1 to 1."""
    return torch.from_numpy(pictures).movedim(-1, 1).float() / 127.5 - 1


# ---- Training it, once, by the organiser.


BATCH: Final = 64
LEARNING_RATE: Final = 2e-3
_TOLD: Final = 10

logger = logging.getLogger("minga.recipes")


def train_fsq(pictures: Pictures, levels: Sequence[int], halvings: int, steps: int, seed: int) -> FsqTokenizer:
    """A tokenizer after `steps` steps of 64 pictures: AdamW, cosine schedule, mean squared error. Logs ten times."""
    with EqualDraws(seed):
        tokenizer = FsqTokenizer(levels, halvings)
    random = np.random.default_rng(seed)
    optimizer = torch.optim.AdamW(tokenizer.parameters(), lr=LEARNING_RATE)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * 0.5 * (1 + math.cos(math.pi * step / steps))
        x = as_tensor(pictures[random.integers(0, len(pictures), size=BATCH)])
        loss = functional.mse_loss(tokenizer(x)[0], x)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        if (step + 1) * _TOLD // steps > step * _TOLD // steps:
            logger.info("image tokenizer: step %d of %d, %.1f dB", step + 1, steps, _decibels(loss.item()))
    return tokenizer.eval()


def _decibels(mean_squared_error: float) -> float:
    """Of values within -1 to 1."""
    return 10 * math.log10(4 / max(mean_squared_error, 1e-12))


# ---- The tokenizer as files of a run: a description and parameters, read without running any code of theirs.


DESCRIPTION_FILE: Final = "image_tokenizer.json"
PARAMETERS_FILE: Final = "image_tokenizer.safetensors"
_MAX_DESCRIPTION: Final = 64 << 10


def image_tokenizer_files(tokenizer: FsqTokenizer) -> dict[str, bytes]:
    """The tokenizer as files by name."""
    description = {"kind": tokenizer.kind, **tokenizer.description()}
    return {
        DESCRIPTION_FILE: json.dumps(description, sort_keys=True).encode(),
        PARAMETERS_FILE: save({name: tensor.contiguous() for name, tensor in tokenizer.state_dict().items()}),
    }


def read_image_tokenizer(files: Mapping[str, Path]) -> FsqTokenizer:
    """The tokenizer that came with a run.

    Raises `ConfigurationError` if none came, or its files are not what `image_tokenizer_files` makes, `StorageError`
    if they cannot be read.
    """
    if DESCRIPTION_FILE not in files or PARAMETERS_FILE not in files:
        raise ConfigurationError("this run came without an image tokenizer: its codes cannot be turned into pictures")
    try:
        described, body = files[DESCRIPTION_FILE].read_bytes(), files[PARAMETERS_FILE].read_bytes()
    except OSError as error:
        raise StorageError(f"the image tokenizer cannot be read: {reason_of(error)}") from error
    try:
        if len(described) > _MAX_DESCRIPTION:
            raise ValueError("its description is too long")
        with torch.device("meta"):  # so that a false description takes no memory, and nothing is drawn at random
            tokenizer = _built(json.loads(described))
        tokenizer.load_state_dict({name: each.float() for name, each in load(body).items()}, assign=True)
    except (SafetensorError, RuntimeError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ConfigurationError(f"the image tokenizer is damaged: {str(error)[:200]}") from error
    if not all(bool(each.isfinite().all()) for each in tokenizer.parameters()):
        raise ConfigurationError("the image tokenizer holds numbers that are not finite")
    for each in tokenizer.parameters():
        each.requires_grad_(False)
    return tokenizer.eval()


def _built(description: Any) -> FsqTokenizer:
    levels, halvings = description["levels"], description["halvings"]
    whole = isinstance(levels, list) and all(type(level) is int and 3 <= level <= 64 for level in levels)
    is_local = description["is_local"]
    if description["kind"] != FsqTokenizer.kind or not whole or not 1 <= len(levels) <= 8 or halvings not in HALVINGS:
        raise ValueError("there is no such tokenizer")
    if not isinstance(is_local, bool):
        raise ValueError("is_local is neither true nor false")
    return FsqTokenizer(levels, halvings, is_local=is_local)
