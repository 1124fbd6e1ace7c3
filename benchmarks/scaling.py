"""What grows with the size of a swarm, and how fast: plans, streams, gossip, and the forming of groups.

    python -m benchmarks.scaling --json                       # plans of 10 to 2,000 peers
    python -m benchmarks.scaling --swarm 10,30,100 --json     # and swarms of so many in virtual time; minutes for 100
    python -m benchmarks.scaling --gossip 2,10,25,50 --json   # and what their gossip takes

A line for each size, of home lines drawn from a distribution (median 30 Mb/s up), a fifth of them behind NAT, and a
vector of 36 MB (ALBERT-large in float16):

    divide_cpu_s        processor time of the leader's division
    check_cpu_s         processor time in which a member decodes the signed plan, and checks it; none above the size at
                        which plans are refused
    plan_kb             the signed plan, which the leader sends to every member
    predicted_s         the round by that division; `flat_s` by the division in one level, without any limit of size
    streams             most streams that a member opens, and (root) most that are open at one member
    flat_streams        the same in one level

and of each swarm, before its first round:

    group_s             virtual seconds from when the last peer came until all are in one group
    known               share of the living that a peer knows, the least over all peers, some time later
    cpu_ms              processor time of a second of one peer, in which lines are probed, too

and with `--gossip`, of swarms that do nothing but gossip, from the second minute on:

    kb_s                stream bytes that a peer sends per second
    cpu_ms              processor time of a second of one peer

ok: a division above 64 peers takes at most 10 % longer than the flat one, or as long as the slowest upload and half as
long again, and less than 2 s of processor time; nobody opens more than 3 * sqrt(N) + 64 streams; all know everybody.
"""

from __future__ import annotations

import asyncio
import math
import random
import sys
import time
from dataclasses import replace
from typing import Any

from benchmarks._report import emit, finish, note, parser
from minga.averaging.messages import MAX_MEMBERS, GroupMember
from minga.averaging.planning.signed_plan import PlanNeeds, accept_plan, make_plan, sign_plan
from minga.averaging.solver.division import Division, PeerRates, SwarmRates, usable
from minga.averaging.solver.flat import flat_shares, predict
from minga.averaging.solver.planner import divide
from minga.core.spec.run_spec import RunSpec
from minga.identity.keys.keys import Identity
from minga.network.interface import Address, PeerId
from minga.network.virtual.internet import HostSettings
from minga.simulation import run_virtual
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.simulation.swarm.swarm import Swarm
from minga.training.life.member import Member
from tests.worlds.board_swarm import Swarm as Gossipers

SIZES = (10, 30, 64, 100, 300, 1000, 2000)
PARAMETERS = 17_850_000
VECTOR_BYTES = 2 * PARAMETERS
MBIT = 1e6 / 8
WATCHED_S = 20.0
LONGEST_FORMING_S = 300.0
GOSSIP_WARM_UP_S, GOSSIP_S = 60.0, 40.0


def main(arguments: list[str]) -> int:
    """Measure each size."""
    options = parser(__doc__)
    options.add_argument("--swarm", default="", help="sizes of swarms to simulate, with commas")
    options.add_argument("--gossip", default="", help="sizes of swarms that only gossip, with commas")
    chosen = options.parse_args(arguments)
    divide(SwarmRates((PeerRates(MBIT, MBIT),) * 100), VECTOR_BYTES)  # what it imports is not counted below
    rows = [plan_row(size) for size in SIZES]
    swarms = [run_virtual(swarm_row(int(size))) for size in chosen.swarm.split(",") if size]
    for size in filter(None, chosen.gossip.split(",")):
        run_virtual(gossip_row(int(size)))
    ok = all(row["ok"] for row in (*rows, *swarms))
    return finish("scaling", ok, chosen.json, sizes=[row["peers"] for row in rows], swarms=len(swarms))


def plan_row(size: int) -> dict[str, Any]:
    """Plans of one size; see the module."""
    generator = random.Random(f"minga scaling {size}")
    rates = SwarmRates(tuple(_home(generator, index) for index in range(size)))
    began_s = time.process_time()
    division = divide(rates, VECTOR_BYTES)
    divide_s = time.process_time() - began_s
    flat = _flat(rates)
    members = [_member(index, peer.aggregates) for index, peer in enumerate(rates.peers)]
    identities = [Identity.from_seed(bytes([1]) * 32)]
    leader = PeerId(identities[0].peer_id)
    members[0] = GroupMember(Address(leader, ("192.0.2.1:4433",)), True)
    plan = make_plan("scaling", PlanNeeds(1, PARAMETERS, VECTOR_BYTES), members, division)
    signed = sign_plan(plan, identities[0])
    began_s = time.process_time()
    if size <= MAX_MEMBERS:
        accept_plan(signed, leader=leader, step=1, numel=PARAMETERS, me=members[-1].peer_id)
    check_s = time.process_time() - began_s if size <= MAX_MEMBERS else None
    flat_s = predict(flat, rates, VECTOR_BYTES).seconds
    slowest_s = VECTOR_BYTES / min(peer.upload or math.inf for peer in rates.peers)
    seconds = division.predicted_s or 0.0
    opened, held = _streams(division, size)
    is_good = seconds <= max(1.1 * flat_s, 1.5 * slowest_s) and divide_s < 2.0
    row = {
        "peers": size,
        "divide_cpu_s": round(divide_s, 3),
        "check_cpu_s": None if check_s is None else round(check_s, 4),
        "plan_kb": round(len(signed.plan) / 1000, 1),
        "predicted_s": round(seconds, 1),
        "flat_s": round(flat_s, 1),
        "streams": [opened, held],
        "flat_streams": list(_streams(flat, size)),
        "ok": is_good and (size <= 64 or opened <= 3 * math.sqrt(size) + 64),
    }
    emit(**row)
    return row


async def swarm_row(size: int) -> dict[str, Any]:
    """A swarm of one size before its first round; see the module."""
    spec = RunSpec.from_mapping(
        {"name": "scaling", "training": {"target_batch_size": 1 << 24}, "averaging": {"codec": "float16"}}
    ).published({})
    model, generator = SizeOnlyModel.of_size(PARAMETERS), random.Random(f"minga scaling swarm {size}")
    swarm = Swarm(spec, seed=1, make_replica=lambda spec: SizeOnlyReplica(spec, model), gradient=no_gradient)
    loop = asyncio.get_running_loop()
    note(f"a swarm of {size}")
    for index in range(size):
        peer, latency_s = _home(generator, index), generator.uniform(0.005, 0.04)
        host = HostSettings(peer.upload, peer.download, latency_s, dialable=peer.aggregates)
        swarm.add(host, TrainerSettings(8, generator.uniform(0.5, 1.5)))
        await asyncio.sleep(0.05)
    began_s = loop.time()
    while len(_joined(swarm)) < size and loop.time() - began_s < LONGEST_FORMING_S:
        await asyncio.sleep(0.1)
    group_s = loop.time() - began_s
    await asyncio.sleep(WATCHED_S)
    cpu_s = time.process_time()
    await asyncio.sleep(WATCHED_S)
    cpu_ms = (time.process_time() - cpu_s) / size / WATCHED_S * 1000
    known = min(len(peer.session.board.owners()) for peer in swarm.alive()) / size
    joined = len(_joined(swarm))
    row = {
        "swarm": size,
        "known": known,
        "in_one_group": joined,
        "group_s": round(group_s, 1),
        "cpu_ms": round(cpu_ms, 2),
        "ok": known == 1.0 and joined == size,
    }
    emit(**row)
    await swarm.close()
    return row


async def gossip_row(size: int) -> None:
    """A swarm of nodes that only gossip; see the module."""
    swarm = Gossipers(seed=1)
    await swarm.grow(size)
    await asyncio.sleep(GOSSIP_WARM_UP_S)
    sent, cpu_s = _sent(swarm), time.process_time()
    await asyncio.sleep(GOSSIP_S)
    cpu_ms = (time.process_time() - cpu_s) / size / GOSSIP_S * 1000
    emit(gossipers=size, kb_s=round((_sent(swarm) - sent) / size / GOSSIP_S / 1000, 2), cpu_ms=round(cpu_ms, 2))
    await swarm.close()


def _sent(swarm: Gossipers) -> int:
    return sum(peer.node.traffic()[0] for peer in swarm.peers)


def _home(generator: random.Random, index: int) -> PeerRates:
    upload = min(max(generator.lognormvariate(math.log(30.0), 0.6), 10.0), 200.0) * MBIT
    download = min(max(generator.lognormvariate(math.log(120.0), 0.6), 30.0), 500.0) * MBIT
    return PeerRates(upload, download, 10.0, aggregates=index == 0 or generator.random() > 0.2)


def _member(index: int, aggregates: bool) -> GroupMember:
    """With an id and two endpoints that compress as badly as those of the world."""
    drawn = random.Random(index)
    network, hosts = drawn.randrange(1 << 24), [drawn.randrange(1, 255) for _ in range(2)]
    ports = [drawn.randrange(1024, 1 << 16) for _ in range(2)]
    public = f"{network >> 16}.{network >> 8 & 255}.{network & 255}.{hosts[0]}:{ports[0]}"
    endpoints = (public, f"192.168.1.{hosts[1]}:{ports[1]}")
    return GroupMember(Address(PeerId(drawn.randbytes(32).hex()), endpoints), aggregates)


def _flat(rates: SwarmRates) -> Division:
    """The flat division, however large the group is."""
    whole = divide(replace(rates, peers=rates.peers[:1]), VECTOR_BYTES)
    shares = flat_shares(usable(rates))
    part = whole.parts[0]
    return Division(tuple(replace(part, share=float(x), root=i) for i, x in enumerate(shares) if x > 0.0))


def _streams(division: Division, size: int) -> tuple[int, int]:
    """Most streams that one member opens, and that are open at one member."""
    opened, held = [0] * size, [0] * size
    relay_of = [dict(zip(range(len(division.sites)), part.relays, strict=True)) for part in division.parts]
    site_of = {peer: number for number, site in enumerate(division.sites) for peer in site}
    for part, relays in zip(division.parts, relay_of, strict=True):
        for peer in range(size):
            above = relays.get(site_of[peer], part.root) if peer in site_of else part.root
            above = part.root if above == peer else above
            if peer != part.root:
                opened[peer] += 1
                held[peer] += 1
                held[above] += 1
    return max(opened), max(held)


def _joined(swarm: Swarm) -> set[PeerId]:
    """The largest group in the making: its leader and the registered members."""
    groups = []
    for peer in swarm.alive():
        member = peer.session.member
        formation = member._formation if isinstance(member, Member) else None
        group = formation._led_group if formation is not None else None
        if group is not None:
            groups.append(set(group.everyone()))
    return max(groups, key=len, default=set())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
