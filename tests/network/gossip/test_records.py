from __future__ import annotations

import math

import msgspec
import pytest

from minga.averaging.links import LinkRow, Links
from minga.core.errors import ConfigurationError
from minga.identity.keys.keys import Identity
from minga.network.gossip import records
from minga.network.gossip.record_kinds import AddressInfo, Beat, Kind, Left, Payload, RecordKinds
from minga.network.gossip.records import CLOCK_SKEW_S, MAX_TTL_S, Record, Verdict
from minga.training.record_kinds import RUN_KINDS, Metrics, Progress, StateInfo

pytestmark = pytest.mark.promise("what-strangers-can-and-cannot-do")

KEY = Identity.from_seed(b"k" * 32)
OTHER = Identity.from_seed(b"o" * 32)
NOW_MS = 1_800_000_000_000
PROGRESS = Progress(3, 40, 12.5, "training")

VALID: list[Payload] = [
    AddressInfo("trainer", ("10.0.0.1:4433", "[::1]:1"), "https://relay.example/"),
    AddressInfo("client"),
    PROGRESS,
    Progress(2**53, 2**53, 1e18, "averaging", client=True, vector_bytes=2**53),
    StateInfo(7, "ab" * 32),
    Metrics(7, -3.5, 10, 2, 3, 4),
    Beat(),
    Left("done"),
    Links(),
    Links(10**9, 10**6, 0, 10**6, (LinkRow(b"12345678", 1, 2, 3, 4, 5),) * 64),
]

INVALID: list[Payload] = [
    Progress(-1, 0, 1.0, "training"),
    Progress(1, -1, 1.0, "training"),
    Progress(1, 2**60, 1.0, "training"),
    Progress(1, 1, -1.0, "training"),
    Progress(1, 1, math.nan, "training"),
    Progress(1, 1, math.inf, "training"),
    Progress(1, 1, 1.0, "Sleeping\n"),
    Progress("1", 1, 1.0, "training"),  # type: ignore[arg-type]
    Progress(2**70, 1, 1.0, "training"),
    Progress(1, 1, 1.0, "training", vector_bytes=-1),
    Progress(1, 1, 1.0, "training", vector_bytes=2**60),
    AddressInfo("k" * 33),
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
    Links(rows=(LinkRow(b"1234567", 1, 2, 3, 4, 5),)),
    Links(rows=(LinkRow(b"123456789", 1, 2, 3, 4, 5),)),
    Links(rows=(LinkRow(b"12345678", -1, 2, 3, 4, 5),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, 101),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, -5),)),
    Links(rows=(LinkRow(b"12345678", 1, 2, 3, 4, 5),) * 65),
]


class Later(Payload, frozen=True):
    """Of a version to come."""

    word: str = ""


def code_of(payload: Payload) -> int:
    return RUN_KINDS.of(type(payload)).code


def opened(said: Record) -> Payload | None:
    return RUN_KINDS.open(said.code, said.payload)


def record(
    payload: Payload = PROGRESS, *, raw: bytes | None = None, version: int = NOW_MS, ttl_s: float = 60
) -> Record:
    encoded = RUN_KINDS.encode(payload) if raw is None else raw
    return records.make_record(KEY, "r", code_of(payload), version, NOW_MS + int(ttl_s * 1000), encoded)


@pytest.mark.parametrize("payload", VALID)
def test_a_record_survives_the_wire(payload: Payload) -> None:
    sent = record(payload)
    received = msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=Record)
    assert received == sent
    assert received.owner == KEY.peer_id
    assert records.check_form(received, RUN_KINDS) is Verdict.NEW
    assert records.is_genuine(received, "r")
    assert opened(received) == payload


@pytest.mark.parametrize("payload", INVALID)
def test_what_is_out_of_range_is_neither_published_nor_believed(payload: Payload) -> None:
    name = RUN_KINDS.of(type(payload)).name
    with pytest.raises(ConfigurationError, match=name):
        RUN_KINDS.encode(payload)
    fields = {
        field: min(value, 2**63) if isinstance(value, int) else value
        for field, value in msgspec.structs.asdict(payload).items()
    }
    with pytest.raises(ValueError, match=name):
        opened(record(payload, raw=msgspec.msgpack.encode(fields)))


def test_types_that_no_record_carries_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="no record carries a Payload"):
        RUN_KINDS.encode(Payload())


def test_an_integer_given_for_a_float_is_published_as_a_float() -> None:
    encoded = RUN_KINDS.encode(Progress(1, 1, 4, "training"))
    assert msgspec.msgpack.decode(encoded)["samples_per_second"] == 4.0
    assert isinstance(msgspec.msgpack.decode(encoded)["samples_per_second"], float)


def test_a_payload_too_large_for_its_name_is_not_published() -> None:
    kinds = RecordKinds(RUN_KINDS.of(StateInfo)._replace(max_bytes=70))
    with pytest.raises(ConfigurationError, match=r"'state': .* bytes exceed 70"):
        kinds.encode(StateInfo(1, "ab" * 32))
    with pytest.raises(ValueError, match=r"'state': .* bytes exceed 70"):
        kinds.open(3, RUN_KINDS.encode(StateInfo(1, "ab" * 32)))


PROGRESS_FIELDS = {
    "step": 1,
    "samples": 1,
    "samples_per_second": 4.0,
    "status": "training",
    "client": False,
    "vector_bytes": 0,
    "target_batch_size": 0,
}


def test_fields_of_later_versions_are_ignored_and_missing_ones_take_their_defaults() -> None:
    expected = Progress(1, 1, 4.0, "training")
    earlier = {key: value for key, value in PROGRESS_FIELDS.items() if key not in ("client", "target_batch_size")}
    for body in ({**PROGRESS_FIELDS, "x": [1, {"y": 2}]}, earlier, dict(reversed(PROGRESS_FIELDS.items()))):
        assert opened(record(raw=msgspec.msgpack.encode(body))) == expected
    row = [b"12345678", 1, 2, 3, 4, 5, "later"]
    links = opened(record(Links(), raw=msgspec.msgpack.encode({"upload": 5, "rows": [row]})))
    assert links == Links(5, rows=(LinkRow(b"12345678", 1, 2, 3, 4, 5),))
    assert opened(record(raw=msgspec.msgpack.encode({**PROGRESS_FIELDS, "status": "resting"}))) is not None


@pytest.mark.parametrize(
    "kind",
    [
        Kind("progress", 9, Later, 100),
        Kind("later", 2, Later, 100),
        Kind("later", 0, Later, 100),
        Kind("later", 256, Later, 100),
        Kind("later", 9, Later, 4097),
        Kind("later", 9, Later, 0),
        Kind("later", 9, Beat, 100),
    ],
)
def test_a_kind_that_would_collide_or_has_no_bound_is_not_taken(kind: Kind) -> None:
    with pytest.raises(ConfigurationError):
        RUN_KINDS.extended(kind)


def test_a_signature_is_checked_without_knowing_the_kind() -> None:
    later = RUN_KINDS.extended(Kind("later", 100, Later, 100))
    told = records.make_record(KEY, "r", 100, NOW_MS, NOW_MS + 60_000, later.encode(Later("x")))
    assert records.is_genuine(told, "r")
    assert later.open(told.code, told.payload) == Later("x")
    assert records.check_form(told, RUN_KINDS) is Verdict.NEW
    assert not records.is_genuine(msgspec.structs.replace(told, code=101), "r")
    with pytest.raises(ValueError, match="'#100': not known here"):
        RUN_KINDS.open(told.code, told.payload)


def test_an_empty_payload_retracts_but_not_a_goodbye_or_a_beat() -> None:
    assert opened(record(raw=b"")) is None
    for payload in (Beat(), Left()):
        with pytest.raises(ValueError, match="record"):
            opened(record(payload, raw=b""))


def test_every_field_is_covered_by_the_signature() -> None:
    genuine = record()
    changes: dict[str, object] = {
        "key": bytes.fromhex(OTHER.peer_id),
        "code": RUN_KINDS.of(StateInfo).code,
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
        ({"code": 0}, Verdict.MALFORMED),
        ({"payload": bytes(65)}, Verdict.BAD_PAYLOAD),
    ],
)
def test_the_form_is_checked(changes: dict[str, object], verdict: Verdict) -> None:
    assert records.check_form(msgspec.structs.replace(record(Beat()), **changes), RUN_KINDS) is verdict
    assert verdict.is_offence


def test_dates_may_be_wrong_by_the_tolerated_skew_only() -> None:
    latest, earliest = MAX_TTL_S + CLOCK_SKEW_S, -CLOCK_SKEW_S
    assert records.check_dates(record(ttl_s=latest), NOW_MS) is Verdict.NEW
    assert records.check_dates(record(ttl_s=latest + 1), NOW_MS) is Verdict.FUTURE
    assert records.check_dates(record(ttl_s=earliest), NOW_MS) is Verdict.NEW
    assert records.check_dates(record(ttl_s=earliest - 1), NOW_MS) is Verdict.EXPIRED


def test_wire_codes_never_change() -> None:
    codes = {kind.name: kind.code for kind in RUN_KINDS}
    names = ["address", "progress", "state", "metrics", "beat", "left", "links", "access", "split", "unfit"]
    assert codes == {name: code for code, name in enumerate(names, 1)}
