"""`minga runs receipts` and `minga runs verify`: what members attest of each other, and why some were banned."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minga.cli.commands import RunsReceiptsCommand, RunsVerifyCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.exit_codes import CHECK_FAILED, OK
from minga.cli.terminal.options import folder_or_link, own_run
from minga.cli.terminal.output import FittedTable
from minga.core.errors import ConfigurationError, reason_of
from minga.core.files import store
from minga.core.units import counted, format_size
from minga.identity.links.links import Link
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.archive import RECORD_FILE, read_record
from minga.keeping.rejoin import signed_spec
from minga.network.interface import PeerId
from minga.receipts.book import PeerTotals
from minga.receipts.book_file import books_in, owner_digits, read_book
from minga.receipts.document import (
    MAX_FILE_BYTES,
    ReceiptError,
    VerifiedReceipts,
    verify_document,
    write_document,
)
from minga.security.accountability.evidence import Decision, Entered, Evidence, EvidenceError
from minga.security.accountability.log import follow_log, read_log
from minga.training.life.founding import Genesis
from minga.training.life.verified_member import evidence_file, genesis_file, witnesses
from minga.training.plugins_of_run import check_plugins


def run_receipts(options: RunsReceiptsCommand, context: Context) -> None:
    """List the peers of a run by their samples: as the largest book in its folder has it, or as a member of the run
    that a link names shows and proves it. Or write receipts of a folder to a file.

    Raises `ConfigurationError` if the folder has no book.
    """
    folder = folder_or_link(options.run, options.directory)
    if options.out is not None:
        if folder is None:
            raise ConfigurationError("--out: only of a run on this machine, by its folder or id, which has receipts")
        _write(folder, options.out, context)
        return
    if folder is not None:
        path = _books(folder)[0]
        book = read_book(path)
        totals, last = book.totals(), max((count.step for count in book.counts), default=0)
        seen_by = (
            f"These are the rounds in which the peer {owner_digits(path)} took part, up to the last count, at step "
            f"{last}. What was given since is in no receipt yet."
        )
    else:
        with options.looking_into(options.run, context) as joined:
            totals = {PeerId(each): total for each, total in joined.receipts().items()}
        seen_by = "These are the rounds of which a member of the run has receipts; the signatures are right."
    _show(totals, context)
    context.output.say(seen_by if totals else "Nothing is attested yet.")
    context.output.summary(ok=True, peers=_as_json(totals))


def _write(folder: Path, out: Path, context: Context) -> None:
    """Write the receipts of the peer that has the largest book here.

    Raises `ConfigurationError` if there are none, `StorageError` if the disk refuses.
    """
    signed, _ = signed_spec(folder)
    path = _books(folder)[0]
    book = read_book(path)
    own = (peer for count in book.counts for peer in count.ids if peer.startswith(owner_digits(path)))
    subject = next(own, None)
    if subject is None:
        raise ConfigurationError(f"there are no receipts of the peer {owner_digits(path)} yet")
    data = write_document(book, signed, subject)
    store(out, data)
    totals = verify_document(data).totals
    _show(totals, context)
    context.output.say(f"{out} ({format_size(len(data))}). To check it: minga runs verify {out} --of LINK")
    context.output.summary(ok=True, file=str(out), bytes=len(data), run_id=signed.run_id, peers=_as_json(totals))


def run_verify(options: RunsVerifyCommand, context: Context) -> int:
    """Check a file of receipts, and say what it proves and on whose word; or the evidence in a run's folder.

    Raises `ConfigurationError` if there is neither.
    """
    file, run = Path(own_run(options.what)), options.of
    if file.is_dir():
        if run is not None:
            raise ConfigurationError(f"--of: only for a file of receipts, and {file} is the folder of a run")
        return _verify_evidence(file, context)
    run_id, organiser = (None, None) if run is None else _reference(run)
    try:
        with file.open("rb") as opened:
            proven = verify_document(opened.read(MAX_FILE_BYTES + 1), run_id, organiser)
    except OSError as error:
        raise ConfigurationError(f"{file} cannot be read: {reason_of(error)}") from error
    except ReceiptError as error:
        context.output.say(f"{file} proves nothing: {error}.")
        context.output.summary(ok=False, file=str(file), why=str(error))
        return CHECK_FAILED
    _show(proven.totals, context)
    for line in _words(proven, is_named=run is not None):
        context.output.say(line)
    context.output.summary(
        ok=True,
        file=str(file),
        run=proven.spec.name,
        run_id=proven.run_id,
        organiser=proven.organiser,
        counts=proven.counts,
        seen_by_organiser=proven.seen_by_organiser,
        attesters=proven.attesters,
        strangers=proven.strangers,
        members_only=proven.is_for_members,
        peers=_as_json(proven.totals),
    )
    return OK


def _words(proven: VerifiedReceipts, *, is_named: bool) -> list[str]:
    """What the figures rest on."""
    (first, last), counts = proven.steps, counted(proven.counts, "count")
    lines = [f"{proven.spec.name}, steps up to {last}: {counts} from step {first} on, signatures right."]
    if not is_named:
        lines.append(f"It says that it is of run {proven.run_id}, organised by {proven.organiser}; --of LINK tells.")
    who = "keys that the organisers admitted" if proven.is_for_members else "keys; in an open run anybody can make keys"
    lines.append(f"It rests on the word of {proven.attesters} {who}.")
    if proven.strangers:
        lines.append(
            f"{proven.strangers} more keys signed that nothing shows to be members: their word is not counted."
        )
    lines.append(f"The organiser's own machine signed {proven.seen_by_organiser} of {counts}.")
    return lines


def _reference(run: str) -> tuple[str, str | None]:
    """Run id and organiser's key that a link, an archived checkpoint or a run's folder names."""
    folder = folder_or_link(run)
    if folder is None:
        link = Link.parse(run)
        return link.run_id, link.organiser
    if (folder / RECORD_FILE).is_file():
        return read_record(folder).run_id, None
    signed, _ = signed_spec(folder)
    return signed.run_id, signed.organiser


def _books(folder: Path) -> list[Path]:
    paths = books_in(folder)
    if not paths:
        raise ConfigurationError(
            f"{folder}: no peer has kept receipts here. They begin with the first counts of a run, and a monitor keeps "
            "none: `minga runs` shows the folders of this machine's peers"
        )
    return paths


def _show(totals: dict[PeerId, PeerTotals], context: Context) -> None:
    most_first = sorted(totals.items(), key=lambda each: (-each[1].samples, -each[1].reduced_bytes, each[0]))
    context.output.say(
        FittedTable(
            ("peer", "samples", "steps", "bytes reduced", "claims"),
            [_cells(peer, total) for peer, total in most_first],
            left=(),
            least_first=("claims", "bytes reduced", "steps"),
        )
    )


def _cells(peer: PeerId, total: PeerTotals) -> tuple[str, ...]:
    claims = f"{total.counted} of {total.claimed}"
    return peer[:16], f"{total.samples:,}", f"{total.steps:,}", format_size(total.reduced_bytes), claims


def _as_json(totals: dict[PeerId, PeerTotals]) -> dict[str, Any]:
    return {
        peer: {
            "samples": total.samples,
            "steps": total.steps,
            "reduced_bytes": total.reduced_bytes,
            "claims_counted": total.counted,
            "claims": total.claimed,
        }
        for peer, total in sorted(totals.items())
    }


# ---- the evidence in the folder of a Byzantine-tolerant run


def _verify_evidence(directory: Path, context: Context) -> int:
    """Verify each case in a run's folder, and whether together they lead from the founders to the present members; for
    each peer of this machine that left something there.
    """
    signed, spec = signed_spec(directory)
    check_plugins(spec)  # without its aggregator nothing could be computed again
    logs = [_check(directory, witness, signed, context) for witness in witnesses(directory)]
    if not logs:
        context.output.say("No peer has kept anything here since the run was founded.")
    ok = bool(logs) and all(log["members"] is not None for log in logs)
    context.output.summary(ok=ok, run=spec.name, run_id=signed.run_id, logs=logs)
    return OK if ok else CHECK_FAILED


def _check(directory: Path, witness: PeerId, signed: SignedRunSpec, context: Context) -> dict[str, Any]:
    """Tell what one peer kept, and return it for the summary."""
    path, run_id, output = evidence_file(directory, witness), signed.run_id, context.output
    output.say(f"What {witness} saw:")
    genesis = Genesis.from_file(genesis_file(directory, witness), run_id, signed.organiser)
    founders = None if genesis is None else list(genesis.founders)
    log: dict[str, Any] = {"witness": witness, "cases": 0, "wrong": [], "founders": founders, "members": None}
    try:
        entries = read_log(path) if path.exists() else ()
    except EvidenceError as error:
        output.say(f"{path} is damaged: {error}")
        return {**log, "wrong": [str(error)]}
    shown = [_show_case(entry, run_id, context) for entry in entries]
    wrong = [one for one in shown if isinstance(one, str)]
    log |= {"cases": len(entries), "wrong": wrong}
    if wrong:
        output.say("What is wrong leads to no list of members.")
    elif founders is None:
        output.say("Each case holds by itself, but the organiser's word of who the founders are is not in the folder.")
    else:
        try:
            decisions = [one for one in shown if isinstance(one, Decision)]
            end = follow_log(map(PeerId, founders), zip(entries, decisions, strict=True))
        except EvidenceError as error:
            output.say(f"Each case holds by itself, but they do not lead to a list of members: {error}")
            return log
        start = counted(len(founders), "founder") if end.entered is None else f"where {end.entered.author[:10]} entered"
        at = "" if end.entered is None else f" at step {end.entered.step}, by the word of those who were members there"
        output.say(f"From {start}{at}, this leaves {counted(len(end.members), 'member')}.")
        log |= {"members": list(end.members), "entered": None if end.entered is None else end.entered.step}
    return log


def _show_case(entry: Evidence, run_id: str, context: Context) -> Decision | str:
    """Say what becomes of members by one case; what that is, or what is wrong with it."""
    try:
        decision = entry.verify(run_id)
    except EvidenceError as error:
        context.output.say(f"step {entry.step}  shows nothing: {error}")
        context.output.event("case", step=entry.step, peer=None, reason=None, witness=entry.author, wrong=str(error))
        return str(error)
    came = (entry.author,) if isinstance(entry.proof, Entered) else decision.admitted
    told = {peer: "was away" if why is None else f"was banned: {why.words}" for peer, why in decision.gone.items()}
    for peer, what in (told | dict.fromkeys(came, "became a member")).items():
        reason = decision.gone.get(peer)
        context.output.say(f"step {entry.step}  {peer[:10]}  {what}  (proven)")
        context.output.event(
            "case", step=entry.step, peer=peer, reason=reason and reason.name, witness=entry.author, wrong=None
        )
    return decision
