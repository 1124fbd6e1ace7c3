"""What the types of messages let through."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from minga.averaging.allreduce.messages import FetchChunks, Hold
from minga.averaging.messages import AskView, Fingerprint, Peer, RoundId, View
from minga.security.protocol import statements
from minga.training.state import manifest


@pytest.mark.parametrize("tail", ["\n", "0"])
@pytest.mark.parametrize(
    ("kind", "digits"),
    [(RoundId, 32), (Fingerprint, 32), (Peer, 64), (statements.Peer, 64), (manifest.Digest, 64)],
)
def test_an_id_ends_with_its_last_digit(kind: Any, digits: int, tail: str) -> None:
    """With a line break behind it, it would be another member to all who compare, and the same key to all who check."""
    assert msgspec.convert("a" * digits, kind) == "a" * digits
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert("a" * digits + tail, kind)


@pytest.mark.parametrize(
    "message",
    [Hold("a" * 32 + "\n", 0, ()), FetchChunks("a" * 32 + "\n", ()), AskView(1, "\n"), View(("b" * 64 + "\n",))],
    ids=lambda message: type(message).__name__,
)
def test_messages_with_a_line_break_in_an_id_are_refused(message: msgspec.Struct) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=type(message))
