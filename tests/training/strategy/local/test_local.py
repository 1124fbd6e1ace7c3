"""The strategy local by itself: its numbers, what peers share of it, and the conformance suite with its settings."""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.averaging.strategy_choice import StrategyChoice
from minga.core.errors import ConfigurationError, NonFiniteError
from minga.testing import STRATEGY_CHECKS
from minga.testing.strategies.trainer import Trainer
from minga.training.strategy.interface import Recovery
from minga.training.strategy.local import Local
from tests.worlds.local_peers import (
    LocalPeer,
    MakeOptimizer,
    loss_of,
    mean_of,
    small_model,
    synchronous_peer,
    take_round,
)
from tests.worlds.seeds import soaked

AVERAGING: dict[str, Any] = {"outer_learning_rate": 1.0, "outer_momentum": 0.0}
COUNTED, UNCOUNTED, ABSENT = ContributionFate.COUNTED, ContributionFate.UNCOUNTED, ContributionFate.ABSENT


def adamw(parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.02)


# ---- the suite

VARIANTS: list[Any] = [
    {},
    soaked({"overlap": True}),  # the next but one has it
    soaked({"fragments": 3}),
    {"fragments": 2, "overlap": True},
    {"merge": "mix", "overlap": True, "weight": "batch", "nesterov": False},
    {"merge": "overwrite", "outer_momentum": 0.0, "local_batch": 1},
    {"merge": "eager", "overlap": True},
]


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
@pytest.mark.parametrize("check", STRATEGY_CHECKS, ids=lambda check: check.__name__)
def test_conformance(check: Callable[..., None], settings: dict[str, Any]) -> None:
    check(Local, **settings)


# ---- the numbers


def test_one_step_of_gradient_descent_and_an_outer_step_of_one_are_synchronous_training() -> None:
    locally, together = [LocalPeer(**AVERAGING) for _ in range(3)], [synchronous_peer() for _ in range(3)]
    for round in range(20):
        for peers in (locally, together):
            for place, peer in enumerate(peers):
                peer.micro_batch(2 + 3 * place, 10 * round + place)
            take_round(peers)
        torch.testing.assert_close(locally[0].values(), together[0].values(), rtol=0, atol=1e-6)
    digests = {peer.replica.digest() for peer in locally}
    assert len(digests) == 1


def test_a_constant_movement_is_amplified_as_nesterov_says() -> None:
    for rate, momentum, nesterov, wanted in (
        (0.7, 0.9, True, (1.9, 2.71, 3.439, 4.0951, 4.68559)),
        (1.0, 0.9, False, (1.0, 1.9, 2.71, 3.439, 4.0951)),
        (0.5, 0.0, True, (1.0, 1.0, 1.0, 1.0, 1.0)),
    ):
        peer = LocalPeer(outer_learning_rate=rate, outer_momentum=momentum, nesterov=nesterov)
        for gain in wanted:
            before = peer.anchor.clone()
            peer.absorb(torch.ones(peer.replica.vector.numel), ABSENT)
            moved = torch.full_like(before, rate * gain)
            torch.testing.assert_close(before - peer.anchor, moved, rtol=1e-5, atol=1e-5)


def diloco_by_hand(rounds: int, batches: list[list[int]], seeds: Callable[[int, int, int], int]) -> torch.nn.Module:
    """DiLoCo in plain torch: AdamW on each worker, torch's SGD with Nesterov momentum on the shared parameters."""
    shared = small_model()
    outer = torch.optim.SGD(shared.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    workers = [small_model() for _ in batches]
    inner = [adamw(list(worker.parameters())) for worker in workers]
    for round in range(rounds):
        for place, worker in enumerate(workers):
            worker.load_state_dict(shared.state_dict())
            for step, samples in enumerate(batches[place]):
                inner[place].zero_grad()
                loss_of(worker, samples, seeds(round, place, step)).backward()
                inner[place].step()
        total = sum(map(sum, batches))
        for parameter, *copies in zip(shared.parameters(), *(w.parameters() for w in workers), strict=True):
            moved = [(parameter - own).detach() * sum(batches[place]) for place, own in enumerate(copies)]
            parameter.grad = torch.stack(moved).sum(0) / total
        outer.step()
    return shared


def test_it_is_diloco_as_one_writes_it_by_hand() -> None:
    batches = [[4] * 5, [4] * 20, [7] * 3]  # micro-batches of workers of different speed

    def seeds(round: int, place: int, step: int) -> int:
        return 10_000 * round + 100 * place + step

    peers = [LocalPeer(make_optimizer=adamw) for _ in batches]
    for round in range(6):
        for place, peer in enumerate(peers):
            for step, samples in enumerate(batches[place]):
                peer.micro_batch(samples, seeds(round, place, step))
        take_round(peers)
    by_hand = torch.cat([each.detach().reshape(-1) for each in diloco_by_hand(6, batches, seeds).parameters()])
    own = torch.cat([each.detach().reshape(-1) for each in peers[0].model.parameters()])
    torch.testing.assert_close(own, by_hand, rtol=1e-5, atol=1e-6)


def test_inner_steps_over_several_micro_batches_are_steps_by_their_mean() -> None:
    several, whole = LocalPeer(local_batch=12), LocalPeer()
    loss_of(whole.model, 4, 1).backward()
    for parameter in whole.model.parameters():
        assert parameter.grad is not None
        parameter.grad.mul_(4 / 12)
    (loss_of(whole.model, 8, 2) * 8 / 12).backward()
    whole.strategy.micro_batch(12)
    for samples, seed in ((4, 1), (8, 2), (5, 3)):
        several.micro_batch(samples, seed)
    torch.testing.assert_close(several.values(), whole.values(), rtol=0, atol=1e-7)
    assert several.seal()[1] == 12  # of 17: five wait for the next inner step
    assert several.strategy.samples == 12


def test_weights_are_samples_or_those_of_an_inner_step() -> None:
    for weight, wanted in (("samples", 12), ("batch", 3)):
        peer = LocalPeer(weight=weight)
        for seed in range(4):
            peer.micro_batch(3, seed)
        assert peer.seal()[1] == wanted


# ---- merge


def flown(peer: LocalPeer) -> tuple[torch.Tensor, torch.Tensor]:
    """A round of one peer that goes on meanwhile. Returns where it came to, and by how much since it was sealed."""
    peer.micro_batch(2, 1)
    mean = mean_of([peer.seal()])
    before = peer.values()
    peer.micro_batch(2, 2)
    own = peer.values()
    peer.absorb(mean)
    return own, own - before


def test_what_merging_does_to_what_was_moved_meanwhile() -> None:
    peer = LocalPeer(overlap=True)
    _, moved = flown(peer)
    torch.testing.assert_close(peer.values(), peer.anchor + moved, rtol=0, atol=1e-7)
    delta, _ = peer.seal()
    assert delta is not None
    torch.testing.assert_close(delta[: moved.numel()], -moved, rtol=0, atol=1e-7)
    for alpha, wanted in ((1.0, "own"), (0.0, "shared")):
        peer = LocalPeer(overlap=True, merge="mix", alpha=alpha)
        own, _ = flown(peer)
        assert torch.equal(peer.values(), own if wanted == "own" else peer.anchor)
    peer = LocalPeer(merge="overwrite")
    flown(peer)
    assert torch.equal(peer.values(), peer.anchor)


def test_a_mean_without_this_peer_leaves_its_movement_whole_unless_it_overwrites() -> None:
    for fate, merge in itertools.product((UNCOUNTED, ABSENT), ("rebase", "overwrite")):
        peer = LocalPeer(merge=merge)
        peer.micro_batch(2, 1)
        peer.strategy.contribution()
        moved = peer.values() - peer.anchor
        peer.absorb(torch.full((peer.replica.vector.numel,), 0.01), fate)
        kept = peer.values() - peer.anchor
        torch.testing.assert_close(kept, moved if merge == "rebase" else torch.zeros_like(moved), rtol=0, atol=1e-6)


def test_a_guess_moves_the_peer_alone_and_is_gone_when_the_round_is() -> None:
    plain, eager = LocalPeer(overlap=True), LocalPeer(overlap=True, merge="eager")
    for round in range(4):
        for peer in (plain, eager):
            peer.micro_batch(2, 10 * round)
        sealed = [peer.seal()[0] for peer in (plain, eager)]
        assert sealed[0] is not None
        if round == 0:
            assert torch.equal(sealed[0], sealed[1])
        for peer in (plain, eager):
            peer.micro_batch(2, 10 * round + 1)
        jumped = float((eager.values() - plain.values()).norm())
        if round == 1:  # it comes to nothing: all that moved counts, the jump does not
            jump = eager.strategy._guess.jump  # type: ignore[attr-defined]
            moved = eager.values() - jump[: eager.anchor.numel()] - eager.anchor
            eager.strategy.take_back()
            again, _ = eager.seal()
            torch.testing.assert_close(again[: eager.anchor.numel()], -moved, rtol=0, atol=1e-6)  # type: ignore[index]
        assert (jumped > 0.05) == (round > 0), jumped
        mean = torch.full((plain.replica.vector.numel,), 0.1)
        for peer in (plain, eager):
            peer.absorb(mean)
        assert plain.replica.digest() == eager.replica.digest()


def test_nothing_is_guessed_before_a_mean_by_a_peer_that_took_over_the_state_it_had() -> None:
    peer = LocalPeer(merge="eager", overlap=True)
    local = {name: each.clone() for name, each in peer.strategy.local_tensors().items()}
    peer.strategy.restored(peer.strategy.shared_tensors(), 0, local)
    peer.micro_batch(2, 1)
    peer.seal()
    own = peer.values()
    peer.micro_batch(2, 2)
    plain = LocalPeer()
    for seed in (1, 2):
        plain.micro_batch(2, seed)
    assert torch.equal(peer.values(), plain.values())
    assert not torch.equal(peer.values(), own)


def test_a_guess_takes_a_peers_part_of_the_target_batch_for_its_part_of_the_mean_whatever_it_counts_by() -> None:
    """Also where rounds have another batch than those with which this process began: 16 samples, not 4."""
    jumps, model = [], small_model()
    for weight, unit in (("samples", 16), ("batch", 16), ("samples", 4)):
        peer = LocalPeer(model=copy.deepcopy(model), unit=unit, overlap=True, merge="eager", weight=weight)
        for round in range(2):
            for step in range(4):
                peer.micro_batch(2, 10 * round + step)
            peer.seal()
            peer.micro_batch(2, 10 * round + 5)
            if round == 0:
                peer.strategy.note_round(2, 16)
                peer.absorb(torch.full((peer.replica.vector.numel,), 0.1))
        jumps.append(peer.strategy._guess.jump)  # type: ignore[attr-defined]
    for jump in jumps[1:]:
        torch.testing.assert_close(jumps[0], jump)


# ---- what peers share


def test_a_model_of_16_bits_that_took_no_step_moved_by_nothing() -> None:
    peer = LocalPeer(model=small_model(dtype=torch.bfloat16))
    for _ in range(3):
        peer.absorb(torch.full((peer.replica.vector.numel,), 1e-4), ABSENT)
    peer.strategy.count(1)
    delta, _ = peer.seal()
    assert delta is not None
    assert not delta.any()
    assert not torch.equal(peer.anchor, peer.values()), "what is shared has 32 bits"


def test_models_of_mixed_types_come_to_equal_states_and_so_does_a_joiner() -> None:
    peers = []
    for _ in range(2):
        model = small_model(dtype=torch.bfloat16)
        model[1].float()
        peers.append(LocalPeer(model=model))
    mean = torch.linspace(-0.01, 0.01, peers[0].replica.vector.numel)
    for peer in peers:
        peer.absorb(mean, ABSENT)
    snapshot = peers[0].replica.capture()
    model = small_model(1, dtype=torch.bfloat16)
    model[1].float()
    joiner = LocalPeer(model=model)
    joiner.replica.restore(snapshot)
    joiner.strategy.restored({e.name: each for e, each in snapshot.named_tensors()}, snapshot.step, None)
    for peer in (*peers, joiner):
        peer.absorb(mean, ABSENT)
    assert len({peer.replica.digest() for peer in (*peers, joiner)}) == 1


@pytest.mark.parametrize("merge", ["rebase", "eager"])
@pytest.mark.parametrize("fails", [False, True])
def test_what_buffers_move_while_an_inner_step_is_waited_for_counts_once(merge: str, *, fails: bool) -> None:
    """Three micro-batches come beside the round, the first attempt at which `fails` or not."""
    settings: dict[str, Any] = {**AVERAGING, "local_batch": 4, "overlap": True, "merge": merge}
    trainer = Trainer(Local, settings, has_buffer=True)
    one = (1.0, 1)
    trainer.feed(*4 * [one])
    mean = trainer.seal()[0].clone()
    trainer.feed(*3 * [one])
    if fails:
        trainer.take_back()
        mean = trainer.seal()[0].clone()
    trainer.absorb(mean)
    assert trainer.shared_count() == 4
    trainer.feed(one)
    trainer.absorb(trainer.seal()[0].clone())
    assert trainer.shared_count() == 8


def test_inner_gradients_are_clipped_each_by_itself() -> None:
    peer = LocalPeer()
    peer.replica.max_grad_norm = 0.01
    before = peer.values()
    peer.micro_batch(1, 1)
    peer.micro_batch(1, 1)
    assert float((peer.values() - before).norm()) == pytest.approx(2 * 0.01 * 0.1, rel=0.01)


# ---- what goes wrong


def test_a_model_that_is_no_number_any_more_is_left_out_and_goes_back_to_what_is_shared() -> None:
    peer = LocalPeer(make_optimizer=adamw)
    peer.micro_batch(2, 1)
    peer.replica.write_values(torch.full((peer.replica.vector.numel,), math.nan))
    with pytest.raises(NonFiniteError, match="after inner steps over 2 samples"):
        peer.seal()
    assert (peer.strategy.samples, peer.seal()) == (0, (None, 0))
    peer.absorb(torch.full((peer.replica.vector.numel,), 0.01), ABSENT)
    assert torch.equal(peer.values(), peer.anchor)
    peer.micro_batch(2, 1)
    delta, weight = peer.seal()
    assert delta is not None
    assert weight == 2
    assert delta.isfinite().all()


def test_gradients_of_a_large_layer_that_are_no_numbers_spoil_no_inner_step_of_several_micro_batches() -> None:
    peer = LocalPeer(model=torch.nn.Linear(300, 300, bias=False), local_batch=4)
    before = peer.values()
    for value, is_taken in ((1.0, True), (math.nan, False), (1.0, True)):
        peer.model.weight.grad = torch.full((300, 300), value)
        assert peer.strategy.micro_batch(2) is is_taken
        peer.replica.zero_grad()
    assert torch.equal(peer.values(), before - 0.1)


class Counting(torch.optim.SGD):
    """Counts its steps where learning rates are, as optimizers without a schedule do."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, lr=0.1)
        self.param_groups[0]["k"] = 0

    def step(self, closure: Any = None) -> Any:
        self.param_groups[0]["k"] += 1
        return super().step(closure)


@pytest.mark.parametrize("local_batch", [0, 2])
def test_an_optimizer_that_counts_its_steps_in_what_peers_share_is_refused(local_batch: int) -> None:
    """Peers that take 1 and 2 inner steps would have other states for ever, and fetch each other's."""
    peer = LocalPeer(make_optimizer=Counting, local_batch=local_batch)
    with pytest.raises(ConfigurationError, match="Counting changes k of its parameter groups at each step"):
        peer.micro_batch(2, 1)


def test_samples_beside_the_last_round_count_no_more_than_what_they_moved() -> None:
    """Where the end of a run is put off later, it goes on from what this peer had then."""
    peer = LocalPeer(overlap=True)
    peer.micro_batch(2, 1)
    peer.seal()
    peer.micro_batch(3, 2)
    peer.absorb(torch.zeros(peer.replica.vector.numel))
    assert peer.strategy.samples == 3
    peer.strategy.conclude()
    assert (peer.strategy.samples, peer.seal()) == (0, (None, 0))
    peer.micro_batch(2, 3)
    assert peer.seal()[1] == 2


@pytest.mark.parametrize("interrupted", ["accumulate", "step_by"])
def test_samples_count_with_the_inner_step_that_they_are_part_of(
    interrupted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else rounds would close by samples that moved nothing, and come to nothing where all peers have only such."""
    peer = LocalPeer(local_batch=4)
    counts = []
    for seed, samples in enumerate((3, 3, 2)):
        peer.micro_batch(samples, seed)
        counts.append(peer.strategy.samples)
    assert counts == [0, 6, 6]
    take_round([peer])
    assert peer.strategy.samples == 0
    with monkeypatch.context() as patch:
        patch.setattr(peer.replica, interrupted, Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            peer.micro_batch(3, 3)
    assert peer.strategy.samples == 0  # and the 2 that waited are gone
    peer.micro_batch(2, 4)
    local = {name: each.clone() for name, each in peer.strategy.local_tensors().items()}
    peer.strategy.restored(peer.strategy.shared_tensors(), peer.replica.step, local)
    assert peer.strategy.samples == 0
    peer.micro_batch(2, 5)
    assert (peer.strategy.samples, peer.seal()[1]) == (4, 4)


class PlainCount(torch.optim.Optimizer):
    """Keeps its momentum as a tensor and its steps as a whole number, as Adafactor of `transformers` does."""

    def __init__(self, parameters: list[torch.nn.Parameter]) -> None:
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            state = self.state[parameter]
            if not state:
                state.update(step=0, momentum=torch.zeros_like(parameter))
            state["step"] += 1
            state["momentum"].lerp_(parameter.grad, 1.0 / state["step"])
            parameter.sub_(state["momentum"], alpha=0.1)


@pytest.mark.parametrize("make_optimizer", [PlainCount, adamw])
@pytest.mark.parametrize("keeps", [True, False])
def test_inner_steps_go_on_after_another_state_was_fetched(make_optimizer: MakeOptimizer, keeps: bool) -> None:
    """Whatever the optimizer keeps: with all of it, or as a newcomer begins."""
    peer, other = LocalPeer(make_optimizer=make_optimizer), LocalPeer(make_optimizer=make_optimizer)
    if keeps:
        for each in (peer, other):
            each.micro_batch(2, 1)
    local = {name: each.clone() for name, each in peer.strategy.local_tensors().items()} if keeps else None
    snapshot = peer.replica.capture()
    peer.replica.restore(snapshot)
    peer.strategy.restored({entry.name: each for entry, each in snapshot.named_tensors()}, snapshot.step, local)
    for each in (peer, other):
        each.micro_batch(2, 2)
    assert torch.equal(peer.values(), other.values())


def test_a_peer_that_missed_rounds_keeps_what_it_moved_up_to_an_age() -> None:
    peer = LocalPeer(max_age=2, fragments=2)
    assert [peer.strategy.missed(rounds) for rounds in (1, 4, 5)] == [Recovery.REBASE, Recovery.REBASE, Recovery.FETCH]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"merge": "overwrite", "overlap": True}, "set overlap = false"),
        ({"merge": "eager"}, "set overlap = true"),
        ({"merge": "eager", "overlap": True, "fragments": 2}, "set fragments = 1"),
        ({"outer_momentum": 1.0}, "strategy.local.outer_momentum = 1.0: must be a number"),
        ({"outer_lerning_rate": 1.0}, "did you mean outer_learning_rate"),
        ({"merge": "rebased"}, "did you mean rebase"),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        _ = StrategyChoice("local", settings).facts
