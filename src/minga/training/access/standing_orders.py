"""What the organisers' amendments mean for this run: which settings they may change, and which are in force.

Theory of operation. The leader of a round puts into its plan the ids of the amendments that are due: `from_step` is
reached, and none with a higher number overrules them. All members of the round take the step by the settings of exactly
these, and get from the leader what they do not know. So no step mixes two values, even if the order reached one member
late: whether an amendment counts in a step is part of what the round decides, like its vector. A round that adopts the
result of an earlier attempt adopts its amendments, too (`averaging/allreduce/commit.py`). The next leader took part in
that round, or fetched its state, so it knows them: what is in force stays so until a higher number overrules it.

The strategy makes contributions before there is a plan: so it changes at the end of a round. A leader has amendments
of it in the plan of the round before `from_step`, and what that round leads to is the first state of the new strategy.

A pause is no value that a step uses. Each peer forms no round while the newest order about it that is due at its step
says `paused`; a peer that hears later is alone with its wish for a round.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

from minga.averaging.strategy_choice import facts_of, round_batch_range
from minga.core.errors import ConfigurationError, ProtocolError
from minga.core.spec.problems import suggestion
from minga.core.spec.run_spec import RunSpec
from minga.core.thread_guard import loop_bound
from minga.identity.access.amendments import Amendments, Regroup, Regroups
from minga.identity.access.ledger import AccessLedger
from minga.network.interface import PeerId

PAUSED: Final = "paused"
STOP: Final = "training.stop_after_steps"
STRATEGY: Final = "training.strategy"
OPTIMIZER: Final = "optimizer."
EARLY: Final = (STRATEGY,)
"""What the plan of the round before its step has to say already."""
BATCH: Final = "training.target_batch_size"
AMENDABLE: Final = (
    "optimizer.learning_rate",
    "optimizer.max_grad_norm",
    STRATEGY,
    BATCH,
    "training.target_batch_size_min",
    "training.target_batch_size_max",
    STOP,
    "checkpoints.every_steps",
    "checkpoints.keep",
)
"""The settings that a running run can change; no other value is read again while it goes on."""

WHY_NOT: Final = {
    "network.relay": "a peer opens its network before it can hear orders",
    "training.strategy_changes": "amend training.strategy, with a step",
    "averaging.codec": "peers with another codec could not read each other's vectors",
    "averaging.download_codec": "peers with another codec could not read each other's vectors",
    "averaging.sketch": "peers with another map could not average",
    "training.seed": "it was used when the run began",
}


def check_changes(spec: RunSpec, changes: dict[str, Any]) -> None:
    """Raise `ConfigurationError`, which names the setting and what can change, unless these can change in this run."""
    if spec.security.verification == "byzantine":
        raise ConfigurationError(
            'a run with verification = "byzantine" cannot be amended: its members take steps without a leader whose '
            "plan could say which settings are in force. Begin a new run from its checkpoint"
        )
    for key in changes:
        if key != PAUSED and key not in AMENDABLE:
            because = _why_not(key)
            stop = "" if because.endswith("?") else "."
            raise ConfigurationError(
                f"{key} cannot change in a running run{because}{stop} These can: {', '.join(AMENDABLE)}"
            )
    if isinstance(spec.training.target_batch_size, int) != isinstance(
        changes.get(BATCH, spec.training.target_batch_size), int
    ):
        raise ConfigurationError(
            "training.target_batch_size can change from number to number; where it is auto, target_batch_size_min and "
            "target_batch_size_max can"
        )
    if not isinstance(changes.get(PAUSED, False), bool):
        raise ConfigurationError("paused is true or false")
    facts_of(amended_spec(spec, changes))


def _why_not(key: str) -> str:
    """The reason, or a setting that was probably meant, as it goes on after "cannot change in a running run"."""
    if key.startswith("strategy."):
        return (
            ": peers that fetch a state, or come back from a checkpoint, make its strategy by the tables of the run "
            "spec, so these have to be there when the run begins. training.strategy can change to one with a table: "
            "name it in training.strategy_changes, if need be at a step that never comes"
        )
    return f": {WHY_NOT[key]}" if key in WHY_NOT else suggestion(key, list(AMENDABLE)).partition("; there")[0]


def amended_spec(spec: RunSpec, changes: Mapping[str, Any]) -> RunSpec:
    """The spec with these changes, which overrule what `strategy_changes` says of the same. Raises
    `ConfigurationError`.
    """
    values = {key: value for key, value in changes.items() if key != PAUSED}
    scheduled = spec.training.model_dump(mode="json")["strategy_changes"]
    overruled = {"strategy": values[STRATEGY]} if STRATEGY in values else {}
    overruled |= {"target_batch_size": None} if BATCH in values else {}
    if scheduled and overruled:
        values["training.strategy_changes"] = [{**each, **overruled} for each in scheduled]
    return spec.amended(values) if values else spec


def spec_due(spec: RunSpec, ledger: AccessLedger | None, step: int) -> RunSpec:
    """The run spec as the orders in `ledger` that are due at `step` amend it. On the loop of the ledger."""
    if ledger is None:
        return spec
    orders = StandingOrders(spec, ledger)
    return orders.spec(orders.due(step))


@loop_bound
class StandingOrders:
    """The amendments of a run, and its last regroup; none without a `ledger`. `fetch` exchanges orders with a peer."""

    def __init__(
        self, spec: RunSpec, ledger: AccessLedger | None, fetch: Callable[[PeerId], Awaitable[None]] | None = None
    ) -> None:
        self._spec, self._fetch = spec, fetch
        self._amendments = Amendments() if ledger is None else ledger.amendments
        self._regroups = Regroups() if ledger is None else ledger.regroups
        self.can_be = ledger is not None
        """Whether the run has organisers whose orders this peer follows."""
        self._specs: dict[tuple[str, ...], RunSpec] = {}

    # ---- for rounds; see `RunOrders`

    def due(self, step: int) -> tuple[str, ...]:
        """Those that a leader puts in force in the round of `step`."""
        return self._amendments.due(step, EARLY)

    def batch_range(self, orders: Sequence[str], step: int) -> tuple[int, int] | None:
        """The smallest and the largest number of samples with which a round of `step` may close under these orders."""
        return round_batch_range(self.spec(orders).at(step))

    async def obtain(self, orders: Sequence[str], peer: PeerId, step: int) -> None:
        """Get those that are not known here from `peer`, which wants them in force in the round of `step`.

        Raises `RemoteError` if it does not have them either, or if one of them is for later steps: a leader may not
        know all orders yet, but it does not move what the organisers signed.
        """
        if self._fetch is not None and not all(name in self._amendments for name in orders):
            await self._fetch(peer)
        if unknown := [name for name in orders if name not in self._amendments]:
            why = f"its plan is by the order {unknown[0]}, which it does not have"
            raise ProtocolError(why, peer=peer, phase="group")
        if early := self._amendments.not_due(orders, step, EARLY):
            why = f"its plan for step {step} is by the order {early[0]}, which is for later steps"
            raise ProtocolError(why, peer=peer, phase="group")

    # ---- for the member

    def changes(self, orders: Sequence[str]) -> dict[str, Any]:
        """What these amendments change, value by key, as far as this version of minga can."""
        found: dict[str, Any] = {}
        waiting = self._amendments.changes(orders)
        count = -1
        while len(found) > count:  # again as long as some came in: a smallest value may go only with its largest
            count = len(found)
            for key in [key for key in waiting if key not in found]:
                try:
                    value = json.loads(waiting[key])
                    check_changes(self._spec, {**found, key: value})
                except (ValueError, RecursionError, ConfigurationError):
                    continue  # the organiser's minga is newer than this one, or it signed what its own refuses
                found[key] = value
        return found

    def spec(self, orders: Sequence[str]) -> RunSpec:
        """The run spec as amended by these."""
        name = tuple(orders)
        if name not in self._specs:
            changes = self.changes(name)
            if len(self._specs) > 2 * len(AMENDABLE):
                self._specs.clear()
            self._specs[name] = amended_spec(self._spec, changes)
        return self._specs[name]

    def regroup(self, epoch: int) -> Regroup | None:
        """The organisers' newest regroup, if it is of a later epoch than this, or this one's counts no more."""
        newest = self._regroups.newest
        is_void = epoch > 0 and epoch not in self._regroups
        return newest if newest is not None and (newest.epoch > epoch or is_void) else None

    def is_paused(self, step: int) -> bool:
        """Whether the organisers want no round of `step`."""
        return self.changes(self.due(step)).get(PAUSED) is True
