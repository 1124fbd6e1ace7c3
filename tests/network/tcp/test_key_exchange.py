"""The exchange of keys alone, between two sides whose bytes are carried by hand."""

from __future__ import annotations

import ssl

import pytest

from minga.network.tcp.certificate import Certificate
from minga.network.tcp.key_exchange import KeyExchange


def carry(source: KeyExchange, target: KeyExchange) -> None:
    target.arrive(memoryview(source.unsent()))


def pair() -> tuple[KeyExchange, KeyExchange]:
    """The side that dialled and the other one, after the handshake."""
    near, far = Certificate(), Certificate()
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


def test_more_than_one_word_is_refused() -> None:
    dialled, other = pair()
    dialled.tls.write(b"\x00" + dialled.key + b"more")
    carry(dialled, other)
    other.hear()
    with pytest.raises(ssl.SSLError, match="more than one word"):
        other.rest()


def test_the_end_of_tls_before_the_word_is_an_error() -> None:
    dialled, other = pair()
    with pytest.raises(ssl.SSLError):
        dialled.tls.unwrap()
    carry(dialled, other)
    with pytest.raises(ssl.SSLError):
        other.hear()
