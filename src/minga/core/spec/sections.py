"""The sections of a run spec.

Every value has bounds and a meaning. Defaults are not written, so another default raises `SPEC_VERSION`
(`run_spec.py`).
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Annotated, Any, Final, Literal

from pydantic import Field, StrictInt, field_validator, model_validator

from minga.core.spec.choices import ChoiceText
from minga.core.spec.fields import MAX_STEPS, Real, Section, choice, described, real, whole
from minga.core.spec.plugins import NAME_PATTERN
from minga.core.urls import MAX_URL_CHARACTERS, is_https_url, is_source_url, parse_announced

MAX_FILE_BYTES = 8 << 30
BASE_FOLDER = "base/"
"""How the names of the files begin that hold the parameters which a run tunes and does not train."""

MAX_BATCH = 2**24
MAX_ORGANISERS = 7
MAX_FOUNDERS = 256
MAX_ANNOUNCED = 4
MAX_STRATEGY_CHANGES = 16
DEFAULT_AGGREGATOR = "centered_clip"
DEFAULT_SKETCH = "identity"
AUTO_STRATEGY = "auto"
_RESERVED_NAMES = {"con", "prn", "aux", "nul", *(f"{port}{i}" for port in ("com", "lpt") for i in range(10))}
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,99}){0,3}", re.ASCII)


class ModelSection(Section):
    """The model to train."""

    recipe: str = described(
        "albert",
        "model, data and loss, with settings of their own in [recipe.NAME]; custom: your own training loop brings them",
        'the name of a recipe, such as "albert" or "custom"',
        pattern=NAME_PATTERN,
    )
    init_from: str | None = described(
        None,
        "parameters to begin with instead of random ones; they travel with the run, as safetensors",
        "a run's folder, a checkpoint, a folder or file with safetensors, or OWNER/NAME of the Hugging Face hub",
        private=True,
        min_length=1,
        max_length=4096,
    )


class OptimizerSection(Section):
    """How the averaged gradient becomes an update."""

    name: Literal["lamb", "adamw", "muon", "sgd", "lars", "larc"] = choice(
        "lamb",
        "algorithm; muon for the matrices of hidden layers, and adamw for the rest",
        "lamb",
        "adamw",
        "muon",
        "sgd",
        "lars",
        "larc",
    )
    learning_rate: Real = real(0.00176, 0.0, 1000.0, "peak learning rate", above_low=True)
    betas: Annotated[
        tuple[Annotated[Real, Field(ge=0.0, lt=1.0)], Annotated[Real, Field(ge=0.0, lt=1.0)]], Field(strict=False)
    ] = described(
        (0.9, 0.999),
        "(lamb, adamw, muon) decay of the two moments",
        "two numbers from 0 to below 1, such as [0.9, 0.999]",
    )
    epsilon: Real = real(1e-6, 0.0, 1.0, "(lamb, adamw, muon) added to the root of the second moment", above_low=True)
    weight_decay: Real = real(
        0.01, 0.0, 10.0, "pull towards zero (none on biases and norms, unless the recipe says so)"
    )
    momentum: Real = real(0.9, 0.0, 1.0, "(muon, sgd, lars, larc) momentum", below_high=True)
    clamp_value: Real = real(10_000.0, 0.0, 1e9, "(lamb) largest norm of a tensor in its trust ratio", above_low=True)
    max_grad_norm: Real | None = real(
        1.0, 0.0, 1e9, "the averaged gradient is scaled down to this norm", above_low=True, special=', or "off"'
    )
    schedule: Literal["linear", "cosine", "constant"] = choice(
        "linear", "course of the learning rate after the warm-up", "linear", "cosine", "constant"
    )
    warmup_steps: int = whole(5000, 0, MAX_STEPS, "steps in which the learning rate rises to its peak")
    total_steps: int = whole(125_000, 1, MAX_STEPS, "steps after which the schedule has reached its end")
    warmup_learning_rate: Real = real(0.0, 0.0, 1000.0, "learning rate from which the warm-up rises to the peak")
    final_learning_rate: Real = real(0.0, 0.0, 1000.0, "(linear, cosine) learning rate to which the schedule falls")

    state_bits: Literal[32, 8] = described(
        32,
        "(lamb, adamw, muon) bits of each element of the two moments; 8 takes a quarter of their memory",
        "32 or 8",
    )
    state_block: int = whole(4096, 16, 65_536, "(8 bits) elements that share one scale")
    state_min_numel: int = whole(65_536, 1, 2**40, "(8 bits) tensors of fewer elements keep 32 bits")
    debias: bool = described(True, "(lamb) correct the first updates for moments that begin at 0", "true or false")

    @field_validator("max_grad_norm", mode="before")
    @classmethod
    def _off_is_none(cls, value: object) -> object:
        return None if value == "off" else value

    @model_validator(mode="after")
    def _check_steps(self) -> OptimizerSection:
        if self.warmup_steps > self.total_steps:
            raise ValueError(f"warmup_steps = {self.warmup_steps} exceeds total_steps = {self.total_steps}")
        if self.state_bits == 8 and self.name not in ("lamb", "adamw", "muon"):
            raise ValueError(f'state_bits = 8 is for "lamb", "adamw" and "muon"; "{self.name}" keeps no such moments')
        if not self.debias and self.name != "lamb":
            raise ValueError(f'debias = false is for "lamb", not for "{self.name}"')
        return self


PluginName = Annotated[str, Field(pattern=NAME_PATTERN)]
"""A name in a registry. The code that uses it checks whether it is installed."""


class StrategyChange(Section):
    """Another strategy from a step on."""

    from_step: int = whole(..., 1, MAX_STEPS, "the first step whose samples peers collect by it")
    strategy: PluginName = described(..., "the strategy from there on", 'the name of a strategy, such as "delayed"')
    target_batch_size: Annotated[StrictInt, Field(ge=1, le=MAX_BATCH)] | None = described(
        None, "samples of a step from there on, if others than before", f"a whole number from 1 to {MAX_BATCH:,}"
    )


class TrainingSection(Section):
    """When a step happens."""

    target_batch_size: Literal["auto"] | Annotated[StrictInt, Field(ge=1, le=MAX_BATCH)] = described(
        4096,
        "samples that all peers together accumulate for one step; auto measures how many it takes until communication "
        "costs little",
        f'a whole number from 1 to {MAX_BATCH:,}, or "auto"',
    )
    target_batch_size_min: int = whole(256, 1, MAX_BATCH, "(auto) never fewer samples, and as many in the first step")
    target_batch_size_max: int = whole(32_768, 1, MAX_BATCH, "(auto) never more samples")
    most_communication: Real = real(
        0.1,
        0.0,
        1.0,
        "(auto) share of the time in which nobody computes because peers communicate",
        above_low=True,
        below_high=True,
    )
    strategy: PluginName = described(
        "synchronous",
        "delayed averages while the next batch is computed, one step behind; auto is chosen when the run begins",
        'the name of a strategy: "synchronous", "delayed", "local" or another one of docs/strategies.md or of an '
        'installed package, or "auto"',
    )
    strategy_changes: Annotated[tuple[StrategyChange, ...], Field(strict=False, max_length=MAX_STRATEGY_CHANGES)] = (
        described(
            (),
            "strategies that take over at later steps; peers go on from the parameters",
            f"a list of at most {MAX_STRATEGY_CHANGES} tables {{from_step = N, strategy = NAME}}, each with a larger N "
            "than the one before",
        )
    )
    seed: int = whole(0, 0, 2**63 - 1, "seed of the initial parameters and of each peer's order of the data")
    stop_after_steps: int | None = whole(None, 1, MAX_STEPS, "end the run after this many steps")
    buffers: Literal["average", "local"] = choice(
        "average",
        "what happens to buffers such as BatchNorm's (averaged like the gradients, or left alone)",
        "average",
        "local",
    )

    @property
    def batch_range(self) -> tuple[int, int]:
        """The smallest and the largest target batch size that a step of this run may have; a run begins with the
        smallest, and falls back to it where no peer knows the last one.
        """
        if self.target_batch_size == "auto":
            return self.target_batch_size_min, self.target_batch_size_max
        return self.target_batch_size, self.target_batch_size

    @model_validator(mode="after")
    def _check_batch_range(self) -> TrainingSection:
        if self.target_batch_size_min > self.target_batch_size_max:
            raise ValueError(
                f"target_batch_size_min = {self.target_batch_size_min} exceeds "
                f"target_batch_size_max = {self.target_batch_size_max}"
            )
        return self

    @field_validator("strategy_changes")
    @classmethod
    def _check_changes(cls, changes: tuple[StrategyChange, ...]) -> tuple[StrategyChange, ...]:
        for one, other in pairwise(changes):
            if one.from_step >= other.from_step:
                raise ValueError(f"from_step = {other.from_step} comes after from_step = {one.from_step}")
        return changes

    @model_validator(mode="after")
    def _check_changed_batches(self) -> TrainingSection:
        if self.target_batch_size == "auto" and any(each.target_batch_size for each in self.strategy_changes):
            raise ValueError("strategy_changes: where target_batch_size is auto, a change cannot set it to a number")
        return self

    @property
    def strategies(self) -> tuple[str, ...]:
        """The names of all strategies of this run, each once, in the order in which they come."""
        return tuple(dict.fromkeys((self.strategy, *(each.strategy for each in self.strategy_changes))))

    def phase_at(self, step: int) -> str:
        """Which strategy is at work at `step` and which comes next, in words; empty if there is one to the end."""
        planned = [(0, self.strategy), *((each.from_step, each.strategy) for each in self.strategy_changes)]
        phases = [planned[0], *(later for before, later in pairwise(planned) if before[1] != later[1])]
        if len(phases) == 1:
            return ""
        since, name = [each for each in phases if each[0] <= step][-1]
        later = next((each for each in phases if each[0] > step), None)
        return f"{name} since step {since}" if later is None else f"{name} up to step {later[0]}, then {later[1]}"

    def at(self, step: int) -> TrainingSection:
        """These settings as they hold in the round of `step`, without changes."""
        if not self.strategy_changes:
            return self
        due = [each for each in self.strategy_changes if each.from_step <= step]
        batches = [each.target_batch_size for each in due if each.target_batch_size is not None]
        changes: dict[str, Any] = {"strategy": due[-1].strategy} if due else {}
        changes |= {"target_batch_size": batches[-1]} if batches else {}
        return self.model_copy(update={**changes, "strategy_changes": ()})


_A_CODEC: Final = (
    'the name of a codec, with settings or without: "adaptive", "float16", "int8", "int4(block=32)" or another one of '
    "docs/compressors.md or of an installed package"
)


class AveragingSection(Section):
    """How vectors travel."""

    codec: ChoiceText = described("adaptive", "wire format; adaptive chooses by the size of a tensor", _A_CODEC)
    download_codec: ChoiceText | None = described(None, "wire format of the means, if it is another one", _A_CODEC)
    sketch: ChoiceText = described(
        DEFAULT_SKETCH,
        "linear map whose image is averaged in the place of the gradient",
        'the name of a sketch, with settings or without: "identity", "powersgd", "dct64" or an installed one',
    )
    residual_decay: Real = real(
        1.0,
        0.0,
        1.0,
        "(codecs that leave most out) share of what a peer has not sent yet that it keeps from one round to the next",
    )
    average_parameters_every: int = whole(
        0, 0, 1_000_000, "steps between two averagings of the parameters", special="; 0 is as needed"
    )


class StateSection(Section):
    """How peers make sure that they hold the same state."""

    digest_every: int = whole(10, 1, 1_000_000, "steps between two comparisons of the state's digest")
    founder: Literal["organiser", "first"] = choice(
        "organiser",
        "whose state is the run's first one. organiser: that of the peer that hosts the run; first: that of the first "
        "peer that trains, for a host that has no model",
        "organiser",
        "first",
    )
    share_base: bool = described(
        False,
        "what the model has frozen belongs to the state: newcomers fetch it from peers, and checkpoints hold it",
        "true or false",
    )


class CheckpointsSection(Section):
    """The files that are kept on disk."""

    every_steps: int = whole(
        100, 0, 1_000_000, "steps between two checkpoints", special="; 0 is only after the run's last step"
    )
    keep: int = whole(3, 1, 1000, "newest checkpoints to keep")
    archive_every: int = whole(
        0,
        0,
        1_000_000,
        "steps between two checkpoints that the host keeps for good",
        special="; 0 is never",
        private=True,
    )
    upload_to: str | None = described(
        None,
        "where the host copies the checkpoints that it keeps for good",
        "a folder, hf://OWNER/NAME, or an address of fsspec such as s3://BUCKET/FOLDER",
        private=True,
        min_length=1,
        max_length=2048,
    )

    @model_validator(mode="after")
    def _check_archive(self) -> CheckpointsSection:
        if self.upload_to is not None and not self.archive_every:
            raise ValueError("upload_to copies what archive_every keeps: set archive_every, too")
        return self


class NetworkSection(Section):
    """How peers find a way to each other."""

    relay: Literal["none", "public"] | Annotated[tuple[str, ...], Field(strict=False, min_length=1, max_length=8)] = (
        described(
            "public",
            "relays that help peers behind NAT to meet; public ones are outside servers, which see no content",
            '"none", "public" or a list of 1 to 8 https:// URLs',
        )
    )
    announce: Annotated[tuple[str, ...], Field(strict=False, max_length=MAX_ANNOUNCED)] = described(
        (),
        "addresses of the host that its machine does not know of: a forwarded port, or the outer address of 1:1 NAT",
        f"a list of at most {MAX_ANNOUNCED} addresses such as 203.0.113.7 or 203.0.113.7:4433",
        private=True,
    )
    landing_url: str | None = described(
        None,
        "web page of the run; the link is then shown as this address, # and the link",
        f"an https:// URL of at most {MAX_URL_CHARACTERS} characters, without #",
    )
    source_url: str | None = described(
        None,
        "where newcomers get minga, in place of the wheel that the organiser's own pages hand out",
        f"an https:// or git+https:// URL that pip takes, of at most {MAX_URL_CHARACTERS} characters",
    )
    minority: Literal["wait", "stop"] = choice(
        "wait", "what peers do when they lose sight of the majority", "wait", "stop"
    )

    @field_validator("relay")
    @classmethod
    def _check_relays(cls, relay: str | tuple[str, ...]) -> str | tuple[str, ...]:
        for url in relay if isinstance(relay, tuple) else ():
            if not is_https_url(url):
                raise ValueError(f"{url[:60]!r} is no https:// URL of at most {MAX_URL_CHARACTERS} characters")
        return relay

    @field_validator("announce")
    @classmethod
    def _check_announced(cls, announce: tuple[str, ...]) -> tuple[str, ...]:
        for text in announce:
            parse_announced(text)
        return announce

    @field_validator("landing_url")
    @classmethod
    def _check_landing_url(cls, url: str | None) -> str | None:
        if url is not None and (not is_https_url(url) or "#" in url):
            raise ValueError(f"must be an https:// URL of at most {MAX_URL_CHARACTERS} characters, without #")
        return url

    @field_validator("source_url")
    @classmethod
    def _check_source_url(cls, url: str | None) -> str | None:
        if url is not None and not is_source_url(url):
            raise ValueError(
                f"must be an https:// or git+https:// URL of at most {MAX_URL_CHARACTERS} characters, without blanks, "
                "quotes and other characters that mean something to a shell"
            )
        return url


class SecuritySection(Section):
    """Which peers may take part, and how their work is verified."""

    admission: Literal["open", "members"] = choice(
        "open",
        "open: every peer that has the link; members: peers that the organisers admitted",
        "open",
        "members",
    )
    verification: Literal["none", "byzantine"] = choice(
        "none",
        "none: peers believe each other; byzantine: members verify each other's work",
        "none",
        "byzantine",
    )
    organisers: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...], Field(strict=False, max_length=MAX_ORGANISERS)
    ] = described(
        (),
        "keys that may admit, ban and give orders; none named: the key that hosts the run",
        f"a list of at most {MAX_ORGANISERS} keys of 64 lower-case hexadecimal digits",
    )
    organisers_needed: int = whole(1, 1, MAX_ORGANISERS, "how many of them have to sign for that")
    founders: int = whole(4, 2, MAX_FOUNDERS, "(byzantine) peers that begin the run, as soon as so many are there")
    micro_batch_size: int = whole(
        16, 1, MAX_BATCH, "(byzantine) samples of which all compute the gradient at once, in the same order"
    )
    peers_per_validator: int = whole(
        16, 1, 65_536, "(byzantine) members for each one that checks another one's last gradient instead of training"
    )

    precision: Literal["float32", "bfloat16"] = choice(
        "float32", "(byzantine) number format in which all compute losses and gradients", "float32", "bfloat16"
    )
    probation_steps: int | None = whole(
        None,
        1,
        2**20,
        "(byzantine) steps that a newcomer computes, and is checked, before it counts; left out: over three times as "
        "many as it takes to find hostile peers",
    )

    aggregator: str = described(
        DEFAULT_AGGREGATOR,
        "(byzantine) what makes one gradient of many; others than the default come from other packages, and have to be "
        "verifiable",
        "the name of an aggregator that is installed",
        pattern=NAME_PATTERN,
    )

    @property
    def mode(self) -> str:
        """Both settings in a word, for displays: open, members, byzantine or members+byzantine."""
        words = [word for word in (self.admission, self.verification) if word not in ("open", "none")]
        return "+".join(words) or "open"

    @model_validator(mode="after")
    def _check_organisers(self) -> SecuritySection:
        if len(set(self.organisers)) != len(self.organisers):
            raise ValueError("organisers names a key twice")
        if self.organisers_needed > max(1, len(self.organisers)):
            raise ValueError(
                f"organisers_needed = {self.organisers_needed} exceeds the {len(self.organisers)} organisers named"
            )
        return self


class FileEntry(Section):
    """A file that comes with the run: its BLAKE3 digest (64 hexadecimal digits) and its size.

    `pieces` is the BLAKE3 of the digests of its pieces of 1 MiB, 32 bytes each.
    """

    blake3: str = described(..., "digest of the content", "64 lower-case hexadecimal digits", pattern=r"^[0-9a-f]{64}$")
    size_bytes: int = whole(..., 0, MAX_FILE_BYTES, "size of the file")
    pieces: str = described(
        ..., "digest of the digests of its pieces", "64 lower-case hexadecimal digits", pattern=r"^[0-9a-f]{64}$"
    )


def check_file_names(names: list[str]) -> None:
    """Raise `ValueError` unless the names can be written as distinct files below one folder on every system."""
    for name in names:
        parts = name.split("/")
        reserved = any(part.split(".")[0].lower() in _RESERVED_NAMES or part.endswith(".") for part in parts)
        if not _FILE_NAME.fullmatch(name) or reserved:
            raise ValueError(
                f"{name[:60]!r} is no safe relative file name (letters, digits, . _ - and at most three /)"
            )
    folded = {name.lower() for name in names}
    if len(folded) != len(names):
        raise ValueError("two file names differ only in case")
    for name in folded:
        parents = name.split("/")[:-1]
        if any("/".join(parents[: depth + 1]) in folded for depth in range(len(parents))):
            raise ValueError(f"{name[:60]!r} lies inside something that is itself a file")


# ---- Split learning: what clients and the server of a model that is cut have to agree on.


MAX_ELEMENTS: Final = 2**28
MAX_BLOCKS: Final = 64
_SPLIT_CODEC: Final = (
    'the name of a codec, with settings or without: "float32", "bfloat16", "int8(block=64)", "adaptive" …'
)


class SplitSection(Section):
    """A model that is cut between clients that hold the data and a server."""

    variant: Literal["none", "vanilla", "u-shaped", "vertical", "round-robin", "splitfed-1", "splitfed-2"] = choice(
        "none",
        "none: peers train whole models; vanilla: the server has the end of the model and the labels; u-shaped: the "
        "end of the model and the labels stay with the clients; vertical: clients have blocks of features of the same "
        "samples; round-robin: clients train in turns; splitfed-1: clients average their parts, and the server the "
        "copies of its part that it has for each of them; splitfed-2: clients average their parts, and the server has "
        "one for all",
        "none",
        "vanilla",
        "u-shaped",
        "vertical",
        "round-robin",
        "splitfed-1",
        "splitfed-2",
    )
    upload_codec: ChoiceText = described("float32", "wire format of what clients send: activations", _SPLIT_CODEC)
    download_codec: ChoiceText = described("float32", "wire format of what the server sends: gradients", _SPLIT_CODEC)
    max_samples: int = whole(4096, 1, MAX_BATCH, "most samples of one batch")
    max_elements: int = whole(2**24, 1, MAX_ELEMENTS, "most elements of all tensors of one message")
    blocks: int = whole(2, 2, MAX_BLOCKS, "(vertical) blocks of features, of which each client has one")
    turn_batches: int = whole(16, 1, 1_000_000, "(round-robin) batches of one turn of a client")
    hand_over: bool = described(
        True,
        "(round-robin) the clients' part goes from each client to the next; false: each keeps its own",
        "true or false",
    )
    wait_s: Real = real(
        60.0,
        0.1,
        3600.0,
        "seconds for which a server waits for a client that is in the middle of something: the second request of a "
        "u-shaped batch, a block of a sample set, the next batch of a turn",
    )
    server: Annotated[str, Field(pattern=r"^([0-9a-f]{64})?$")] = described(
        "",
        "key of the peer to which clients send activations; empty: the key that hosts the run",
        "a key of 64 lower-case hexadecimal digits",
    )

    @property
    def averages_clients(self) -> bool:
        """Whether the clients' parts are averaged between them."""
        return self.variant in ("splitfed-1", "splitfed-2")

    @property
    def is_on(self) -> bool:
        """Whether the model of this run is cut at all."""
        return self.variant != "none"
