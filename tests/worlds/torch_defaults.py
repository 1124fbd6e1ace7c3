"""Programs that set other defaults of torch than the usual ones, which counts for all that minga makes beside them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def defaults(dtype: torch.dtype, device: str) -> Iterator[None]:
    """Inside, tensors are made so where nothing else is said. On the device "meta" they have no values: what is made
    there by mistake is lost.
    """
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
