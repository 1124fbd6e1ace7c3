"""Decoding bytes from elsewhere, in any thread.

msgspec learns the fields of a struct when it decodes the first one, and a thread that decodes another one meanwhile
reads what is half learnt: the process ends with a segmentation fault, or the message is refused (seen with msgspec
0.22). Two peers in one process come to that, as their event loops run in threads of their own, and so does a peer whose
program reads files meanwhile. So one thread at a time makes decoders here, and all decoding is done by these. A process
that was forked meanwhile, such as one of a data loader, has no thread that would leave the lock: it gets a new one.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, TypeVar, overload

import msgspec

if TYPE_CHECKING:
    from minga.core.buffer_pool import Bytes

DECODING_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Of msgspec's decoders: invalid UTF-8 and deep nesting surface as errors that are none of msgspec's own."""

T = TypeVar("T")

_learning = threading.RLock()  # what is collected meanwhile may decode


def _learn_anew() -> None:
    global _learning
    _learning = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_learn_anew)

_msgpack: dict[Any, msgspec.msgpack.Decoder[Any]] = {}
_json: dict[Any, msgspec.json.Decoder[Any]] = {}


@overload
def decode_msgpack(data: Bytes, kind: type[T]) -> T: ...
@overload
def decode_msgpack(data: Bytes, kind: Any) -> Any: ...
def decode_msgpack(data: Bytes, kind: Any) -> Any:
    """The `kind`, a type, that these bytes are in MessagePack; raises `DECODING_ERRORS`."""
    decoder = _msgpack.get(kind)
    if decoder is None:
        with _learning:
            decoder = _msgpack.setdefault(kind, msgspec.msgpack.Decoder(kind))
    return decoder.decode(data)


@overload
def decode_json(data: Bytes | str, kind: type[T]) -> T: ...
@overload
def decode_json(data: Bytes | str, kind: Any) -> Any: ...
def decode_json(data: Bytes | str, kind: Any) -> Any:
    """The `kind`, a type, that this text is in JSON; raises `DECODING_ERRORS`."""
    decoder = _json.get(kind)
    if decoder is None:
        with _learning:
            decoder = _json.setdefault(kind, msgspec.json.Decoder(kind))
    return decoder.decode(data)


@overload
def take_as(value: object, kind: type[T]) -> T: ...
@overload
def take_as(value: object, kind: Any) -> Any: ...
def take_as(value: object, kind: Any) -> Any:
    """The `kind`, a type, that this value, which was decoded from JSON, is; raises `DECODING_ERRORS`."""
    with _learning:
        return msgspec.convert(value, kind, strict=True)
