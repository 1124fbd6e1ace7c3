"""Plans: made by a leader from a division, signed, and checked by everybody who gets one.

A leader sends a plan to each of the members that it names, so what it uploads grows with their number squared. Most of
a plan is ids and addresses in text, so those of large groups go compressed (`docs/scaling.md` has the figures).
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import msgspec
from blake3 import blake3

from minga.averaging.apportionment import apportion
from minga.averaging.election import Electorate
from minga.averaging.messages import LONGEST_S, MAX_CHUNKS, MAX_PLAN_BYTES, GroupMember, Join, Part, Plan, SignedPlan
from minga.averaging.solver.division import Division
from minga.averaging.solver.large_groups import LARGE
from minga.averaging.solver.two_level import most_ways
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError
from minga.identity.keys.keys import Identity, verify
from minga.network.interface import PeerId

CONTEXT = b"minga plan"
PLANNED_ENDPOINTS = 8
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 << 10, 2 << 20
CHUNKS_PER_MEMBER, CHUNKS_IF_QUICK = 16, 8
"""A vector goes in so many chunks for each member, or of two levels for each half part if these are fewer: until the
first is reduced everywhere nothing comes back, and that takes one chunk to each of the others, so about one 16th of the
way there is lost to it. In a quick round, or one of which nothing is known, what is done for each chunk costs more than
that; so it does in a large group, whose parts go in so many chunks each.

A part goes in at least this number of chunks itself, none of which gets smaller than `MIN_CHUNK_BYTES` for that. A root
sends each result to everybody at once; with chunks as large as those of large parts that would fill its line for so
long that its own chunks would come late everywhere else."""

QUICK_S = 2.0
"""A round is quick if it is predicted to take less."""

LONGEST_CHUNKS = MAX_CHUNKS // 2
"""Chunks of a plan at most, leaving room for those that the borders of parts and codecs cut off."""


WHOLE_FROM_BLOCKS = 16
"""Parts of fewer codec blocks are cut anywhere: whole blocks would move too much of one to another member."""


@dataclass(frozen=True)
class PlanNeeds:
    """What a plan is for: the round's step, the elements of the vector and the bytes that they take encoded.

    Parts begin at multiples of `block_elements` where they have `WHOLE_FROM_BLOCKS` blocks and more.
    """

    step: int
    numel: int
    encoded_bytes: int
    block_elements: int = 1


def make_plan(
    name: str, needs: PlanNeeds, members: Sequence[GroupMember], division: Division, resting: Sequence[int] = ()
) -> Plan:
    """The plan of a round; `members` in their order, the leader first, are what the division's numbers stand for.

    `name` is a text that no other round of the run has.
    """
    is_large = len(members) > LARGE
    is_quick = is_large or division.predicted_s is None or division.predicted_s < QUICK_S
    chunks = CHUNKS_IF_QUICK if is_quick else CHUNKS_PER_MEMBER
    parts: list[Part] = []
    for stop, share in zip(_stops(needs, division), division.parts, strict=True):
        if stop > (parts[-1].stop if parts else 0):
            parts.append(Part(stop, share.root, share.relays))
    return Plan(
        round_id=blake3(name.encode()).hexdigest(length=16),
        step=needs.step,
        members=tuple(members),
        parts=tuple(parts),
        chunk_bytes=_chunk_bytes(needs, chunks * _lanes(len(members), division)),
        part_chunks=max(1, min(chunks, LONGEST_CHUNKS // (2 * len(parts)))),
        sites=division.sites,
        resting=tuple(resting),
        predicted_s=None if division.predicted_s is None else min(division.predicted_s, LONGEST_S),
    )


def _stops(needs: PlanNeeds, division: Division) -> Iterator[int]:
    """Where each part of the vector ends."""
    sizes = apportion(needs.numel, [part.share for part in division.parts])
    block = needs.block_elements
    if min(size for size in sizes if size) < WHOLE_FROM_BLOCKS * block:
        block = 1
    for stop in accumulate(sizes):
        yield stop if stop == needs.numel else (stop + block // 2) // block * block


def _lanes(members: int, division: Division) -> int:
    """To how many others a member sends, about."""
    if not division.sites:
        return members
    return len(division.parts) if members > LARGE else min(members, 2 * len(division.parts))


def _chunk_bytes(needs: PlanNeeds, chunks: int) -> int:
    fewest = 4 * needs.numel // LONGEST_CHUNKS + 1
    return max(MIN_CHUNK_BYTES, min(MAX_CHUNK_BYTES, needs.encoded_bytes // chunks), fewest)


def chunk_bytes_of(plan: Plan, part_bytes: int) -> int:
    """How many encoded bytes a chunk has, about, in a part of `part_bytes`."""
    return min(plan.chunk_bytes, max(MIN_CHUNK_BYTES, part_bytes // plan.part_chunks))


def member_of(join: Join) -> GroupMember:
    """The member that a join asks for."""
    return GroupMember(
        msgspec.structs.replace(join.address, direct=join.address.direct[:PLANNED_ENDPOINTS]), join.aggregates
    )


def sign_plan(plan: Plan, identity: Identity) -> SignedPlan:
    """Encode and sign a plan."""
    encoded, packed = msgspec.msgpack.encode(plan), len(plan.members) > LARGE
    if packed:
        encoded = zlib.compress(encoded)
    return SignedPlan(encoded, identity.sign(encoded, context=CONTEXT), packed=packed)


def accept_plan(signed: SignedPlan, *, leader: PeerId, step: int, numel: int, me: PeerId) -> Plan:
    """The plan, if its leader signed it and it holds together.

    Raises `ProtocolError` naming the leader and the flaw.
    """
    if not verify(leader, signed.signature, signed.plan, context=CONTEXT):
        raise ProtocolError("the plan is not signed by its leader", peer=leader, round=step, phase="group")
    try:
        plan = _decoded(signed.plan, packed=signed.packed)
    except (zlib.error, *DECODING_ERRORS) as error:
        raise ProtocolError(f"malformed plan: {error}", peer=leader, round=step, phase="group") from error
    if (flaw := next(_flaws(plan, leader, step, numel, me), None)) is not None:
        raise ProtocolError(f"plan refused: {flaw}", peer=leader, round=step, phase="group")
    return plan


@functools.lru_cache(maxsize=8)
def _decoded(encoded: bytes, *, packed: bool) -> Plan:
    """The plan, which cannot change; remembered because a simulation has many members of the same round."""
    if packed:
        unpacking = zlib.decompressobj()
        encoded = unpacking.decompress(encoded, MAX_PLAN_BYTES)
        if not unpacking.eof or unpacking.unused_data:
            raise zlib.error("cut off, too long, or followed by something")
    return decode_msgpack(encoded, Plan)


def _flaws(plan: Plan, leader: PeerId, step: int, numel: int, me: PeerId) -> Iterator[str]:
    ids = plan.ids
    if plan.step != step:
        yield f"it is for step {plan.step}"
    if ids[0] != leader:
        yield "its first member is not the leader"
    if len(set(ids)) != len(ids):
        yield "a member is listed twice"
    if me not in ids:
        yield "it leaves out the peer that it was sent to"
    if plan.parts[-1].stop != numel:
        yield "its parts do not cover the vector"
    if plan.parts[0].stop <= 0 or any(after.stop <= before.stop for before, after in pairwise(plan.parts)):
        yield "its parts overlap or are empty"
    if 4 * numel > plan.chunk_bytes * (MAX_CHUNKS - len(plan.parts) * (1 + plan.part_chunks)):
        yield "its chunks are too many"
    if plan.chunk_bytes > max(MAX_CHUNK_BYTES, 4 * numel // LONGEST_CHUNKS + 1):
        yield "its chunks are too large"
    yield from _flaws_of_roles(plan)
    yield from _flaws_of_the_decision(plan)


def _flaws_of_the_decision(plan: Plan) -> Iterator[str]:
    known, electorate = range(len(plan.members)), Electorate.of(plan)
    named = {*plan.voters, *plan.holders} | ({plan.tie_breaker} if plan.tie_breaker is not None else set())
    if any(index not in known for index in named):
        yield "a member that it does not have is to decide"
    if len(set(plan.voters)) != len(plan.voters) or len(plan.voters) > electorate.size:
        yield "it counts a vote twice"
    if not electorate.is_quorum(known):
        yield "too few of its members have a vote"
    if bool(plan.adopts) != bool(plan.holders) or bool(plan.adopts) != bool(plan.view):
        yield "it adopts a result without holders, or without the members that made it"


def _flaws_of_roles(plan: Plan) -> Iterator[str]:
    known = range(len(plan.members))
    on_sites = [index for site in plan.sites for index in site]
    if any(index not in known for index in (*on_sites, *plan.resting, *plan.contributors, *plan.twins)):
        yield "it names a member that it does not have"
    if len(plan.scores) not in (0, len(plan.members)):
        yield "it has not one score for each member"
    if len(plan.limits) not in (0, len(plan.members)):
        yield "it has not one limit for each member"
    if plan.sites and len(plan.parts) > most_ways(len(plan.members)):
        yield "it has too many parts for two levels"
    if len(set(on_sites)) != len(on_sites):
        yield "a member is on two sites, or twice on one"
    for part in plan.parts:
        if part.root not in known or not plan.members[part.root].aggregates:
            yield "a client is to aggregate, or a member that it does not have"
            return
        if len(part.relays) != len(plan.sites):
            yield "a part has not one relay for each site"
            return
        if not all(plan.may_relay(relay, site, part.root) for site, relay in zip(plan.sites, part.relays, strict=True)):
            yield "a relay is not of its site, cannot aggregate, or stands beside the root"
            return
