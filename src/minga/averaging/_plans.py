"""Plans: made by a leader, signed, and checked by everybody who gets one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
from blake3 import blake3

from minga.averaging._messages import MAX_CHUNKS, Join, Member, Plan, SignedPlan
from minga.averaging._parts import part_sizes
from minga.core._decoding import DECODING_ERRORS
from minga.core._errors import ProtocolError
from minga.identity._keys import Identity, verify
from minga.network._interface import PeerId

CONTEXT = b"minga plan"
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 << 10, 512 << 10
PLANNED_ENDPOINTS = 8
CHUNK_S = 0.25
"""Seconds that the slowest declared link takes for one chunk, within the two bounds above."""

SLOWEST_RATE, FASTEST_RATE = 1.0, 1e15


def make_plan(name: str, step: int, members: Sequence[Member], rates: Sequence[float | None], numel: int) -> Plan:
    """The plan of a round over `numel` elements; `members` in their order, the leader first.

    `rates` are what they declared in bytes per second (None or 0: unknown); parts are proportional to them, and
    clients get none. `name` is a text that no other round of the run has.
    """
    known = [min(max(rate, SLOWEST_RATE), FASTEST_RATE) if rate else None for rate in rates]
    parts = part_sizes(numel, [r if m.aggregates else 0.0 for m, r in zip(members, known, strict=True)])
    borders = [0]
    for part in parts:
        borders.append(borders[-1] + part)
    slowest = min((rate for rate in known if rate is not None), default=math.inf)
    chunk_bytes = min(MAX_CHUNK_BYTES, max(MIN_CHUNK_BYTES, CHUNK_S * slowest))
    chunk_bytes = max(int(chunk_bytes), -(-4 * numel * 2 // MAX_CHUNKS))
    return Plan(blake3(name.encode()).hexdigest(length=16), step, tuple(members), tuple(borders), chunk_bytes)


def member_of(join: Join) -> Member:
    """The member that a join asks for."""
    return Member(
        msgspec.structs.replace(join.address, direct=join.address.direct[:PLANNED_ENDPOINTS]), join.aggregates
    )


def sign_plan(plan: Plan, identity: Identity) -> SignedPlan:
    """Encode and sign a plan."""
    encoded = msgspec.msgpack.encode(plan)
    return SignedPlan(encoded, identity.sign(encoded, context=CONTEXT))


def accept_plan(signed: SignedPlan, *, leader: PeerId, step: int, numel: int, me: PeerId) -> Plan:
    """The plan, if its leader signed it and it holds together.

    Raises `ProtocolError` naming the leader and the flaw.
    """
    if not verify(leader, signed.signature, signed.plan, context=CONTEXT):
        raise ProtocolError("the plan is not signed by its leader", peer=leader, round=step, phase="group")
    try:
        plan = msgspec.msgpack.decode(signed.plan, type=Plan)
    except DECODING_ERRORS as error:
        raise ProtocolError(f"malformed plan: {error}", peer=leader, round=step, phase="group") from error
    if (flaw := _flaw(plan, leader, step, numel, me)) is not None:
        raise ProtocolError(f"plan refused: {flaw}", peer=leader, round=step, phase="group")
    return plan


def _flaw(plan: Plan, leader: PeerId, step: int, numel: int, me: PeerId) -> str | None:
    ids = [member.peer_id for member in plan.members]
    parts = list(zip(plan.borders, plan.borders[1:], strict=False))
    ends = (plan.borders[0], plan.borders[-1])
    clients = [part for member, part in zip(plan.members, parts, strict=False) if not member.aggregates]
    flaws = {
        f"it is for step {plan.step}": plan.step != step,
        "its first member is not the leader": ids[0] != leader,
        "a member is listed twice": len(set(ids)) != len(ids),
        "it leaves out the peer that it was sent to": me not in ids,
        "its parts do not cover the vector": len(parts) != len(ids) or ends != (0, numel),
        "its parts overlap": any(stop < start for start, stop in parts),
        "a client is to aggregate": any(start < stop for start, stop in clients),
        "its chunks are too many": 4 * numel > plan.chunk_bytes * (MAX_CHUNKS - len(ids)),
    }
    return next((flaw for flaw, found in flaws.items() if found), None)
