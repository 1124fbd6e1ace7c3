"""How one member hands out and gets the parts and aggregates of one attempt, and how long it waits for them.

Theory of operation. A peer that withholds bytes from some members, or lets them wait, must not make these so late with
their next word that the others take them for silent. So bytes are waited for half as many seconds beyond the time that
most took as words are.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import replace

import torch

from minga.averaging.codecs.interface import InvalidEncodingError
from minga.core.aio.ending import end
from minga.core.aio.hedging import racing
from minga.core.errors import RemoteError
from minga.security.messaging.delivery import Deliveries
from minga.security.parts.wait_policy import WaitPolicy, last_s, wait_for_all
from minga.security.protocol.attempt_record import AttemptRecord


class PartCollector:
    """Of the member with the rank `me`."""

    def __init__(self, record: AttemptRecord, deliveries: Deliveries, patience: WaitPolicy, me: int) -> None:
        self._record, self._terms, self._store = record, record.terms, record.store
        self._deliveries, self._me = deliveries, me
        self._patience = replace(patience, slack_s=patience.leeway_s)

    @contextlib.asynccontextmanager
    async def travelling(self) -> AsyncIterator[None]:
        """Meanwhile carry the own parts to their aggregators, and take the aggregates home."""
        async with meanwhile(*(self._bring(part) for part in self._terms.division.parts if part != self._me)):
            yield

    async def parts(self, owners: Sequence[int]) -> None:
        """Wait for the parts that this member aggregates."""
        store, me = self._store, self._me

        async def fetch(lacking: Sequence[int], by_s: float) -> None:
            await asyncio.gather(*(self._fetch(me, owner, by_s) for owner in lacking))

        await wait_for_all(
            lambda: [owner for owner in owners if (owner, me) not in store.parts],
            len(owners),
            store.changed,
            fetch,
            self._patience,
            is_coming=lambda owner, by_s: store.arrivals.in_time((owner, me), by_s),
        )

    async def values(self) -> None:
        """Wait for all aggregates."""
        store, terms = self._store, self._terms

        async def fetch(parts: Sequence[int], by_s: float) -> None:
            fetching = (self._deliveries.fetch_value(terms.step, terms.attempt, part, by_s) for part in parts)
            await asyncio.gather(*fetching)

        await wait_for_all(
            lambda: [part for part in store.value_digests if part not in store.values],
            len(store.value_digests),
            store.changed,
            fetch,
            self._patience,
            is_coming=lambda part, by_s: store.arrivals.in_time(part, by_s),
        )

    async def obtainable(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Look for parts, given as (aggregator, owner), anywhere; those that can be had and mean something.

        Since aggregators looked for them in vain, and most of them may be withheld, they have a fixed time.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._patience.slack_s):
                await asyncio.gather(*(self._fetch(part, owner) for part, owner in self._absent(wanted)))
        rows = await asyncio.gather(*(asyncio.to_thread(self._row, owner, part) for part, owner in wanted))
        return [one for one, row in zip(wanted, rows, strict=True) if row is not None]

    async def lacking(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Look for parts, given as (aggregator, owner), anywhere; those that cannot be had.

        When most are there, or refused by all, the others have as long again and some seconds.
        """
        loop, absent = asyncio.get_running_loop(), self._absent(wanted)
        begun_s = loop.time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, racing(self._fetch(*one) for one in absent) as ends:
                for left in range(len(absent), 0, -1):
                    if limit.when() is None and 2 * left < len(wanted):
                        limit.reschedule(last_s(begun_s, loop.time(), self._patience.slack_s))
                    await next(ends)
        return self._absent(wanted)

    def rows(self, owners: Sequence[int], *, looks_through: bool = True) -> dict[int, torch.Tensor]:
        """What came for this member to aggregate, by owner, unless it means nothing; who does not look through it gets
        rows that may hold NaN or infinity.
        """
        found = {owner: self._row(owner, self._me, looks_through=looks_through) for owner in owners}
        return {owner: row for owner, row in found.items() if row is not None}

    # ---- inner workings

    def _absent(self, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        return [(part, owner) for part, owner in wanted if (owner, part) not in self._store.parts]

    async def _fetch(self, part: int, owner: int, by_s: float | None = None) -> None:
        await self._deliveries.fetch_part(self._terms.step, self._terms.attempt, part, owner, by_s)

    async def _bring(self, part: int) -> None:
        """What fails is fetched in other ways."""
        with contextlib.suppress(RemoteError):
            await self._deliveries.bring(self._terms.step, self._terms.attempt, part)

    def _row(self, owner: int, part: int, *, looks_through: bool = True) -> torch.Tensor | None:
        with contextlib.suppress(InvalidEncodingError, KeyError):
            return self._record.row(owner, part, looks_through=looks_through)
        return None


@contextlib.asynccontextmanager
async def meanwhile(*doing: Coroutine[None, None, None]) -> AsyncIterator[asyncio.Future[list[None]]]:
    """Do these things meanwhile; they end with the block at the latest."""
    together = asyncio.gather(*doing)
    try:
        yield together
    finally:
        await end(together)
