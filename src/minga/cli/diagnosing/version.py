"""`minga version`: the versions on which it depends whether two peers understand each other and compute alike."""

from __future__ import annotations

import platform
from importlib import metadata

from minga.cli.terminal.context import Context
from minga.cli.terminal.output import plain_table
from minga.network.rpc.handshake import WIRE_VERSIONS

PACKAGES = ("minga", "torch", "iroh", "transformers", "numpy")


def run_version(context: Context) -> None:
    """Print the versions of minga, of its wire format, of Python, and of the libraries that compute and connect."""
    packages = {name: metadata.version(name) for name in PACKAGES}
    python, system = platform.python_version(), f"{platform.system()} {platform.machine()}"
    oldest, newest = WIRE_VERSIONS
    table = plain_table("", "", left=[""])
    for name, version in {**packages, "wire format": f"{oldest} to {newest}", "Python": python, "on": system}.items():
        table.add_row(name, version)
    context.output.say(table)
    context.output.summary(packages=packages, wire_versions=[oldest, newest], python=python, system=system)
