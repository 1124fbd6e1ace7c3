"""`minga admit`, `minga ban`, `minga members`: who may take part in a run for members."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from minga.cli.terminal.context import Context
from minga.cli.terminal.peer_options import wire
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration, parse_duration
from minga.identity.access.orders import MAX_USES
from minga.identity.keys.keys import is_peer_id
from minga.identity.links.links import Link
from minga.training.access.access_files import read_transfer, write_transfer
from minga.training.join import PeerOptions
from minga.training.organiser import Organiser, organiser_desk

MAX_VALID_S = 10 * 366 * 86_400.0


@dataclass(frozen=True)
class OrganiserOptions:
    """How the desk enters the run: `peer` without a role or key, and the organiser's key file."""

    peer: PeerOptions
    identity: Path | None


@dataclass(frozen=True)
class TransferOptions:
    """Who follows in the organisers' role, how many of them have to sign, and the file that is passed around."""

    organisers: Sequence[str] = ()
    needed: int = 1
    file: Path | None = None


def run_admit(link: str, peer: str | None, uses: int, valid: str, desk: OrganiserOptions, context: Context) -> None:
    """Print an invitation, a link for one peer's key, or a link with one more organiser's signature."""
    parsed = Link.parse(link)
    valid_s = parse_duration(valid, "--valid")
    if not 60.0 <= valid_s <= MAX_VALID_S:
        raise ConfigurationError(f"--valid {valid}: between 1 minute and 10 years")
    if not 1 <= uses <= MAX_USES:
        raise ConfigurationError(f"--uses {uses}: between 1 and {MAX_USES}")
    if peer is not None and not is_peer_id(peer):
        raise ConfigurationError(f"{peer[:70]!r} is no peer id, which has 64 lower-case hexadecimal digits")
    with organiser_desk(parsed, desk.peer, desk.identity, lambda joined: wire(context, joined)) as organiser:
        if parsed.access is not None and peer is None:
            made = organiser.add_signature(parsed.access)
        else:
            made = organiser.invite(uses, valid_s) if peer is None else organiser.admit(peer, valid_s)
        _show_link(made, organiser, context)


def _show_link(link: Link, desk: Organiser, context: Context) -> None:
    access = link.access
    if access is None:  # it was made with one
        return
    missing, grant, output = desk.signatures_missing(access), access.grant, context.output
    until = _date(grant.expires)
    if missing:
        output.say(f"{missing} more of the organisers must sign. Send them this link; each runs\n")
    elif grant.uses:
        times = "one peer" if grant.uses == 1 else f"the first {grant.uses} peers"
        output.say(f"This link admits {times} who join with it until {until}, and nobody after that. Show it to nobody")
        output.say("else: who has it can join. Their access ends with it.\n")
    else:
        output.say(f"This link admits the peer {grant.subject.hex()[:10]} until {until}, and is of no use to others:\n")
    if not output.json_output:
        output.console.print(f"minga {'admit' if missing else 'join'} {link}", markup=False, soft_wrap=True)
    output.summary(
        ok=True,
        link=str(link),
        invitation=grant.subject.hex() if grant.uses else None,
        peer=None if grant.uses else grant.subject.hex(),
        uses=grant.uses or None,
        expires=grant.expires,
        signatures_missing=missing,
    )


def run_ban(link: str, who: str, reason: str, desk: OrganiserOptions, context: Context) -> None:
    """Bar a peer's key, or an invitation with everybody who came by it."""
    parsed, output = Link.parse(link), context.output
    key = who if is_peer_id(who) else _invitation_of(who)
    with organiser_desk(parsed, desk.peer, desk.identity, lambda joined: wire(context, joined)) as organiser:
        in_force = organiser.bar(key, reason)
        told = organiser.is_connected
    if not told:
        output.say(
            "Nobody of the run answers: the order is kept here, and spreads when a peer with this --directory runs."
        )
    elif in_force:
        output.say(f"{key[:10]} is barred: members close their connections to it when the step under way ends.")
    else:
        output.say(f"Noted. {key[:10]} is barred once enough other organisers do the same.")
    output.summary(ok=True, key=key, in_force=in_force, told=told)


def _invitation_of(text: str) -> str:
    """The key of the invitation that a link carries."""
    access = Link.parse(text).access
    if access is None:
        raise ConfigurationError("this link carries no invitation; give a peer id, or the invitation link to end")
    return access.grant.subject.hex()


def run_members(link: str, transfer: TransferOptions, desk: OrganiserOptions, context: Context) -> None:
    """Show who is in and who is barred, by whole ids, which `minga ban` takes; or hand the organisers' role over."""
    parsed, output = Link.parse(link), context.output
    with organiser_desk(parsed, desk.peer, desk.identity, lambda joined: wire(context, joined)) as organiser:
        if transfer.organisers or transfer.file is not None:
            _hand_over(organiser, transfer, context)
            return
        members, ledger = organiser.members(), organiser.ledger
        for view in members:
            how = "organiser" if view.is_organiser else view.name
            if not how and view.invitation:
                how = f"by invitation {view.invitation[:10]}"
            until = "" if view.expires is None else f"until {_date(view.expires)}"
            output.say("  ".join(filter(None, (view.peer, f"{view.role:9}", how, until))))
            output.event("member", **asdict(view))
        for key, reason in ledger.barred().items():
            output.say(f"{key}  barred{f': {reason}' if reason else ''}")
        for key, count in ledger.proposed().items():
            output.say(f"{key}  {count} of {ledger.organisers.needed} organisers would bar it")
        output.summary(
            ok=True,
            members=[asdict(view) for view in members],
            barred=ledger.barred(),
            proposed=ledger.proposed(),
            organisers=sorted(ledger.organisers.keys),
            organisers_needed=ledger.organisers.needed,
            term=ledger.term,
        )


def _hand_over(desk: Organiser, options: TransferOptions, context: Context) -> None:
    if wrong := [key for key in options.organisers if not is_peer_id(key)]:
        raise ConfigurationError(f"--transfer {wrong[0][:70]!r}: a key has 64 lower-case hexadecimal digits")
    if options.organisers:
        order = desk.propose_transfer(options.organisers, options.needed)
    elif options.file is not None:
        order = read_transfer(options.file)
    order, in_force = desk.hand_over(order)
    if not in_force and options.file is None:
        raise ConfigurationError("more organisers have to sign: name a file with --order, and pass it on to them")
    if not in_force and options.file is not None:
        write_transfer(options.file, order)
    said = (
        "The role is handed over." if in_force else f"More organisers have to sign: each runs this with {options.file}."
    )
    context.output.say(said)
    context.output.summary(ok=True, in_force=in_force, organisers=[key.hex() for key in order.organisers])


def _date(unix_s: int) -> str:
    try:
        return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return format_duration(unix_s)
