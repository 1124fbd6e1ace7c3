"""`minga admit`, `minga ban`, `minga members`: which peers may take part in a run."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import asdict
from pathlib import Path

from minga.access.access_files import read_order, write_order
from minga.cli.commands import AdmitCommand, BanCommand, MembersCommand
from minga.cli.terminal.context import Context
from minga.core.errors import ConfigurationError
from minga.core.units import format_duration, parse_duration
from minga.identity.access.orders import MAX_USES, Amendment, Regroup, Transfer
from minga.identity.keys.keys import is_peer_id
from minga.identity.links.links import PREFIX, Link
from minga.keeping.known_runs import FOLDER_DIGITS, runs_folder
from minga.keeping.rejoin import RejoinFile
from minga.training.organiser import Organiser

MAX_VALID_S = 10 * 366 * 86_400.0


SHORT_ID = re.compile("[0-9a-fA-F]{8,63}", re.ASCII)
"""The beginning of an id, as displays show it."""

NOT_TOLD = "Nobody answers. The order is kept here, and takes effect when you start the host again."
BARS_MOST = (
    "That is half of the members in sight, or more, and those that are left may be too few to decide a step. If they "
    "take none, `minga amend LINK resume --with-present` orders them to go on."
)
WORTH_KEY = (
    "This run is open to every peer that has its link, so the ban costs its target no more than a new key: it stops a "
    'peer that misbehaves by mistake. A run with admission = "members" keeps people out.'
)
WORTH_RANGE = (
    "This run is open to every peer that has its link. The ban keeps out peers that announce an address in this range; "
    "a peer that hides its address, or takes a new key and another network, gets around it, and honest peers in the "
    'range are kept out as well. A run with admission = "members" keeps people out.'
)


def run_admit(options: AdmitCommand, context: Context) -> None:
    """Print an invitation, a link for one peer's key, or a link with one more organiser's signature."""
    parsed, peer, uses = Link.parse(options.link), options.peer, options.uses
    valid_s = parse_duration(options.valid, "--valid")
    if not 60.0 <= valid_s <= MAX_VALID_S:
        raise ConfigurationError(f"--valid {options.valid}: between 1 minute and 10 years")
    if not 1 <= uses <= MAX_USES:
        raise ConfigurationError(f"--uses {uses}: between 1 and {MAX_USES}")
    if peer is not None and not is_peer_id(peer):
        raise ConfigurationError(f"{peer[:70]!r} is no peer id, which has 64 lower-case hexadecimal digits")
    with options.desk(context) as organiser:
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
        whom = "the first peer that joins" if grant.uses == 1 else f"the first {grant.uses} peers that join"
        whose = "Its" if grant.uses == 1 else "Their"
        output.say(f"This link admits {whom} with it until {until}, and nobody after that. Show it to nobody else: who")
        output.say(f"has it can join. {whose} access ends at that time, too.\n")
    else:
        output.say(f"This link admits the peer {grant.subject.hex()[:10]} until {until}, and is of no use to others:\n")
    output.say_whole(f"minga {'admit' if missing else 'join'} {link}")
    output.summary(
        ok=True,
        link=str(link),
        invitation=grant.subject.hex() if grant.uses else None,
        peer=None if grant.uses else grant.subject.hex(),
        uses=grant.uses or None,
        expires=grant.expires,
        signatures_missing=missing,
    )


def run_ban(ban: BanCommand, context: Context) -> None:
    """Bar a peer's key, or an invitation with all peers that came by it, and perhaps an address range for a time."""
    output = context.output
    if ban.who is None and ban.addresses is None:
        raise ConfigurationError("name a peer id, an invitation link, or an address range with --range")
    is_short = ban.who is not None and SHORT_ID.fullmatch(ban.who) is not None
    key = ban.who if ban.who is None or is_short or is_peer_id(ban.who) else _invitation_of(ban.who)
    valid_s = parse_duration(ban.valid, "--for")
    if not 60.0 <= valid_s <= MAX_VALID_S:
        raise ConfigurationError(f"--for {ban.valid}: between 1 minute and 10 years")
    with ban.desk(context) as organiser:
        if key is not None and is_short:
            run = runs_folder(ban.directory) / Link.parse(ban.link).run_id[:FOLDER_DIGITS]
            key = organiser.whole_id(key, RejoinFile.peers_known_here(run))
        in_force, barred, until, names = True, None, None, [] if key is None else [key[:10]]
        bars_most = key is not None and organiser.is_half_of_members(key)
        if ban.addresses is not None:
            barred, until, in_force = organiser.bar_range(ban.addresses, valid_s, ban.reason)
            names.append(f"{barred} (until {_date(until)})")
        if key is not None:
            in_force = organiser.bar(key, ban.reason) and in_force
        told, is_open = organiser.is_connected, organiser.ledger.is_open
    named = " and ".join(names)
    if not told:
        output.say(NOT_TOLD)
    elif in_force:
        output.say(f"Barred: {named}. Members close their connections to it when the step under way ends.")
    else:
        output.say(f"Noted. Barred once enough other organisers do the same: {named}.")
    if bars_most and in_force:
        output.say(BARS_MOST)
    if is_open:
        output.say(WORTH_KEY if barred is None else WORTH_RANGE)
    output.summary(ok=True, key=key, range=barred, until=until, in_force=in_force, told=told)


def _invitation_of(text: str) -> str:
    """The key of the invitation that a link carries."""
    if PREFIX not in text.lower():
        raise ConfigurationError(
            f"{text[:70]!r} is no peer id, which has 64 digits of which the first 8 are enough, and no invitation link"
        )
    access = Link.parse(text).access
    if access is None:
        raise ConfigurationError("this link carries no invitation; give a peer id, or the invitation link to end")
    return access.grant.subject.hex()


def run_members(options: MembersCommand, context: Context) -> None:
    """Show who is in and who is barred, by whole ids, which `minga ban` takes; or hand the organisers' role over."""
    output = context.output
    with options.desk(context) as organiser:
        if options.transfer or options.order is not None:
            _hand_over(organiser, options, context)
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
        ranges = {str(network): ban.expires for network, ban in organiser.ranges().items()}
        for network, expires in ranges.items():
            output.say(f"{network}  barred until {_date(expires)}")
        for key, count in ledger.proposed().items():
            output.say(f"{key}  {count} of {ledger.organisers.needed} organisers would bar it")
        output.summary(
            ok=True,
            members=[asdict(view) for view in members],
            barred=ledger.barred(),
            ranges=ranges,
            proposed=ledger.proposed(),
            organisers=sorted(ledger.organisers.keys),
            organisers_needed=ledger.organisers.needed,
            term=ledger.term,
        )


def _hand_over(desk: Organiser, options: MembersCommand, context: Context) -> None:
    if wrong := [key for key in options.transfer if not is_peer_id(key)]:
        raise ConfigurationError(f"--transfer {wrong[0][:70]!r}: a key has 64 lower-case hexadecimal digits")
    if options.transfer:
        order = desk.propose_transfer(options.transfer, options.needed)
    elif options.order is not None:
        order = read_order(options.order, Transfer)
    order, in_force = desk.put_in_force(order)
    if in_force:
        context.output.say("The role is handed over.")
    else:
        pass_on(order, options.order, "minga members LINK", context)
    context.output.summary(ok=True, in_force=in_force, organisers=[key.hex() for key in order.organisers])


def pass_on(order: Amendment | Regroup | Transfer, path: Path | None, typed: str, context: Context) -> None:
    """Write an order into the file that organisers pass around to sign, and say what each of them types.

    Raises `ConfigurationError` if no file was named.
    """
    if path is None:
        raise ConfigurationError("more organisers have to sign: name a file with --order, and pass it on to them")
    write_order(path, order)
    context.output.say(f"More organisers have to sign: each runs `{typed} --order {path}`.")


def _date(unix_s: int) -> str:
    try:
        return dt.datetime.fromtimestamp(unix_s, dt.UTC).strftime("%Y-%m-%d %H:%M UTC")
    except (OverflowError, ValueError, OSError):
        return format_duration(unix_s)
