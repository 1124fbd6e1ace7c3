"""A process group of the test's own process alone, which holds the only shard of a sharded model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist

from minga.training.ranks.process_group import ProcessGroup


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGroup]:
    store = tmp_path_factory.mktemp("group") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store.as_posix()}", rank=0, world_size=1)
    try:
        found = ProcessGroup.of_this_process(has_peer=True, is_sharded=True)
        assert found is not None
        yield found
    finally:
        dist.destroy_process_group()
