"""What one peer may send of the organisers' orders: no more than a ledger can hold."""

from __future__ import annotations

import asyncio
import tracemalloc
from typing import Any

import msgspec

from minga.access.standing_orders import MAX_ORDERS, OrderExchange, Orders
from minga.core.errors import ProtocolError
from minga.core.spec.sections import MAX_ORGANISERS
from minga.identity.access.orders import MAX_BARRED, MAX_TERMS, Barred, Transfer
from minga.network.interface import PeerId

PAGES = 40


class Stream:
    peer = PeerId("a" * 64)

    def __init__(self) -> None:
        key = bytes(32)
        barred = tuple(Barred(i.to_bytes(32, "big"), 1) for i in range(MAX_BARRED * MAX_ORGANISERS))
        transfer = Transfer(key, 1, 1, (), organisers=(key,), needed=1, barred=barred)
        self.page = msgspec.msgpack.encode(Orders((transfer,), more=True))
        self.sent = 0

    async def receive(self, kind: type[Any]) -> Any:
        if self.sent == PAGES:
            raise AssertionError(f"all {PAGES} transfers were taken in, and {MAX_ORDERS - PAGES} more would be")
        self.sent += 1
        return msgspec.msgpack.decode(self.page, type=kind)


def test_no_more_transfers_are_taken_in_than_a_ledger_can_hold() -> None:
    stream = Stream()
    tracemalloc.start()
    try:
        asyncio.run(OrderExchange._receive(object.__new__(OrderExchange), stream))  # type: ignore[arg-type]
    except ProtocolError:
        pass
    except AssertionError as error:
        held = tracemalloc.get_traced_memory()[1]
        raise AssertionError(f"{error}: {held >> 20} MiB for {PAGES} of them of {len(stream.page)} bytes") from None
    finally:
        tracemalloc.stop()
    assert stream.sent <= MAX_TERMS + 1
