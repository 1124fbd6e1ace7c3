"""Where ranks meet that find each other by environment variables, as torchrun has it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def rank_store(size: int) -> Iterator[dict[str, str]]:
    """What so many ranks have in their environment beside their numbers. The store is there while this lasts, at a port
    of its own: one that is only looked up may be taken before rank 0 opens it.
    """
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    yield {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(size),
    }
