"""The state of a run on the board, as plain values for displays."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from minga.averaging.planning.contributor_choice import StepWork
from minga.averaging.strategy_choice import facts_of, round_batch_range
from minga.core.spec.run_spec import RunSpec
from minga.identity.access.ledger import AccessLedger
from minga.network.gossip.board import Board
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.network.rpc.node import Node
from minga.training.access.standing_orders import spec_due
from minga.training.agreement.state_history import is_same
from minga.training.record_kinds import Metrics, Progress, StateInfo
from minga.training.status.last_problem import Trouble
from minga.training.status.live_rates import LiveRates, live_rates
from minga.training.status.losses import LossMeter
from minga.training.status.plan_status import PlanStatus
from minga.training.status.split_status import SplitRunStatus


@dataclass(frozen=True)
class PeerStatus:
    """One living peer. `path` and `round_trip_s` are those of the link from here, None without one.

    `samples` are towards the next step, `total_samples`, `bytes_sent` and `bytes_received` since it joined; `age_s` is
    how long ago its last news came. `status` is None for peers that take no part in steps, such as monitors. `part` is
    "server", "standby" or "client" where the model is cut.
    """

    peer_id: str
    role: str
    status: str | None
    step: int
    samples: int
    samples_per_second: float
    total_samples: int
    bytes_sent: int
    bytes_received: int
    path: str | None
    round_trip_s: float | None
    age_s: float
    is_self: bool
    part: str | None = None

    @property
    def doing(self) -> str | None:
        """The `status` in a word for displays: an auxiliary takes part in steps, but computes nothing for them."""
        return "helping" if self.role == "auxiliary" and self.status == "training" else self.status


@dataclass(frozen=True)
class AmendmentStatus:
    """An order of the organisers that changes settings, such as "optimizer.learning_rate = 0.001", in rounds of
    `from_step` and later ones. `due`: that step is reached, and no later number overrules it; `overruled`: it is
    reached, and one does.
    """

    number: int
    from_step: int
    changes: str
    due: bool
    overruled: bool = False


@dataclass(frozen=True)
class RunStatus:
    """A run as one peer sees it. `loss` is None until two reports of one trainer were compared.

    `members` take part in rounds (trainers, clients and auxiliaries that are in sync); `averages` says whether at least
    two of them do, the sign of a healthy run. `digests_agree` is None until two peers published a digest of the same
    step. `trouble` is the last problem of the peer that looks. `plan` is None while fewer than two take part.
    `resting`: the peer that looks is on standby. `mode` names the run spec's settings admission and verification
    in a word: open, members, byzantine or members+byzantine. In the last two all members compute and reduce the same,
    so there is no plan and no count of samples towards a step.
    `total_samples` are those of all steps so far, see `SampleCount`.
    `last_step` and the target batch size are as amended; `amendments` are those that this peer knows, by number.
    `founders` says how many are ready and wanted while the run waits for its founders. `split` is there if the
    model is cut, also while nobody serves it; then steps are batches that the server applied, and `members` are servers
    and clients.
    """

    name: str
    run_id: str
    step: int
    last_step: int | None
    loss: float | None
    samples_per_second: float
    samples: int
    target_batch_size: int
    total_samples: int
    members: int
    averages: bool
    digests_agree: bool | None
    peers: tuple[PeerStatus, ...]
    mode: str = "open"
    founders: tuple[int, int] | None = None
    trouble: Trouble | None = None
    plan: PlanStatus | None = None
    resting: bool = False
    amendments: tuple[AmendmentStatus, ...] = ()
    paused: bool = False
    split: SplitRunStatus | None = None

    @property
    def is_verified(self) -> bool:
        """Whether the members verify each other's work."""
        return self.mode.endswith("byzantine")

    @property
    def is_complete(self) -> bool:
        """Whether the run has taken its last step."""
        return self.last_step is not None and self.step >= self.last_step

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values, digits of floats cut to what is meant."""
        values = asdict(self)
        values["loss"] = None if self.loss is None else round(self.loss, 4)
        values["samples_per_second"] = round(self.samples_per_second, 2)
        for peer, known in zip(values["peers"], self.peers, strict=True):
            peer["status"] = known.doing
            peer["samples_per_second"] = round(peer["samples_per_second"], 2)
            peer["age_s"] = round(peer["age_s"], 2)
        if self.trouble is not None:
            values["trouble"]["age_s"] = round(self.trouble.age_s, 2)
        if self.split is not None:
            for speed in ("batches_per_second", "samples_per_second"):
                value = getattr(self.split, speed)
                values["split"][speed] = None if value is None else round(value, 2)
        return values


def read_status(board: Board, node: Node, spec: RunSpec, losses: LossMeter) -> RunStatus:
    """The state of the run at this moment. On the event loop's thread only."""
    ages = _ages(board)
    peers = tuple(_peer_status(board, node, peer, ages.get(peer, 0.0)) for peer in board.owners())
    active = [peer for peer in peers if peer.status not in (None, "syncing")]
    step = step_of_half([peer.step for peer in active or peers if peer.status is not None])
    return RunStatus(
        name=spec.name,
        run_id=node.run_id,
        step=step,
        last_step=spec.training.stop_after_steps,
        loss=losses.smoothed,
        samples_per_second=sum(peer.samples_per_second for peer in active),
        samples=sum(peer.samples for peer in active if peer.step == step),
        target_batch_size=target_batch_size(board, spec),
        total_samples=losses.total_samples,
        members=len(active),
        averages=len(active) >= 2,
        digests_agree=_agreement(board),
        peers=peers,
        mode=spec.security.mode,
    )


def with_split(status: RunStatus, split: SplitRunStatus | None) -> RunStatus:
    """The status of a run whose model is cut; None is one whose model is whole."""
    if split is None:
        return status
    parts: dict[str, str] = {
        **dict.fromkeys(split.clients, "client"),
        **dict.fromkeys(split.standbys, "standby"),
        **dict.fromkeys(split.servers, "server"),
    }
    return replace(
        status,
        step=split.steps,
        samples_per_second=split.samples_per_second or 0.0,
        members=len(parts),
        averages=bool(split.clients and split.servers),
        peers=tuple(replace(each, part=parts.get(each.peer_id)) for each in status.peers),
        split=split,
    )


def step_of_half(steps: Sequence[int]) -> int:
    """The step that half of the peers have reached, 0 if there are none.

    Members are at most a step apart; one among three that claims another step is not believed.
    """
    return sorted(steps)[len(steps) // 2] if steps else 0


def newest_step(steps: Sequence[int]) -> int:
    """The newest of these steps that is at most one past that of half of the peers: one of them may know a result that
    the others have not heard of.
    """
    half = step_of_half(steps)
    return max((step for step in steps if step <= half + 1), default=0)


def target_batch_size(board: Board, spec: RunSpec) -> int:
    """The value of most peers at the present step, within the bounds of the run spec."""
    known, step = [item.payload for item in board.items(Progress)], _present_step(board)
    least, most = round_batch_range(spec.at(step))
    told = [progress.target_batch_size for progress in known if progress.step == step]
    return int(statistics.mode([batch for batch in told if least <= batch <= most] or [least]))


def live_work(board: Board, spec: RunSpec, ledger: AccessLedger | None) -> tuple[LiveRates, StepWork]:
    """The rates on the board, and what a step of the run carries, as the orders in `ledger` amend it: what a plan is
    made of. On the event loop only.
    """
    present, live = present_spec(board, spec, ledger), live_rates(board)
    overlapped = facts_of(present.at(_present_step(board))).max_in_flight > 0
    return live, StepWork(live.vector_bytes, target_batch_size(board, present), overlapped=overlapped)


def present_spec(board: Board, spec: RunSpec, ledger: AccessLedger | None) -> RunSpec:
    """The run spec as the orders in `ledger` amend it at the step where the run is. On the event loop only."""
    return spec_due(spec, ledger, _present_step(board))


def _present_step(board: Board) -> int:
    known = [item.payload for item in board.items(Progress)]
    active = [progress for progress in known if progress.status != "syncing"]
    return step_of_half([progress.step for progress in active or known])


def _ages(board: Board) -> dict[PeerId, float]:
    """How long ago the last news of each peer came, in seconds."""
    ages: dict[PeerId, float] = {}
    for kind in (Progress, AddressInfo):
        for item in board.items(kind):
            ages[item.owner] = min(item.age_s, ages.get(item.owner, item.age_s))
    return ages


def _peer_status(board: Board, node: Node, peer: PeerId, age_s: float) -> PeerStatus:
    info, progress = board.get(peer, AddressInfo), board.get(peer, Progress)
    metrics, facts = board.get(peer, Metrics), node.facts(peer)
    own = node.traffic() if peer == node.peer_id else None
    told = info.role if info else "unknown"  # in runs for members, who only watches publishes no address
    sent, received = own or ((metrics.bytes_sent, metrics.bytes_received) if metrics else (0, 0))
    return PeerStatus(
        peer_id=peer,
        role=told if own is None else node.role,
        status=progress.status if progress else None,
        step=progress.step if progress else 0,
        samples=progress.samples if progress else 0,
        samples_per_second=progress.samples_per_second if progress else 0.0,
        total_samples=metrics.samples if metrics else 0,
        bytes_sent=sent,
        bytes_received=received,
        path=facts.path if facts else None,
        round_trip_s=facts.round_trip_s if facts else None,
        age_s=age_s,
        is_self=peer == node.peer_id,
    )


def _agreement(board: Board) -> bool | None:
    by_step: dict[int, list[StateInfo]] = {}
    for item in board.items(StateInfo):
        by_step.setdefault(item.payload.step, []).append(item.payload)
    compared = [states for states in by_step.values() if len(states) >= 2]
    return all(is_same(states[0], state) for states in compared for state in states) if compared else None
