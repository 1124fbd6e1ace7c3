"""Viewers of a dashboard in a process of their own, who ask for what open pages ask for.

python -m benchmarks._dashboard_viewers URL
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from urllib.parse import urlsplit

VIEWERS = 5
WITH_TABLE = 2
"""Viewers who have the table of peers open; the others have the page of the run."""
RUN_PERIOD_S, TABLE_PERIOD_S = 10.0, 3.0


@contextlib.contextmanager
def watched(url: str | None) -> Iterator[None]:
    """Meanwhile viewers look at the dashboard; none without an address."""
    if url is None:
        yield
        return
    process = subprocess.Popen([sys.executable, "-m", "benchmarks._dashboard_viewers", url])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _follow(address: tuple[str, int]) -> None:
    connection = HTTPConnection(*address)
    connection.request("GET", "/api/v1/stream")
    stream = connection.getresponse()
    while stream.readline():
        pass


def _ask(address: tuple[str, int], name: str, period_s: float) -> None:
    while True:
        connection = HTTPConnection(*address)
        connection.request("GET", f"/api/v1/{name}")
        connection.getresponse().read()
        connection.close()
        time.sleep(period_s)


def main() -> None:
    """Look until the process is killed."""
    parts = urlsplit(sys.argv[1])
    address = (parts.hostname or "", parts.port or 80)
    for number in range(VIEWERS):
        threading.Thread(target=_follow, args=(address,), daemon=True).start()
        name, period_s = ("peers", TABLE_PERIOD_S) if number < WITH_TABLE else ("run", RUN_PERIOD_S)
        threading.Thread(target=_ask, args=(address, name, period_s), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main()
