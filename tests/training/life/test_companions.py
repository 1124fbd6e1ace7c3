"""For whom a peer stays at the end of a run."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from types import SimpleNamespace
from typing import Any, cast

from minga.network.interface import PeerId
from minga.training.life.leaving import FAREWELL_S, LOST_S, Companions
from minga.training.record_kinds import Progress
from tests.worlds.swarm_tools import virtually

A, B, C, D = (PeerId(letter * 64) for letter in "abcd")


def companions() -> tuple[Companions, set[PeerId]]:
    """Those of a peer, and who said goodbye to it."""
    gone = set[PeerId]()
    return Companions(cast(Any, SimpleNamespace(said_goodbye=gone.__contains__)), cast(Any, SimpleNamespace())), gone


def outcome(members: Collection[PeerId], lost: Collection[PeerId] = ()) -> Any:
    """What came of a round."""
    return SimpleNamespace(plan=SimpleNamespace(members=[SimpleNamespace(peer_id=m) for m in members]), lost=lost)


@virtually
async def test_half_of_a_group_is_waited_for_also_if_newcomers_took_its_place() -> None:
    found, _ = companions()
    found.note(outcome([A, B]))
    found.note(outcome([A, C, D]))
    assert found.lost == {B}
    found.note(outcome([A, C, D]))
    assert found.lost == {B}, "it may have taken several steps alone"
    found.note(outcome([A, C, D], lost=[D]))
    assert found.lost == {B, D}
    found.note(outcome([A, C]))
    assert found.lost == {B}, "one of three waits for the others"
    await asyncio.sleep(LOST_S + 1.0)
    assert not found.lost


@virtually
async def test_nobody_waits_for_one_that_said_goodbye() -> None:
    found, gone = companions()
    found.note(outcome([A, B]))
    found.note(outcome([A, B], lost=[B]))
    assert found.lost == {B}
    gone.add(B)
    assert not found.lost


@virtually
async def test_one_of_three_that_a_newcomer_has_its_state_from_is_not_waited_for() -> None:
    found, _ = companions()
    found.begin_with([A, B, C])
    found.note(outcome([A, B]))
    found.note(outcome([A, B]))
    assert not found.lost
    found.begin_with([A, B])
    found.note(outcome([A]))
    found.note(outcome([A]))
    assert found.lost == {B}


@virtually
async def test_nobody_stays_for_one_that_was_through_before_the_organiser_let_the_run_go_on() -> None:
    settled = {B: Progress(4, 0, 0.0, "finished")}
    view = SimpleNamespace(
        said_goodbye=lambda peer: False,
        settled=lambda: settled,
        with_state=lambda: set(settled),
        syncing=dict,
        through=lambda step: {peer for peer, progress in settled.items() if progress.status == "finished"},
    )
    found = Companions(cast(Any, view), cast(Any, SimpleNamespace(has_told=lambda peer, step: peer == A)))
    found.begin_with([A, B])
    found.note(outcome([A]))
    assert found.lost == {B}, "half of those that had the state"
    assert not found.may_differ(8)
    begun_s = asyncio.get_running_loop().time()
    await found.see_off(8)
    assert asyncio.get_running_loop().time() == begun_s
    settled[B] = Progress(7, 0, 0.0, "training")
    assert found.may_differ(8)
    await found.see_off(8)
    assert asyncio.get_running_loop().time() >= begun_s + FAREWELL_S
