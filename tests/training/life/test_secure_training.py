"""Runs with security.verification = "byzantine" through `minga.Optimizer`: real peers of this process over iroh."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch
from torch import nn

import minga
from minga.core.events.bus import Event
from minga.identity.keys.keys import Identity
from minga.network.interface import PeerId
from minga.security.protocol.behaviour import Behaviour, Seeds
from minga.security.randomness.public_batch import PublicBatch
from minga.simulation.attacks.protocol_attacks import Equivocation
from minga.training.life.founding import Genesis
from minga.training.life.verified_member import VerifiedBackend, evidence_file, genesis_file
from tests.worlds.cli_run import run

SAMPLES = 64
STEPS = 4
HANGS_S = 200.0
"""Far more than any test here takes on a slow and busy machine: it only ends one that hangs."""
CENTRES = torch.randn(SAMPLES, 6, generator=torch.Generator().manual_seed(1))
WANTED = CENTRES @ torch.randn(6, 3, generator=torch.Generator().manual_seed(2))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def make_spec(*, founders: int = 3, steps: int = STEPS, **more: Any) -> minga.RunSpec:
    return minga.RunSpec.from_mapping(
        {
            "name": "strangers",
            "model": {"recipe": "custom"},
            "training": {"target_batch_size": 8 * founders, "stop_after_steps": steps},
            "averaging": {"codec": "float32"},
            "checkpoints": {"every_steps": 0},
            "security": {
                "verification": "byzantine",
                "founders": founders,
                "micro_batch_size": 4,
                "peers_per_validator": 2,
                **more,
            },
        }
    )


class Trainer:
    """One peer in a thread of its own, as a program would have it."""

    def __init__(self, peer: minga.Peer, behaviour: Behaviour | None = None) -> None:
        self.peer = peer
        self.events: list[Event] = []
        self.error: BaseException | None = None
        self.digest, self.seeds = "", list[bytes]()
        self.model = nn.Linear(6, 3)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.fill_(0.1)
        peer.subscribe(self.events.append)
        if behaviour is not None:
            peer.on_loop(lambda: setattr(peer.session, "behaviour", behaviour))
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            inner = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
            optimizer = minga.Optimizer(inner, self.peer, model=self.model)
            for batch in optimizer.batches():
                self.seeds.append(batch.seed)
                self.loss(batch).backward()
                optimizer.step(samples=batch.size)
                optimizer.zero_grad()
            self.digest = optimizer.digest()
        except BaseException as error:
            self.error = error

    def loss(self, batch: PublicBatch) -> torch.Tensor:
        chosen = torch.from_numpy(batch.indices(SAMPLES))
        return (self.model(CENTRES[chosen]) - WANTED[chosen]).square().mean()

    def of(self, kind: str) -> list[Event]:
        return [event for event in list(self.events) if event.kind == kind]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Trainer]]:
    """Makes trainers; the first one hosts."""
    trainers: list[Trainer] = []

    def make(spec: minga.RunSpec, behaviour: Behaviour | None = None) -> Trainer:
        directory = tmp_path / str(len(trainers))
        directory.mkdir()
        options = minga.PeerOptions(identity=directory / "key", directory=directory, host="127.0.0.1")
        link = trainers[0].peer.link if trainers else None
        peer = minga.join(link, options) if link else minga.host(spec, options)
        trainers.append(Trainer(peer, behaviour))
        return trainers[-1]

    yield make
    for trainer in trainers:
        trainer.peer.close()
        trainer.thread.join(10)


def join_all(trainers: list[Trainer]) -> None:
    until = time.monotonic() + HANGS_S
    for trainer in trainers:
        trainer.thread.join(until - time.monotonic())
        assert not trainer.thread.is_alive()


def test_founders_of_an_organiser_that_only_looks_on_train_together_and_end_in_the_same_bits(tmp_path: Path) -> None:
    options = minga.PeerOptions("monitor", ephemeral=True, directory=tmp_path / "organiser", host="127.0.0.1")
    with minga.host(make_spec(), options) as organiser:
        peers = [
            minga.join(organiser.link, replace(options, role="trainer", directory=tmp_path / f"peer-{index}"))
            for index in range(3)
        ]
        trainers = [Trainer(peer) for peer in peers]
        join_all(trainers)
        for peer in peers:
            peer.close()
    assert [trainer.error for trainer in trainers] == [None] * 3
    assert len({trainer.digest for trainer in trainers}) == 1
    first, last = (float((nn.functional.linear(CENTRES, *p) - WANTED).square().mean()) for p in _ends(trainers[0]))
    assert last < first
    for trainer in trainers:
        assert [event.fields["step"] for event in trainer.of("step.applied")] == list(range(1, STEPS + 1))
        assert not trainer.of("secure.banned")
    ready = [event.fields["ready"] for event in trainers[0].of("secure.waiting")]
    assert ready
    assert all(number != other for number, other in pairwise(ready)), "each number is told once"
    seeds = [seed for trainer in trainers for seed in trainer.seeds]
    assert len(set(seeds)) < len(seeds)  # somebody computed again what somebody else had


def test_a_founder_whose_last_step_went_wrong_ends_in_the_bits_of_the_others(
    start: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No commitment follows that would show it."""
    wrong, apply = set[PeerId](), VerifiedBackend.apply

    async def miscount(work: VerifiedBackend, step: int, mean: torch.Tensor) -> None:
        is_wrong = step == STEPS - 1 and work._node.peer_id in wrong
        await apply(work, step, mean + 1.0 if is_wrong else mean)

    monkeypatch.setattr(VerifiedBackend, "apply", miscount)
    spec = make_spec()
    trainers = [start(spec) for _ in range(2)]
    wrong.add(trainers[1].peer.peer_id)
    trainers.append(start(spec))
    join_all(trainers)
    assert [trainer.error for trainer in trainers] == [None] * 3
    assert [len(trainer.of("member.diverged")) for trainer in trainers] == [0, 1, 0]
    assert len({trainer.digest for trainer in trainers}) == 1


def _ends(trainer: Trainer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(torch.full((3, 6), 0.1), torch.full((3,), 0.1)), (trainer.model.weight.data, trainer.model.bias.data)]


def test_a_hostile_member_is_banned_by_all_and_told_why(start: Callable[..., Trainer]) -> None:
    spec = make_spec(founders=4, steps=5)
    trainers = [start(spec) for _ in range(3)]
    hostile = start(spec, Equivocation(2))
    join_all([*trainers, hostile])
    assert [trainer.error for trainer in trainers] == [None] * 3
    assert isinstance(hostile.error, minga.RemoteError)
    assert "two different statements" in str(hostile.error)
    bans = {tuple((e.fields["peer"], e.fields["step"]) for e in t.of("secure.banned")) for t in trainers}
    assert len(bans) == 1
    assert [peer for peer, _ in bans.pop()] == [hostile.peer.peer_id]
    assert len({trainer.digest for trainer in trainers}) == 1
    check_evidence(trainers[0].peer, hostile.peer.peer_id)


def check_evidence(witness: minga.Peer, hostile: str) -> None:
    """Anybody who has the folder can check it, and notices if it was doctored."""
    directory, path = witness.directory, evidence_file(witness.directory, witness.peer_id)
    shutil.copy(path, evidence_file(directory, PeerId("f" * 64)))  # another peer of this machine, whose genesis is lost
    code, lines = minga_command("runs", "verify", str(directory), "--json")
    first, second = sorted(lines[-1]["logs"], key=lambda log: log["founders"] is None)
    assert (code, lines[-1]["ok"], second["wrong"], second["members"]) == (1, False, [], None)
    assert (first["cases"], first["wrong"], first["entered"]) == (1, [], None)
    assert [line["peer"] for line in lines if line.get("event") == "case"] == [hostile] * 2
    assert len(first["founders"]) == len(first["members"]) + 1
    evidence_file(directory, PeerId("f" * 64)).unlink()
    assert "was banned: it signed two different statements" in run("runs", "verify", str(directory)).stdout
    code, lines = minga_command("runs", "verify", str(directory), "--json")
    assert (code, lines[-1]["ok"], len(lines[-1]["logs"])) == (0, True, 1)
    assert genesis_file(directory, witness.peer_id).exists()
    whole = path.read_bytes()
    for at in (3, len(whole) // 2):  # the length of a record, and a case
        doctored = bytearray(whole)
        doctored[at] ^= 1
        path.write_bytes(doctored)
        code, lines = minga_command("runs", "verify", str(directory), "--json")
        assert (code, lines[-1]["ok"]) == (1, False)
        assert lines[-1]["logs"][0]["wrong"]


def minga_command(*words: str) -> tuple[int, list[dict[str, Any]]]:
    done = run(*words)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def test_programs_that_choose_their_own_data_are_told_so(start: Callable[..., Trainer], tmp_path: Path) -> None:
    class Own(Trainer):
        errors: ClassVar[list[str]] = []

        def _run(self) -> None:
            optimizer = minga.Optimizer(torch.optim.SGD(self.model.parameters(), lr=0.1), self.peer, model=self.model)
            self.model(CENTRES).sum().backward()
            for attempt in (lambda: optimizer.step(samples=SAMPLES), lambda: optimizer.follow(0.1)):
                try:
                    attempt()
                except minga.ConfigurationError as error:
                    self.errors.append(str(error))

    peer = minga.host(make_spec(), minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1"))
    trainer = Own(peer)
    trainer.thread.join(20)
    peer.close()
    own, following = trainer.errors
    assert "optimizer.batches()" in own
    assert "owes gradients" in following


def test_batches_are_for_byzantine_runs_only(tmp_path: Path) -> None:
    spec = minga.RunSpec.from_mapping({"name": "open", "model": {"recipe": "custom"}})
    with minga.host(spec, minga.PeerOptions(ephemeral=True, directory=tmp_path, host="127.0.0.1")) as peer:
        model = nn.Linear(2, 2)
        optimizer = minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)
        with pytest.raises(minga.ConfigurationError, match="byzantine"):
            next(optimizer.batches())


def test_who_cannot_be_dialled_is_told_so(start: Callable[..., Trainer], tmp_path: Path) -> None:
    first = start(make_spec())
    options = minga.PeerOptions("client", ephemeral=True, directory=tmp_path / "c", host="127.0.0.1")
    with minga.join(first.peer.link, options) as peer:
        model = nn.Linear(6, 3)
        with pytest.raises(minga.ConfigurationError, match="can be dialled"):
            minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), peer, model=model)


@pytest.mark.parametrize(
    ("norm", "why"),
    [(nn.BatchNorm1d(3), "the buffers of this model move"), (nn.LazyBatchNorm1d(affine=False), "a lazy layer")],
)
def test_buffers_that_move_with_what_one_peer_computed_are_refused(
    start: Callable[..., Trainer], norm: nn.Module, why: str
) -> None:
    """Those of a lazy norm were looked at before it was refused, and torch raised its own error."""
    first = start(make_spec(founders=2))
    model = nn.Sequential(nn.Linear(6, 3), norm)
    with pytest.raises(minga.ConfigurationError, match=why):
        minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), first.peer, model=model)


@pytest.mark.filterwarnings("ignore:.*spectral_norm.*deprecated:FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.spectral_norm, nn.utils.parametrizations.spectral_norm])
def test_spectral_norms_are_refused(start: Callable[..., Trainer], normed: Callable[[nn.Module], nn.Module]) -> None:
    """Their vectors follow what one peer computed: with `training.buffers = "local"` honest peers were banned."""
    first = start(make_spec(founders=2))
    model = nn.Sequential(normed(nn.Linear(6, 3)), nn.Linear(3, 3))
    with pytest.raises(minga.ConfigurationError, match=r"^`0[.a-z0]*` has a spectral norm"):
        minga.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), first.peer, model=model)


# ---- the genesis


def test_a_genesis_holds_for_its_run_and_organiser_only() -> None:
    organiser, other = Identity.generate(), Identity.generate()
    founders = [PeerId(Identity.generate().peer_id) for _ in range(3)]
    genesis = Genesis.sign("run", founders, "5" * 64, organiser)
    assert genesis.holds("run", organiser.peer_id)
    assert not genesis.holds("other run", organiser.peer_id)
    assert not genesis.holds("run", other.peer_id)
    more = msgspec.structs.replace(genesis, founders=(*genesis.founders, other.peer_id))
    assert not more.holds("run", organiser.peer_id)
    assert not msgspec.structs.replace(genesis, state="6" * 64).holds("run", organiser.peer_id)
    assert not Genesis.sign("run", [*founders, founders[0]], "5" * 64, organiser).holds("run", organiser.peer_id)


# ---- gradients of the past


def test_validators_compute_at_the_parameters_of_the_past_and_go_on_with_the_present_ones(
    start: Callable[..., Trainer],
) -> None:
    class Nosy(Behaviour):
        """Computes again what it did two steps ago, each time."""

        def __init__(self) -> None:
            self.sent: list[tuple[bytes, torch.Tensor]] = []
            self.again: list[torch.Tensor] = []

        async def gradient(self, work: Any, step: int, seeds: Seeds) -> torch.Tensor:
            gradient = await super().gradient(work, step, seeds)
            self.sent.append((seeds.own, gradient))
            if step >= 2 and len(self.sent) == step + 1:
                self.again.append(await work.gradient(step - 2, self.sent[step - 2][0]))
            return gradient

    nosy = Nosy()
    spec = make_spec(founders=2, steps=5, peers_per_validator=65_536)
    trainers = [start(spec, nosy), start(spec)]
    join_all(trainers)
    assert [trainer.error for trainer in trainers] == [None, None]
    assert len({trainer.digest for trainer in trainers}) == 1
    for (_, sent), again in zip(nosy.sent, nosy.again, strict=False):
        assert torch.equal(sent, again)
