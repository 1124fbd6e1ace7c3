"""The event loop opens no files: while it waits for a disk, others take its peer for dead."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import minga
from minga.access import access_files
from tests.worlds.optimizer_loops import small_model
from tests.worlds.organiser_desk import desk_in

SPEC = {"name": "disk", "model": {"recipe": "custom"}, "training": {"target_batch_size": 8}}

DONE = frozenset({"open", "os.remove", "os.rename"})


@contextmanager
def opened_on_loops(folder: Path) -> Iterator[list[str]]:
    """The files below `folder` that loops of peers open, remove or rename inside."""
    opened, is_over = list[str](), threading.Event()

    def hear(done: str, arguments: tuple[Any, ...]) -> None:
        on_loop = done in DONE and threading.current_thread().name == "minga" and not is_over.is_set()
        if on_loop and str(arguments[0]).startswith(str(folder)):
            opened.append(f"{done} {Path(str(arguments[0])).name}")

    sys.addaudithook(hear)  # which stays
    yield opened
    is_over.set()


def live(peer: minga.Peer, is_over: Callable[[int], bool]) -> None:
    model = small_model()
    optimizer = minga.Optimizer(torch.optim.AdamW(model.parameters()), peer, model=model)
    optimizer.is_leaving = lambda: is_over(optimizer.global_step)
    while not is_over(optimizer.global_step):
        model(torch.randn(4, 6)).square().mean().backward()
        optimizer.step(samples=4)
        time.sleep(0.02)  # who trains alone until the other has come has no need to hurry


def options(folder: Path, name: str) -> minga.PeerOptions:
    return minga.PeerOptions(identity=folder / f"{name}.json", directory=folder / name, host="127.0.0.1")


def test_a_peer_in_a_run_opens_no_file_on_its_loop(tmp_path: Path) -> None:
    with (
        opened_on_loops(tmp_path) as opened,
        minga.host(SPEC, options(tmp_path, "host"), files={"words.txt": bytes(3 << 20)}) as host,
    ):
        left = threading.Event()
        hosting = threading.Thread(target=live, args=(host, lambda _: left.is_set()), daemon=True)
        hosting.start()
        with minga.join(host.link, options(tmp_path, "guest")) as guest:
            desk = desk_in(host)
            desk.put_in_force(desk.amend({"checkpoints.every_steps": 5}, None))
            shared: list[object] = []
            guest.subscribe(lambda event: shared.append(event) if event.fields.get("members") == 2 else None)
            live(guest, lambda _: len(shared) >= 7)
        left.set()
        hosting.join()
    assert not opened
    for kept in ("access-orders.msgpack", "words.txt", "places-*.msgpack", "receipts-*.bin"):
        assert list(tmp_path.rglob(kept))


def test_what_is_written_beside_the_loop_keeps_its_order_to_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop goes on while the disk is slow, and the peer is not closed before all is written."""
    written, goes_on = list[bytes](), threading.Event()

    def slowly(path: Path, body: bytes) -> None:
        assert goes_on.wait(30)
        written.append(body)

    monkeypatch.setattr(access_files, "write_atomically", slowly)
    with minga.host(SPEC, options(tmp_path, "host")) as host:
        watch: Any = host.session._access_watch
        for number in range(3):
            token = SimpleNamespace(encode=partial(bytes, [number]))
            host.on_loop(partial(watch.keep_token, token))
        assert not written
        threading.Timer(0.3, goes_on.set).start()
    assert written == [b"\0", b"\1", b"\2"]
