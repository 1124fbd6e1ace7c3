"""What one peer alone has comes back after a kill, bit for bit; or not at all."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import msgspec
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.residual import KeptResidual, RoundVectors
from minga.core.errors import ClosedError, StorageError
from minga.core.files import replacing
from minga.core.spec.run_spec import RunSpec
from minga.network.interface import PeerId
from minga.training.bridge.gradient_port import GradientPort
from minga.training.state import checkpoints, own_state
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.own_state import OwnState, OwnStateFile
from minga.training.state.snapshot import StateSnapshot
from tests.worlds import forked, own_state_run
from tests.worlds.loudest_codec import ENTRY
from tests.worlds.own_state_run import CHECKPOINT_EVERY, LAST, begin, train, train_with_checkpoints

ME, STEP, LIMIT = PeerId("a" * 64), 7, 1 << 16
ROUNDS = "7" * 32
SPEC = RunSpec.from_mapping({"name": "own"})
STRATEGY = SPEC.training.strategy


def file_in(folder: Path, *, spec: RunSpec = SPEC, vector: str = "a vector") -> OwnStateFile:
    return OwnStateFile(folder, ME, spec, vector)


def state(*, is_final: bool = False) -> OwnState:
    generator = torch.Generator().manual_seed(1)
    return OwnState(
        STEP,
        ROUNDS,
        is_final,
        STRATEGY,
        {"optimizer/weight/exp_avg": torch.randn(3, 2, generator=generator), "samples": torch.tensor(12)},
        {"f1": KeptResidual(6, torch.randn(40, generator=generator)), "f2": KeptResidual(3, torch.ones(9))},
        {"f1": KeptResidual(5, torch.randn(20, generator=generator))},
    )


@pytest.mark.parametrize("is_final", [False, True])
def test_it_comes_back_bit_for_bit(is_final: bool, tmp_path: Path) -> None:
    kept = state(is_final=is_final)
    file_in(tmp_path).save(OwnState(STEP - 1, ROUNDS, is_final, STRATEGY))
    file_in(tmp_path).save(kept)
    read = file_in(tmp_path).load(STEP, ROUNDS, LIMIT, STRATEGY)
    assert read is not None
    assert (read.step, read.is_final) == (STEP, is_final)
    assert read.local.keys() == kept.local.keys()
    assert all(torch.equal(read.local[name], kept.local[name]) for name in kept.local)
    pairs = [
        (read.left_out["f1"], kept.left_out["f1"]),
        *((read.residuals[name], kept.residuals[name]) for name in ("f1", "f2")),
    ]
    assert all(one.step == other.step and torch.equal(one.mass, other.mass) for one, other in pairs)
    assert [path.name for path in tmp_path.iterdir()] == [file_in(tmp_path).path.name]


def test_what_a_killed_process_had_begun_to_write_takes_no_room_for_ever(tmp_path: Path) -> None:
    file = file_in(tmp_path)
    with contextlib.suppress(KeyboardInterrupt), replacing(file.path) as partial:
        partial.write_bytes(b"half of it")
        left = [partial.with_name(partial.name.replace(str(os.getpid()), number)) for number in ("1", "2")]
        for path in left:
            path.write_bytes(partial.read_bytes())
        raise KeyboardInterrupt
    other = tmp_path / f"own-{16 * 'b'}.safetensors.1-2.part"
    other.write_bytes(b"")
    assert file.load(STEP, ROUNDS, LIMIT, STRATEGY) is None
    assert list(tmp_path.iterdir()) == [other]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-5])


def _flip(path: Path) -> None:
    body = bytearray(path.read_bytes())
    body[-5] ^= 64
    path.write_bytes(body)


def _tensors_of(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt", device="cpu") as file:
        return {name: file.get_tensor(name) for name in file.keys()}, msgspec.json.decode(file.metadata()["minga"])  # noqa: SIM118


def _write(path: Path, tensors: dict[str, torch.Tensor], header: dict[str, Any]) -> None:
    header["blake3"] = own_state._hash_of(tensors)
    save_file(tensors, path, metadata={"minga": msgspec.json.encode(header).decode()})


def _not_finite(path: Path) -> None:
    tensors, header = _tensors_of(path)
    tensors["residual/f1"][3] = torch.nan
    _write(path, tensors, header)


def _of_later(path: Path) -> None:
    tensors, header = _tensors_of(path)
    header["residual_steps"]["residual/f1"] = STEP
    _write(path, tensors, header)


def _of_another_kind(path: Path) -> None:
    tensors, header = _tensors_of(path)
    _write(path, {**tensors, "moments": torch.ones(2)}, header)


DAMAGE: list[Callable[[Path], object]] = [
    _cut,
    _flip,
    _not_finite,
    _of_later,
    _of_another_kind,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\xff" * 300),
    lambda path: path.write_bytes(bytes(LIMIT + own_state.MAX_HEADER_BYTES + 1)),
    lambda path: save_file({"sketch": torch.ones(2)}, path),
]


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_dropped_with_one_line(
    damage: Callable[[Path], object], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = file_in(tmp_path)
    file.save(state())
    damage(file.path)
    assert file.load(STEP, ROUNDS, LIMIT, STRATEGY) is None
    assert [record.getMessage().count("is not used") for record in caplog.records] == [1]
    assert file.load(STEP, ROUNDS, LIMIT, STRATEGY) is None
    assert len(caplog.records) == 1


@pytest.mark.parametrize(
    ("spec", "vector", "step", "rounds", "why"),
    [
        (RunSpec.from_mapping({"name": "another"}), "a vector", STEP, ROUNDS, "of another run"),
        (
            RunSpec.from_mapping({"name": "own", "training": {"strategy": "delayed"}}),
            "a vector",
            STEP,
            ROUNDS,
            "of another",
        ),
        (SPEC, "another vector", STEP, ROUNDS, "another model"),
        (SPEC, "a vector", STEP + 1, ROUNDS, "it is of step 7, and the state here is of step 8"),
        (SPEC, "a vector", STEP, "8" * 32, "other rounds led to its state"),
    ],
)
def test_a_stale_file_is_dropped_with_one_line(
    spec: RunSpec, vector: str, step: int, rounds: str, why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file_in(tmp_path).save(state())
    assert file_in(tmp_path, spec=spec, vector=vector).load(step, rounds, LIMIT, spec.training.strategy) is None
    assert why in caplog.text
    assert len(caplog.records) == 1


def test_a_file_of_a_newer_minga_stays_for_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_in(tmp_path)
    with monkeypatch.context() as newer:
        newer.setattr(own_state, "FORMAT", own_state.FORMAT + 1)
        file.save(state())
    with pytest.raises(StorageError, match="is of a newer minga"):
        file.load(STEP, ROUNDS, LIMIT, SPEC.training.strategy)
    assert file.path.exists()


def test_a_full_disk_leaves_the_last_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = file_in(tmp_path)
    file.save(state())

    def full(file: IO[bytes], *_: object) -> None:
        file.write(b"half of it")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(own_state, "write_tensors", full)
    with pytest.raises(StorageError, match="No space left"):
        file.save(OwnState(STEP + 2, ROUNDS, is_final=False, strategy=STRATEGY))
    assert file.load(STEP, ROUNDS, LIMIT, STRATEGY) is not None
    assert len(list(tmp_path.iterdir())) == 1


def test_residuals_come_back_with_the_rounds_of_their_vector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CODECS._builtin, "loudest", ENTRY)
    layout = VectorLayout((40,), "loudest", "float32")
    vectors, again = (RoundVectors(lambda _: layout, torch.zeros) for _ in range(2))
    residual = vectors.residual(3)
    assert residual is not None
    encoder = residual.seal(torch.linspace(-1, 1, 40), 2, 3)
    assert vectors.left_out.kept(4) is None, "a round runs"
    encoder.settle([(chunk, True) for chunk in layout.chunks(0, 40, 100)], torch.zeros(40))
    assert vectors.left_out.kept(3) is None, "it goes with the state after the round"
    kept = vectors.left_out.kept(4)
    assert kept is not None
    again.left_out.restore(kept)
    restored = again.residual(4)
    assert restored is not None
    assert restored.mass.any()
    assert torch.equal(restored.mass, residual.mass)
    assert restored.step == 3
    other = RoundVectors(lambda _: layout, torch.zeros)
    other.left_out.restore({layout.fingerprint: KeptResidual(3, torch.ones(41))})
    fresh = other.residual(4)
    assert fresh is not None
    assert not fresh.mass.any(), "it is of another length"


@pytest.fixture
def installed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    own_state_run.install()
    yield
    own_state_run.uninstall()
    torch.set_num_threads(threads)


def values(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("kind", "step"), [("sketch", 4), ("strategy", 4), ("local", 3)])
def test_a_killed_peer_goes_on_as_if_it_had_not_been_killed(
    kind: str, step: int, tmp_path: Path, installed: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The child is killed one step after a checkpoint: one of every second step, as the run spec asks for, or of every
    third, to which its organiser amends that. Another process ends where an undisturbed one does, bit for bit; and
    somewhere else, with a line in the log, if the file of its own is garbage.
    """
    folder = tmp_path / "peer"
    folder.mkdir()
    every_steps = () if step == 4 else (str(step),)
    child = forked.run("-m", "tests.worlds.own_state_run", str(folder), kind, str(step), *every_steps)
    assert child.returncode == -signal.SIGKILL, child.stderr
    subprocess.run(["cp", "-r", str(folder), str(tmp_path / "damaged")], check=True)
    (tmp_path / "undisturbed").mkdir()
    ends = {}
    for name in ("undisturbed", "peer", "damaged"):
        if name == "damaged":
            (file,) = (tmp_path / name).rglob("own-*.safetensors")
            file.write_bytes(b"garbage")
        peer, optimizer, model = begin(tmp_path / name, kind)
        with peer:
            assert optimizer.global_step == (0 if name == "undisturbed" else step)
            train(optimizer, model, LAST)
            ends[name] = values(model)
        assert ("is not used" in caplog.text) == (name == "damaged")
    assert all(map(torch.equal, ends["peer"], ends["undisturbed"]))
    assert not all(map(torch.equal, ends["damaged"], ends["undisturbed"]))


def test_a_disk_that_refuses_does_not_stop_training(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: OwnStateFile, state: OwnState) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(OwnStateFile, "save", full)
    peer, optimizer, model = begin(tmp_path, "sketch")
    failed: list[int] = []
    peer.subscribe(lambda event: failed.append(int(str(event.fields["step"]))) if "failed" in event.kind else None)
    with peer:
        train_with_checkpoints(peer, optimizer, model, LAST)
        assert optimizer.global_step == LAST
        assert peer.newest_checkpoint() is not None
    assert len(failed) >= LAST // CHECKPOINT_EVERY
    assert not list(tmp_path.rglob("own-*.safetensors"))


def test_a_disk_that_is_full_is_told_with_what_is_lost_once_for_each_cause(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An own loop shows no events: so a person has to read it in the log."""
    write = checkpoints.write_checkpoint

    def full(folder: Path, snapshot: StateSnapshot, *rest: Any) -> None:
        if snapshot.step != 6:
            raise OSError(28, "No space left on device", str(folder))
        write(folder, snapshot, *rest)

    monkeypatch.setattr(checkpoints, "write_checkpoint", full)
    peer, optimizer, model = begin(tmp_path, "sketch")
    failed: list[int] = []
    peer.subscribe(lambda event: failed.append(int(str(event.fields["step"]))) if "failed" in event.kind else None)
    with peer:
        train_with_checkpoints(peer, optimizer, model, LAST)
    assert failed[-3:] == [2, 4, 8]  # that of step 0 may fail before anybody listens
    first, again, last = [record.getMessage() for record in caplog.records]
    assert "no checkpoint of step 0" in first
    assert "all steps are lost" in first
    assert again == "checkpoints are written again, from step 6 on"
    assert "no checkpoint of step 8" in last, "that of the run's end"
    assert "all steps after 6 are lost" in last


def test_a_checkpoint_that_is_written_for_long_has_what_belongs_to_its_own_step(
    tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    save, goes_on = CheckpointStore.save, threading.Event()

    def slowly(self: CheckpointStore, snapshot: StateSnapshot, *rest: Any, **named: Any) -> Path:
        assert snapshot.step == 0 or goes_on.wait(60)
        return save(self, snapshot, *rest, **named)

    monkeypatch.setattr(CheckpointStore, "save", slowly)
    peer, optimizer, model = begin(tmp_path, "local")
    with peer:
        peer.checkpointer.wait()  # for that of the founding: while it is written, none of a step is due
        train(optimizer, model, 2 * CHECKPOINT_EVERY + 1)
        goes_on.set()
        peer.checkpointer.wait()
        checkpoint, own = peer.newest_checkpoint(), peer.checkpointer._own
        assert checkpoint is not None
        assert checkpoint.step == CHECKPOINT_EVERY
        assert own is not None
        rounds, strategy = checkpoint.lineage.rounds, peer.spec.training.strategy
        assert own.file.load(CHECKPOINT_EVERY, rounds, 1 << 16, strategy) is not None


@pytest.mark.parametrize("kind", own_state_run.KINDS)
def test_a_polite_end_writes_the_last_one(kind: str, tmp_path: Path, installed: None) -> None:
    """At a step of which the run spec asks for no checkpoint; the program writes one before it closes the peer."""
    peer, optimizer, model = begin(tmp_path, kind)
    with peer:
        train(optimizer, model, 5)
        optimizer.save_checkpoint()
        left_out = optimizer._replica.left_out.kept(optimizer._replica.step)
    peer, optimizer, model = begin(tmp_path, kind)
    with peer:
        assert optimizer.global_step == 5
        again, rounds = optimizer._replica.left_out.kept(optimizer._replica.step), optimizer._replica.lineage.rounds
        assert again.keys() == left_out.keys()
        assert bool(again) == (kind == "sketch")
        assert all(torch.equal(each.mass, left_out[name].mass) for name, each in again.items())
        assert peer.session.member is not None
        assert not peer.session.member.in_doubt  # type: ignore[union-attr]
        train(optimizer, model, 6)  # rounds may have counted what was in the file
        assert peer.checkpointer._own is not None
        on_disk = peer.checkpointer._own.file.load(5, rounds, 1 << 16, peer.spec.training.strategy)
        assert on_disk is None or not on_disk.is_final


@pytest.mark.parametrize("amid", ["work", "a micro-batch", "an interrupted micro-batch", "training on another thread"])
def test_an_end_amid_something_keeps_nobody_waiting_and_writes_none(
    amid: str, tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal handler of the program closes the peer, or the thread that made the optimizer and does not train."""
    save, finals, trained, closed = OwnStateFile.save, list[OwnState](), threading.Event(), threading.Event()

    def watch(self: OwnStateFile, state: OwnState) -> None:
        save(self, state)
        finals.extend([state] if state.is_final else [])

    monkeypatch.setattr(OwnStateFile, "save", watch)
    peer, optimizer, model = begin(tmp_path, "strategy")
    port = optimizer._port
    assert isinstance(port, GradientPort)

    def end(*_: object) -> bool:
        peer.close()
        return False

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    def train_on() -> None:
        train(optimizer, model, 5)
        optimizer.save_checkpoint()
        with contextlib.suppress(ClosedError):
            if amid == "work":
                peer.on_loop(partial(port.request, "restore", end))
                optimizer.follow(60.0)
            elif amid == "a micro-batch":
                monkeypatch.setattr(port._strategy, "micro_batch", end)
                train(optimizer, model, 6)
            elif amid == "an interrupted micro-batch":
                monkeypatch.setattr(port._strategy, "micro_batch", interrupt)
                with contextlib.suppress(KeyboardInterrupt):
                    train(optimizer, model, 6)
                peer.close()
        trained.set()
        closed.wait(60.0)

    thread = threading.Thread(target=train_on, daemon=True)
    thread.start()
    assert trained.wait(60.0)
    peer.close()
    closed.set()
    thread.join()
    assert finals == []


def test_what_is_of_another_history_is_not_used(
    tmp_path: Path, installed: None, caplog: pytest.LogCaptureFixture
) -> None:
    """The peer gave way to a history with the same step, and was killed after the checkpoint of that was written."""
    peer, optimizer, model = begin(tmp_path, "sketch")
    with peer:
        train(optimizer, model, 5)
        optimizer.save_checkpoint()
        assert optimizer._replica.left_out.kept(optimizer._replica.step)
    (folder,) = tmp_path.rglob("checkpoints")
    store = CheckpointStore(folder)
    checkpoint = store.load()
    assert checkpoint is not None
    state = checkpoint.snapshot
    store.save(state.of(state.lineage.after("another round", [ME])))
    peer, optimizer, model = begin(tmp_path, "sketch")
    with peer:
        assert optimizer.global_step == 5
        assert not optimizer._replica.left_out.kept(optimizer._replica.step)
    assert "other rounds led to its state than to the one here" in caplog.text


@pytest.mark.parametrize("removable", [True, False])
def test_a_final_file_that_cannot_be_written_anew_counts_once_at_most(
    removable: bool, tmp_path: Path, installed: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The disk is read-only when the peer comes back. Where the file can at least be removed it is used; where it
    cannot, it goes on being final, so a peer that is killed would use it again: this one goes on without.
    """
    peer, optimizer, model = begin(tmp_path, "sketch")
    with peer:
        train(optimizer, model, 5)
        optimizer.save_checkpoint()
    (file,) = tmp_path.rglob("own-*.safetensors")
    unlink = Path.unlink

    def refused(self: OwnStateFile, state: OwnState) -> None:
        raise StorageError("it is a read-only file system")

    def kept(self: Path, missing_ok: bool = False) -> None:
        if self == file and not removable:
            raise PermissionError(30, "Read-only file system")
        unlink(self, missing_ok=missing_ok)

    monkeypatch.setattr(OwnStateFile, "save", refused)
    monkeypatch.setattr(Path, "unlink", kept)
    peer, optimizer, model = begin(tmp_path, "sketch")
    with peer:
        assert optimizer.global_step == 5
        assert bool(optimizer._replica.left_out.kept(optimizer._replica.step)) == removable
        assert file.exists() != removable
        assert ("is not used" in caplog.text) != removable
        train(optimizer, model, 6)
