"""Whether others can dial a peer, asked of them; at which of its addresses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest

from minga.core.errors import SilentError
from minga.network.interface import MAX_ENDPOINTS, Address, PeerId
from minga.network.rpc.reachability import DIAL_ME, MAX_ELSEWHERE, Dialled, DialMe, Reachability

ME = PeerId("1f" * 32)


@pytest.mark.parametrize(
    ("answers", "expected"), [([False, True], True), ([False, None], False), ([None], None), ([], None)]
)
def test_peers_are_asked_about_the_public_addresses_only(answers: list[bool | None], expected: bool | None) -> None:
    asked: list[Address] = []

    async def call(peer: int, _: str, request: DialMe, __: type) -> Dialled:
        asked.append(request.address)
        if answers[peer] is None:
            raise SilentError("no answer", peer=ME)
        return Dialled(bool(answers[peer]))

    async def main(*direct: str) -> bool | None:
        address = Address(ME, direct, "https://relay.example")
        node: Any = SimpleNamespace(
            network=SimpleNamespace(address=address),
            peer_id=ME,
            serve=lambda *_: None,
            connected=lambda: list(range(len(answers))),
            call=call,
        )
        return await Reachability(node).check_public()

    assert asyncio.run(main("127.0.0.1:4", "93.184.216.34:4", "192.168.1.5:4")) is expected
    assert asked == [Address(ME, ("93.184.216.34:4",))] * len(asked)
    asked.clear()
    assert asyncio.run(main("127.0.0.1:4", "192.168.1.5:4")) is None
    assert asked == []


@pytest.mark.parametrize("seen_at", ["93.184.216.34:9", "[2606:2800::7]:9", None])
def test_a_peer_is_tried_where_it_talks_from_and_at_few_public_places_else(seen_at: str | None) -> None:
    """Those may belong to somebody else, whom the dial would flood."""
    elsewhere = tuple(f"8.8.8.{number}:4" for number in range(MAX_ENDPOINTS - 5))
    own = ("93.184.216.34:4", "93.184.216.34:5", "[2606:2800::7]:4", "[2606:2800::7]:5")
    private = "192.168.1.5:4"
    kept = {private, *elsewhere[:MAX_ELSEWHERE], *(each for each in own if seen_at and each.startswith(seen_at[:-1]))}
    tried: list[Address] = []
    handlers: dict[str, Any] = {}

    async def can_dial(address: Address) -> bool:
        tried.append(address)
        return True

    async def main() -> None:
        network = SimpleNamespace(can_dial=can_dial)
        node: Any = SimpleNamespace(network=network, peer_id=ME, serve=handlers.__setitem__, seen_at=lambda _: seen_at)
        Reachability(node)
        stream = SimpleNamespace(
            receive=AsyncMock(return_value=DialMe(Address(ME, (*elsewhere, *own, private)))), send=AsyncMock()
        )
        await handlers[DIAL_ME](ME, stream)

    asyncio.run(main())
    assert [set(address.direct) for address in tried] == [kept]
