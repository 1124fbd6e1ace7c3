"""What the dashboard costs the peer in whose process it runs, and how long its pages take.

    python -m benchmarks.dashboard --json
    python -m benchmarks.dashboard --pictures docs

cost               for 100 and 1,000 peers and 5 viewers, who do what browsers with open pages do (one stream each, the
                   whole run every ten seconds, two of them the table of peers every three): `core_share` is the CPU
                   time of the process with the dashboard, by wall time, less that of the same process without one.
                   The process is given a look four times a second and a step every five seconds, as a host is.
                   `memory_mb` is how much its resident memory grew from the first minute of a run to its end, with
                   `hours` of virtual time in between, and `file_mb` what it wrote meanwhile
pages              milliseconds from the call for an address until the page shows its data, in Chromium, at 100 and
                   1,000 peers: [median, minimum, maximum] of `--times` loads
live               seconds from the death of a peer of a real run of three (kill -9) until the page says so, and from
                   the start of another process until the page shows it as a peer: [median, minimum, maximum]

ok: core_share at most 0.01 for 100 peers, each page of 1,000 peers within 1000 ms, the death shown within 5 s.
With --pictures it writes the pictures of the documentation instead: a real run of four peers on this machine.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks import _chromium
from benchmarks._dashboard_live import live_times, take_pictures
from benchmarks._dashboard_viewers import VIEWERS, watched
from benchmarks._machine import memory_bytes
from benchmarks._report import finish, note, parser, spread

SHARE_LIMIT, PAGE_LIMIT_MS, DEATH_LIMIT_S = 0.01, 1000.0, 5.0
SIZES = (100, 1000)
LOOK_S = 0.25
HOURS = 48


def main() -> int:
    options = _options()
    if options.pictures:
        take_pictures(Path(options.pictures), options.seconds)
        return 0
    costs, pages = {}, {}
    for peers in SIZES:
        note(f"cost with {peers} peers")
        without, with_dashboard = (_cpu_share(peers, options.seconds, shown=shown) for shown in (False, True))
        memory_mb, file_mb = _memory(peers)
        costs[str(peers)] = {
            "core_share": round(with_dashboard - without, 5),
            "without": round(without, 5),
            "memory_mb": round(memory_mb, 1),
            "file_mb": round(file_mb, 2),
        }
    reason = _chromium.why_not()
    if reason is None:
        for peers in SIZES:
            note(f"pages with {peers} peers")
            pages[str(peers)] = _page_times(peers, options.times)
    note("a live run")
    live = live_times(options.deaths) if reason is None else {}
    ok = costs["100"]["core_share"] <= SHARE_LIMIT
    ok &= all(times[0] <= PAGE_LIMIT_MS for times in pages.get("1000", {}).values())
    ok &= not live or live["death_s"][0] <= DEATH_LIMIT_S
    return finish(
        "dashboard",
        ok,
        options.json,
        viewers=VIEWERS,
        hours=HOURS,
        cost=costs,
        pages=pages,
        live=live,
        without_browser=reason,
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument(
        "--seconds", type=float, default=20.0, help="how long each cost is measured, or pictures' run lasts"
    )
    made.add_argument("--times", type=int, default=5, help="loads of each page")
    made.add_argument("--deaths", type=int, default=3, help="peers that are killed in the live run")
    made.add_argument("--pictures", metavar="FOLDER", help="write the pictures of the documentation there, and end")
    return made.parse_args()


def _cpu_share(peers: int, seconds: float, *, shown: bool) -> float:
    """CPU time by wall time of a process of its own that is given looks; with a dashboard it has viewers, too."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return float(pool.apply(_measure, (peers, seconds, shown)))


def _measure(peers: int, seconds: float, shown: bool) -> float:
    from benchmarks._dashboard_swarm import MadeUpRun

    with tempfile.TemporaryDirectory() as folder:
        run = MadeUpRun(peers, directory=Path(folder), begin_s=time.time())
        dashboard = run.serve(Path(folder)) if shown else None
        run.advance(LOOK_S)
        with watched(dashboard.url if dashboard else None):
            _give_looks(run, 3.0)
            began, cpu = time.monotonic(), time.process_time()
            _give_looks(run, seconds)
            share = (time.process_time() - cpu) / (time.monotonic() - began)
        if dashboard is not None:
            dashboard.close()
        run.close()
    return share


def _give_looks(run: Any, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        run.advance(LOOK_S)
        time.sleep(LOOK_S)


def _memory(peers: int) -> tuple[float, float]:
    """Growth of the resident memory over `HOURS` of virtual time in MB, and MB written."""
    from benchmarks._dashboard_swarm import MadeUpRun

    with tempfile.TemporaryDirectory() as folder:
        run = MadeUpRun(peers, directory=Path(folder))
        dashboard = run.serve(Path(folder))
        period_s = HOURS * 3600 / 4000
        for _ in range(12):
            run.advance(5.0)
        _settle(dashboard)
        before = memory_bytes(os.getpid()) / 1e6
        for _ in range(4000):
            run.advance(period_s)
        _settle(dashboard)
        grown = memory_bytes(os.getpid()) / 1e6 - before
        written = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        dashboard.close()
        run.close()
    return grown, written


def _settle(dashboard: Any) -> None:
    done = threading.Event()
    dashboard._server.on_loop(done.set)
    done.wait(60.0)


def _page_times(peers: int, times: int) -> dict[str, list[float] | None]:
    from benchmarks._dashboard_swarm import MadeUpRun, peer_id

    ready = {
        "/": ".plot[aria-label^='Loss. Latest']",
        "/peers": "tbody tr",
        f"/peers/{peer_id(7)}": ".facts",
        "/leaderboard": "tbody tr",
        "/plan": "tbody tr",
        "/join": ".big-command",
    }
    run = MadeUpRun(peers)
    dashboard = run.serve(None)
    for _ in range(400):
        run.advance(5.0)
    found: dict[str, list[float] | None] = {}
    with _chromium.browser() as launched:
        for path, selector in ready.items():
            taken = []
            for _ in range(times):
                with _chromium.page(launched) as opened:
                    began = time.perf_counter()
                    opened.goto(dashboard.url.rstrip("/") + path)
                    opened.locator(selector).first.wait_for()
                    taken.append(1000.0 * (time.perf_counter() - began))
            found["/peers/PEER" if path.count("/") == 2 else path] = spread(taken, 0)
    dashboard.close()
    run.close()
    return found


if __name__ == "__main__":
    sys.exit(main())
