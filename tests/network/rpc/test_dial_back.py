"""Whether others can dial a peer, asked of them; at which of its addresses."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minga.core.errors import RejectedError
from minga.core.refusal_code import RefusalCode
from minga.network.interface import Address, PeerId
from minga.network.rpc.reachability import Dialled, DialMe, Reachability

ME = PeerId("1f" * 32)


@pytest.mark.parametrize(
    ("answers", "expected"), [([False, True], True), ([False, None], False), ([None], None), ([], None)]
)
def test_peers_are_asked_about_the_public_addresses_only(answers: list[bool | None], expected: bool | None) -> None:
    asked: list[Address] = []

    async def call(peer: int, _: str, request: DialMe, __: type) -> Dialled:
        asked.append(request.address)
        if answers[peer] is None:
            raise RejectedError("busy", code=RefusalCode.BUSY)
        return Dialled(bool(answers[peer]))

    async def main(*direct: str) -> bool | None:
        address = Address(ME, direct, "https://relay.example")
        node: Any = SimpleNamespace(
            network=SimpleNamespace(address=address),
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
