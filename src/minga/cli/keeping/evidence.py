"""`minga runs verify RUN`: check why members of a run left, without the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from minga.cli.terminal.context import Context
from minga.cli.terminal.exit_codes import CHECK_FAILED, OK
from minga.core.units import counted
from minga.identity.links.signed_spec import SignedRunSpec
from minga.keeping.rejoin import signed_spec
from minga.network.interface import PeerId
from minga.security.accountability.log import follow_log, read_log
from minga.security.accountability.proofs import Admitted, Entered, Evidence, EvidenceError
from minga.security.accountability.verify import verify
from minga.training.life.founding import Genesis
from minga.training.life.verified_member import evidence_file, genesis_file, witnesses
from minga.training.plugins_of_run import check_plugins


def run_evidence(directory: Path, context: Context) -> int:
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
    wrong = [why for entry in entries if (why := _show(entry, run_id, context)) is not None]
    log |= {"cases": len(entries), "wrong": wrong}
    if wrong:
        output.say("What is wrong leads to no list of members.")
    elif founders is None:
        output.say("Each case holds by itself, but the organiser's word of who the founders are is not in the folder.")
    else:
        try:
            end = follow_log(map(PeerId, founders), entries)
        except EvidenceError as error:
            output.say(f"Each case holds by itself, but they do not lead to a list of members: {error}")
            return log
        start = counted(len(founders), "founder") if end.entered is None else f"where {end.entered.peer[:10]} entered"
        at = "" if end.entered is None else f" at step {end.entered.step}, by the word of those who were members there"
        output.say(f"From {start}{at}, this leaves {counted(len(end.members), 'member')}.")
        log |= {"members": list(end.members), "entered": None if end.entered is None else end.entered.step}
    return log


def _show(entry: Evidence, run_id: str, context: Context) -> str | None:
    """Say what became of one member, and return what is wrong with its evidence."""
    case, wrong = entry.case, None
    what = "was away" if case.reason is None else f"was banned: {case.reason}"
    try:
        verify(entry, run_id)
        what = what if case.ban is None else f"was banned: {case.ban.value}"
    except EvidenceError as error:
        wrong = str(error)
    if isinstance(case.proof, Admitted | Entered):
        what = "became a member"
    context.output.say(f"step {case.step}  {case.peer[:10]}  {what}  ({'proven' if wrong is None else wrong})")
    context.output.event("case", step=case.step, peer=case.peer, reason=case.reason, witness=entry.author, wrong=wrong)
    return wrong
