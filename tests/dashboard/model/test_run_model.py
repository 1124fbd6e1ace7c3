"""The course of a run as a fold over its history, and what each peer has given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.dashboard.model.contributions import MOST_PEERS, Contributions
from minga.dashboard.model.documents import live_document, peer_counts, peer_document, run_document, state_of
from minga.dashboard.model.run_model import MOST_MARKS, RunModel
from minga.monitor.history import parse_entry
from minga.receipts.book import PeerTotals
from tests.worlds.made_up_run import BEGIN_S, MadeUpRun, peer_id

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from(["step", "loss", "samples", "total_samples", "headline", "peer", "why", "by_peer", "members"])
EVENTS = st.sampled_from(
    ["step", "evaluation", "swarm", "round", "joined", "banned", "missed", "synced", "amended", "?"]
)


@pytest.fixture(scope="module")
def run() -> Any:
    made = MadeUpRun(5)
    yield made
    made.close()


def entry(event: str, time_s: float = BEGIN_S, **fields: Any) -> dict[str, Any]:
    return {"t": time_s, "event": event, **fields}


@given(st.lists(st.tuples(EVENTS, st.dictionaries(FIELDS, JSON, max_size=5)), max_size=12))
def test_entries_of_any_content_are_survived(entries: list[tuple[str, dict[str, Any]]]) -> None:
    model = RunModel()
    for event, fields in entries:
        parsed = parse_entry(json.dumps({**fields, "t": 1.0, "event": event}).encode())
        if parsed is not None:
            model.take(parsed)
    for series in model.series.values():
        msgspec.json.encode(series.document())
    msgspec.json.encode([journal.document() for journal in model.journals.values()])
    msgspec.json.encode(model.rates.document())


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "NaN", "1" + "0" * 400, "18446744073709551616", "-1", "0", "true"]
)
def test_a_number_that_no_run_has_harms_nothing(number: str) -> None:
    model = RunModel()
    names = ("step", "loss", "samples", "total_samples", "members", "wanted", "lost", "alive", "others", "seconds", "x")
    fields = "".join(f', "{name}": {number}' for name in names) + f', "headline": "x", "by_peer": {{"p": {number}}}'
    for event in ("step", "evaluation", "swarm", "round", "missed", "synced", "amended"):
        entry_of_a_peer = parse_entry(f'{{"t": 1.0, "event": "{event}"{fields}}}'.encode())
        assert entry_of_a_peer is not None
        model.take(entry_of_a_peer)
    msgspec.json.encode([series.document() for series in model.series.values()])
    msgspec.json.encode([journal.document() for journal in model.journals.values()])
    msgspec.json.encode(model.rates.document())


def test_the_pace_is_that_of_the_last_steps_however_long_the_run_is() -> None:
    model, time_s, step = RunModel(), 0.0, 0
    assert model.steps_per_hour is None
    for period_s, steps in ((10.0, 9000), (1000.0, 1), (20.0, 41)):  # a pause, then slower
        for _ in range(steps):
            time_s, step = time_s + period_s, step + 1
            for look in range(3):  # of one step
                model.take(entry("step", time_s + look, step=step, loss=3.0))
        if steps > 1:
            assert model.steps_per_hour == 3600.0 / period_s
    for later in range(30):  # the run goes back
        model.take(entry("step", time_s + 30.0 * (1 + later), step=100 + later))
    assert model.steps_per_hour == 120.0


def test_a_pause_is_no_part_of_the_pace() -> None:
    model = RunModel()
    for time_s, step in ((0, 1), (10, 2), (20, 3), (900, 4), (910, 5)):
        model.take(entry("step", float(time_s), step=step))
    assert model.steps_per_hour == 360.0


def test_a_ban_that_two_peers_tell_of_counts_once() -> None:
    model = RunModel()
    for time_s, peer in ((0.0, 4), (1.0, 5), (-0.2, 4), (9.0, 5), (5000.0, 4)):
        model.take(entry("banned", BEGIN_S + time_s, peer=peer_id(peer), why="revoked"))
    assert model.counts["banned"] == model.journals["marks"].total == 3


def test_samples_that_another_peer_makes_up_stay_a_number_that_can_be_shown() -> None:
    model = RunModel()
    for step in range(3000):
        model.take(entry("step", step=step, loss=1.0, total_samples=1 << (step % 60)))
    assert model.total_samples <= 1 << 53
    msgspec.json.encode(model.series["loss"].document())


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1" + 1000 * "0"])
def test_numbers_that_nothing_in_a_run_has_are_none(number: str) -> None:
    assert parse_entry(f'{{"t": {number}, "event": "step"}}'.encode()) is None
    model = RunModel()
    fields = '"step": N, "samples": N, "total_samples": N, "others": N, "by_peer": {"p": N}, "headline": "x", "x": N'
    for event in ("step", "evaluation", "swarm", "round", "missed", "synced"):
        parsed = parse_entry(f'{{"t": 1, "event": "{event}", {fields.replace("N", number)}}}'.encode())
        assert parsed is not None
        model.take(parsed)
    assert model.total_samples == 0
    assert not model.rates.document()["peers"]
    assert [dict(each)["step"] for each in model.journals["misses"]] == [None]


def test_texts_and_numbers_in_the_place_of_each_other_are_none() -> None:
    model = RunModel()
    model.take(entry("missed", peer=5, why=["x"], step="seven"))
    model.take(entry("synced", peer={}, seconds="long"))
    missed, synced = next(iter(model.journals["misses"])), next(iter(model.journals["syncs"]))
    assert (missed["peer"], missed["why"], missed["step"]) == (None, None, None)
    assert (synced["peer"], synced["seconds"]) == (None, None)


def test_what_happened_is_listed_by_kind() -> None:
    model = RunModel()
    for event in ("joined", "lost", "banned", "amended", "missed", "synced", "suspected"):
        model.take(entry(event, peer="aa" * 32, why="so", seconds=1.5, step=4, changes="a = 1"))
    listed = {name: [each["event"] for each in journal] for name, journal in model.journals.items()}
    assert listed["marks"] == ["joined", "lost", "banned", "amended"]
    assert listed["findings"] == ["banned", "suspected"]
    assert listed["misses"] == ["missed"]
    assert listed["syncs"] == ["synced"]
    assert model.counts["banned"] == 1


def test_a_month_of_entries_takes_bounded_room() -> None:
    model = RunModel()
    for number in range(30_000):
        model.take(entry("step", BEGIN_S + number, step=number, loss=2.0, samples=10, total_samples=10 * number))
        model.take(entry("joined", BEGIN_S + number, peer=f"{number:064x}"))
    assert len(model.series["loss"]) <= 1200
    assert len(model.journals["marks"]) == MOST_MARKS
    assert model.counts["joined"] == 30_000


def test_the_documents_name_the_run_and_its_state(run: MadeUpRun) -> None:
    look = run.advance(10.0)
    model = RunModel()
    whole, live = run_document(look, model), live_document(look, model)
    assert whole["now"] == live["now"]
    assert (whole["api"], whole["now"]["state"], whole["now"]["peers"]["training"]) == (1, "training", 5)
    peers = (*look.status.peers[1:], replace(look.status.peers[0], role="auxiliary"))
    counts = peer_counts(replace(look.status, peers=peers))
    assert (counts["alive"], counts["training"], counts["helping"]) == (5, 4, 1), "who only averages trains nothing"
    assert state_of(replace(look.status, paused=True)) == "paused"
    assert state_of(replace(look.status, step=100_000)) == "finished"
    assert state_of(replace(look.status, peers=(), averages=False)) == "empty"
    assert state_of(replace(look.status, founders=(1, 4))) == "founding"


def test_contributions_are_what_was_added_between_looks(run: MadeUpRun) -> None:
    given_so_far = Contributions()
    given_so_far.take(run.time_s, run.status(), {})
    first = given_so_far.peers[peer_id(1)].samples
    for _ in range(4):
        look = run.advance(5.0)
        given_so_far.take(look.time_s, look.status, {})
    one = given_so_far.peers[peer_id(1)]
    assert one.samples - first == pytest.approx(20 * 20, abs=2)
    assert one.seconds == pytest.approx(20.0)
    assert one.steps == 4
    assert one.reduced_bytes == pytest.approx(4 * (8 << 20) / 5 * 4)


def test_contributions_outlive_the_process_and_a_peer_that_starts_again(run: MadeUpRun) -> None:
    before = Contributions()
    look = run.advance(5.0)
    before.take(look.time_s, look.status, {})
    after = Contributions()
    assert after.decode(before.encode())
    after.take(look.time_s, look.status, {})
    total = after.peers[peer_id(1)].samples
    assert total == before.peers[peer_id(1)].samples, "what was counted before is not counted again"
    again = replace(look.status, peers=tuple(replace(peer, total_samples=7) for peer in look.status.peers))
    after.take(look.time_s + 1, again, {})
    assert after.peers[peer_id(1)].samples == total + 7
    for since, more in ((1.7e9, 0), (1.8e9, 1007)):
        peers = tuple(replace(peer, total_samples=1007, since=since) for peer in look.status.peers)
        after.take(look.time_s + 2, replace(look.status, peers=peers), {})
        assert after.peers[peer_id(1)].samples == total + 1007 + more


def test_a_peer_that_comes_back_without_its_totals_gives_nothing_twice(run: MadeUpRun) -> None:
    look = run.advance(5.0)
    contributions = Contributions()
    contributions.take(look.time_s, look.status, {})
    given_before = contributions.peers[peer_id(1)].samples
    unheard = replace(look.status, peers=tuple(replace(peer, total_samples=None) for peer in look.status.peers))
    for time_s, status in enumerate((unheard, look.status), 1):
        contributions.take(look.time_s + time_s, status, {})
    assert contributions.peers[peer_id(1)].samples == given_before > 0


def test_a_leaderboard_that_is_damaged_is_begun_again() -> None:
    contributions = Contributions()
    assert not contributions.decode(b'{"version": 1, "peers": [{"peer": 5}]}')
    assert not contributions.decode(b"\xff")
    assert not contributions.decode(b'{"version": 9, "peers": []}')
    assert contributions.document({}) == []


def test_peers_of_a_person_that_logged_in_are_one_row(run: MadeUpRun) -> None:
    look = run.advance(5.0)
    contributions = Contributions()
    contributions.take(look.time_s, look.status, {peer_id(1): "ada", peer_id(2): "ada"})
    rows = contributions.document({})
    ada = next(row for row in rows if row["name"] == "ada")
    assert ada["peers"] == [peer_id(1), peer_id(2)]
    assert [row["place"] for row in rows] == list(range(1, len(rows) + 1))
    assert [row["samples"] for row in rows] == sorted((row["samples"] for row in rows), reverse=True)


def test_who_logs_in_at_a_peer_of_another_person_takes_nothing_of_what_that_one_gave(run: MadeUpRun) -> None:
    look, contributions = run.advance(5.0), Contributions()
    peer = look.status.peers[0]

    def take(name: str, total: int) -> None:
        status = replace(look.status, peers=(replace(peer, total_samples=total),))
        contributions.take(look.time_s + len(seen), status, {peer.peer_id: name})
        seen.append(name)

    def given_by(found: Contributions) -> dict[str, tuple[int, int]]:
        rows = found.document({peer.peer_id: PeerTotals(samples=7)})
        return {row["name"]: (row["samples"], row["attested_samples"]) for row in rows}

    seen: list[str] = []
    for name, total in (("", 400), ("ada", 1000)):
        take(name, total)
    assert given_by(contributions) == {"ada": (1000, 7)}
    for name, total in (("bob", 1000), ("bob", 10), ("ada", 10), ("ada", 15), ("bob", 16)):
        take(name, total)
    assert given_by(contributions) == {"ada": (1005, 0), "bob": (11, 0)}, "receipts do not say whose they are"
    kept = Contributions()
    assert kept.decode(contributions.encode())
    assert given_by(kept) == given_by(contributions)
    assert kept.peers[peer.peer_id].name == "bob"


def test_samples_decide_the_places_and_what_members_attest_stands_beside_them(run: MadeUpRun) -> None:
    look = run.advance(5.0)
    contributions = Contributions()
    contributions.take(look.time_s, look.status, {})
    claims_most = contributions.document({})[0]["peers"]
    proven = {peer_id(2): PeerTotals(steps=2, samples=10, reduced_bytes=99)}
    assert claims_most != [peer_id(2)]
    first, *others = contributions.document(proven)
    assert (first["peers"], first["attested_samples"]) == (claims_most, 0)
    (attested,) = (row for row in others if row["peers"] == [peer_id(2)])
    assert (attested["attested_samples"], attested["attested_steps"], attested["attested_reduced_bytes"]) == (10, 2, 99)


def test_memory_of_contributions_is_bounded_and_present_peers_stay(run: MadeUpRun) -> None:
    status = run.status()
    contributions = Contributions()
    template = status.peers[0]
    for wave in range(3):
        crowd = tuple(replace(template, peer_id=peer_id(10_000 * wave + number)) for number in range(2000))
        contributions.take(BEGIN_S + wave, replace(status, peers=crowd), {peer_id(0): f"person {wave}"})
    contributions.take(BEGIN_S + 3, replace(status, peers=crowd), {each.peer_id: "another" for each in crowd[:200]})
    contributions.take(BEGIN_S + 4, replace(status, peers=crowd), {each.peer_id: "one more" for each in crowd[:200]})
    assert len(contributions._all()) == MOST_PEERS
    assert all(peer_id(20_000 + number) in contributions.peers for number in range(2000))


def test_a_peer_has_a_page_as_long_as_something_is_known_of_it(run: MadeUpRun) -> None:
    look = run.advance(5.0)
    model, contributions = RunModel(), Contributions()
    model.take(entry("missed", peer="dd" * 32, step=3, why="too late"))
    found = peer_document("dd" * 32, look, model, contributions, {})
    assert found is not None
    assert found["now"] is None
    assert found["journals"]["misses"]["entries"][0]["why"] == "too late"
    assert peer_document("ee" * 32, look, model, contributions, {}) is None
