"""How long a full step waits for newcomers that are fetching its state.

Theory of operation. While the swarm waits its state does not change. So a newcomer that can fetch it in that time gets
in, however short the steps are; if nobody ever waited, newcomers of such a run would chase its state for ever. But what
one step waits, everybody waits. So there is one bound for all newcomers of a step together: the time that the step
took, and `LEAST_S` at least, in which most newcomers are done.

Who misses that begins anew, with the state of the next step, and that waits as long as the newcomer has been at it
until then, up to `MOST_S`: so it gets in as soon as that is longer than its download takes. A newcomer that needs
longer than `MOST_S` and longer than a step, or pretends to, is given up when it has been at it for `GIVEN_UP` times as
long.
"""

from __future__ import annotations

from collections.abc import Mapping

from minga.network.interface import PeerId

LEAST_S, MOST_S = 2.0, 10.0
"""Bounds of what one step waits for all newcomers together; a step that itself took longer waits as long as that."""

GIVEN_UP = 3.0


def waited_for(syncing: Mapping[PeerId, float], step_s: float) -> list[PeerId]:
    """Those for whom a step that took `step_s` to fill waits; `syncing` tells for how long each has been at it."""
    return [peer for peer, seconds in syncing.items() if seconds < GIVEN_UP * longest_hold_s(step_s)]


def hold_s(syncing: Mapping[PeerId, float], step_s: float, since_full_s: float) -> float:
    """For how many seconds such a step waits for all of them together, when it has been full for `since_full_s`."""
    before = [syncing[peer] - since_full_s for peer in waited_for(syncing, step_s)]
    return min(max(LEAST_S, step_s, *before), longest_hold_s(step_s))


def longest_hold_s(step_s: float) -> float:
    """How many seconds a step that takes `step_s` waits at the very most."""
    return max(MOST_S, step_s)
