"""Tokens of an authority that are renewed, or not, in the middle of a run; in virtual time."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from minga.access.admission import Admission
from minga.core.errors import LocalError, RejectedError, UnreachableError
from minga.core.refusal_code import RefusalCode
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import CLOCK_SKEW_S
from minga.identity.access.token import Login, Token
from minga.identity.keys.keys import Identity
from minga.network.rpc.run_clock import RunClock
from minga.network.virtual.internet import EPOCH_S, HostSettings
from minga.simulation.swarm.simulated_peer import SimulatedPeer, TrainerSettings
from minga.simulation.swarm.swarm import Swarm
from minga.training.own_access import keep_renewed
from minga.training.session import Session, SessionSettings
from tests.identity.access.test_members import ORGANISER, ended, grant, make_swarm, members_spec, train_on
from tests.worlds.swarm_tools import virtually as virtually_for

pytestmark = pytest.mark.promise("who-may-take-part")

INVITATION = Identity.from_seed(b"i" * 32)
TOKEN_S = 40
virtually = functools.partial(virtually_for, limit_s=1000.0)
SLOW = TrainerSettings(micro_batch=4, micro_batch_s=5.0)


@dataclass
class Authority:
    """Signs at its own time for `alice`; raises `failures` first, and `says_no` from then on."""

    spec: RunSpec
    now_s: float = EPOCH_S
    last_s: float = float("inf")

    def token_for(self, peer_id: str) -> Token:
        permission = grant(self.spec, INVITATION.peer_id, ORGANISER, uses=100)
        expires = int(min(self.last_s, self.now_s + TOKEN_S))
        return Token.by_login(permission, INVITATION, peer_id, Login("alice", expires))


class Renewing:
    """Stands in for `LogIn`: the same authority, asked by one peer of the virtual world."""

    def __init__(self, authority: Authority, peer: SimulatedPeer, *failures: Exception) -> None:
        self.authority, self.peer, self.failures = authority, peer, list(failures)
        self.asked_s: list[float] = []

    async def renew(self, identity: Identity) -> Token:
        self.authority.now_s = self.peer.network.wall_time()
        self.asked_s.append(self.authority.now_s - EPOCH_S)
        if self.failures:
            raise self.failures.pop(0)
        return self.authority.token_for(identity.peer_id)


def add(swarm: Swarm, authority: Authority, *failures: Exception, skew_s: float = 0.0) -> tuple[str, Renewing]:
    """A member whose token is kept renewed."""
    peer = swarm.add(HostSettings(clock_skew_s=skew_s), SLOW, access=authority)  # type: ignore[arg-type]
    renewing = Renewing(authority, peer, *failures)
    peer.session.node.spawn(keep_renewed(peer.session, renewing))  # type: ignore[arg-type]
    return peer.name, renewing


def now_s() -> float:
    """Virtual seconds since the beginning."""
    return asyncio.get_running_loop().time()


def tokens_known(swarm: Swarm, of: str, at: str) -> Any:
    known = swarm.peers[at].session.admission.members()[swarm.peers[of].network.peer_id]
    return known.access.expires


@virtually
async def test_members_train_on_while_tokens_are_renewed_though_the_authority_is_down_or_says_no_for_a_while() -> None:
    spec = members_spec()
    swarm, authority = make_swarm(spec), Authority(spec)
    no, wrong = RejectedError("alice is not on the list", code=RefusalCode.ACCESS), LocalError("the clock is wrong")
    slow, _ = add(swarm, authority, skew_s=-50.0)
    patient, renewing = add(swarm, authority, *[UnreachableError("down")] * 3)
    renewed, _ = add(swarm, authority, no, no, wrong, skew_s=50.0)
    names = [slow, patient, renewed]
    await swarm.run_until_step(2, peers=names)
    while now_s() < 2 * TOKEN_S + CLOCK_SKEW_S:
        await train_on(swarm, names)
    assert not swarm.log.of("access.ended")
    assert {logged.peer for logged in swarm.log.of("access.renewed")} == set(names)
    assert sorted(logged.peer for logged in swarm.log.of("access.not_renewed")) == [patient, renewed, renewed]
    pauses = [after - before for before, after in zip(renewing.asked_s, renewing.asked_s[1:], strict=False)]
    assert pauses[:3] == pytest.approx([5.0, 10.0, 20.0], abs=1.0)
    late, _ = add(swarm, authority)
    await train_on(swarm, [*names, late])
    assert all(tokens_known(swarm, of, late) > EPOCH_S + CLOCK_SKEW_S + TOKEN_S for of in names)
    assert {m.access.name for m in swarm.peers[slow].session.admission.members().values()} == {"alice"}
    await swarm.close()


@virtually
async def test_who_gets_no_further_token_goes_when_the_last_one_ends() -> None:
    spec = members_spec()
    swarm, authority = make_swarm(spec), Authority(spec)
    steady, _ = add(swarm, authority)
    second, _ = add(swarm, authority)
    refusals = [RejectedError("alice is not on the list", code=RefusalCode.ACCESS)] * 100
    removed, renewing = add(swarm, authority, *refusals)
    await swarm.run_until_step(2, peers=[steady, second, removed])
    gone = swarm.peers[removed]
    await gone.ended.wait()
    assert isinstance(gone.error, RejectedError)
    assert "has expired; log in again" in str(gone.error)
    assert len(swarm.log.of("access.not_renewed")) == 1, "a reason is told once"
    pauses = [after - before for before, after in zip(renewing.asked_s, renewing.asked_s[1:], strict=False)]
    assert pauses[:4] == pytest.approx([5.0, 10.0, 20.0, 40.0], abs=1.0)
    assert len(pauses) <= 6
    assert now_s() < TOKEN_S + CLOCK_SKEW_S + 130.0
    await train_on(swarm, [steady, second])
    assert all("expired" in why for why in ended(swarm, removed).values())
    await swarm.close()


@virtually
async def test_whose_clock_is_too_far_ahead_is_told_so_and_does_not_ask_for_ever() -> None:
    class OnTime(Renewing):
        async def renew(self, identity: Identity) -> Token:
            self.asked_s.append(now_s())
            self.authority.now_s = EPOCH_S + now_s()
            return self.authority.token_for(identity.peer_id)

    spec = members_spec()
    swarm, authority = make_swarm(spec), Authority(spec)
    peer = swarm.add(HostSettings(clock_skew_s=TOKEN_S + 2 * CLOCK_SKEW_S), SLOW, access=authority)  # type: ignore[arg-type]
    renewing = OnTime(authority, peer)
    await keep_renewed(peer.session, renewing)  # type: ignore[arg-type]
    (told,) = swarm.log.of("access.not_renewed")
    assert "clock is wrong" in str(told.event.fields["why"])
    assert len(renewing.asked_s) == 1
    await swarm.close()


@pytest.mark.parametrize(("lasting_s", "ends_s"), [(60, [260.0, 300.0]), (100, [300.0, 366.0])])
def test_tokens_that_last_less_from_now_on_are_renewed_as_well(lasting_s: int, ends_s: list[float]) -> None:
    virtually(renew_shorter_tokens)(lasting_s, ends_s)


async def renew_shorter_tokens(lasting_s: int, ends_s: list[float]) -> None:
    asked_s, shown = list[float](), list[float]()
    end_s = 400.0

    def token() -> Token:
        expires = int(min(EPOCH_S + end_s, EPOCH_S + now_s() + (lasting_s if asked_s else 300)))
        return Token.by_login(grant(members_spec(), INVITATION.peer_id), INVITATION, "ab" * 32, Login("alice", expires))

    async def renew(_: Identity) -> Token:
        asked_s.append(now_s())
        return token()

    session: Any = SimpleNamespace(
        identity=ORGANISER,
        admission=SimpleNamespace(token=token()),
        node=SimpleNamespace(clock=SimpleNamespace(now=lambda: EPOCH_S + now_s())),
        events=SimpleNamespace(emit=lambda _: None),
        show_token=lambda token: shown.append(token.expires - EPOCH_S),
    )
    await keep_renewed(session, SimpleNamespace(renew=renew))  # type: ignore[arg-type]
    assert shown[:2] == ends_s
    assert shown[-4:].count(end_s) == 3, "there it ends"


@virtually
async def test_an_organiser_has_nothing_to_renew() -> None:
    spec = members_spec()
    swarm = make_swarm(spec)
    network = swarm.internet.host(name="organiser", private_key=ORGANISER.seed)
    admission = Admission(network.peer_id, RunClock.of(network), None)
    session = Session(network, ORGANISER, spec.run_id, SessionSettings(), (), admission)
    renewing = Renewing(Authority(spec), session.node, UnreachableError("down"))  # type: ignore[arg-type]
    await keep_renewed(session, renewing)  # type: ignore[arg-type]
    assert renewing.asked_s == []
    await swarm.close()
