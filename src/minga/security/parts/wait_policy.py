"""How long to wait for the last ones, and what to do meanwhile.

Members are not equally fast, and nobody knows beforehand how long a gradient or a part takes. So the measure is how
long most took: a member that needs twice as long, and some seconds more, is not waited for any longer. But first, soon
after most came, what is missing is asked of everybody else, because a line between two honest members may be broken,
and because an author that tells only some shall be heard by all. For words, which are short, they are asked even before
most came: it may be this peer that came late and missed what they said.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from minga.core.aio.ending import end
from minga.core.aio.signal import Signal

T = TypeVar("T")


@dataclass(frozen=True)
class WaitPolicy:
    """Seconds after which others are asked for what is missing, when most came and when they did not; seconds that are
    waited for the last ones beyond the time that most took; the longest wait for most; and the time in which proofs get
    around.
    """

    ask_s: float = 0.5
    ask_most_s: float = 2.0
    slack_s: float = 5.0
    longest_s: float = 600.0
    proof_s: float = 1.0

    @property
    def leeway_s(self) -> float:
        """Seconds that a member spends between two of its words on waiting for one member longer than for most: so few
        that nobody who lets it wait makes the others take it for silent.
        """
        return self.slack_s / 2


def last_s(begun_s: float, now_s: float, slack_s: float) -> float:
    """Until when the last ones are waited for if most have come now: twice as long as these took, and the slack."""
    return 2 * now_s - begun_s + slack_s


async def wait_for_all(
    missing: Callable[[], Sequence[T]],
    total: int,
    changed: Signal,
    ask: Callable[[Sequence[T], float], Awaitable[None]],
    patience: WaitPolicy,
    *,
    is_cheap: bool = False,
    is_coming: Callable[[T, float], bool] = lambda _, __: False,
) -> None:
    """Return when nothing of `total` is missing any more, or when that is not to be expected.

    `changed` fires when something came; `ask` is called with what is missing, again and again but ever more rarely;
    where that `is_cheap`, even before most came. It is told the loop time until which there is no hurry: what
    `is_coming` by then is not asked for.
    """
    loop = asyncio.get_running_loop()
    begun_s, asking = loop.time(), set[asyncio.Future[None]]()
    limit_s, ask_s, most_s = begun_s + patience.longest_s, float("inf"), None
    by_s = ask_s
    if is_cheap:
        ask_s = begun_s + patience.ask_most_s
    try:
        while lacking := missing():
            now = loop.time()
            if most_s is None and 2 * len(lacking) < total:
                most_s, ask_s, limit_s = now, now + patience.ask_s, last_s(begun_s, now, patience.slack_s)
                by_s = (now + limit_s) / 2
            if now >= limit_s:
                return
            if now >= ask_s:
                if wanted := [one for one in lacking if not is_coming(one, by_s)]:
                    asking.add(asyncio.ensure_future(ask(wanted, by_s)))  # what was asked before may hang
                ask_s = now + (now - begun_s if most_s is None else max(patience.ask_s, now - most_s))
                if now < by_s:
                    ask_s = min(ask_s, by_s)
            await changed.wait(min(limit_s, ask_s) - now)
    finally:
        await end(*asking)
