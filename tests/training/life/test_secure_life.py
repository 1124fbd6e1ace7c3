"""How a peer of a run with strangers goes on when it is not where the members are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from minga.access.admission import Admission
from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import ConfigurationError, RemoteError, UnreachableError
from minga.network.interface import PeerId
from minga.security.messaging.voting import DivergedError, OutvotedError
from minga.security.protocol.behaviour import Behaviour
from minga.security.protocol.members import Members, Reason
from minga.training.life import verified_member
from minga.training.life.founding import Founding, Participation
from minga.training.life.verified_member import LONGEST_PAUSE_S, PATIENT_ATTEMPTS, VerifiedMember, VerifiedOptions
from minga.training.transfer.download import OvertakenError
from minga.training.transfer.server import StateServer
from tests.worlds.node_world import World, identity_of
from tests.worlds.swarm_tools import make_spec, virtually

KNOWN = [PeerId(f"{number:064}") for number in range(5)]
OTHERS = [PeerId(f"{number:064}") for number in range(5, 9)]


class Member:
    """A peer at the members' state; its steps end as `step` says."""

    def __init__(self, step: Callable[[], None], membership: Members) -> None:
        self.membership, self.is_member, self._step = membership, False, step

    async def take_step(self) -> None:
        self._step()

    async def settle(self, _: float) -> bool:
        self._step()
        return False


async def make_life(
    monkeypatch: pytest.MonkeyPatch,
    step: Callable[[], None],
    membership: Members,
    vouched_for: bool = True,
    enter: Callable[[], None] = lambda: None,
) -> VerifiedMember:
    class Newcomer:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.is_vouched_for = vouched_for

        async def enter(self) -> Member:
            enter()
            return Member(step, membership)

    monkeypatch.setattr(verified_member, "Joiner", Newcomer)
    node = await World().node()
    replica = SimpleNamespace(vector=SimpleNamespace(layout=VectorLayout((4,), "float32"), numel=4), step=0)
    board: Any = SimpleNamespace(put=lambda _: None, observe=lambda _: lambda: None, payloads=lambda _: {})
    port = SimpleNamespace(unit=1, held_s=float)
    admission = Admission.for_everybody(node.peer_id, node.clock)
    run = Participation(make_spec(8), node.peer_id, "trainer")
    founding = Founding(node, identity_of(node), board, admission, run)
    options = VerifiedOptions(founding, StateServer(node), Behaviour())
    life = VerifiedMember(node, identity_of(node), board, options, replica, port)  # type: ignore[arg-type]
    life._publisher = SimpleNamespace(set_status=lambda _: None)  # type: ignore[assignment]
    life._known = life._founders = frozenset(KNOWN)
    return life


async def go_on(life: VerifiedMember, steps: int) -> None:
    for _ in range(steps):
        await life._enter()
        assert life.secure is not None
        await life._take_step(life.secure)


def test_a_peer_that_computes_in_another_way_gives_up_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def main() -> None:
        def diverge() -> None:
            raise DivergedError("another state")

        life = await make_life(monkeypatch, diverge, Members([]))
        with pytest.raises(ConfigurationError, match="device"):
            await go_on(life, 100)

    main()


def test_pauses_grow_until_a_step_succeeds(monkeypatch: pytest.MonkeyPatch) -> None:
    @virtually
    async def main() -> None:
        def be_late() -> None:
            raise OutvotedError("too late")

        life = await make_life(monkeypatch, be_late, Members([]))
        began_s = asyncio.get_running_loop().time()
        await go_on(life, 20)
        assert asyncio.get_running_loop().time() - began_s > 10 * LONGEST_PAUSE_S

    main()


@pytest.mark.parametrize(
    ("error", "first"), [(OvertakenError("they took a step"), PATIENT_ATTEMPTS), (UnreachableError("nobody"), 1)]
)
@pytest.mark.parametrize("adopts", [False, True])
def test_that_members_went_on_is_told_as_a_failure_only_if_it_happens_again_and_again(
    monkeypatch: pytest.MonkeyPatch, error: RemoteError, first: int, adopts: bool
) -> None:
    """`first`: the attempt after which it is where no state comes; where it comes too late, that is the last one."""

    @virtually
    async def main() -> None:
        def fail() -> None:
            raise error

        def go() -> None:
            pass

        life = await make_life(monkeypatch, fail if adopts else go, Members([]), enter=go if adopts else fail)
        told = dict[str, int]()
        life._node.events.subscribe(lambda event: told.setdefault(event.kind, life._attempts) and None)
        for _ in range(PATIENT_ATTEMPTS):
            await life._enter()
            if life.secure is not None:
                await life._take_step(life.secure)
        assert told["sync.failed"] == (PATIENT_ATTEMPTS if adopts else first)

    main()


@pytest.mark.parametrize(("vouched_for", "known"), [(True, {*KNOWN[1:], *OTHERS}), (False, {*KNOWN})])
def test_those_whose_word_counts_come_from_members_that_most_of_them_vouch_for(
    monkeypatch: pytest.MonkeyPatch, vouched_for: bool, known: set[PeerId]
) -> None:
    """Neither who was led into a run of sybils has these for its guides from then on, nor who banned somebody that."""

    @virtually
    async def main() -> None:
        membership = Members([KNOWN[0], *OTHERS])
        membership.ban(KNOWN[0], 3, Reason.EQUIVOCATED)
        life = await make_life(monkeypatch, lambda: None, membership, vouched_for)
        await go_on(life, 1)
        assert life._known == known

    main()


def test_a_founder_that_was_started_again_says_at_which_step_it_is_before_it_has_entered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another that had lost its files asks the founders, and began the run anew if they all came back with it."""

    @virtually
    async def main() -> None:
        life = await make_life(monkeypatch, lambda: None, Members([]))
        beginning = asyncio.ensure_future(life._begin(7))
        await asyncio.sleep(0.1)
        assert life.founding.genesis is None
        assert life.founding.step == 7
        beginning.cancel()

    main()


@pytest.mark.parametrize("enters", [True, False])
def test_a_peer_that_most_do_not_confirm_at_the_end_takes_their_state_or_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, enters: bool
) -> None:
    @virtually
    async def main() -> None:
        def be_outvoted() -> None:
            raise OutvotedError("most others went on without this peer")

        def enter() -> None:
            if not enters:
                raise UnreachableError("nobody")

        life = await make_life(monkeypatch, be_outvoted, Members([]), enter=enter)
        told = list[str]()
        life._node.events.subscribe(lambda event: told.append(event.kind))
        life.secure = Member(be_outvoted, Members([]))  # type: ignore[assignment]
        assert await life._settle() is not enters
        assert (life.secure is not None) == enters
        assert told[0] == "member.out_of_sync"
        assert told[-1] == ("sync.finished" if enters else "sync.failed")
        assert ("the run ended" in caplog.text) is not enters

    main()
