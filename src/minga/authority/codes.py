"""Secret codes by which people log in where there is no identity provider.

A code has 80 random bits and is made here, never chosen by people. The file keeps only its scrypt hash (RFC 7914), with
the parameters in front, as `scrypt:LOG2_N:R:P:SALT:HASH` in hexadecimal.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

CODE_BYTES, SALT_BYTES, HASH_BYTES = 10, 16, 32
LOG2_N, R, P = 14, 8, 1
MAX_LOG2_N = 17
MAX_MEMORY_BYTES = 256 << 20
HASH_PATTERN = r"^scrypt:(?:1[0-7]):[1-8]:[1-4]:[0-9a-f]{32}:[0-9a-f]{64}$"
_DRESSING = re.compile(r"[\s-]+")


def new_code() -> str:
    """A code such as `k3vq-7m2x-abcd-efgh`."""
    text = base64.b32encode(secrets.token_bytes(CODE_BYTES)).decode("ascii").lower()
    return "-".join(text[i : i + 4] for i in range(0, len(text), 4))


def hashed(code: str) -> str:
    """What the file keeps of a code."""
    salt = secrets.token_bytes(SALT_BYTES)
    return f"scrypt:{LOG2_N}:{R}:{P}:{salt.hex()}:{_scrypt(code, salt, LOG2_N, R, P).hex()}"


def fits(code: str, stored: str) -> bool:
    """Whether a code is the one whose hash is `stored`, which matches `HASH_PATTERN`. Takes some 50 ms on purpose."""
    _, log2_n, r, p, salt, expected = stored.split(":")
    found = _scrypt(code, bytes.fromhex(salt), int(log2_n), int(r), int(p))
    return hmac.compare_digest(found, bytes.fromhex(expected))


def _scrypt(code: str, salt: bytes, log2_n: int, r: int, p: int) -> bytes:
    text = _DRESSING.sub("", code).lower().encode()
    return hashlib.scrypt(text, salt=salt, n=1 << log2_n, r=r, p=p, maxmem=MAX_MEMORY_BYTES, dklen=HASH_BYTES)
