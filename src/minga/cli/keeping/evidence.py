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
from minga.security.accountability.evidence import Decision, Entered, Evidence, EvidenceError
from minga.security.accountability.log import follow_log, read_log
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
    shown = [_show(entry, run_id, context) for entry in entries]
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


def _show(entry: Evidence, run_id: str, context: Context) -> Decision | str:
    """Say what becomes of members by one case; what that is, or what is wrong with it."""
    try:
        decision = entry.verify(run_id)
    except EvidenceError as error:
        context.output.say(f"step {entry.step}  shows nothing: {error}")
        context.output.event("case", step=entry.step, peer=None, reason=None, witness=entry.author, wrong=str(error))
        return str(error)
    came = (entry.author,) if isinstance(entry.proof, Entered) else decision.admitted
    told = {peer: "was away" if why is None else f"was banned: {why.value}" for peer, why in decision.gone.items()}
    for peer, what in (told | dict.fromkeys(came, "became a member")).items():
        reason = decision.gone.get(peer)
        context.output.say(f"step {entry.step}  {peer[:10]}  {what}  (proven)")
        context.output.event(
            "case", step=entry.step, peer=peer, reason=reason and reason.name, witness=entry.author, wrong=None
        )
    return decision
