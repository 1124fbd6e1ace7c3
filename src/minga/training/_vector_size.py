"""How large the averaged vector of a living run is, for whoever only looks at it."""

from __future__ import annotations

import asyncio
import math

from minga.averaging._layout import VectorLayout
from minga.core._errors import UnreachableError
from minga.network._interface import PeerId
from minga.network._records import AddressInfo, Progress
from minga.training._donor_choice import Donors
from minga.training._manifest import Manifest
from minga.training._session import Session
from minga.training._snapshot import DTYPES
from minga.training._state_dict import MODEL

DONORS_TIMEOUT_S = 10.0
MOST_ASKED = 3


async def vector_bytes(session: Session, codec: str) -> float:
    """Bytes of the run's gradients as `codec` encodes them, from the manifest of a peer's state.

    Buffers count as well if they hold real numbers. Raises `UnreachableError` if nobody tells.
    """
    try:
        async with asyncio.timeout(DONORS_TIMEOUT_S):
            while not (known := _donors(session)):
                await session.board.changed(session.board.generation)
    except TimeoutError as error:
        raise UnreachableError("no peer of the run has a state to tell of; is anybody training?") from error
    donors = Donors(session.node, known[:MOST_ASKED], None)
    await donors.ask(0)
    manifest, _ = await donors.fetch_manifest()
    return encoded_bytes(manifest, codec)


def encoded_bytes(manifest: Manifest, codec: str) -> float:
    """Bytes of the parameters of a state as `codec` (of a run spec) encodes them."""
    sizes = sorted(
        math.prod(tensor.shape)
        for tensor in manifest.tensors
        if tensor.name.startswith(MODEL) and DTYPES[tensor.dtype].is_floating_point
    )
    layout = VectorLayout(tuple(sizes) or (1,), codec)
    return float(layout.encoded_bytes(0, layout.total))


def _donors(session: Session) -> list[PeerId]:
    progress = {item.owner: item.payload for item in session.board.items(Progress) if item.payload.status != "syncing"}
    able = [peer for peer, info, _ in session.board.items(AddressInfo) if peer in progress and info.role != "monitor"]
    return sorted(able, key=lambda peer: (-progress[peer].step, peer))
