"""Evidence: every member's log shows anybody who went and why, and what was doctored shows nothing."""

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
from minga.security.accountability.log import EvidenceLog, read_log, verify_log
from minga.security.accountability.proofs import (
    Case,
    Entered,
    Evidence,
    EvidenceError,
    Judged,
    Proof,
    Recomputed,
    Unshown,
)
from minga.security.accountability.verify import verify
from minga.security.protocol.attempt_record import AttemptRecord
from minga.security.protocol.behaviour import MakeBehaviour, Seeds, TrainingBackend
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
from tests.worlds.secure_swarm import RUN_ID, SecureSwarm
from tests.worlds.secure_world import Helpless, NoNumber, Quadratic, hide_parts
from tests.worlds.swarm_tools import later, run_virtual

pytestmark = pytest.mark.promise("when-members-are-hostile")

ANYBODY = Identity.from_seed(bytes(31) + b"x")


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
    "helpless": ({"p3": Helpless}, {("p3", None)}),
    "astray": ({"p3": Astray}, {("p3", None)}),
    "death": ({}, {("p3", "SILENT")}),
    "death before it said anything": ({}, {("p3", None)}),
}
HIDING = {"hidden parts": ("p2", "p3")}
DEATHS_S = {"death": 0.9, "death before it said anything": 0.001}
STEPS = {"sign flip": 16, "covered claims": 16}


class Played:
    """What an attack left behind."""

    def __init__(self, attack: str) -> None:
        hostile, expected = ATTACKS[attack]
        makers: dict[str, MakeBehaviour] = {
            name: lambda allies, kind=kind: kind(2, allies)
            for name, kind in hostile.items()  # type: ignore[misc]
        }

        async def run() -> SecureSwarm:
            swarm = SecureSwarm(7, lambda: Quadratic(70), makers)
            for name in HIDING.get(attack, ()):
                hide_parts(swarm.peers[name])
            if attack in DEATHS_S:
                later(DEATHS_S[attack], lambda: swarm.internet.kill("p3"))
            await swarm.run(STEPS.get(attack, 6))
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
    def entry(self) -> Evidence:
        """One of them."""
        return self.witnesses[0].member.evidence.entries[-1]

    def sign(self, case: Case) -> Evidence:
        """Make one more witness lie about a case."""
        return Evidence.of(case, self.identity[self.witnesses[0].peer_id], RUN_ID)


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
        assert {(one.names[PeerId(entry.case.peer)], entry.case.reason) for entry in entries} == one.expected
        assert verify_log(RUN_ID, one.founders, entries).members == witness.member.membership.members


# ---- doctored evidence

Change = Callable[[tuple[Statement, ...]], tuple[Statement, ...]]


def statements_changed(struct: Any, change: Change) -> list[Any]:
    """The struct with each of its fields that hold statements changed, one after the other."""
    found = []
    for name in struct.__struct_fields__:
        value = getattr(struct, name)
        if isinstance(value, Statement):
            changed = change((value,))
            new: list[Any] = [changed[0]] if changed else []
        elif isinstance(value, tuple) and value and isinstance(value[0], Statement):
            new = [change(value)]
        elif name == "proof" and isinstance(value, msgspec.Struct):
            new = statements_changed(value, change)
        else:
            new = []
        found += [msgspec.structs.replace(struct, **{name: each}) for each in new if each != value]
    return found


def refuses(evidence: Evidence, run_id: str = RUN_ID) -> bool:
    try:
        verify(evidence, run_id)
    except EvidenceError:
        return True
    return False


def flip(statement: Statement, at: int) -> Statement:
    body = bytearray(statement.body)
    body[at % len(body)] ^= 1
    return msgspec.structs.replace(statement, body=bytes(body))


CHANGES: dict[str, Change] = {
    "a flipped byte": lambda said: (flip(said[0], -1), *said[1:]),
    "a flipped byte in the last": lambda said: (*said[:-1], flip(said[-1], 7)),
    "another author": lambda said: (msgspec.structs.replace(said[0], key=said[-1].key[::-1]), *said[1:]),
    "another attempt": lambda said: (
        msgspec.structs.replace(said[0], slot=msgspec.structs.replace(said[0].slot, attempt=9)),
        *said[1:],
    ),
    "somebody twice": lambda said: (*said[:-1], said[0]) if len(said) > 1 else said,
    "a stranger": lambda said: (*said[:-1], state(ANYBODY, RUN_ID, said[0].slot, msgspec.Raw(said[0].body))),
    "half of them": lambda said: said[: len(said) // 2] if len(said) > 1 else said,
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("attack", ATTACKS)
def test_doctored_statements_prove_nothing(attack: str, change: str) -> None:
    one = played(attack)
    case = one.entry.case
    for proof in statements_changed(case.proof, CHANGES[change]):
        assert refuses(one.sign(msgspec.structs.replace(case, proof=proof)))


@pytest.mark.parametrize("attack", ATTACKS)
def test_evidence_is_about_one_peer_one_reason_and_one_run(attack: str) -> None:
    one = played(attack)
    case = one.entry.case
    assert not refuses(one.sign(case))
    assert refuses(one.entry, "another run")
    assert refuses(Evidence.of(case, one.identity[one.witnesses[0].peer_id], "another run"), "another run")
    assert refuses(Evidence.of(case, ANYBODY, RUN_ID))
    entries = one.witnesses[0].member.evidence.entries
    shown = {entry.case.peer for entry in entries if entry.case.proof == case.proof}  # a quarrel is about two
    for peer in case.members:
        if peer not in shown:
            assert refuses(one.sign(msgspec.structs.replace(case, peer=peer)))
    for reason in ("SILENT", "WRONG_AGGREGATE", "WRONG_GRADIENT", "nonsense", None):
        if reason != case.reason:
            assert refuses(one.sign(msgspec.structs.replace(case, reason=reason)))


@pytest.mark.parametrize("charge", Charge)
@pytest.mark.parametrize("guilty", [True, False])
def test_nobody_is_banned_for_what_members_found_about_withheld_gradients(charge: Charge, guilty: bool) -> None:
    keys = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(3)), key=lambda key: key.peer_id)
    members, target = tuple(PeerId(key.peer_id) for key in keys), PeerId(ANYBODY.peer_id)
    accusation = Accusation(4, target, charge)
    said = Judgement(members[0], accusation, guilty)
    before, now = (Slot(step, 0, Phase.COMMIT) for step in (5, 6))
    commit = Commit(bytes(32), bytes(32), bytes(32), bytes(32))
    accusing = state(keys[0], RUN_ID, before, msgspec.structs.replace(commit, accusations=(accusation,)))
    judging = tuple(state(key, RUN_ID, now, msgspec.structs.replace(commit, judgements=(said,))) for key in keys)
    convicted = {Charge.GRADIENT: "WRONG_GRADIENT", Charge.CLAIMS: "FALSE_CLAIMS", Charge.WITHHELD: "FALSE_CLAIMS"}
    peer, reason = (target, convicted[charge]) if guilty else (members[0], "FALSE_ACCUSATION")
    case = Case(peer, reason, 6, 0, members, Judged(members[0], accusation, accusing, judging))
    assert refuses(Evidence.of(case, keys[1], RUN_ID)) == (charge is Charge.WITHHELD)


OF_EACH_KIND = Path(__file__).parents[2] / "data" / "evidence_of_each_kind.log"
"""Written when the live step and the offline check still had rules of their own; but for `Hidden`, since what members
lack is said in bits.
"""


def test_evidence_that_was_written_long_ago_verifies() -> None:
    entries = read_log(OF_EACH_KIND)
    kinds = {kind.__name__ for kind in Proof.__args__} - {"Unshown"}
    assert {type(entry.case.proof).__name__ for entry in entries} == kinds
    for entry in entries:
        verify(entry, RUN_ID)
        assert Evidence.from_bytes(entry.to_bytes()) == entry


@pytest.mark.parametrize("others", range(MAX_ACCUSATIONS + 1))
def test_a_full_commitment_covers_no_liar(others: int) -> None:
    """The check once counted an aggregator as covering that had no room left for the accusation; the step never did."""
    keys = sorted((Identity.from_seed(bytes([number]) * 32) for number in range(3)), key=lambda key: key.peer_id)
    members, lie = tuple(PeerId(key.peer_id) for key in keys), Charge.CLAIMS
    accusation = Accusation(4, members[2], lie, part=1)
    before, now = (Slot(step, 0, Phase.COMMIT) for step in (5, 6))
    commit = Commit(bytes(32), bytes(32), bytes(32), bytes(32))
    said = tuple(Accusation(4, members[2], lie, part=2 + part) for part in range(others))
    accusing = state(keys[0], RUN_ID, before, msgspec.structs.replace(commit, accusations=(accusation,)))
    covering = state(keys[1], RUN_ID, before, msgspec.structs.replace(commit, accusations=said))
    judged = msgspec.structs.replace(commit, judgements=(Judgement(members[0], accusation, guilty=True),))
    proof = Judged(
        members[0], accusation, accusing, tuple(state(key, RUN_ID, now, judged) for key in keys), covering, members
    )
    case = Case(members[1], "COVERED", 6, 0, members, proof)
    assert refuses(Evidence.of(case, keys[0], RUN_ID)) == (others == MAX_ACCUSATIONS)


def recomputed() -> tuple[Played, Case, Recomputed]:
    one = played("wrong aggregate")
    proof = one.entry.case.proof
    assert isinstance(proof, Recomputed)
    return one, one.entry.case, proof


def test_no_contributor_can_be_left_out() -> None:
    one, case, proof = recomputed()
    assert len(proof.rows) == 6
    for gone in range(7):
        said = {
            name: tuple(each for at, each in enumerate(getattr(proof, name)) if at != gone)
            for name in ("commits", "results", "reveals", "claims")
        }
        for rows in (proof.rows, proof.rows[:gone] + proof.rows[gone + 1 :]):
            for some in (said, {}):
                changed = msgspec.structs.replace(proof, rows=rows, **some)
                assert changed == proof or refuses(one.sign(msgspec.structs.replace(case, proof=changed)))


def test_neither_bytes_nor_rules_can_be_exchanged() -> None:
    one, case, proof = recomputed()
    other = Rules.of(VectorLayout((70,), "float32"), one.witnesses[0].member._settings)
    assert other == proof.rules
    for rules in (
        msgspec.structs.replace(other, clipping=0.5),
        msgspec.structs.replace(other, directions=1),
        msgspec.structs.replace(other, codec="bfloat16"),
        msgspec.structs.replace(other, numels=(1 << 40,)),
        msgspec.structs.replace(other, numels=()),
    ):
        assert refuses(one.sign(msgspec.structs.replace(case, proof=msgspec.structs.replace(proof, rules=rules))))
    for rows in (proof.rows[::-1], (*proof.rows[:-1], bytes(len(proof.rows[0]))), (*proof.rows[:-1], b""), ()):
        assert refuses(one.sign(msgspec.structs.replace(case, proof=msgspec.structs.replace(proof, rows=rows))))
    for paths in (proof.paths[::-1], proof.paths[1:], ((), *proof.paths[1:])):
        assert refuses(one.sign(msgspec.structs.replace(case, proof=msgspec.structs.replace(proof, paths=paths))))
    for value in (b"", bytes(len(proof.value)), proof.rows[0]):
        assert refuses(one.sign(msgspec.structs.replace(case, proof=msgspec.structs.replace(proof, value=value))))


@pytest.mark.parametrize(
    "attack", ["silent claims", "withheld part", "lying projections", "sign flip", "covered claims"]
)
def test_mutated_bytes_never_verify(attack: str) -> None:
    one = played(attack)
    entry = one.entry
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
        assert read == entry or refuses(read)
        signed_anew = one.sign(read.case)  # even by a member that lies
        if not refuses(signed_anew):
            assert (read.case.peer, read.case.reason) == (entry.case.peer, entry.case.reason)


# ---- logs


def test_a_log_has_to_begin_with_the_founders_and_be_complete() -> None:
    one = played("covered claims")
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
    case = Case(keys[0].peer_id, None, step, 0, standing.members, Entered(standing, places))
    return Evidence.of(case, keys[0], RUN_ID)


def test_a_log_that_begins_with_an_entry_says_so_and_no_other_log_can_be_taken_over() -> None:
    one = played("covered claims")
    entries = one.witnesses[0].member.evidence.entries
    assert verify_log(RUN_ID, one.founders, entries).entered is None
    entry = invented(one, entries[-1].case.step + 5)
    end = verify_log(RUN_ID, one.founders, [entry])
    assert (end.members, end.entered) == (entry.case.members, entry.case)
    with pytest.raises(EvidenceError, match="witness"):
        verify_log(RUN_ID, one.founders, [*entries, entry])
    with pytest.raises(EvidenceError, match="already"):
        verify_log(RUN_ID, one.founders, [entry, entry])


def test_a_log_file_survives_an_append_that_was_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "evidence" / "log"
    one = played("covered claims")
    entries = one.witnesses[0].member.evidence.entries
    log = EvidenceLog(path)
    for entry in entries:
        log.append(entry)
    whole = path.read_bytes()
    assert read_log(path) == entries
    assert not log.entries  # which may be as large as gradients
    first = 16 + len(entries[0].to_bytes())
    for cut in (first, first + 3, first + 16, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert read_log(path) == entries[:1]
        assert path.stat().st_size == cut
        log = EvidenceLog(path)
        log.append(entries[1])
        assert path.read_bytes() == whole


@pytest.mark.parametrize("at", [0, 7, 12, 16, 40])
def test_a_log_file_that_was_damaged_is_refused_and_left_as_it_is(tmp_path: Path, at: int) -> None:
    path = tmp_path / "log"
    log = EvidenceLog(path)
    for entry in played("covered claims").witnesses[0].member.evidence.entries:
        log.append(entry)
    damaged = bytearray(path.read_bytes())
    damaged[at] ^= 0xFF
    path.write_bytes(damaged)
    with pytest.raises(EvidenceError):
        verify_log(RUN_ID, played("covered claims").founders, read_log(path))
    if at < 16:
        with pytest.raises(StorageError, match="damaged"):
            EvidenceLog(path)
    assert path.read_bytes() == damaged


def test_what_only_its_witness_could_see_is_no_proof() -> None:
    one = played("wrong aggregate")
    unshown = msgspec.structs.replace(one.entry.case, proof=Unshown(), reason="UNDELIVERED")
    with pytest.raises(EvidenceError, match="alone could see"):
        verify(one.sign(unshown), RUN_ID)
