"""Checks of the state that peers share, and of what one peer alone has."""

from __future__ import annotations

from typing import Any

import torch

from minga.averaging.codecs.residual import ContributionFate
from minga.testing.strategies.trainer import Trainer, facts_for
from minga.testing.violation import require
from minga.training.strategy.interface import Recovery, Strategy


def check_shared_part(kind: type[Strategy], **settings: Any) -> None:
    """Peers that absorb equal means are in equal states, whatever each computed and whether that is in the mean."""
    digests = []
    for fate, targets in (
        (ContributionFate.COUNTED, [(1.0, 2), (2.0, 3)]),
        (ContributionFate.COUNTED, [(5.0, 7)]),
        (ContributionFate.UNCOUNTED, [(3.0, 1)]),
        (ContributionFate.ABSENT, []),
    ):
        trainer = Trainer(kind, settings)
        for _ in range(2):
            trainer.pull(*targets)
            trainer.strategy.close()
            trainer.strategy.contribution()
            trainer.absorb(trainer.mean(), fate)
            trainer.pull((2.5, 1))
        digests.append(trainer.replica.digest())
    require(len(set(digests)) == 1, kind, "what peers share depends on more than the mean and the round")


def check_parts_of_the_state(kind: type[Strategy], **settings: Any) -> None:
    """Shared and local tensors have different names; with both a peer goes on to the bit, with the first it joins."""
    first = Trainer(kind, settings, has_buffer=True)
    first.pull((1.0, 2), (2.0, 3))
    mean = first.seal()[0].clone()
    first.absorb(mean)
    if first.strategy.local_tensors():
        first.pull((5.0, 1))
    local = {name: tensor.clone() for name, tensor in first.strategy.local_tensors().items()}
    snapshot = first.replica.capture()
    shared = {entry.name: tensor for entry, tensor in snapshot.named_tensors()}
    require(not shared.keys() & local.keys(), kind, "a tensor is both shared and local")
    again, joiner = (Trainer(kind, settings, has_buffer=True) for _ in range(2))
    for trainer, own in ((again, local), (joiner, None)):
        trainer.replica.restore(snapshot)
        trainer.strategy.restored(shared, snapshot.step, own)
        require(trainer.replica.digest() == first.replica.digest(), kind, "a restored state has another digest")
    require(joiner.strategy.samples == 0, kind, "a newcomer has samples")
    contributions = []
    for trainer in (first, again):
        trainer.pull((3.0, 2))
        contributions.append(trainer.seal())
    same = torch.equal(contributions[0][0], contributions[1][0]) and contributions[0][1] == contributions[1][1]
    require(same, kind, "after both parts of its state were restored it contributed something else")
    for trainer in (first, again, joiner):
        trainer.absorb(trainer.mean())
    digests = {trainer.replica.digest() for trainer in (first, again, joiner)}
    require(len(digests) == 1, kind, "a restored peer and a newcomer are in other states after a round")


def check_missed_rounds(kind: type[Strategy], **settings: Any) -> None:
    """A peer that missed 1, 2 or 20 rounds, and does as it says, has the digest of the others."""
    for rounds in (1, 2, 20):
        others, late = Trainer(kind, settings), Trainer(kind, settings)
        late.pull((5.0, 2))
        for _ in range(rounds):
            others.pull((1.0, 2))
            others.absorb(others.seal()[0].clone())
        recovery = late.strategy.missed(rounds)
        require(isinstance(recovery, Recovery), kind, f"missed({rounds}) is {recovery}")
        rebases = recovery is Recovery.REBASE
        local = {name: each.clone() for name, each in late.strategy.local_tensors().items()} if rebases else None
        snapshot = others.replica.capture()
        late.replica.restore(snapshot)
        late.strategy.restored({entry.name: each for entry, each in snapshot.named_tensors()}, snapshot.step, local)
        same = late.replica.digest() == others.replica.digest()
        require(same, kind, f"after {rounds} missed rounds it is in another state than the others")


def check_dtypes(kind: type[Strategy], **settings: Any) -> None:
    """Parameters of 16 bits, or of several dtypes, are trained as well, and equal means lead to equal states."""
    for dtypes in ((torch.bfloat16,) * 3, (torch.bfloat16, torch.float32, torch.float64)):
        source = Trainer(kind, settings, dtypes=dtypes)
        source.pull((1.0, 2))
        mean = source.seal()[0].clone()
        require(mean.dtype is torch.float32, kind, f"it contributes {mean.dtype}")
        other = Trainer(kind, settings, dtypes=dtypes)
        for trainer in (source, other):
            trainer.absorb(mean)
        require(source.replica.digest() == other.replica.digest(), kind, f"with {dtypes} equal means lead apart")


def check_conclusion(kind: type[Strategy], **settings: Any) -> None:
    """At the end of a run the replica has the parameters that all share, and no state changes."""
    trainer = Trainer(kind, settings)
    trainer.pull((1.0, 2))
    trainer.absorb(trainer.seal()[0].clone())
    digest = trainer.replica.digest()
    trainer.strategy.conclude()
    tensors = trainer.strategy.shared_tensors()
    shared = torch.cat([tensor.float() for name, tensor in tensors.items() if name.startswith("model/")])
    require(torch.equal(trainer.values(), shared), kind, "a run ended with other parameters than those of all")
    require(trainer.replica.digest() == digest, kind, "the end of a run changed what peers share")


def check_fragments(kind: type[Strategy], **settings: Any) -> None:
    """As many rounds as there are fragments carry each parameter once, in the same order ever after, and change all."""
    facts, trainer = facts_for(kind, settings), Trainer(kind, settings)
    layouts = [trainer.replica.layout_of(step) for step in range(2 * facts.fragments)]
    names = [layout.fingerprint for layout in layouts]
    require(names == 2 * names[: facts.fragments], kind, "its rounds carry other vectors each time")
    if facts.payload == "coefficients":
        return
    vector = trainer.replica.vector
    tail, whole = vector.numel - vector.parameters_numel, vector.parameters_numel
    carried = sum(layout.total - tail for layout in layouts) / 2
    require(carried == whole, kind, f"as many rounds as it has fragments carry {carried:g} of {whole} elements")
    if facts.payload == "parameters":
        return
    for _ in range(facts.fragments):
        trainer.absorb(trainer.mean(), ContributionFate.ABSENT)
    shared = [each for name, each in trainer.strategy.shared_tensors().items() if name.startswith("model/")]
    changed = all(bool((each != 8.0).all()) for each in shared)
    require(changed, kind, "rounds of all its fragments left shared parameters as they were")


def check_schedule(kind: type[Strategy], **settings: Any) -> None:
    """The learning rate follows from the round, however many micro-batches a peer computes."""
    for micro_batches in (1, 4):
        trainer = Trainer(kind, settings, is_scheduled=True)
        for round in (1, 2, 3):
            trainer.pull(*[(1.0, 1)] * micro_batches)
            trainer.strategy.close()
            trainer.strategy.contribution()
            rate = trainer.replica.optimizer.param_groups[0]["lr"]
            require(rate == 0.5 / round, kind, f"in round {round} its learning rate is {rate}, not {0.5 / round}")
            trainer.absorb(trainer.mean())
