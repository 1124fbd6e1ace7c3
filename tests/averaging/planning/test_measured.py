"""What a plan believes of what peers say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.averaging.links import LinkRow, Links, link_key
from minga.averaging.planning.believed_rates import DOUBTED, LIFT, RateClaim, swarm_rates
from minga.averaging.solver.division import SwarmRates
from minga.network.interface import PeerId

pytestmark = pytest.mark.promise("the-plan-and-lies-about-rates")

MB = 1_000_000
HUGE = 10**15


def peers(count: int) -> list[PeerId]:
    return [PeerId(f"{index + 1:064x}"[::-1]) for index in range(count)]


def row(peer: PeerId, **fields: int) -> LinkRow:
    return LinkRow(link_key(peer), *(fields.get(name, 0) for name in LinkRow.__struct_fields__[1:]))


def honest(order: Sequence[PeerId], moved: Sequence[float]) -> dict[PeerId, Links]:
    """Records after a round in which peer i sent, and received, `moved[i]` bytes per second, evenly to and from all."""
    others = len(order) - 1
    return {
        peer: Links(
            rows=tuple(
                row(other, received_mean=int(moved[j] / others), sent_mean=int(moved[j] / others))
                for j, other in enumerate(order)
                if other != peer
            )
        )
        for peer in order
    }


def both(*rates: float | None) -> list[RateClaim]:
    return [RateClaim(rate, rate) for rate in rates]


def uploads(rates: SwarmRates) -> list[float | None]:
    return [peer.upload for peer in rates.peers]


def downloads(rates: SwarmRates) -> list[float | None]:
    return [peer.download for peer in rates.peers]


def test_nobody_knows_anything() -> None:
    order = peers(3)
    rates = swarm_rates(order, both(None, None, None), {})
    assert uploads(rates) == downloads(rates) == [None] * 3
    assert rates.pairs == {}


def test_what_is_told_of_each_peer_is_passed_on() -> None:
    claims = [
        RateClaim(1e6, 2e6, 4.5),
        RateClaim(1e6, 2e6, 0.0, sends=False),
        RateClaim(1e6, 2e6, 1.0, aggregates=False),
    ]
    rates = swarm_rates(peers(3), claims, {})
    assert [(p.samples_per_second, p.sends, p.aggregates) for p in rates.peers] == [
        (4.5, True, True),
        (0.0, False, True),
        (1.0, True, False),
    ]


def test_who_claims_little_is_believed_and_who_claims_nothing_counts_as_usual() -> None:
    rates = swarm_rates(peers(5), both(1e6, 8e6, None, 2e6, 2e6), {})
    assert uploads(rates) == downloads(rates) == [1e6, 2e6, 2e6, 2e6, 2e6]


def test_who_claims_much_gets_it_within_a_few_rounds() -> None:
    """A line of 50 times the others': each round moves what the plan gave it, as an honest fast peer can."""
    order, claims = peers(8), both(50e6, *[1e6] * 7)
    counts = 1e6
    history = []
    for _ in range(6):
        rates = swarm_rates(order, claims, honest(order, [counts, *[1e6] * 7]))
        counts = rates.peers[0].upload or 0.0
        assert downloads(rates) == uploads(rates)
        history.append(counts)
    assert history[0] == pytest.approx(LIFT * 1e6, rel=0.01)
    assert history[-1] == 50e6
    assert history == sorted(history)
    assert sum(rate < 50e6 for rate in history) <= 4


@pytest.mark.parametrize("count", [4, 5, 40])
@pytest.mark.parametrize("scheme", ["alone", "friends", "slander"])
def test_liars_draw_a_bounded_share(count: int, scheme: str) -> None:
    """Liars can claim anything, confirm each other anything and deny all others everything."""
    order = peers(count)
    liars = range(max(1, (count - 1) // DOUBTED)) if scheme == "alone" else range(max(1, (count - 1) // DOUBTED) + 1)
    if (count - 1) // DOUBTED == 0:
        liars = range(1)
    claims = both(*[HUGE if i in liars else MB for i in range(count)])
    records = honest(order, [MB] * count)
    for i in liars if scheme != "alone" else ():
        rows = [
            row(other, received_mean=HUGE, sent_mean=HUGE, sent=HUGE, received=HUGE)
            if j in liars
            else row(other, received_mean=1, sent_mean=1, sent=1, received=1, sent_percent=1)
            for j, other in enumerate(order)
            if j != i and (j in liars or scheme == "slander")
        ]
        records[order[i]] = Links(HUGE, HUGE, rows=tuple(rows))
    rates = swarm_rates(order, claims, records)
    for seen in (uploads(rates), downloads(rates)):
        for i, rate in enumerate(seen):
            assert rate is not None
            if i in liars:
                assert rate <= LIFT * MB * 1.01  # of what it really moved
            else:
                assert rate == MB
    assert rates.pairs == {}  # nobody honest agreed that a path is slow


def test_a_claim_without_any_witness_is_no_more_than_usual() -> None:
    order = peers(5)
    records = honest(order[1:], [MB] * 4)  # nobody has ever heard of the first
    records[order[0]] = Links(HUGE, HUGE, rows=tuple(row(p, received_mean=HUGE, sent_mean=HUGE) for p in order[1:]))
    rates = swarm_rates(order, both(HUGE, MB, MB, 2 * MB, MB), records)
    assert uploads(rates)[0] == downloads(rates)[0] == MB


def test_half_of_the_peers_are_fast() -> None:
    """Twice as fast as the median: believed after one round at the pace of the median."""
    order, claims = peers(4), both(4e6, 4e6, 1e6, 1e6)
    assert uploads(swarm_rates(order, claims, {})) == [2.5e6, 2.5e6, 1e6, 1e6]
    rates = swarm_rates(order, claims, honest(order, [2.5e6, 2.5e6, 1e6, 1e6]))
    assert uploads(rates) == [4e6, 4e6, 1e6, 1e6]


def test_caps_bound_everything() -> None:
    order = peers(4)
    records = {
        order[0]: Links(upload_cap=MB),
        order[1]: Links(upload_cap=3 * MB, download_cap=MB),
        order[3]: Links(upload_cap=HUGE),
    }
    rates = swarm_rates(order, [RateClaim(), RateClaim(4e6, 4e6), RateClaim(4e6, 4e6), RateClaim(4e6, 4e6)], records)
    assert uploads(rates) == [1e6, 3e6, 4e6, 4e6]
    assert downloads(rates) == [4e6, 1e6, 4e6, 4e6]
    only_caps = swarm_rates(order, [RateClaim()] * 4, records)
    assert uploads(only_caps) == [1e6, 3e6, None, float(HUGE)]
    assert downloads(only_caps) == [None, 1e6, None, None]


def test_clients_do_not_reach_each_other() -> None:
    claims = [RateClaim(), RateClaim(aggregates=False), RateClaim(), RateClaim(aggregates=False)]
    assert swarm_rates(peers(4), claims, {}).pairs == {(1, 3): 0.0, (3, 1): 0.0}


def test_a_path_is_slow_where_its_receiver_does_not_contradict_and_the_lower_rate_counts() -> None:
    order = peers(3)

    def say(sent_percent: int, sent: int, received: int) -> dict[tuple[int, int], float]:
        records = {
            order[0]: Links(rows=(row(order[1], sent=sent, sent_percent=sent_percent),)),
            order[1]: Links(rows=(row(order[0], received=received),)),
        }
        return dict(swarm_rates(order, both(MB, MB, MB), records).pairs)

    assert say(10, 300_000, 200_000) == {(0, 1): 200_000.0}
    assert say(49, 300_000, 600_000) == {(0, 1): 300_000.0}
    assert say(10, 300_000, 601_000) == {}
    assert say(49, 300_000, 0) == {}
    assert say(60, 300_000, 200_000) == {}
    assert say(0, 300_000, 200_000) == {}
    assert say(10, 0, 0) == {}


def test_a_path_that_only_one_end_tells_of_is_not_slow() -> None:
    order = peers(2)
    records = {order[0]: Links(rows=(row(order[1], sent=1, received=1, sent_percent=1),))}
    assert swarm_rates(order, both(MB, MB), records).pairs == {}


def test_rows_about_strangers_oneself_and_doubled_rows_are_ignored() -> None:
    order = peers(3)
    stranger = peers(9)[8]
    rows = [row(p, received_mean=HUGE, sent_mean=HUGE) for p in (stranger, order[0])]
    rows += [row(order[1], received_mean=MB, sent_mean=MB), row(order[1], received_mean=HUGE, sent_mean=HUGE)]
    rates = swarm_rates(order, both(MB, HUGE, MB), {order[0]: Links(rows=tuple(rows)), stranger: Links(HUGE)})
    assert uploads(rates) == [MB, LIFT * MB, MB]


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_numbers_that_make_no_sense_are_unknown(bad: float) -> None:
    rates = swarm_rates(peers(3), [RateClaim(bad, bad, bad), RateClaim(MB, MB), RateClaim(MB, MB)], {})
    assert uploads(rates) == downloads(rates) == [MB] * 3
    assert rates.peers[0].samples_per_second == 0.0
    assert uploads(swarm_rates(peers(1), [RateClaim(bad, bad)], {})) == [None]


_rate = st.none() | st.floats() | st.sampled_from([0.0, 1.0, 1e6, 1e15])
_number = st.integers(0, 10**15)
_percent = st.integers(0, 100)


@given(data=st.data(), count=st.integers(1, 7))
def test_whatever_is_said_gives_rates_and_the_order_does_not_matter(data: st.DataObject, count: int) -> None:
    order = peers(count)
    claims = [
        RateClaim(data.draw(_rate), data.draw(_rate), data.draw(st.floats()), aggregates=data.draw(st.booleans()))
        for _ in order
    ]

    def links(**numbers: Any) -> Links:
        keys = data.draw(st.lists(st.sampled_from([link_key(p) for p in order]), max_size=4))
        rows = tuple(LinkRow(key, *(data.draw(_number) for _ in range(4)), data.draw(_percent)) for key in keys)
        return Links(*(data.draw(_number) for _ in range(4)), rows=rows, **numbers)

    records = {peer: links() for peer in order if data.draw(st.booleans())}
    for record in records.values():
        msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=Links)
    rates = swarm_rates(order, claims, records)
    for peer in rates.peers:
        for rate in (peer.upload, peer.download):
            assert rate is None or 0.0 < rate < math.inf
        assert 0.0 <= peer.samples_per_second < math.inf
    assert all(i != j and rate >= 0.0 for (i, j), rate in rates.pairs.items())
    turned = swarm_rates(order[::-1], claims[::-1], records)
    assert turned.peers == rates.peers[::-1]
    assert turned.pairs == {(count - 1 - i, count - 1 - j): rate for (i, j), rate in rates.pairs.items()}


def test_absurd_rates_do_no_more_than_lift_the_usual_one() -> None:
    claims = [RateClaim(upload=1e308)] * 6
    assert uploads(swarm_rates(peers(6), claims, {})) == [1e15] * 6
