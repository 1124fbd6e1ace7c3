"""One attempt at one step: from everybody's gradient to an aggregate that nobody has to take on trust.

    COMMIT   where I stand, digests of the parts of my gradient        barrier
             parts travel to their aggregators, which clip them to a mean
    RESULT   digest of my aggregate, commitment to a secret            barrier
             aggregates travel, and at the same time
    REVEAL   my secret: all of them are the coin                       barrier
    CLAIMS   projections of my clipped differences, and their norms    barrier
    CONFIRM  all heard the same                                        barrier, checks

The order is what makes lies expensive: gradients are fixed before anybody sees another's, aggregates before anybody
knows in which directions they will be looked at. Whatever goes wrong ends the attempt with a `Setback`, which says who
goes and why; all honest members come to the same one, ban, and try again with those who are left and the same
gradients. For all to come to the same one, what follows from the words of a phase is done only after the next phase,
in which all say what they heard: whoever told some another thing than others cannot part them. So nothing is ever
applied that did not pass the checks of all.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec
import torch
from blake3 import blake3

from minga.averaging._codec_interface import InvalidEncodingError
from minga.core._errors import ProtocolError, RemoteError
from minga.network._interface import PeerId
from minga.security._agreement import Agreement, ContradictionError, OutvotedError
from minga.security._arithmetic import Arithmetic
from minga.security._conduct import Conduct
from minga.security._delivery import Bytes, Deliveries
from minga.security._division import Division, value_from_bytes, value_to_bytes
from minga.security._evidence import Case
from minga.security._ledger import Reason
from minga.security._mesh import Mesh
from minga.security._projections import Claim
from minga.security._randomness import Reveal
from minga.security._record import Record
from minga.security._slots import digest_of
from minga.security._stragglers import wait_for_all
from minga.security._wire import Body, Claims, Commit, Confirm, Phase, Result, Revealed, Slot, Statement, read
from minga.security._witness import Witness

B = TypeVar("B", Commit, Result, Revealed, Claims, Confirm)


class Setback(Exception):
    """An attempt failed: `cases` say who has to go, and what shows that."""

    def __init__(self, cases: Iterable[Case]) -> None:
        self.cases = tuple(cases)
        super().__init__(f"{len(self.cases)} members have to go")


class Attempt:
    """This member's part in one attempt; `entropy` gives so many random bytes that nobody else can know."""

    def __init__(
        self,
        record: Record,
        mesh: Mesh,
        agreement: Agreement,
        deliveries: Deliveries,
        arithmetic: Arithmetic,
        conduct: Conduct,
        me: PeerId,
        entropy: Callable[[int], bytes],
    ) -> None:
        self._record, self._terms, self._cargo = record, record.terms, record.cargo
        self._mesh, self._agreement, self._deliveries = mesh, agreement, deliveries
        self._arithmetic, self._conduct = arithmetic, conduct
        self._me, self._witness = self._terms.members.index(me), Witness(record.terms, mesh.slots)
        self._before = Slot(self._terms.step, self._terms.attempt, Phase.COMMIT)
        self._seen = b""
        self._elsewhere: frozenset[PeerId] = frozenset()
        """Members that stand elsewhere than most; they leave without blame."""
        self._reveal = Reveal(entropy(32), entropy(32))

    async def run(self, commit: Commit, gradient: torch.Tensor | None) -> Record:
        """Take part with a gradient (None as a validator).

        `commit` says where this member stands, and what it accuses whom of and finds of accusations.

        Raises `Setback`, `ContradictionError`, and `OutvotedError` if most others came to another decision.
        """
        await self._commit(commit, gradient)
        loop, sizes = asyncio.get_running_loop(), self._cargo.value_bytes
        bringing = [loop.create_task(self._bring(part)) for part, size in enumerate(sizes) if size and part != self._me]
        try:
            await self._reduce()
            revealed, _ = await asyncio.gather(self._toss(), self._take_values())
        finally:
            for task in bringing:
                task.cancel()
            await asyncio.gather(*bringing, return_exceptions=True)
        await self._claim(revealed)
        await self._confirm()
        return self._record

    # ---- COMMIT

    async def _commit(self, commit: Commit, gradient: torch.Tensor | None) -> None:
        division, me = self._terms.division, self._me
        if gradient is not None:
            encoded = await asyncio.to_thread(_encoded, division, gradient)
            for part, (digest, body) in enumerate(encoded):
                self._cargo.part_digests[me, part] = digest
                if self._conduct.brings(part):
                    self._cargo.put_part(me, part, body)
            commit = msgspec.structs.replace(commit, parts=tuple(digest for digest, _ in encoded))
        commit = msgspec.structs.replace(commit, equivocators=self._agreement.equivocators)
        bodies = await self._exchange(Phase.COMMIT, commit, Commit, self._commit_is_sound)
        self._check_equivocators(bodies)
        self._elsewhere = self._find_elsewhere(bodies)
        self._record.commits = bodies
        for owner in self._terms.contributors:
            for part, digest in enumerate(bodies[self._terms.members[owner]].parts):
                self._cargo.part_digests[owner, part] = digest
        self._cargo.committed.set()

    def _commit_is_sound(self, peer: PeerId, body: Commit) -> bool:
        expected = 0 if peer in self._terms.validators else len(self._terms.members)
        return len(body.parts) == expected

    def _check_equivocators(self, bodies: Mapping[PeerId, Commit]) -> None:
        """Who is proven by most to have said two different things has to go."""
        named = Counter(peer for body in bodies.values() for peer in set(body.equivocators))
        liars = [peer for peer in self._terms.members if 2 * named[peer] > len(self._terms.members)]
        if liars:
            proofs = self._mesh.proofs
            raise Setback(
                self._witness.contradicted(proofs[peer])
                if peer in proofs
                else self._witness.unshown(peer, Reason.EQUIVOCATED)
                for peer in liars
            )

    def _find_elsewhere(self, bodies: Mapping[PeerId, Commit]) -> frozenset[PeerId]:
        """Members that stand elsewhere than most and need the state of these. Raises `OutvotedError` for this one."""
        standings = {peer: body.standing for peer, body in bodies.items()}
        right, count = Counter(standings.values()).most_common(1)[0]
        if 2 * count <= len(self._terms.members):
            raise OutvotedError("no majority of the members is in the same state", round=self._terms.step)
        if standings[self._terms.members[self._me]] != right:
            raise OutvotedError("most members are in another state than this peer", round=self._terms.step)
        return frozenset(peer for peer, standing in standings.items() if standing != right)

    # ---- parts and aggregates

    async def _bring(self, part: int) -> None:
        """Carry the own part to its aggregator and take the aggregate home; what fails is fetched in other ways."""
        terms, cargo = self._terms, self._cargo
        brings = (self._me, part) in cargo.parts
        with contextlib.suppress(RemoteError):
            await self._deliveries.bring(terms.step, terms.attempt, part, brings=brings)

    async def _reduce(self) -> None:
        """Wait for the parts that this member aggregates, clip them to their mean, and state the result."""
        part, terms = self._me, self._terms
        rows: dict[int, torch.Tensor] = {}
        result = Result(None, 0.0, self._own_commitment(), self._seen)
        if terms.division.numel(part):
            await self._wait_for_parts()
            rows = await asyncio.to_thread(self._rows, part)
            mean = await asyncio.to_thread(self._arithmetic.aggregate, [rows[owner] for owner in sorted(rows)])
            value, clip = self._conduct.value(*mean, self._record)
            digest, body = await asyncio.to_thread(_stated, value)
            self._cargo.value_digests[part] = digest
            silent = tuple(owner for owner in self._present if owner not in rows)
            result = Result(digest, clip, self._own_commitment(), self._seen, silent)
        results = await self._exchange(Phase.RESULT, self._conduct.result(result), Result, self._result_is_sound)
        if self._elsewhere:
            raise Setback(map(self._witness.elsewhere, sorted(self._elsewhere)))
        self._record.results = results
        self._cargo.value_digests.update(
            {terms.members.index(peer): result.value for peer, result in results.items() if result.value is not None}
        )
        self._cargo.stated.set()
        if terms.division.numel(part):
            self._cargo.put_value(part, body)

    async def _wait_for_parts(self) -> None:
        cargo, terms, me = self._cargo, self._terms, self._me

        async def fetch(owners: Sequence[int]) -> None:
            fetching = (self._deliveries.fetch_part(terms.step, terms.attempt, me, owner) for owner in owners)
            await asyncio.gather(*fetching)

        await wait_for_all(
            lambda: [owner for owner in self._present if (owner, me) not in cargo.parts],
            len(self._present),
            cargo.changed,
            fetch,
            self._agreement.patience,
        )

    @property
    def _present(self) -> list[int]:
        """The ranks of those whose gradients count."""
        return [rank for rank in self._terms.contributors if self._terms.members[rank] not in self._elsewhere]

    async def _take_values(self) -> None:
        """Wait for all aggregates."""
        cargo, terms = self._cargo, self._terms

        async def fetch(parts: Sequence[int]) -> None:
            await asyncio.gather(*(self._deliveries.fetch_value(terms.step, terms.attempt, part) for part in parts))

        await wait_for_all(
            lambda: [part for part in cargo.value_digests if part not in cargo.values],
            len(cargo.value_digests),
            cargo.changed,
            fetch,
            self._agreement.patience,
        )

    def _row(self, owner: int, part: int) -> torch.Tensor | None:
        """A part that came, unless the bytes that its owner committed to mean nothing."""
        with contextlib.suppress(InvalidEncodingError, KeyError):
            return self._record.row(owner, part)
        return None

    def _rows(self, part: int) -> dict[int, torch.Tensor]:
        return {owner: row for owner in self._present if (row := self._row(owner, part)) is not None}

    def _result_is_sound(self, peer: PeerId, body: Result) -> bool:
        part = self._terms.members.index(peer)
        aggregates = self._terms.division.numel(part) > 0
        if aggregates != (body.value is not None) or aggregates != (body.clip > 0.0):
            return False
        return all(rank in self._terms.contributors for rank in body.silent)

    # ---- the coin

    def _own_commitment(self) -> bytes:
        return self._terms.coin.commitment(self._terms.members[self._me], self._reveal)

    async def _toss(self) -> dict[PeerId, Revealed]:
        """Reveal, and hear what others had to reveal; parts that somebody could not get are looked for meanwhile."""
        delivered = await self._look_for(self._complaints())
        own = self._conduct.reveal(Revealed(self._reveal, self._seen, tuple(delivered)))
        bodies = await self._exchange(Phase.REVEAL, own, Revealed, lambda _, __: True)
        self._record.randomness = self._terms.coin.outcome({peer: body.reveal for peer, body in bodies.items()})
        return bodies

    def _complaints(self) -> list[tuple[int, int]]:
        """(aggregator, owner) of the parts that somebody could not get."""
        results, members = self._record.results, self._terms.members
        return [(members.index(peer), owner) for peer, result in results.items() for owner in result.silent]

    async def _look_for(self, complaints: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        terms = self._terms

        async def can_get(part: int, owner: int) -> bool:
            if (owner, part) not in self._cargo.parts:
                await self._deliveries.fetch_part(terms.step, terms.attempt, part, owner)
            return await asyncio.to_thread(self._row, owner, part) is not None

        found = await asyncio.gather(*(can_get(part, owner) for part, owner in complaints))
        return [complaint for complaint, came in zip(complaints, found, strict=True) if came]

    def _settle(self, bodies: Mapping[PeerId, Revealed]) -> None:
        """Whoever revealed something else than it was committed to goes; and what most could get its aggregator should
        have got, too, what most could not, its owner owed to all.
        """
        coin, results = self._terms.coin, self._record.results
        if closed := [peer for peer, body in bodies.items() if not coin.opens(results[peer].coin, peer, body.reveal)]:
            raise Setback(map(self._witness.unopened, closed))
        cases: dict[int, Case] = {}
        for part, owner in self._complaints():
            could = sum((part, owner) in body.delivered for body in bodies.values())
            guilty = part if 2 * could > len(self._terms.members) else owner
            cases[guilty] = self._witness.undelivered(guilty, part, owner)
        if cases:
            raise Setback(cases.values())

    # ---- CLAIMS

    async def _claim(self, revealed: Mapping[PeerId, Revealed]) -> None:
        terms, record = self._terms, self._record
        record.values = await asyncio.to_thread(_decoded, dict(self._cargo.values))
        needed = [part for part in range(len(terms.members)) if terms.division.numel(part)]
        missing = tuple(part for part in needed if part not in record.values)
        claims: tuple[Claim | None, ...] = ()
        if self._me in terms.contributors:
            held = {part for part in record.values if (self._me, part) in self._cargo.parts}
            claims = await asyncio.to_thread(self._own_claims, held)
        said = self._conduct.claims(Claims(claims, self._seen, missing), record)
        record.claims = await self._exchange(Phase.CLAIMS, said, Claims, self._claims_are_sound)
        self._settle(revealed)

    def _own_claims(self, held: AbstractSet[int]) -> tuple[Claim | None, ...]:
        return tuple(
            self._arithmetic.claim(self._record, self._me, part) if part in held else None
            for part in range(len(self._terms.members))
        )

    async def _confirm(self) -> None:
        """Make sure that all have the same claims before they are checked: then all come to the same end."""
        await self._exchange(Phase.CONFIRM, Confirm(self._seen), Confirm, lambda _, __: True)
        self._check_values()
        bans, witness = await self._arithmetic.check(self._record, self._deliveries), self._witness
        if bans:
            raise Setback(
                witness.unshown(peer, reason)
                if reason is Reason.UNDELIVERED
                else witness.recomputed(peer, reason, part, self._record)
                for peer, (reason, part) in bans.items()
            )

    def _check_values(self) -> None:
        lacking = Counter(part for body in self._record.claims.values() for part in set(body.missing))
        terms = self._terms
        if gone := [part for part, count in lacking.items() if 2 * count > len(terms.members)]:
            raise Setback(map(self._witness.unobtainable, gone))
        if any(terms.division.numel(part) and part not in self._record.values for part in range(len(terms.members))):
            raise OutvotedError("most others have an aggregate that this peer cannot get", round=terms.step)
        if behind := [peer for peer, body in self._record.claims.items() if body.missing]:
            # they cannot go on, and without their claims nothing can be checked
            raise Setback(map(self._witness.behind, behind))

    def _claims_are_sound(self, peer: PeerId, body: Claims) -> bool:
        terms = self._terms
        if peer in terms.validators:
            return not body.claims
        if len(body.claims) != len(terms.members) or any(part >= len(terms.members) for part in body.missing):
            return False
        due = {part for part in range(len(terms.members)) if terms.division.numel(part)} - set(body.missing)
        count = self._arithmetic.directions
        return all(
            (claim is not None and len(claim.projections) == count) if part in due else claim is None
            for part, claim in enumerate(body.claims)
        )

    # ---- what all phases have in common

    async def _exchange(
        self, phase: Phase, own: Body | None, body_type: type[B], is_sound: Callable[[PeerId, B], bool]
    ) -> dict[PeerId, B]:
        """Say one thing (nothing if `own` is None) and understand what the others say.

        What makes no sense counts as nothing. Raises `Setback` if somebody said nothing, and `ContradictionError` if
        somebody said different things to different members.
        """
        slot = Slot(self._terms.step, self._terms.attempt, phase)
        for words, receivers in self._conduct.tells(slot, own, self._terms.members) if own is not None else ():
            self._mesh.say(slot, words, receivers)

        known: dict[bytes, B | None] = {}  # what is missing is asked after each statement that comes

        def understood(statement: Statement) -> B | None:
            if statement.signature not in known:
                known[statement.signature] = None
                with contextlib.suppress(ProtocolError):
                    body = read(statement, body_type)
                    if is_sound(statement.author, body):
                        known[statement.signature] = body
            return known[statement.signature]

        said = await self._agreement.collect(slot, lambda statement: understood(statement) is not None)
        bodies = {peer: body for peer, statement in said.items() if (body := understood(statement)) is not None}
        await self._compare(phase, bodies)
        if silent := [peer for peer in self._terms.members if peer not in said and peer not in self._elsewhere]:
            raise Setback(self._witness.unheard(peer, phase) for peer in silent)
        self._before, self._seen = slot, digest_of(said.values())
        return bodies

    async def _compare(self, phase: Phase, bodies: Mapping[PeerId, Body]) -> None:
        """Where members know another last phase than this one, somebody told them and us different things."""
        others = [peer for peer, body in bodies.items() if not isinstance(body, Commit) and body.seen != self._seen]
        if others:
            await self._mesh.pull(self._before, self._terms.members, others)
        proofs = [self._mesh.proofs[peer] for peer in self._agreement.equivocators]
        if phase is Phase.CONFIRM:  # nobody will wait for this member any more
            proofs = [proof for proof in proofs if others and proof.one.slot == self._before]
        if proofs and phase is not Phase.COMMIT:
            raise ContradictionError("it said two different things", peer=proofs[0].author, round=self._terms.step)
        if 2 * len(others) > len(self._terms.members):
            raise OutvotedError("most members heard something else than this peer", round=self._terms.step)


def _encoded(division: Division, gradient: torch.Tensor) -> list[tuple[bytes, bytearray]]:
    """The digest and the bytes of each part of a gradient."""
    bodies = [division.encode(gradient, part) for part in range(len(division.starts))]
    return [(blake3(body).digest(), body) for body in bodies]


def _stated(value: torch.Tensor) -> tuple[bytes, bytes]:
    """The digest and the bytes of an aggregate."""
    body = value_to_bytes(value)
    return blake3(body).digest(), body


def _decoded(values: Mapping[int, Bytes]) -> dict[int, torch.Tensor]:
    """The aggregates as numbers; what means nothing is missing."""
    decoded = dict[int, torch.Tensor]()
    for part, data in values.items():
        with contextlib.suppress(InvalidEncodingError):
            decoded[part] = value_from_bytes(data)
    return decoded
