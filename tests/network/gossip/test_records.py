from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError
from minga.identity.keys.keys import Identity
from minga.network.gossip import records
from minga.network.gossip.records import (
    CLOCK_SKEW_S,
    KINDS,
    MAX_TTL_S,
    AddressInfo,
    Beat,
    Left,
    LinkRow,
    Links,
    Metrics,
    Payload,
    Progress,
    Record,
    StateInfo,
    Verdict,
)

KEY = Identity.from_seed(b"k" * 32)
OTHER = Identity.from_seed(b"o" * 32)
NOW_MS = 1_800_000_000_000
PROGRESS = Progress(3, 40, 12.5, "training", 1.8e9)

VALID: list[Payload] = [
    AddressInfo("trainer", ("10.0.0.1:4433", "[::1]:1"), "https://relay.example/"),
    AddressInfo("client"),
    PROGRESS,
    Progress(2**53, 2**53, 1e18, "averaging", 1e11, client=True, vector_bytes=2**53),
    StateInfo(7, "ab" * 32),
    Metrics(7, -3.5, 10, 2, 3, 4),
    Beat(),
    Left("done"),
    Links(),
    Links(10**9, 10**6, 0, 10**6, (LinkRow(b"12345678", 1, 2, 3, 4, 5, 6),) * 64),
]

INVALID: list[Payload] = [
    Progress(-1, 0, 1.0, "training", 1.0),
    Progress(1, -1, 1.0, "training", 1.0),
    Progress(1, 2**60, 1.0, "training", 1.0),
    Progress(1, 1, -1.0, "training", 1.0),
    Progress(1, 1, math.nan, "training", 1.0),
    Progress(1, 1, math.inf, "training", 1.0),
    Progress(1, 1, 1.0, "sleeping", 1.0),  # type: ignore[arg-type]
    Progress(1, 1, 1.0, "training", math.nan),
    Progress("1", 1, 1.0, "training", 1.0),  # type: ignore[arg-type]
    Progress(2**70, 1, 1.0, "training", 1.0),
    Progress(1, 1, 1.0, "training", 1.0, vector_bytes=-1),
    Progress(1, 1, 1.0, "training", 1.0, vector_bytes=2**60),
    AddressInfo("king"),  # type: ignore[arg-type]
    AddressInfo("trainer", ("10.0.0.1:1\n",)),
    AddressInfo("trainer", ("x" * 81,)),
    AddressInfo("trainer", ("10.0.0.1:1",) * 17),
    AddressInfo("trainer", (), "https://" + "r" * 300),
    StateInfo(1, "AB" * 32),
    StateInfo(1, "ab" * 32 + "\n"),
    Metrics(1, -math.inf, 1, 1),
    Left("x" * 201),
    Links(-1),
    Links(10**15 + 1),
    Links(0, 1.5),  # type: ignore[arg-type]
    Links(upload_cap=math.nan),  # type: ignore[arg-type]
    Links(rows=(LinkRow(b"1234567", 1, 2, 3, 4, 5, 6),)),
    Links(rows=(LinkRow(b"123456789", 1, 2, 3, 4, 5, 6),)),
    Links(rows=(LinkRow(b"12345678", -1, 2, 3, 4, 5, 6),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, 101, 6),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, 5, -6),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, 5, 6),) * 65),
]


def code_of(payload: Payload) -> int:
    return records.KINDS_BY_TYPE[type(payload)].code


def record(
    payload: Payload = PROGRESS, *, raw: bytes | None = None, version: int = NOW_MS, ttl_s: float = 60
) -> Record:
    encoded = records.encode_payload(payload) if raw is None else raw
    return records.make_record(KEY, "r", code_of(payload), version, NOW_MS + int(ttl_s * 1000), encoded)


@pytest.mark.parametrize("payload", VALID)
def test_a_record_survives_the_wire(payload: Payload) -> None:
    sent = record(payload)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Record)
    assert received == sent
    assert received.owner == KEY.peer_id
    assert records.check_form(received) is Verdict.NEW
    assert records.is_genuine(received, "r")
    assert records.open_payload(received) == payload


@pytest.mark.parametrize("payload", INVALID)
def test_what_is_out_of_range_is_neither_published_nor_believed(payload: Payload) -> None:
    name = records.KINDS_BY_TYPE[type(payload)].name
    with pytest.raises(ConfigurationError, match=name):
        records.encode_payload(payload)
    fields = {
        field: min(value, 2**63) if isinstance(value, int) else value
        for field, value in msgspec.structs.asdict(payload).items()
    }
    with pytest.raises(ValueError, match=name):
        records.open_payload(record(payload, raw=msgspec.msgpack.encode(fields)))


def test_types_that_no_record_carries_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no record carries a Payload"):
        records.encode_payload(Payload())


def test_an_integer_given_for_a_float_is_published_as_a_float() -> None:
    encoded = records.encode_payload(Progress(1, 1, 4, "training", 5))
    assert msgspec.msgpack.decode(encoded)["samples_per_second"] == 4.0
    assert isinstance(msgspec.msgpack.decode(encoded)["samples_per_second"], float)


def test_a_payload_too_large_for_its_name_is_not_published(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(records.KINDS_BY_TYPE, StateInfo, KINDS["state"]._replace(max_bytes=70))
    with pytest.raises(ConfigurationError, match=r"'state': .* bytes exceed 70"):
        records.encode_payload(StateInfo(1, "ab" * 32))


PROGRESS_FIELDS = {
    "step": 1,
    "samples": 1,
    "samples_per_second": 4.0,
    "status": "training",
    "time": 1.0,
    "client": False,
    "vector_bytes": 0,
    "target_batch_size": 0,
}
BROKEN_PAYLOADS: dict[str, object] = {
    "integer for float": {**PROGRESS_FIELDS, "samples_per_second": 4},
    "float for integer": {**PROGRESS_FIELDS, "step": 1.0},
    "text for integer": {**PROGRESS_FIELDS, "step": "1"},
    "unknown field": {**PROGRESS_FIELDS, "x": 1},
    "missing field": {"step": 1},
    "default left out": {key: value for key, value in PROGRESS_FIELDS.items() if key != "client"},
    "other order": dict(reversed(PROGRESS_FIELDS.items())),
    "not a map": [1, 2, 3],
    "nothing": None,
}


@pytest.mark.parametrize("body", BROKEN_PAYLOADS.values(), ids=BROKEN_PAYLOADS)
def test_payloads_of_another_form_are_refused_though_signed(body: object) -> None:
    with pytest.raises(ValueError, match="progress"):
        records.open_payload(record(raw=msgspec.msgpack.encode(body)))
    assert records.open_payload(record(raw=msgspec.msgpack.encode(PROGRESS_FIELDS))) is not None


@pytest.mark.parametrize("payload", VALID)
def test_truncated_payloads_are_refused(payload: Payload) -> None:
    encoded = records.encode_payload(payload)
    for size in range(1, len(encoded)):
        with pytest.raises(ValueError, match="record"):
            records.open_payload(record(payload, raw=encoded[:size]))


def test_an_empty_payload_retracts_but_not_a_goodbye_or_a_beat() -> None:
    assert records.open_payload(record(raw=b"")) is None
    for payload in (Beat(), Left()):
        with pytest.raises(ValueError, match="record"):
            records.open_payload(record(payload, raw=b""))


def test_every_field_is_covered_by_the_signature() -> None:
    genuine = record()
    changes: dict[str, object] = {
        "key": bytes.fromhex(OTHER.peer_id),
        "code": KINDS["state"].code,
        "version": genuine.version + 1,
        "expires": genuine.expires + 1,
        "payload": genuine.payload[:-1] + b"\xc3",
        "signature": bytes(64),
    }
    assert set(changes) == set(Record.__struct_fields__)
    for field, value in changes.items():
        assert not records.is_genuine(msgspec.structs.replace(genuine, **{field: value}), "r"), field
    assert not records.is_genuine(genuine, "another run")
    assert records.is_genuine(genuine, "r")


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({"key": b"k" * 31}, Verdict.MALFORMED),
        ({"key": b""}, Verdict.MALFORMED),
        ({"signature": b"s" * 65}, Verdict.MALFORMED),
        ({"code": 0}, Verdict.UNKNOWN_NAME),
        ({"code": 200}, Verdict.UNKNOWN_NAME),
        ({"payload": bytes(513)}, Verdict.OVERSIZED),
    ],
)
def test_the_form_is_checked(changes: dict[str, object], verdict: Verdict) -> None:
    assert records.check_form(msgspec.structs.replace(record(), **changes)) is verdict
    assert verdict.is_offence


def test_dates_may_be_wrong_by_the_tolerated_skew_only() -> None:
    latest, earliest = MAX_TTL_S + CLOCK_SKEW_S, -CLOCK_SKEW_S
    assert records.check_dates(record(ttl_s=latest), NOW_MS) is Verdict.NEW
    assert records.check_dates(record(ttl_s=latest + 1), NOW_MS) is Verdict.FUTURE
    assert records.check_dates(record(ttl_s=earliest), NOW_MS) is Verdict.NEW
    assert records.check_dates(record(ttl_s=earliest - 1), NOW_MS) is Verdict.EXPIRED


@settings(deadline=None, max_examples=100)
@given(st.binary(max_size=300))
def test_garbage_never_decodes_into_a_believed_record(garbage: bytes) -> None:
    try:
        decoded = msgspec.msgpack.decode(garbage, type=Record)
    except msgspec.MsgspecError:
        return
    assert records.check_form(decoded) is not Verdict.NEW or not records.is_genuine(decoded, "r")


@pytest.mark.parametrize("field", range(6))
@pytest.mark.parametrize("value", [None, -1, "text", 1.5, [], 2**63])
def test_wrong_types_in_a_record_are_refused(field: int, value: object) -> None:
    body = list(msgspec.structs.astuple(record()))
    if isinstance(value, int) and value > 0 and field in (2, 3):
        return  # a fine version, and a date that is checked later
    body[field] = value
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=Record)


def test_wire_codes_never_change() -> None:
    codes = {kind.name: kind.code for kind in KINDS.values()}
    names = ["address", "progress", "state", "metrics", "beat", "left", "links", "access"]
    assert codes == {name: code for code, name in enumerate(names, 1)}
