"""The exchange of keys alone, between two sides whose bytes are carried by hand."""

from __future__ import annotations

import ssl

import pytest

from minga.network.interface import PeerId
from minga.network.tcp.greeting import KeyExchange
from minga.network.tcp.listener import Certificate
from minga.network.tcp.sealed_records import ForgedRecordError, RecordOpener


def carry(source: KeyExchange, target: KeyExchange) -> None:
    target.arrive(memoryview(source.unsent()))


def pair() -> tuple[KeyExchange, KeyExchange]:
    """The side that dialled and the other one, after the handshake."""
    near, far = Certificate(PeerId("a" * 64)), Certificate(PeerId("b" * 64))
    dialled = KeyExchange(
        lambda arrived, unsent: near.client_context(far.der).wrap_bio(arrived, unsent, server_hostname="word")
    )
    other = KeyExchange(
        lambda arrived, unsent: far.server_context(near.der).wrap_bio(arrived, unsent, server_side=True)
    )
    with pytest.raises(ssl.SSLWantReadError):
        dialled.shake_hands()
    carry(dialled, other)
    with pytest.raises(ssl.SSLWantReadError):
        other.shake_hands()
    carry(other, dialled)
    dialled.shake_hands()
    carry(dialled, other)
    other.shake_hands()
    return dialled, other


def test_each_side_hears_the_word_and_the_key_of_the_other() -> None:
    dialled, other = pair()
    with pytest.raises(ssl.SSLWantReadError):
        other.hear()
    dialled.say(b"\x00")
    carry(dialled, other)
    assert other.hear() == (b"\x00", dialled.key)
    other.say(b"\x01")
    carry(other, dialled)
    dialled.arrive(memoryview(b"records"))
    assert dialled.hear() == (b"\x01", other.key)
    assert dialled.rest() == b"records"
    assert other.rest() == b""
    assert dialled.key != other.key


def test_the_key_of_the_other_side_is_refused_as_ones_own() -> None:
    """Else both directions would have one key, with the same nonces."""
    dialled, other = pair()
    dialled.say(b"\x00")
    carry(dialled, other)
    _, other.key = other.hear()
    other.say(b"\x01")
    carry(other, dialled)
    with pytest.raises(ssl.SSLError, match="the key of this side"):
        dialled.hear()


@pytest.mark.parametrize("late", ["key update", "alert"])
def test_tls_that_comes_behind_the_word_is_no_record(late: str) -> None:
    """Whatever TLS says later, such as a new session or key, begins with a type and a version, and so no length."""
    dialled, other = pair()
    dialled.say(b"\x00")
    carry(dialled, other)
    other.hear()
    other.say(b"\x01")
    carry(other, dialled)
    if late == "alert":
        with pytest.raises(ssl.SSLError):
            other.tls.unwrap()
    else:
        other.tls.write(b"as long as a record of TLS with a new key")
    carry(other, dialled)
    dialled.hear()
    rest = dialled.rest()
    assert rest
    opener = RecordOpener(other.key, len(rest))
    opener.room()[:] = rest
    opener.came(len(rest))
    with pytest.raises(ForgedRecordError, match="a record of"):
        opener.take(memoryview(bytearray(1)))
