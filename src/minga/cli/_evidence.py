"""`minga evidence`: check why members of a run left, without the run."""

from __future__ import annotations

from pathlib import Path

from minga.cli._context import Context
from minga.cli._exit import CHECK_FAILED, OK
from minga.core._errors import ConfigurationError
from minga.identity._signed_spec import MAX_SIGNED_SPEC_BYTES, SignedRunSpec
from minga.network._interface import PeerId
from minga.security._evidence import Admitted, Entered, Evidence, EvidenceError
from minga.security._evidence_check import verify
from minga.security._evidence_log import read_log, verify_log
from minga.training._genesis import Genesis
from minga.training._secure_life import EVIDENCE_FILE, GENESIS_FILE
from minga.training._way_back import SPEC_FILE


def run_evidence(directory: Path, context: Context) -> int:
    """Verify each case in a run's folder, and whether together they lead from the founders to the present members."""
    output = context.output
    signed = _signed_spec(directory)
    spec = signed.verify(signed.run_id, signed.organiser)
    genesis = Genesis.from_file(directory / GENESIS_FILE, signed.run_id, signed.organiser)
    path = directory / EVIDENCE_FILE
    entries = read_log(path) if path.exists() else ()
    wrong = [why for entry in entries if (why := _show(entry, signed.run_id, context)) is not None]
    members, gap = _follow(signed.run_id, genesis, entries)
    if members is not None:
        output.say(f"From {len(genesis.founders) if genesis else 0} founders, this leaves {len(members)} members.")
    elif not wrong:
        output.say(f"Each case holds by itself, but they do not lead from the founders to a list of members: {gap}")
    output.summary(
        ok=not wrong,
        run=spec.name,
        run_id=signed.run_id,
        cases=len(entries),
        wrong=wrong,
        founders=None if genesis is None else list(genesis.founders),
        members=members,
    )
    return CHECK_FAILED if wrong else OK


def _signed_spec(directory: Path) -> SignedRunSpec:
    try:
        body = (directory / SPEC_FILE).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"{directory}: not the folder of a run, {SPEC_FILE} is missing") from error
    return SignedRunSpec.decode(body[: MAX_SIGNED_SPEC_BYTES + 1])


def _show(entry: Evidence, run_id: str, context: Context) -> str | None:
    """Say what became of one member, and return what is wrong with its evidence."""
    case, wrong = entry.case, None
    try:
        verify(entry, run_id)
    except EvidenceError as error:
        wrong = str(error)
    what = "was away" if case.ban is None else f"was banned: {case.ban.value}"
    if isinstance(case.proof, Admitted | Entered):
        what = "became a member"
    context.output.say(f"step {case.step}  {case.peer[:10]}  {what}  [{'proven' if wrong is None else wrong}]")
    context.output.event("case", step=case.step, peer=case.peer, reason=case.reason, witness=entry.author, wrong=wrong)
    return wrong


def _follow(run_id: str, genesis: Genesis | None, entries: tuple[Evidence, ...]) -> tuple[list[str] | None, str]:
    """Who is a member after all cases; None, and why, if that cannot be told."""
    if genesis is None:
        return None, "the organiser's word of who the founders are is not in the folder"
    try:
        return list(verify_log(run_id, map(PeerId, genesis.founders), entries)), ""
    except EvidenceError as error:
        return None, str(error)
