"""The pictures of the dashboard in the documentation, with Chromium.

    python -m tools.pictures docs

They are of a real run of four peers on this machine, in which one dies and another comes late.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.worlds import chromium
from tests.worlds.cli_run import ALONE, Running

SPEC = """
name = "bible-albert"
[recipe.albert]
max_length = 64
overrides = { hidden_size = 32, num_hidden_layers = 1, intermediate_size = 64, embedding_size = 32 }
[optimizer]
name = "adamw"
warmup_steps = 20
[training]
target_batch_size = 512
stop_after_steps = 2000
[network]
relay = "none"
"""
PATIENCE_S = 300.0


def take_pictures(folder: Path, seconds: float) -> None:
    """Write `dashboard.png` and `dashboard-phone.png`, of a run that lasts so long."""
    with ExitStack() as stack:
        here = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        (here / "run.toml").write_text(SPEC, "utf-8")

        def start(name: str, *words: str) -> Running:
            return stack.enter_context(Running(*words, *ALONE, "--directory", str(here / name)))

        def join(name: str) -> Running:
            return start(name, "join", link, "--yes", "--max-upload", "20Mbit")

        host = start("host", "host", str(here / "run.toml"), "--dashboard", "--dashboard-listen", "127.0.0.1:0")
        url = host.wait_for("dashboard", PATIENCE_S)["url"]  # it prepares the text first
        link = host.wait_for("link", PATIENCE_S)["link"]
        trainers = [join(f"trainer-{number}") for number in range(3)]
        launched = stack.enter_context(chromium.browser())
        with chromium.page(launched) as opened:
            opened.goto(url)
            opened.locator("[data-tile=peers] dd > span").filter(has_text="4").wait_for(timeout=1e3 * PATIENCE_S)
            time.sleep(seconds * 0.5)
            trainers[0].process.kill()
            time.sleep(seconds * 0.1)
            join("late")
            time.sleep(seconds * 0.4)
            _picture(opened, folder / "dashboard.png", (1280, 1130))
        with chromium.page(launched, chromium.PHONE, "dark") as opened:
            opened.goto(url)
            opened.locator(".plot[aria-label^='Loss. Latest']").wait_for(timeout=1e3 * PATIENCE_S)
            _picture(opened, folder / "dashboard-phone.png", (390, 1060))


def _picture(opened: Any, path: Path, size: tuple[int, int]) -> None:
    opened.set_viewport_size({"width": size[0], "height": size[1]})
    time.sleep(1.0)
    opened.screenshot(path=str(path))


def main() -> None:
    """Take them."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="where to write them")
    options.add_argument("--seconds", type=float, default=90.0, help="how long the run lasts")
    given = options.parse_args()
    take_pictures(given.folder, given.seconds)


if __name__ == "__main__":
    main()
