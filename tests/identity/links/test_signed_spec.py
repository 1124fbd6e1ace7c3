from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError, ProtocolError
from minga.core.spec.run_spec import RunSpec, run_id_of
from minga.identity.keys.keys import Identity
from minga.identity.links.signed_spec import MAX_SIGNED_SPEC_BYTES, SIGNATURE_CONTEXT, SignedRunSpec

ORGANISER = Identity.from_seed(b"o" * 32)
SPEC = RunSpec(name="signed")
SIGNED = SignedRunSpec.sign(SPEC, ORGANISER)


def sign_bytes(body: bytes) -> SignedRunSpec:
    return SignedRunSpec(body, ORGANISER.peer_id, ORGANISER.sign(body, context=SIGNATURE_CONTEXT))


def test_round_trip() -> None:
    received = SignedRunSpec.decode(SIGNED.encode())
    assert received == SIGNED
    assert received.verify(SPEC.run_id, ORGANISER.peer_id) == SPEC
    assert received.run_id == SPEC.run_id


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"spec": RunSpec(name="other").canonical_bytes()}, "another run"),
        ({"organiser": Identity.generate().peer_id}, "someone else"),
        ({"signature": b"\0" * 64}, "signature is wrong"),
        ({"signature": ORGANISER.sign(SPEC.canonical_bytes())}, "signature is wrong"),
    ],
)
def test_forgeries_name_the_sender(changes: dict[str, object], message: str) -> None:
    forged = msgspec.structs.replace(SIGNED, **changes)
    with pytest.raises(ProtocolError, match=message) as caught:
        forged.verify(SPEC.run_id, ORGANISER.peer_id, peer="ab" * 32)
    assert caught.value.peer == "ab" * 32


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (SPEC.canonical_bytes().replace(b'"spec_version":1', b'"spec_version":2'), "spec_version 2.*update minga"),
        (b"{}", "missing"),
        (b"not json", "canonical"),
        (SPEC.canonical_bytes() + b" ", "canonical"),
    ],
)
def test_genuine_but_unreadable(body: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        sign_bytes(body).verify(run_id_of(body), ORGANISER.peer_id)


def test_each_begin_is_another_run_and_no_other_key_can_sign_it() -> None:
    runs = [SPEC.begin(ORGANISER.peer_id) for _ in range(2)]
    assert len({SPEC.run_id, *(run.run_id for run in runs)}) == 3
    assert runs[0].begun_by == ORGANISER.peer_id
    begun = SignedRunSpec.sign(runs[0], ORGANISER)
    assert begun.verify(runs[0].run_id, ORGANISER.peer_id) == runs[0]
    thief = Identity.from_seed(b"t" * 32)
    stolen = SignedRunSpec.sign(runs[0], thief)
    with pytest.raises(ProtocolError, match="another peer began"):
        stolen.verify(runs[0].run_id, thief.peer_id)


def fields(**changes: object) -> bytes:
    return msgspec.msgpack.encode({**msgspec.structs.asdict(SIGNED), **changes})


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        SIGNED.encode()[:-1],
        SIGNED.encode() + b"\0",
        fields(spec="text"),
        fields(spec=bytes(256 * 1024 + 1)),
        fields(organiser="AB" * 32),
        fields(organiser="ab" * 31),
        fields(organiser="ab" * 32 + "\n"),
        fields(signature=b"x" * 63),
        fields(signature=b"x" * 65),
        fields(extra=1),
        bytes(MAX_SIGNED_SPEC_BYTES + 1),
    ],
)
def test_malformed(data: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        SignedRunSpec.decode(data, peer="ab" * 32)
    assert caught.value.peer == "ab" * 32


@given(st.binary(max_size=200))
def test_garbage(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        SignedRunSpec.decode(data)


def test_the_largest_spec_fits() -> None:
    body = b"x" * (256 << 10)
    assert SignedRunSpec.decode(sign_bytes(body).encode()).spec == body
