"""What a peer keeps of a run so that it finds back when nobody whom the link names is there any more.

The signed run spec, this peer's own UDP port (so that others find it where it was) and the last known addresses of
others lie in the run's folder. A peer that restarts looks for all of them, and a trainer that finds nobody goes on
alone from its checkpoint. So a run outlives the death of all its peers, whoever comes back first.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import msgspec

from minga.core._errors import ProtocolError
from minga.core._run_spec import RunSpec
from minga.identity._links import Link
from minga.identity._signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network._interface import MAX_ENDPOINTS, Address, PeerId

SPEC_FILE, PLACES_FILE = "run-spec.signed", "places.msgpack"
MAX_PLACES = 16
MAX_PLACES_BYTES = 1 << 16
KEEP_PERIOD_S = 5.0


class Places(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where this peer was, and where others were, when it last looked."""

    own_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 0
    others: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_PLACES)] = ()


class WayBack:
    """The files of one run's folder that lead back into the run. What is missing or damaged counts as not known."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._kept: Places | None = None

    def spec(self, link: Link) -> tuple[SignedRunSpec, RunSpec] | None:
        """The signed run spec of an earlier time, if it is the one that the link names."""
        try:
            body = (self._directory / SPEC_FILE).read_bytes()
            signed = SignedRunSpec.decode(body[: MAX_SIGNED_SPEC_BYTES + 1])
            return signed, signed.verify(link.run_id, link.organiser)
        except (OSError, ProtocolError):
            return None

    def keep_spec(self, signed: SignedRunSpec) -> None:
        """Remember the signed run spec; a disk that refuses is no reason not to take part."""
        self._write(SPEC_FILE, signed.encode())

    def places(self) -> Places:
        """What was known last."""
        try:
            with (self._directory / PLACES_FILE).open("rb") as file:
                return msgspec.msgpack.decode(file.read(MAX_PLACES_BYTES), type=Places)
        except (OSError, msgspec.MsgspecError):
            return Places()

    async def keep_places(self, look: Callable[[], Places]) -> None:
        """Remember where everybody is, every few seconds if it changed, until cancelled.

        Who is no longer seen is kept until others take its place: when all are gone, it is they who may come back.
        """
        while True:
            seen, known = look(), self._kept or self.places()
            others = {address.peer_id: address for address in (*seen.others, *known.others)}
            others.update({address.peer_id: address for address in seen.others})
            places = Places(seen.own_port, tuple(others.values())[:MAX_PLACES])
            if places != self._kept:
                self._kept = places
                body = msgspec.msgpack.encode(places)
                await asyncio.get_running_loop().run_in_executor(None, self._write, PLACES_FILE, body)
            await asyncio.sleep(KEEP_PERIOD_S)

    def _write(self, name: str, body: bytes) -> None:
        partial = self._directory / f"{name}.{os.getpid()}.part"
        with contextlib.suppress(OSError):
            try:
                partial.write_bytes(body)
                partial.replace(self._directory / name)
            finally:
                partial.unlink(missing_ok=True)


def own_port(address: Address) -> int:
    """The UDP port of the first direct address, 0 if there is none."""
    port = address.direct[0].rpartition(":")[2] if address.direct else ""
    return int(port) if port.isascii() and port.isdecimal() and int(port) < 65536 else 0


def others_of(owners: list[PeerId], address_of: Callable[[PeerId], Address | None]) -> tuple[Address, ...]:
    """The addresses of those that can be dialled."""
    known = [address for owner in owners if (address := address_of(owner)) is not None and address.dialable]
    return tuple(known[:MAX_PLACES])


def merged(addresses: Iterable[Address]) -> list[Address]:
    """One address for each peer, with everything that was said of it: it may have moved, or be back where it was."""
    found: dict[PeerId, Address] = {}
    for new in addresses:
        old = found.get(new.peer_id, new)
        direct = tuple(dict.fromkeys((*old.direct, *new.direct)))[:MAX_ENDPOINTS]
        found[new.peer_id] = Address(new.peer_id, direct, old.relay or new.relay)
    return list(found.values())
