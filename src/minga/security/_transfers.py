"""How long a transfer of tensors may take, whatever the line: in proportion to its size."""

from __future__ import annotations

from typing import Final

SLOW_LINE_BYTES_PER_S: Final = 125_000
"""1 Mbit/s: who has less cannot take part in time anyway."""
LEAST_TRANSFER_S: Final = 10.0


def transfer_limit_s(size_bytes: int) -> float:
    """Seconds after which a transfer of so many bytes is given up."""
    return LEAST_TRANSFER_S + size_bytes / SLOW_LINE_BYTES_PER_S
