"""`minga doctor`: check hop by hop what a run needs, and name the first hop that fails and what to do about it."""

from __future__ import annotations

import asyncio
import platform
import shutil
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rich.text import Text

from minga.cli.commands import DoctorCommand
from minga.cli.diagnosing.hops import OwnAccess, check_authority, check_entries
from minga.cli.diagnosing.line import check_line
from minga.cli.diagnosing.machine import Accelerators, Check, accelerator, data_folder, from_outside
from minga.cli.terminal.context import Context
from minga.cli.terminal.exit_codes import CHECK_FAILED, OK
from minga.core.errors import IdentityError, LinkError, MingaError
from minga.core.units import counted, format_size
from minga.core.urls import is_loopback
from minga.identity.keys import key_file
from minga.identity.keys.keys import Identity
from minga.identity.links.links import Link
from minga.network.interface import Address
from minga.network.iroh.network import IrohNetwork, NetworkSettings

LOW_DISK_BYTES = 2 << 30


def run_doctor(options: DoctorCommand, context: Context) -> int:
    """Print every check; the exit code is 1 if one failed."""
    checks, output, link = list[Check](), context.output, options.link

    async def run() -> None:
        async for check in _all_checks(link, options.identity, options.directory, options.bind):
            checks.append(check)
            mark = ("FAILED", "red") if not check.ok else ("note  ", "yellow") if check.advice else ("ok    ", "green")
            output.event("check", **check._asdict())
            output.say(Text.assemble(mark, f" {check.name}: {check.detail}"))
            if check.advice:
                output.say(f"       → {check.advice}")

    asyncio.run(run())
    failed = next((check for check in checks if not check.ok), None)
    if failed is None:
        notes = any(check.advice for check in checks)
        works = "Nothing that was checked fails; mind the notes." if notes else "Everything that was checked works."
        output.say(f"\n{works}" + ("" if link else " Give a LINK to check the way to a run."))
    else:
        output.say(f"\nThe hop that fails: {failed.name}")
    output.summary(
        ok=failed is None,
        failed=failed.name if failed else None,
        detail=failed.detail if failed else None,
        advice=failed.advice if failed else None,
        checks=len(checks),
    )
    return OK if failed is None else CHECK_FAILED


async def _all_checks(
    link: str | None, identity: Path | None, directory: Path | None, host: str | None
) -> AsyncIterator[Check]:
    for check in _machine(identity, directory):
        yield check
    yield Check("accelerator", *accelerator(Accelerators.of_this_machine()))
    network, direct = await _network(host)
    yield network
    if network.ok and not is_loopback(host or ""):
        yield Check("reachable from outside", *from_outside(direct))
    if link is None:
        return
    try:
        parsed = Link.parse(link)
        own = OwnAccess.of_this_machine(parsed, identity, directory, direct)
    except LinkError as error:
        yield Check("link", False, str(error), "if that does not help, ask the organiser for the link once more")
        return
    yield Check("link", True, f"run {parsed.run_id[:10]}, {counted(len(parsed.entries), 'peer')} to enter by")
    async for check in check_authority(parsed):
        yield check
    if network.ok:
        works = True
        async for check in check_entries(parsed, host, own, directory):
            works = works and check.ok
            yield check
        if works and (found := await asyncio.to_thread(check_line, parsed, host)) is not None:
            yield Check("line against what the run needs", *found)


def _machine(identity: Path | None, directory: Path | None) -> Iterator[Check]:
    """Versions, key file and disk."""
    versions = {"python": platform.python_version()} | {name: version(name) for name in ("minga", "torch", "iroh")}
    yield Check("versions", True, ", ".join(f"{name} {number}" for name, number in versions.items()))
    path = identity or key_file.default_path()
    try:
        stored = key_file.read(path)
        yield Check(
            "key file", True, f"{path}, of {stored[1]}" if stored else f"{path} will be made at the first start"
        )
    except IdentityError as error:
        yield Check("key file", False, str(error), "follow the hint, or use --ephemeral")
    folder = data_folder(directory)
    free = shutil.disk_usage(folder).free
    low = free < LOW_DISK_BYTES
    yield Check(
        "disk",
        True,
        f"{format_size(free)} free in {folder}",
        "that is little for checkpoints: free some space or use --directory on another disk" if low else "",
    )


async def _network(host: str | None) -> tuple[Check, tuple[str, ...]]:
    """Whether two endpoints of the real network find each other on this machine, and the addresses of one."""
    name, settings = "encrypted connection on this machine", NetworkSettings(host=host)
    one = two = None
    try:
        one = await IrohNetwork.open(Identity.generate().seed, settings)
        two = await IrohNetwork.open(Identity.generate().seed, replace(settings, dialable=False))
        address = one.address
        local = tuple(a for a in address.direct if a.startswith(("127.", "[::1]"))) or address.direct
        await two.connect(Address(address.peer_id, local))
        return Check(name, True, f"bound to {', '.join(address.direct[:4])}"), address.direct
    except MingaError as error:
        advice = "look at the firewall or sandbox of this machine: it has to let this program use UDP"
        return Check(name, False, str(error), advice), ()
    finally:
        for network in (two, one):
            if network is not None:
                await network.close()
