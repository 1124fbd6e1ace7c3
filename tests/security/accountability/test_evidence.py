"""Evidence: every member's log shows anybody who went and why, and what was doctored shows nobody else."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from minga.averaging.codecs.layout import VectorLayout
from minga.core.errors import StorageError
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.accountability.evidence import (
    PHASES,
    Decision,
    Entered,
    Evidence,
    EvidenceError,
    ShownPart,
    Transcript,
)
from minga.security.accountability.log import EvidenceLog, read_log
from minga.security.accountability.rulings import verdict
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import MakeBehaviour, Seeds, TrainingBackend
from minga.security.protocol.members import PendingAccusations, Reason, coverer
from minga.security.protocol.protocol_state import ProtocolState
from minga.security.protocol.rules import Rules
from minga.security.protocol.statements import (
    MAX_ACCUSATIONS,
    Accusation,
    Body,
    Charge,
    Claims,
    Commit,
    Judgement,
    Phase,
    Result,
    Revealed,
    Slot,
    StateClaim,
    Statement,
    phase_digest,
    state,
)
from minga.simulation.attacks.gradient_attacks import (
    Attack,
    LyingNorms,
    LyingProjections,
    SignFlip,
    WithheldPart,
    WrongAggregate,
    WrongRadius,
)
from minga.simulation.attacks.protocol_attacks import (
    Equivocation,
    FalseAccusation,
    SilentClaims,
    SilentConfirm,
    SilentResult,
    WithheldReveal,
)
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm, verify_log
from tests.worlds.secure_world import Quadratic, hide_parts
from tests.worlds.swarm_tools import later, run_virtual

pytestmark = pytest.mark.promise("when-members-are-hostile")

ANYBODY = Identity.from_seed(bytes(31) + b"x")


class NoNumber(Attack):
    """Hands out an aggregate that is none."""

    def value(self, value: torch.Tensor, clip: float, record: AttemptRecord) -> tuple[torch.Tensor, float]:
        return (value * float("nan") if self.is_on else value), clip


class Helpless(Attack):
    """Says that it could not get the aggregates, which all others have."""

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
        if not self.is_on or not claims.claims:
            return claims
        return msgspec.structs.replace(claims, claims=(None,) * len(claims.claims), missing=record.terms.division.parts)


class WrongReveal(Attack):
    """Reveals what it did not commit to."""

    def reveal(self, reveal: Revealed) -> Revealed | None:
        secret = msgspec.structs.replace(reveal.reveal, secret=bytes(32))
        return msgspec.structs.replace(reveal, reveal=secret) if self.is_on else reveal


class GroundlessComplaint(Attack):
    """Says that it could not get the part of p2, which everybody can get."""

    def result(self, result: Result) -> Result | None:
        return msgspec.structs.replace(result, silent=(1,)) if self.is_on else result


class Covered(Attack):
    """Lies about the part of its ally only."""

    async def hostile_gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        (ally,) = self.allies - {seeds.me}
        members = sorted(seeds.of)
        self.part = members.index(ally) if ally in members else -1
        return await super().hostile_gradient(work, step, seeds)

    def claims(self, claims: Claims, record: AttemptRecord) -> Claims | None:
        if not self.is_on or not claims.claims or self.part < 0:
            return claims
        wrong = list(claims.claims)
        if claim := wrong[self.part]:
            wrong[self.part] = msgspec.structs.replace(claim, norm=claim.norm / 2)
        return msgspec.structs.replace(claims, claims=tuple(wrong))


class Covering(Attack):
    """Does not accuse those who lie about its part."""

    def accusations(self, found: tuple[Accusation, ...]) -> tuple[Accusation, ...]:
        return () if self.is_on else found


class Astray(Attack):
    """Says that it stands elsewhere."""

    def tells(self, slot: Slot, body: Body, everybody: Any) -> Any:
        if self.is_on and slot.phase is Phase.COMMIT:
            body = msgspec.structs.replace(body, state=bytes(32))  # type: ignore[type-var]
        return [(body, everybody)]


class Accuser(FalseAccusation):
    """Accuses a peer whose name is found later."""

    async def gradient(self, work: TrainingBackend, step: int, seeds: Seeds) -> torch.Tensor:
        self.victim = next(peer for peer in sorted(seeds.of) if peer not in self.allies)
        return await super().gradient(work, step, seeds)


ATTACKS: dict[str, tuple[dict[str, type[Attack]], set[tuple[str, str | None]]]] = {
    "silent result": ({"p3": SilentResult}, {("p3", "SILENT")}),
    "withheld reveal": ({"p3": WithheldReveal}, {("p3", "SILENT")}),
    "wrong reveal": ({"p3": WrongReveal}, {("p3", "SILENT")}),
    "silent claims": ({"p3": SilentClaims}, {("p3", "SILENT")}),
    "silent confirm": ({"p3": SilentConfirm}, {("p3", "SILENT")}),
    "withheld part": ({"p3": WithheldPart}, {("p3", "UNDELIVERED")}),
    "groundless complaint": ({"p3": GroundlessComplaint}, {("p3", "UNDELIVERED"), ("p2", "UNDELIVERED")}),
    "no number": ({"p3": NoNumber}, {("p3", "UNDELIVERED")}),
    "wrong aggregate": ({"p3": WrongAggregate}, {("p3", "WRONG_AGGREGATE")}),
    "wrong radius": ({"p3": WrongRadius}, {("p3", "WRONG_AGGREGATE")}),
    "two wrong aggregates": (
        {"p2": WrongAggregate, "p4": WrongAggregate},
        {("p2", "WRONG_AGGREGATE"), ("p4", "WRONG_AGGREGATE")},
    ),
    "lying claims": ({"p3": LyingNorms}, {("p3", "FALSE_CLAIMS")}),
    "lying projections": ({"p3": LyingProjections}, {("p3", "FALSE_CLAIMS")}),
    "covered claims": ({"p3": Covered, "p4": Covering}, {("p3", "FALSE_CLAIMS"), ("p4", "COVERED")}),
    "equivocation": ({"p3": Equivocation}, {("p3", "EQUIVOCATED")}),
    "hidden parts": ({"p2": Attack, "p3": WrongAggregate}, {("p2", "UNDELIVERED"), ("p3", "UNDELIVERED")}),
    "sign flip": ({"p3": SignFlip}, {("p3", "WRONG_GRADIENT")}),
    "false accusation": ({"p3": Accuser}, {("p3", "FALSE_ACCUSATION")}),
    "helpless": ({"p3": Helpless}, {("p3", "UNDELIVERED")}),
    "astray": ({"p3": Astray}, {("p3", None)}),
    "death": ({}, {("p3", "SILENT")}),
    "death before it said anything": ({}, {("p3", None)}),
}
HIDING = {"hidden parts": ("p2", "p3")}
DEATHS_S = {"death": 0.9, "death before it said anything": 0.001}
LATER = ("sign flip", "covered claims", "lying claims")
BEGINS = dict.fromkeys(LATER, 2) | dict.fromkeys(("wrong aggregate", "lying projections", "false accusation"), 1)
"""The step in which an attack begins, if it is not the first one, in which nobody computes the gradients of others."""
STEPS = dict.fromkeys(BEGINS, 2) | dict.fromkeys(LATER, 5) | {"silent confirm": 2, "false accusation": 3, "death": 4}
"""How many steps are taken, if not one: lots fall on some attackers later, and some are judged in the next step."""


SEED = 7
"""With it the lots fall on all attackers in time."""


class Played:
    """What an attack left behind."""

    def __init__(self, attack: str) -> None:
        hostile, expected = ATTACKS[attack]
        makers: dict[str, MakeBehaviour] = {
            name: lambda allies, kind=kind: kind(BEGINS.get(attack, 0), allies)
            for name, kind in hostile.items()  # type: ignore[misc]
        }

        async def run() -> SecureSwarm:
            swarm = SecureSwarm(5, lambda: Quadratic(50), makers, seed=SEED)
            for name in HIDING.get(attack, ()):
                hide_parts(swarm.peers[name])
            if attack in DEATHS_S:
                later(DEATHS_S[attack], lambda: swarm.internet.kill("p3"))
            await swarm.run(STEPS.get(attack, 1))
            assert len({await peer.work.digest() for name, peer in swarm.peers.items() if name not in gone}) == 1
            return swarm

        gone = {name for name, _ in expected}
        swarm = run_virtual(run(), limit_s=2000.0)
        self.expected = expected
        self.names = swarm.names
        self.founders = tuple(sorted(swarm.names))
        self.witnesses = [peer for name, peer in swarm.peers.items() if name not in gone]
        self.identity = {peer.peer_id: Identity.from_seed(peer.network.private_key) for peer in swarm.peers.values()}

    @property
    def proof(self) -> Transcript:
        """What one of them shows last."""
        proof = self.witnesses[0].member.evidence.entries[-1].proof
        assert isinstance(proof, Transcript)
        return proof

    def sign(self, proof: Transcript | Entered) -> Evidence:
        """Make one more witness lie."""
        return Evidence.of(proof, self.identity[self.witnesses[0].peer_id], RUN_ID)

    def shows_no_more(self, proof: Transcript) -> bool:
        """Whether doctored evidence shows of nobody what was not so, also if a member vouches for it."""
        told = decision_of(self.sign(proof))
        return told is None or (told.gone.items() <= self.proof.decision(RUN_ID).gone.items() and not told.admitted)


def decision_of(evidence: Evidence) -> Decision | None:
    """What it shows, if anything."""
    try:
        return evidence.verify(RUN_ID)
    except EvidenceError:
        return None


_PLAYED: dict[str, Played] = {}


def played(attack: str) -> Played:
    """Each attack is played once."""
    if attack not in _PLAYED:
        _PLAYED[attack] = Played(attack)
    return _PLAYED[attack]


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_logs_of_all_honest_members_verify_and_lead_to_the_same_members(attack: str) -> None:
    one = played(attack)
    for witness in one.witnesses:
        entries = [Evidence.from_bytes(entry.to_bytes()) for entry in witness.member.evidence.entries]
        gone = [each for entry in entries for each in entry.verify(RUN_ID).gone.items()]
        assert {(one.names[peer], reason and reason.name) for peer, reason in gone} == one.expected
        assert verify_log(RUN_ID, one.founders, entries).members == witness.member.membership.members


# ---- doctored evidence

Change = Callable[[tuple[Statement, ...]], tuple[Statement, ...]]


def changed(proof: Transcript, change: Change) -> list[Transcript]:
    """The transcript with each of its phases changed, one after the other."""
    found = []
    for at, said in enumerate(proof.said):
        new = (*proof.said[:at], change(said), *proof.said[at + 1 :])
        found += [msgspec.structs.replace(proof, said=new)] if new != proof.said else []
    return found


def flip(statement: Statement, at: int) -> Statement:
    body = bytearray(statement.body)
    body[at % len(body)] ^= 1
    return msgspec.structs.replace(statement, body=bytes(body))


FORGERIES: dict[str, Change] = {
    "a flipped byte": lambda said: (flip(said[0], -1), *said[1:]),
    "a flipped byte in the last": lambda said: (*said[:-1], flip(said[-1], 7)),
    "another author": lambda said: (msgspec.structs.replace(said[0], key=said[-1].key[::-1]), *said[1:]),
    "another attempt": lambda said: (
        msgspec.structs.replace(said[0], slot=msgspec.structs.replace(said[0].slot, attempt=9)),
        *said[1:],
    ),
    "somebody twice": lambda said: (*said[:-1], said[0]),
    "a stranger": lambda said: (*said[:-1], state(ANYBODY, RUN_ID, said[0].slot, msgspec.Raw(said[0].body))),
    "half of them": lambda said: said[: len(said) // 2],
}


@pytest.mark.parametrize("change", FORGERIES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_forged_transcripts_show_nothing(attack: str, change: str) -> None:
    one = played(attack)
    for proof in changed(one.proof, FORGERIES[change]):
        assert decision_of(one.sign(proof)) is None


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_is_left_out_bans_nobody(attack: str) -> None:
    """Neither the end of a transcript, nor the words of any member in any phase, nor a phase between two others."""
    one = played(attack)
    said = one.proof.said
    for end in range(len(said)):
        assert one.shows_no_more(msgspec.structs.replace(one.proof, said=said[:end] or said))
        assert one.shows_no_more(msgspec.structs.replace(one.proof, said=(*said[:end], *said[end + 1 :]) or said))
    for gone in range(len(said[0])):
        for proof in changed(one.proof, lambda words, gone=gone: (*words[:gone], *words[gone + 1 :])):  # type: ignore[misc]
            assert one.shows_no_more(proof)


SEEN = {Phase.RESULT: 3, Phase.REVEAL: 1, Phase.CLAIMS: 1, Phase.CONFIRM: 0}
"""Where in each body is what its author heard in the phase before."""


@pytest.mark.parametrize("liars", [2, 3])
@pytest.mark.parametrize("phase", PHASES[:4])
def test_who_leaves_out_the_words_of_another_bans_it_only_with_most_members(phase: Phase, liars: int) -> None:
    """They sign anew that they heard nothing of it."""
    one = played("wrong aggregate")
    victim, at = one.witnesses[0].peer_id, PHASES.index(phase)
    heard = tuple(each for each in one.proof.said[at] if each.author != victim)
    later = [each for each in one.proof.said[at + 1] if each.author != victim]
    for number, each in enumerate(later[:liars]):
        body = msgspec.msgpack.decode(each.body)
        body[SEEN[each.slot.phase]] = phase_digest(heard)
        key = one.identity[each.author]
        later[number] = state(key, RUN_ID, each.slot, msgspec.Raw(msgspec.msgpack.encode(body)))
    said = (*one.proof.said[:at], heard, tuple(later))
    told = decision_of(one.sign(msgspec.structs.replace(one.proof, said=said, shown=None)))
    wanted = {victim: None if phase is Phase.COMMIT else Reason.SILENT}
    assert (told and told.gone) == (wanted if liars == 3 else None)


@pytest.mark.parametrize("attack", ATTACKS)
def test_evidence_is_of_one_run_and_a_members(attack: str) -> None:
    one = played(attack)
    assert decision_of(one.sign(one.proof)) == one.proof.decision(RUN_ID)
    assert decision_of(Evidence.of(one.proof, ANYBODY, RUN_ID)) is None
    for evidence in (one.sign(one.proof), Evidence.of(one.proof, one.identity[one.witnesses[0].peer_id], "another")):
        with pytest.raises(EvidenceError):
            evidence.verify("another")
    standing = one.proof.standing
    for other in (
        msgspec.structs.replace(standing, members=standing.members[1:]),
        msgspec.structs.replace(standing, step=standing.step + 1),
        msgspec.structs.replace(standing, coin=bytes(32)),
    ):
        assert decision_of(one.sign(msgspec.structs.replace(one.proof, standing=other))) is None


@pytest.mark.parametrize("charge", Charge)
@pytest.mark.parametrize("guilty", [True, False])
def test_nobody_is_banned_for_what_members_found_about_withheld_gradients(charge: Charge, guilty: bool) -> None:
    members, target = [PeerId(f"{number:064x}") for number in range(3)], PeerId(ANYBODY.peer_id)
    pending = PendingAccusations(members[0], Accusation(4, target, charge))
    said = (Judgement(members[0], pending.accusation, guilty),)
    commit = Commit(bytes(32), bytes(32), bytes(32), bytes(32), judgements=said)
    convicted = {Charge.GRADIENT: Reason.WRONG_GRADIENT, Charge.CLAIMS: Reason.FALSE_CLAIMS}
    wanted = [(target, convicted.get(charge))] if guilty else [(members[0], Reason.FALSE_ACCUSATION)]
    found = verdict(members, dict.fromkeys(members[:2], commit), pending)
    assert found == ([] if charge is Charge.WITHHELD else wanted)


@pytest.mark.parametrize("others", range(MAX_ACCUSATIONS + 1))
def test_a_full_commitment_covers_no_liar(others: int) -> None:
    """The check once counted an aggregator as covering that had no room left for the accusation; the step never did."""
    members = [PeerId(f"{number:064x}") for number in range(3)]
    accusation = Accusation(4, members[2], Charge.CLAIMS, part=1)
    said = tuple(Accusation(4, members[2], Charge.CLAIMS, part=2 + part) for part in range(others))
    commits = {members[1]: Commit(bytes(32), bytes(32), bytes(32), bytes(32), said)}
    found = coverer(commits, accusation, 5, members)
    assert found == (None if others == MAX_ACCUSATIONS else members[1])


def recomputed() -> tuple[Played, ShownPart]:
    one = played("wrong aggregate")
    assert one.proof.shown is not None
    return one, one.proof.shown


def test_no_contributor_can_be_left_out() -> None:
    one, shown = recomputed()
    assert len(shown.rows) == 4
    for gone in range(4):
        rows, paths = (each[:gone] + each[gone + 1 :] for each in (shown.rows, shown.paths))
        fewer = msgspec.structs.replace(shown, rows=rows, paths=paths)
        said = tuple(words[:gone] + words[gone + 1 :] for words in one.proof.said)
        for words in (one.proof.said, said):
            assert decision_of(one.sign(msgspec.structs.replace(one.proof, said=words, shown=fewer))) is None


def test_neither_bytes_nor_rules_can_be_exchanged() -> None:
    one, shown = recomputed()
    other = Rules.of(VectorLayout((50,), "float32"), one.witnesses[0].member._settings)
    assert other == one.proof.rules
    for rules in (
        msgspec.structs.replace(other, clip_factor=0.5),
        msgspec.structs.replace(other, directions=1),
        msgspec.structs.replace(other, codec="bfloat16"),
        msgspec.structs.replace(other, numels=(1 << 40,)),
        msgspec.structs.replace(other, numels=()),
    ):
        assert decision_of(one.sign(msgspec.structs.replace(one.proof, rules=rules))) is None
    replace = msgspec.structs.replace
    doctored = [
        replace(shown, rows=rows)
        for rows in (shown.rows[::-1], (*shown.rows[:-1], bytes(len(shown.rows[0]))), (*shown.rows[:-1], b""), ())
    ]
    doctored += [replace(shown, paths=paths) for paths in (shown.paths[::-1], shown.paths[1:], ((), *shown.paths[1:]))]
    doctored += [replace(shown, value=value) for value in (b"", bytes(len(shown.value)), shown.rows[0])]
    doctored += [replace(shown, part=part) for part in (shown.part - 1, 200)]
    for each in doctored:
        assert decision_of(one.sign(replace(one.proof, shown=each))) is None
    for end in range(1, len(one.proof.said)):  # without the phases that show what was claimed
        assert one.shows_no_more(replace(one.proof, said=one.proof.said[:end]))


@pytest.mark.parametrize(
    "attack", ["silent claims", "withheld part", "lying projections", "sign flip", "covered claims"]
)
def test_mutated_bytes_never_verify(attack: str) -> None:
    one = played(attack)
    entry = one.sign(one.proof)
    data, generator = entry.to_bytes(), random.Random(f"mutations {attack}")
    for _ in range(150):
        mutated = bytearray(data)
        for _ in range(generator.choice((1, 1, 3))):
            mutated[generator.randrange(len(mutated))] = generator.randrange(256)
        if generator.random() < 0.1:
            del mutated[generator.randrange(len(mutated)) :]
        try:
            read = Evidence.from_bytes(bytes(mutated))
        except EvidenceError:
            continue
        assert read == entry or decision_of(read) is None
        assert isinstance(read.proof, Entered) or one.shows_no_more(read.proof)  # even by a member that lies


# ---- logs


def test_a_log_has_to_begin_with_the_founders_and_be_complete() -> None:
    one = played("two wrong aggregates")
    entries = one.witnesses[0].member.evidence.entries
    assert len(entries) == 2
    for wrong in (entries[1:] * 2, entries * 2, entries[::-1] * 2):
        with pytest.raises(EvidenceError):
            verify_log(RUN_ID, one.founders, wrong)
    with pytest.raises(EvidenceError, match="members"):
        verify_log(RUN_ID, (*one.founders, PeerId(ANYBODY.peer_id)), entries)
    with pytest.raises(EvidenceError, match="members"):
        verify_log(RUN_ID, one.founders[1:], entries)


def invented(one: Played, step: int) -> Evidence:
    """The word of a few keys that they are the members at a step, and that the first of them has just entered."""
    keys = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(3)), key=lambda key: key.peer_id)
    standing = ProtocolState(step, tuple(key.peer_id for key in keys), bytes(32))
    slot, place = Slot(step, 0, Phase.STANDING), StateClaim(standing.digest, bytes(32))
    places = tuple(state(key, RUN_ID, slot, place) for key in keys)
    return Evidence.of(Entered(standing, places), keys[0], RUN_ID)


def test_a_log_that_begins_with_an_entry_says_so_and_no_other_log_can_be_taken_over() -> None:
    one = played("two wrong aggregates")
    entries = one.witnesses[0].member.evidence.entries
    assert verify_log(RUN_ID, one.founders, entries).entered is None
    entry = invented(one, entries[-1].step + 5)
    end = verify_log(RUN_ID, one.founders, [entry])
    assert (end.members, end.entered) == (entry.proof.standing.members, entry)
    with pytest.raises(EvidenceError, match="witness"):
        verify_log(RUN_ID, one.founders, [*entries, entry])
    with pytest.raises(EvidenceError, match="already"):
        verify_log(RUN_ID, one.founders, [entry, entry])


def test_a_log_file_survives_an_append_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "log"
    one = played("two wrong aggregates")
    entries = one.witnesses[0].member.evidence.entries
    log = EvidenceLog(path)
    for entry in entries:
        log.append(entry)
    whole = path.read_bytes()
    assert read_log(path) == entries
    assert not log.entries  # which may be as large as gradients
    first = 16 + len(entries[0].to_bytes())
    parts = [whole[: first + more] for more in (0, 3, 8, 12, 16, 1000, len(whole) - first - 8)]
    zeros = [part.ljust(len(whole), b"\0") for part in parts]  # a loss of power leaves them on some file systems
    for left in (*parts, whole[:-1], *zeros):
        path.write_bytes(left)
        assert read_log(path) == entries[:1]
        assert path.read_bytes() == left
        log = EvidenceLog(path)
        log.append(entries[1])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("at", [0, 7, 12, 16, 40])
def test_a_log_file_that_was_damaged_is_refused_and_left_as_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "log"
    log = EvidenceLog(path)
    for entry in played("two wrong aggregates").witnesses[0].member.evidence.entries:
        log.append(entry)
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(EvidenceError):
        verify_log(RUN_ID, played("two wrong aggregates").founders, read_log(path))
    if at < 16:
        with pytest.raises(StorageError, match="damaged"):
            EvidenceLog(path)
    assert path.read_bytes() == damaged
