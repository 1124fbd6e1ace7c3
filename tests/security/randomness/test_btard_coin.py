"""The multi-party coin: commitments bind their authors, and no member can steer the outcome."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from minga.security.randomness.coin import Coin, Reveal, derive, expand
from tests.worlds.btard_rounds import PEERS

COIN = Coin("run", 7, 0)


def reveal(*numbers: int) -> Reveal:
    rng = np.random.default_rng(numbers)
    return Reveal(rng.bytes(32), rng.bytes(32))


def test_a_commitment_opens_with_its_own_reveal_only() -> None:
    commitment = COIN.commitment(PEERS[0], reveal(1))
    assert COIN.opens(commitment, PEERS[0], reveal(1))
    assert not COIN.opens(commitment, PEERS[0], reveal(2))
    assert not COIN.opens(commitment, PEERS[0], Reveal(reveal(1).secret, reveal(2).salt))
    assert not COIN.opens(commitment, PEERS[0], Reveal(reveal(1).salt, reveal(1).secret))
    assert not COIN.opens(b"", PEERS[0], reveal(1))


def test_a_copied_commitment_cannot_be_opened() -> None:
    copied = COIN.commitment(PEERS[0], reveal(1))
    assert not COIN.opens(copied, PEERS[1], reveal(1))


def test_a_commitment_of_another_toss_cannot_be_opened() -> None:
    commitment = COIN.commitment(PEERS[0], reveal(1))
    for other in (Coin("run", 7, 1), Coin("run", 8, 0), Coin("other", 7, 0), Coin("run7", 0, 0)):
        assert not other.opens(commitment, PEERS[0], reveal(1))


def test_fields_do_not_run_into_each_other() -> None:
    assert Coin("ab", 1, 0).commitment("c", reveal(1)) != Coin("a", 1, 0).commitment("bc", reveal(1))
    key = bytes(32)
    purposes = (("ab",), ("a", "b"), ("a", b"b"), ("a", 98), ("a", "b", ""))
    assert len({derive(key, *purpose) for purpose in purposes}) == 5
    assert derive(key, "a") != derive(b"\1" * 32, "a")


def test_the_outcome_depends_on_every_secret_and_not_on_the_order_of_arrival() -> None:
    reveals = {PEERS[index]: reveal(index) for index in range(5)}
    outcome = COIN.outcome(reveals)
    assert len(outcome) == 32
    assert COIN.outcome(dict(reversed(reveals.items()))) == outcome
    others = {COIN.outcome(reveals | {peer: reveal(99)}) for peer in reveals}
    others |= {COIN.outcome({peer: each for peer, each in reveals.items() if peer != gone}) for gone in reveals}
    others |= {Coin("run", 7, 1).outcome(reveals), Coin("run", 8, 0).outcome(reveals)}
    assert len(others | {outcome}) == 13
    swapped = reveals | {PEERS[0]: reveals[PEERS[1]], PEERS[1]: reveals[PEERS[0]]}
    assert COIN.outcome(swapped) != outcome


def test_hostile_reveals_are_refused() -> None:
    for secret, salt in ((b"", bytes(32)), (bytes(32), bytes(33)), (bytes(1 << 16), bytes(32))):
        with pytest.raises(ValueError, match="32 bytes"):
            Reveal(secret, salt)
        encoded = msgspec.msgpack.encode([secret, salt])
        with pytest.raises(msgspec.ValidationError, match="32 bytes"):
            msgspec.msgpack.decode(encoded, type=Reveal)
    with pytest.raises(ValueError, match="without reveals"):
        COIN.outcome({})
    for wrong in (-1, 2**64):
        with pytest.raises(ValueError, match="integer"):
            derive(bytes(32), "purpose", wrong)
    with pytest.raises(ValueError, match="32 bytes"):
        derive(b"short", "purpose")


def test_streams_are_the_same_for_ever() -> None:
    key = derive(bytes(range(32)), "test", 1, "two", b"three")
    assert key.hex() == "065de87a29ef85ec1a97de98f359f5679186b2c10ea26141fa08f4d0446a8bdd"
    assert expand(key, 0, 16).hex() == "f923556a0cd0d3dc11641612410fc599"
    assert expand(key, 5, 7) == expand(key, 0, 16)[5:12]
    assert (
        COIN.commitment(PEERS[0], Reveal(bytes(32), bytes(32))).hex()
        == "97e154c9c46622af644697b70b949fead839216d52e30f9d091428745c368a1f"
    )
    assert (
        COIN.outcome({PEERS[0]: Reveal(bytes(32), bytes(32))}).hex()
        == "f5df70c55a2af37582f000748780208f12ab2a9ba43c3f067b1699bdac816309"
    )
