"""What decoding bytes from elsewhere may raise."""

from __future__ import annotations

from typing import Final

import msgspec

DECODING_ERRORS: Final = (msgspec.MsgspecError, RecursionError, UnicodeDecodeError)
"""Of msgspec's decoders: invalid UTF-8 and deep nesting surface as errors that are none of msgspec's own."""
