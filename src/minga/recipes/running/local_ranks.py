"""Several devices of one machine as one peer: a process for each, as `torchrun` would start them.

    minga join (rank 0: the peer, the first device)
        ├── this module ◀── job on its standard input: run, files, device     (rank 1)
        └── …
    all: torch.distributed over gloo ─▶ minga.Optimizer, see training/ranks

Rank 0 alone decides. Standard input of a rank stays open as long as rank 0 lives; its end, however it came, ends the
rank. If a rank ends by itself, the next micro-batch of rank 0 fails, and this peer ends with words.
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final

import msgspec
import torch
import torch.distributed as dist
from msgspec.structs import replace

from minga.core.decoding import decode_json
from minga.core.errors import ClosedError, LocalError, MingaError
from minga.core.spec.run_spec import RunSpec
from minga.recipes.running.run import FurtherRank, RecipeRun, Work
from minga.training.peer import Peer

MODULE: Final = "minga.recipes.running.local_ranks"
FAILED: Final = 1
READY: Final = "ready"
MEETING: Final = timedelta(seconds=120)
"""How long a rank waits for the others once it is ready."""

END_S: Final = 5.0
MAX_WORDS: Final = 300


class Job(msgspec.Struct, frozen=True):
    """What a further rank gets to know; `spec` is the canonical form, `store` the file by which the ranks meet."""

    spec: bytes
    files: dict[str, str]
    directory: str
    peer_id: str
    role: str
    rank: int
    ranks: int
    store: str
    work: Work


@contextlib.contextmanager
def open_run(
    peer: Peer, devices: Sequence[torch.device], work: Work, is_leaving: Callable[[], bool] = lambda: False
) -> Iterator[RecipeRun]:
    """The run of `peer` on `devices`, of which this process uses the first; for the thread that enters it. For
    `is_leaving` see `RecipeRun`.

    Further processes end with the block. Raises `LocalError`, also out of the block, if one of them ended by itself,
    and what `RecipeRun` raises.
    """
    if len(devices) == 1:
        yield RecipeRun(peer, replace(work, device=str(devices[0])), is_leaving=is_leaving)
        return
    own_threads = torch.get_num_threads()
    share = _share_of_threads(devices, work.threads, own_threads)
    if share is not None:
        torch.set_num_threads(share)
    with tempfile.TemporaryDirectory(prefix="minga-ranks-", ignore_cleanup_errors=True) as folder:
        jobs = _jobs(peer, devices, replace(work, threads=share), Path(folder) / "store")
        with contextlib.ExitStack() as stack:
            stack.callback(torch.set_num_threads, own_threads)
            stack.callback(_part)
            ranks = [stack.enter_context(contextlib.closing(_Rank(job, Path(folder)))) for job in jobs]

            def gather() -> None:
                for each in ranks:
                    each.wait_until_ready()
                meet(0, len(devices), Path(folder) / "store")

            try:
                first = replace(work, device=str(devices[0]))
                yield RecipeRun(peer, first, ranks=len(devices), meet=gather, is_leaving=is_leaving)
            except ClosedError as error:
                if ended := [words for each in ranks if (words := each.why_ended())]:
                    raise LocalError(f"{'; '.join(ended)}. The run goes on; start this peer again") from error
                raise


def meet(rank: int, ranks: int, store: Path) -> None:
    """Make one `torch.distributed` group of all ranks, which meet by the file `store`."""
    names = {name for _, name in socket.if_nameindex()} if hasattr(socket, "if_nameindex") else set()
    for loopback in {"lo", "lo0"} & names:  # nothing outside of this machine has to reach a rank
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    url = (
        f"file:///{store.as_posix().removeprefix('/')}"  # as PyTorch reads it: with blanks, and with drives of Windows
    )
    dist.init_process_group("gloo", init_method=url, rank=rank, world_size=ranks, timeout=MEETING)


class _Rank:
    """The process of one further rank."""

    def __init__(self, job: Job, folder: Path) -> None:
        self._what = f"The process of device {job.rank + 1} ({job.work.device})"
        self._log = folder / f"rank-{job.rank}.err"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603  this very program
                [sys.executable, "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for rank 0, which ends the others
            )
        self._send(msgspec.json.encode(job) + b"\n")

    def wait_until_ready(self) -> None:
        """Block until it can meet the others. Raises `LocalError` if it ended instead."""
        if self._process.stdout is None or self._process.stdout.readline().strip() != READY.encode():
            raise LocalError(f"{self.why_ended()}. `--devices 1` takes part with one device")

    def why_ended(self) -> str:
        """What is known of its end; empty if it lives. A process that has failed may take a moment to end."""
        try:
            code = self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            return ""
        said = self._log.read_text("utf-8", "replace").strip().split("\n")[-1][:MAX_WORDS]
        return f"{self._what} ended: {said or f'exit code {code}'}"

    def close(self) -> None:
        """End it, and wait until it is gone."""
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, line: bytes) -> None:
        """Write to its standard input; that it ended meanwhile is told where it is waited for."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.write(line)
                self._process.stdin.flush()


def _jobs(peer: Peer, devices: Sequence[torch.device], work: Work, store: Path) -> list[Job]:
    spec, files = peer.spec.canonical_bytes(), {name: str(path) for name, path in peer.files.items()}
    return [
        Job(
            spec,
            files,
            str(peer.directory),
            peer.peer_id,
            peer.role,
            rank,
            len(devices),
            str(store),
            replace(work, device=str(device)),
        )
        for rank, device in enumerate(devices)
        if rank > 0
    ]


def _share_of_threads(devices: Sequence[torch.device], threads: int | None, available: int) -> int | None:
    if threads is None and any(device.type != "cpu" for device in devices):
        return None
    return max(1, (threads or available) // len(devices))


def _part() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


# ---- The process of a further device: it does what rank 0 does.


def main() -> int:
    """Compute beside rank 0 until the run is finished or standard input ends; the exit code."""
    job = decode_json(_first_line(), Job)
    threading.Thread(target=_end_with_input, name="minga-rank-leash", daemon=True).start()
    try:
        _compute(job)
    except MingaError as error:
        print(error, file=sys.stderr, flush=True)
        return FAILED
    return 0


def _compute(job: Job) -> None:
    if job.work.threads is not None:
        torch.set_num_threads(job.work.threads)
    rank = FurtherRank(
        spec=RunSpec.from_canonical(job.spec),
        files={name: Path(path) for name, path in job.files.items()},
        directory=Path(job.directory),
        peer_id=job.peer_id,
        role=job.role,
        rank=job.rank,
    )

    def tell_and_meet() -> None:
        print(READY, flush=True)
        meet(job.rank, job.ranks, Path(job.store))

    run = RecipeRun(rank, job.work, ranks=job.ranks, meet=tell_and_meet)
    run.train(lambda _: False, lambda *_: None)
    dist.destroy_process_group()


def _first_line() -> bytes:
    """Read past Python's buffered stdin: a thread inside it would hold its lock while the interpreter ends."""
    line = b""
    while not line.endswith(b"\n"):
        data = os.read(sys.stdin.fileno(), 1 << 16)
        if not data:
            os._exit(FAILED)
        line += data
    return line


def _end_with_input() -> None:
    """Rank 0 has gone, or wants this rank to: a collective operation may never end by itself."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
