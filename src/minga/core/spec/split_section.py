"""The section of a run spec for split learning: what clients and the server of a model that is cut have to agree on."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, field_validator

from minga.core.spec.choices import ChoiceText
from minga.core.spec.fields import Real, Section, choice, described, real, whole
from minga.core.spec.sections import MAX_BATCH

MAX_SERVERS: Final = 8
MAX_ELEMENTS: Final = 2**28
MAX_BLOCKS: Final = 64
_A_CODEC: Final = 'the name of a codec, with settings or without: "float32", "bfloat16", "int8(block=64)", "adaptive" …'


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
    upload_codec: ChoiceText = described("float32", "wire format of what clients send: activations", _A_CODEC)
    download_codec: ChoiceText = described("float32", "wire format of what the server sends: gradients", _A_CODEC)
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
    standby_every: int = whole(
        50, 1, 1_000_000, "batches between two checkpoints of the server's part that servers on standby fetch"
    )
    servers: Annotated[
        tuple[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], ...], Field(strict=False, max_length=MAX_SERVERS)
    ] = described(
        (),
        "keys of the peers to which clients send activations; none named: the key that hosts the run",
        f"a list of at most {MAX_SERVERS} keys of 64 lower-case hexadecimal digits",
    )

    @field_validator("servers")
    @classmethod
    def _check_servers(cls, servers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(servers)) != len(servers):
            raise ValueError("a key is named twice")
        return servers

    @property
    def averages_clients(self) -> bool:
        """Whether the clients' parts are averaged between them."""
        return self.variant in ("splitfed-1", "splitfed-2")

    @property
    def is_on(self) -> bool:
        """Whether the model of this run is cut at all."""
        return self.variant != "none"
