"""One member's part in the receipts of a run: it claims, counts, compares, signs, and keeps what others signed.

Everything travels with the messages of group formation (`RoundNotes`). Only two things take calls of their own: an
attestation of counts that this peer does not have, and the last attestation of a peer that leaves.

The periods grow with the swarm, since what each member says goes to all: so the bytes that a member sends in a minute
stay the same. With n members a count takes about 10 n bytes for each of them every 10 n seconds, and the attestations
about 190 n bytes every 120 n seconds: 155 bytes a minute, however many there are
(`tests/receipts/test_receipt_costs.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import msgspec

from minga.averaging.allreduce.round import RoundOutcome
from minga.averaging.messages import Plan
from minga.core.aio import end
from minga.core.errors import RemoteError
from minga.core.thread_guard import loop_bound
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.network.rpc.stream import MessageStream
from minga.receipts.attestation import (
    DIGESTS,
    LAST,
    MAX_TRAVELLING_BYTES,
    AskDigests,
    Attestation,
    Claim,
    Count,
    Digests,
    JoinNote,
    JudgedCount,
    LastAttestation,
    Place,
    PlanNote,
    Taken,
    passed_on,
)
from minga.receipts.book import PeerTotals, ReceiptBook, Sight
from minga.receipts.book_file import BookFile

COUNT_S, SIGN_S = 10.0, 120.0
"""Seconds between two counts, and between two attestations of a member, for each member of its rounds."""
LEAST_MEMBERS = 5
"""Smaller groups count and sign as often as one of so many."""
EARLY = 0.5
"""No member takes a count that comes sooner than this share of the period, whatever its leader says."""
AHEAD_STEPS = 2
"""A claim goes with the registrations of so many steps before a count is due: they come long before the plan."""
MAX_ASKING = 4
"""Attesters that are asked for digests at a time."""
MAX_TOLD = 16
"""Others to which a peer that leaves sends its last attestation."""


async def _quietly(call: Awaitable[object]) -> None:
    with contextlib.suppress(RemoteError):
        await call


@loop_bound
class Receipts:
    """The receipts of one member. `file` keeps them beyond this process; without one they end with it."""

    def __init__(
        self,
        node: Node,
        identity: Identity,
        file: BookFile | None = None,
        token_of: Callable[[PeerId], bytes] = lambda _: b"",
    ) -> None:
        self.epoch: Callable[[], int] = lambda: 0
        """That of the organisers' last regroup."""
        self.last_step: Callable[[], int | None] = lambda: None
        """The step after which the run is over, if it is known: its last round has a count, whenever the last was."""
        self.book = ReceiptBook() if file is None else file.book
        self._node, self._identity, self._file, self._token_of = node, identity, file, token_of
        self._sight = Sight(node.peer_id)
        self._now = asyncio.get_running_loop().time
        self._members = LEAST_MEMBERS
        self._counted_s = float("-inf")
        self._signed_s = self._now()
        self._share = int(node.peer_id[:4], 16) / 0x10000
        """Of the period, until this member signs again: at first by its key, so that not all sign at once."""
        self._committed_s, self._step_s = self._now(), 0.0
        self._claimed: Claim | None = None
        self._pending: JudgedCount | None = None
        last = self.book.own_newest(node.peer_id)  # an earlier process may have died before a leader passed it on
        self._outbox: OrderedDict[bytes, None] = OrderedDict({last.travelling: None} if last else {})
        self._asking: set[PeerId] = set()
        node.serve(DIGESTS, self._serve_digests)
        node.serve(LAST, self._serve_last)

    def totals(self) -> dict[PeerId, PeerTotals]:
        """What the members attest of each peer, as far as this peer was there or heard of it."""
        return self.book.totals()

    # ---- notes: see `RoundNotes`

    def for_leader(self, step: int) -> bytes:
        """A claim, if a count is due, and an attestation."""
        is_due = self._is_due(step, self._period_s(COUNT_S) - AHEAD_STEPS * self._step_s)
        self._claimed = self._sight.claim(step) if is_due else None
        attestation = next(iter(self._outbox), b"")
        if self._claimed is None and not attestation:
            return b""
        return msgspec.msgpack.encode(JoinNote(self._claimed, attestation))

    def with_plan(self, plan: Plan, notes: Mapping[PeerId, bytes]) -> bytes:
        """The claims of all, if a count is due, and the attestations that members sent of their own."""
        read = [JoinNote.decode(notes[peer]) for peer in plan.ids]
        claims = tuple(note.claim for note in read)
        known = sum(claim is not None for claim in claims)
        if not self._is_due(plan.step, self._period_s(COUNT_S)) or len(claims) < 2 or 2 * known <= len(claims):
            claims = ()
        sent = passed_on(plan.step, list(zip(plan.ids, read, strict=True)))
        return msgspec.msgpack.encode(PlanNote(claims, tuple(sent))) if claims or sent else b""

    def take(self, plan: Plan, note: bytes) -> None:
        """Compare a count with what this peer saw, and keep the attestations."""
        said = PlanNote.decode(note)
        self._pending = self._judged(plan, said.claims) if said.claims else None
        for attestation in said.attestations:
            self._receive(attestation, plan.ids)

    def _judged(self, plan: Plan, claims: tuple[Claim | None, ...]) -> JudgedCount | None:
        """The count as this peer judges it; None if it is none, or misquotes this peer: that it never signs."""
        if len(claims) != len(plan.members) or not self._is_due(plan.step, EARLY * self._period_s(COUNT_S)):
            return None
        if claims[plan.rank_of(self._node.peer_id)] != self._claimed:
            return None
        return self._sight.judge(Count.of(plan, self.epoch(), claims))

    # ---- rounds

    def commit(self, outcome: RoundOutcome, samples: int, batch: int) -> None:
        """A round is committed, to which this peer gave so many `samples`; `batch` is the target batch size of its
        step.
        """
        plan = outcome.plan
        pending, self._pending = self._pending, None
        self._committed_s, self._step_s = self._now(), self._now() - self._committed_s
        self._members = max(LEAST_MEMBERS, len(plan.members))
        if pending is not None:
            self._counted_s = self._now()
            self._sight.begin_count(plan.step)
            if self._claimed is not None:
                self._sight.note_claimed(plan.step)
            self._keep_count(pending)
        self._sight.note(outcome, samples, batch)
        if self._now() - self._signed_s >= self._share * self._period_s(SIGN_S):
            self._sign()

    def _keep_count(self, judged: JudgedCount) -> None:
        if not self.book.add_count(judged) or self._file is None:
            return
        self._file.add_count(judged)
        for peer in judged.count.ids:
            token = b"" if peer in self.book.tokens else self._token_of(peer)
            if token:
                self.book.tokens[peer] = token
                self._file.add_token(peer, token)

    def _sign(self) -> None:
        """Sign what is not signed yet, and have it at hand for the next leaders."""
        self._signed_s, self._share = self._now(), 1.0
        while counts := self.book.unsigned(self._node.peer_id):
            attestation = self._attest(counts)
            if not self._keep(attestation):
                return
            self._outbox[attestation.travelling] = None

    def _attest(self, counts: list[JudgedCount]) -> Attestation:
        """As many of them as fit into a note."""
        while True:
            attestation = Attestation.sign(self._node.run_id, self._identity, counts)
            if len(attestation.travelling) <= MAX_TRAVELLING_BYTES or len(counts) == 1:
                return attestation
            counts = counts[: len(counts) // 2]

    async def flush(self, limit_s: float) -> None:
        """Before this peer leaves: sign what is left, and give it to others, within `limit_s` seconds."""
        self._sign()
        others = [peer for peer in self._node.connected() if peer != self._node.peer_id][:MAX_TOLD]
        calls = [
            self._node.call(peer, LAST, LastAttestation(each), Taken, timeout_s=limit_s)
            for each in self._outbox
            for peer in others
        ]
        if calls:
            waiting = [asyncio.get_running_loop().create_task(_quietly(call)) for call in calls]
            _, late = await asyncio.wait(waiting, timeout=limit_s)
            await end(*late)

    def _is_due(self, step: int, pause_s: float) -> bool:
        """Whether a round of `step` may have a count, so long after the last one."""
        return self._now() - self._counted_s >= pause_s or step + 1 == self.last_step()

    def _period_s(self, each_s: float) -> float:
        return each_s * self._members

    # ---- attestations of others

    def _receive(self, data: bytes, members: tuple[PeerId, ...]) -> None:
        attestation = Attestation.decode(data)
        if attestation is None or attestation.attester not in members:
            return
        if attestation.attester == self._node.peer_id:
            self._outbox.pop(data, None)
        elif not self._keep_if_genuine(attestation) and any(each in self.book.digests for each in attestation.places):
            self._ask_digests(attestation)

    def _keep_if_genuine(self, attestation: Attestation, digests: Mapping[Place, bytes] | None = None) -> bool:
        """Keep an attestation of counts with these `digests`, by default those of the book; False if it is none."""
        whole = attestation.with_digests(self.book.digests if digests is None else digests)
        is_genuine = whole is not None and whole.is_genuine(self._node.run_id)
        if whole is not None and is_genuine:
            self._keep(whole)
        return is_genuine

    def _keep(self, attestation: Attestation) -> bool:
        is_new = self.book.add(attestation)
        if is_new and self._file is not None:
            self._file.add(attestation)
        return is_new

    def _ask_digests(self, attestation: Attestation) -> None:
        """It covers a count that this peer has not, or has another of: ask its attester what it signed."""
        if attestation.attester not in self._asking and len(self._asking) < MAX_ASKING:
            self._asking.add(attestation.attester)
            self._node.spawn(self._fetch_digests(attestation))

    async def _fetch_digests(self, attestation: Attestation) -> None:
        ask = AskDigests(attestation.epoch, tuple(each.step for each in attestation.signed))
        try:
            found = (await self._node.call(attestation.attester, DIGESTS, ask, Digests)).digests
        except RemoteError:
            return
        finally:
            self._asking.discard(attestation.attester)
        if len(found) == len(ask.steps):
            self._keep_if_genuine(attestation, dict(zip(attestation.places, found, strict=True)))

    # ---- serving

    async def _serve_digests(self, peer: PeerId, stream: MessageStream) -> None:  # noqa: ARG002
        ask = await stream.receive(AskDigests)
        known = self.book.digests
        await stream.send(Digests(tuple(known.get((ask.epoch, step), b"") for step in ask.steps)))

    async def _serve_last(self, peer: PeerId, stream: MessageStream) -> None:
        self._receive((await stream.receive(LastAttestation)).attestation, (peer,))
        await stream.send(Taken())
