"""Plans: made by a leader from a division, signed, and checked by everybody who gets one.

A leader sends a plan to each of the members that it names, so what it uploads grows with their number squared. Most of
a plan is ids and addresses in text, so those of large groups go compressed (`docs/planning.md` has the figures).
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

import msgspec
from blake3 import blake3

from minga.averaging.apportionment import apportion
from minga.averaging.election import Electorate
from minga.averaging.links import Links
from minga.averaging.messages import LONGEST_S, MAX_CHUNKS, MAX_PLAN_BYTES, GroupMember, Join, Part, Plan, SignedPlan
from minga.averaging.planning.believed_rates import RateClaim, swarm_rates
from minga.averaging.solver.division import Division, PartShare
from minga.averaging.solver.flat import equal_parts, predict
from minga.averaging.solver.two_level import CHUNKS_IF_LARGE, LARGE, most_ways
from minga.core.decoding import DECODING_ERRORS, decode_msgpack
from minga.core.errors import ProtocolError
from minga.identity.keys.keys import Identity, verify
from minga.network.bandwidth.access_link import AccessRates
from minga.network.interface import PeerId

CONTEXT = b"minga plan"
PLANNED_ENDPOINTS = 8
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 16 << 10, 2 << 20
CHUNKS_PER_MEMBER, CHUNKS_IF_QUICK = 16, 8
"""A vector goes in so many chunks for each member, or of two levels for each half part if these are fewer: until the
first is reduced everywhere nothing comes back, and that takes one chunk to each of the others, so about one 16th of the
way there is lost to it. In a quick round, or one of which nothing is known, what is done for each chunk costs more than
that. So it does in a large group, whose parts go in the least number, `CHUNKS_IF_LARGE`: with eight a step of 150 home
peers has a quarter more messages, and is no shorter.

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
    is_quick = division.predicted_s is None or division.predicted_s < QUICK_S
    chunks = CHUNKS_IF_LARGE if is_large else CHUNKS_IF_QUICK if is_quick else CHUNKS_PER_MEMBER
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


def division_of(plan: Plan) -> Division:
    """Who reduces what by a plan, as its leader divided the vector."""
    starts = [0, *(part.stop for part in plan.parts)]
    numel = plan.parts[-1].stop
    parts = (
        PartShare((part.stop - start) / numel, part.root, part.relays)
        for start, part in zip(starts, plan.parts, strict=False)
    )
    return Division(tuple(parts), plan.sites)


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


# ---- Whether a plan asks too much of one of its members, by what that member knows.
#
# A member knows its own line first-hand, and from the board what the others say of theirs. A plan is unfair to it if
# it keeps its line busy for more than `UNFAIR_FACTOR` times as long as a whole round of equal parts keeps three
# quarters of the members busy at most: however slow a few liars say that they are, nothing becomes fair by it. But no
# plan can spare a member its own vector, which may take far longer than that on a slow line; to such a member honest
# leaders give hardly any part. Every member checks every plan, so this takes time in proportion to members and parts
# only. A plan that seems unfair by that is looked at again with the paths between the members, which may be what makes
# equal parts slow, and which take longer to reckon with.


UNFAIR_FACTOR: Final = 4.0
UNFAIR_S: Final = 10.0
"""Seconds by which an unfair plan must take longer at least: with short rounds all of this is guesswork."""
LITTLE_MORE: Final = 1.25
"""Who carries no more vectors than that gives its own and gets the result: that is fair, however long it takes."""


def unfair_parts(
    plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float
) -> str | None:
    """Why a plan is unfair to its member number `me`, which knows `own` of its line and `links` of all; None if not."""
    carried = _vectors_carried(plan, me)
    mine_s = _seconds(own, carried * vector_bytes)
    if carried <= LITTLE_MORE or mine_s <= UNFAIR_S:  # as a rule, and known without a look at the others
        return None
    usual_s = _usual_s(plan, links, own, me, vector_bytes)
    if usual_s is None:
        return None
    if mine_s > UNFAIR_FACTOR * usual_s + UNFAIR_S:
        usual_s = max(usual_s, _usual_over_paths_s(plan, links, own, me, vector_bytes))
    if mine_s <= UNFAIR_FACTOR * usual_s + UNFAIR_S:
        return None
    return f"its plan keeps this peer busy for {mine_s:.0f} s, where equal parts take most {usual_s:.0f} s"


def _usual_s(plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float) -> float | None:
    """Seconds for which equal parts keep three quarters of the members busy at most; None if no rate is known."""
    count = len(plan.members)
    carried = 2.0 * vector_bytes * (count - 1) / count
    busy_s = []
    for index, member in enumerate(plan.members):
        line = own if index == me else _line(links.get(member.peer_id))
        if any(line.limits):
            busy_s.append(_seconds(line, carried))
    return _third_quartile(busy_s) if busy_s else None


def _usual_over_paths_s(
    plan: Plan, links: Mapping[PeerId, Links], own: AccessRates, me: int, vector_bytes: float
) -> float:
    """The same by the rates that a leader would plan with, each member's time being that of its line or of three
    quarters of its paths.
    """
    claims = []
    for index, member in enumerate(plan.members):
        line = own if index == me else _line(links.get(member.peer_id))
        shown = {"upload_shown": line.upload_shown, "download_shown": line.download_shown}
        claims.append(RateClaim(line.upload, line.download, aggregates=member.aggregates, **shown))
    rates = swarm_rates(plan.ids, claims, links)
    foreseen, count = predict(equal_parts(rates), rates, vector_bytes), len(rates.peers)
    path_s: list[list[float]] = [[] for _ in rates.peers]
    for (one, _), rate in rates.pairs.items():
        path_s[one].append(2.0 * vector_bytes / count / rate if rate else 0.0)
    busy_s = []
    for index, peer in enumerate(rates.peers):
        up_s = foreseen.upload_bytes[index] / peer.upload if peer.upload else 0.0
        down_s = foreseen.download_bytes[index] / peer.download if peer.download else 0.0
        fast = [0.0] * max(1, count - 1 - len(path_s[index]))
        busy_s.append(max(up_s, down_s, _third_quartile([*fast, *path_s[index]])))
    return _third_quartile(busy_s)


def _third_quartile(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.75 * (len(values) - 1))]


def _line(known: Links | None) -> AccessRates:
    if known is None:
        return AccessRates()
    shown = {"upload_shown": known.upload_shown, "download_shown": known.download_shown}
    return AccessRates(known.upload or None, known.download or None, **shown)


def _seconds(line: AccessRates, carried_bytes: float) -> float:
    """How long a line takes for so many bytes each way, the slower way counting, as far as that is known."""
    return max(carried_bytes / rate if rate else 0.0 for rate in line.limits)


def _vectors_carried(plan: Plan, me: int) -> float:
    """How many vectors a member sends, and receives as many, if all have samples and all need the result."""
    own_site = next((number for number, site in enumerate(plan.sites) if me in site), None)
    beside = len(plan.sites[own_site]) - 1 if own_site is not None else 0
    outside = len(plan.members) - sum(len(site) for site in plan.sites)
    below_root = beside + outside + len(plan.sites) - 1  # itself is outside, or one of the sites is its own
    start, carried = 0, 0
    for part in plan.parts:
        size, start = part.stop - start, part.stop
        if part.root == me:
            carried += size * below_root
        elif own_site is not None and part.relays[own_site] == me:
            carried += size * (1 + beside)
        else:
            carried += size
    return carried / start
