"""Snapshots, manifests and the training state: round trips, equal digests, bad input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from minga.core.errors import ConfigurationError, NonFiniteError
from minga.optim import LAMB, LARS, SGD, AdamW, MomentStorage
from minga.training.state import snapshot as state_memory
from minga.training.state.manifest import (
    CHUNK_BYTES,
    HASH_BYTES,
    MAX_MANIFEST_BYTES,
    MAX_TENSORS,
    Manifest,
    build_manifest,
    hash_chunks,
)
from minga.training.state.scalars import canonical_json, merge_numbers, numbers_of, parse_canonical_json
from minga.training.state.snapshot import DTYPES, StateMemory, StateSnapshot, TensorEntry, layout_bytes
from minga.training.state.state_dict import TrainingState

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]

OPTIMIZERS: dict[str, MakeOptimizer] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "sgd_momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2),
    "asgd": lambda p: torch.optim.ASGD(p, lr=1e-2),
    "rprop": lambda p: torch.optim.Rprop(p, lr=1e-2),
    "minga_sgd_momentum": lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "minga_adamw": lambda p: AdamW(p, lr=1e-2),
    "minga_lamb": lambda p: LAMB(p, lr=1e-2),
    "minga_adamw_8": lambda p: AdamW(p, lr=1e-2, storage=MomentStorage(8, 16, 8)),
    "minga_lamb_8": lambda p: LAMB(p, lr=1e-2, debias=False, storage=MomentStorage(8, 16, 8)),
    "minga_lars": lambda p: LARS(p, lr=1e-2),
}


class Tied(torch.nn.Module):
    """Tied embeddings, a parameter without gradient, a frozen one, persistent and other buffers, bf16, int64, bool."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.embedding = torch.nn.Embedding(11, 6)
        self.norm = torch.nn.BatchNorm1d(6)
        self.middle = torch.nn.Linear(6, 6, dtype=torch.bfloat16)
        self.unused = torch.nn.Parameter(torch.randn(3))
        self.frozen = torch.nn.Parameter(torch.randn(2, 2, dtype=torch.float64), requires_grad=False)
        self.head = torch.nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tensor([True, False, seed % 2 == 0]))
        self.register_buffer("positions", torch.arange(5), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.embedding(x))
        return self.head(self.middle(hidden.bfloat16()).float())


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        x = torch.randint(0, 11, (8,), generator=generator)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), x).backward()
        optimizer.step()


def snapshot_of(tensors: dict[str, torch.Tensor], step: int = 1) -> StateSnapshot:
    parameters = [torch.nn.Parameter(t, requires_grad=False) for t in tensors.values()]
    model = torch.nn.Module()
    for name, parameter in zip(tensors, parameters, strict=True):
        model.register_parameter(name, parameter)
    return TrainingState(torch.optim.SGD(parameters), model=model).capture(step)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_newcomer_with_a_fresh_optimizer_continues_exactly(name: str) -> None:
    model, other = Tied(0), Tied(1)
    mine, others = OPTIMIZERS[name](model.parameters()), OPTIMIZERS[name](other.parameters())
    train(model, mine, 3)
    state, there = TrainingState(mine, model=model), TrainingState(others, model=other)
    snapshot = state.capture(3)
    manifest = build_manifest(snapshot)
    assert there.digest(3) != manifest.digest
    there.check(manifest)
    there.restore(snapshot)
    assert there.digest(3) == state.digest(3) == manifest.digest
    for parameter, twin in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in mine.state[parameter].items():
            if isinstance(value, torch.Tensor):
                assert others.state[twin][key].dtype == value.dtype
                assert others.state[twin][key].device == value.device
    train(model, mine, 2)
    train(other, others, 2)
    assert there.digest(5) == state.digest(5)


def test_the_manifest_of_the_live_state_equals_that_of_the_copy() -> None:
    model = Tied(0)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    model.head.weight.data = model.head.weight.data.t().contiguous().t()  # not contiguous any more
    state = TrainingState(optimizer, model=model)
    snapshot = state.capture(2)
    assert build_manifest(snapshot) == state.manifest(2)
    assert hash_chunks([snapshot.bytes_view], parallel=True) == state.manifest(2).chunk_hashes


def test_equal_states_are_equal_bytes_in_whatever_order_their_tensors_were_made() -> None:
    model = Tied(0)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    basis = {"a": torch.ones(2), "b": torch.zeros(3)}
    digest = TrainingState(optimizer, model=model, basis=basis).digest(2)
    for parameter, kept in optimizer.state.items():
        optimizer.state[parameter] = dict(reversed(kept.items()))
    assert TrainingState(optimizer, model=model, basis=dict(reversed(basis.items()))).digest(2) == digest


def test_a_large_state_in_a_file_has_the_same_bytes_as_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Tied(0)
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, 2)
    state = TrainingState(optimizer, model=model)
    inside = state.capture(2)
    monkeypatch.setattr(state_memory, "FILED_BYTES", 1)
    filed = state.capture(2, tmp_path)
    assert filed.memory is not None
    assert filed.memory.mapping is not None
    assert inside.memory is not None
    assert inside.memory.mapping is None
    assert not list(tmp_path.iterdir()), "the file has no name, so that nothing stays after a kill"
    filed.release()
    assert filed.has_bytes_of(inside)
    assert build_manifest(filed) == build_manifest(inside)
    train(model, optimizer, 1)
    assert build_manifest(filed) == build_manifest(inside), "it is of one step, whatever happens to the model"
    state.restore(filed)
    assert state.digest(2) == build_manifest(inside).digest


def test_a_state_that_finds_no_room_on_the_disk_goes_to_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(descriptor: int, start: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(state_memory.os, "posix_fallocate", refuse, raising=False)
    memory = StateMemory.of(state_memory.FILED_BYTES, tmp_path)
    assert memory.mapping is None
    assert memory.buffer.numel() == state_memory.FILED_BYTES
    assert "No space left" in caplog.text
    assert not list(tmp_path.iterdir())


def test_tied_parameters_are_stored_once_and_stay_tied() -> None:
    model, other = Tied(0), Tied(1)
    snapshot = TrainingState(torch.optim.SGD(model.parameters()), model=model).capture(0)
    names = [entry.name for entry in snapshot.tensors]
    assert "model/embedding.weight" in names
    assert "model/head.weight" not in names
    assert "model/mask" in names
    assert "model/positions" not in names
    assert {"bfloat16", "bool", "float32", "float64", "int64"} <= {entry.dtype for entry in snapshot.tensors}
    TrainingState(torch.optim.SGD(other.parameters()), model=other).restore(snapshot)
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, model.head.weight)
    assert torch.equal(other.mask, model.mask)


def test_buffers_can_stay_each_peers_own() -> None:
    model = Tied(0)
    state = TrainingState(torch.optim.SGD(model.parameters()), model=model, include_buffers=False)
    before = state.digest(0)
    model.norm.running_mean += 1
    assert state.digest(0) == before


def test_restoring_fills_existing_tensors_in_place_and_removes_what_is_too_much() -> None:
    model, other = Tied(0), Tied(0)
    fresh, used = torch.optim.Adam(model.parameters()), torch.optim.Adam(other.parameters())
    train(other, used, 2)
    weight, average = other.middle.weight, used.state[other.middle.weight]["exp_avg"]
    train(model, fresh, 1)
    TrainingState(used, model=other).restore(TrainingState(fresh, model=model).capture(1))
    assert other.middle.weight is weight
    assert used.state[weight]["exp_avg"] is average
    nothing = Tied(0)
    TrainingState(used, model=other).restore(
        TrainingState(torch.optim.Adam(nothing.parameters()), model=nothing).capture(0)
    )
    assert not used.state[weight]


def test_without_a_model_parameters_are_named_by_their_place_or_by_the_optimizer() -> None:
    model, other = Tied(0), Tied(1)
    state = TrainingState(torch.optim.SGD(model.parameters()))
    snapshot = state.capture(4)
    assert snapshot.tensors[0].name == "model/group0.0"
    there = TrainingState(torch.optim.SGD(other.parameters()))
    there.restore(snapshot)
    assert there.digest(4) == state.digest(4)
    named = TrainingState(torch.optim.SGD(model.named_parameters()))
    assert named.capture(4).tensors[-1].name == "model/unused"


def test_switches_of_the_optimizer_do_not_enter_the_digest() -> None:
    model = Tied(0)
    digests = {
        TrainingState(torch.optim.AdamW(model.parameters(), lr=lr, foreach=foreach), model=model).digest(0)
        for lr, foreach in ((1, True), (1.0, False), (1.0, None))
    }
    assert len(digests) == 1
    assert TrainingState(torch.optim.AdamW(model.parameters(), lr=0.5), model=model).digest(0) not in digests


def test_tensor_learning_rates_are_filled_in_place() -> None:
    model, other = Tied(0), Tied(1)
    rate = torch.tensor(0.5)
    optimizer = torch.optim.AdamW(other.parameters(), lr=rate)
    state = TrainingState(torch.optim.AdamW(model.parameters(), lr=0.25), model=model)
    TrainingState(optimizer, model=other).restore(state.capture(0))
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25


# ---- states that do not fit


@pytest.mark.parametrize(
    ("path", "remedy"), [("net", "pass as model= a module that has the network as its attribute net"), ("", "the part")]
)
def test_names_that_differ_by_a_prefix_alone_are_said_to(path: str, remedy: str) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    whole = torch.nn.ModuleDict({"net": net})
    run, here = (whole, net) if path else (net, whole)
    state = TrainingState(torch.optim.SGD(here.parameters()), model=here)
    words = "0.bias in the run is net.0.bias here" if not path else "net.0.bias in the run is 0.bias here"
    with pytest.raises(ConfigurationError, match=f"differ from the run's by the prefix 'net.': {words}; .*{remedy}"):
        state.check(TrainingState(torch.optim.SGD(run.parameters()), model=run).manifest(0))
    whole["net"] = torch.nn.Sequential(net[0])
    with pytest.raises(ConfigurationError, match=r"the run's model has no `(net\.)?0\.weight`"):
        state.check(TrainingState(torch.optim.SGD(net[1].parameters()), model=net[1]).manifest(0))


def _forged(snapshot: StateSnapshot, **changes: Any) -> StateSnapshot:
    scalars = {**snapshot.scalars, **changes}
    return StateSnapshot(snapshot.step, snapshot.tensors, scalars, snapshot.buffer)


@pytest.mark.parametrize(
    "changes",
    [
        {"groups": []},
        {"groups": None},
        {"groups": [1]},
        {"state": []},
        {"state": {"unused": 3}},
        {"state": {"unknown": {"step": 1}}},
        {"state": {"unused": {"step": {"deep": 1}}}},
        {"scheduler": {"last_epoch": 3}},
        {"more": 1},
    ],
)
def test_malformed_scalars_are_refused(changes: dict[str, Any]) -> None:
    state, other = (TrainingState(torch.optim.SGD(net.parameters()), model=net) for net in (Tied(0), Tied(1)))
    before = state.digest(0)
    with pytest.raises(ConfigurationError):
        state.restore(_forged(other.capture(0), **changes))
    assert state.digest(0) == before


def test_hostile_groups_change_only_numbers() -> None:
    model = Tied(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, nesterov=False)
    state = TrainingState(optimizer, model=model)
    group = {"params": 3.0, "lr": "big", "nesterov": 1.0, "momentum": {"a": 1.0}, "dampening": "inf"}
    group |= {"word": "evil", "many": [1.0, 2.0], "count": 3.0, "share": 0.5, "no name": 1.0}
    state.restore(_forged(state.capture(0), groups=[group]))
    after = optimizer.param_groups[0]
    assert isinstance(after["params"], list)
    assert (after["lr"], after["nesterov"], after["momentum"]) == (1.0, False, 0)
    assert "weight_decay" in after
    assert after.keys() & {"word", "many", "count", "share", "no name"} == {"count", "share"}
    assert isinstance(after["count"], int)


def test_far_too_much_or_foreign_optimizer_state_is_refused() -> None:
    model = Tied(0)
    state = TrainingState(torch.optim.SGD(model.parameters()), model=model)
    manifest = state.manifest(0)
    for entry, words in (
        (TensorEntry("optimizer/unused/huge", "uint8", (1 << 30,)), "far more"),
        (TensorEntry("optimizer/other/step", "float32", ()), "other/step"),
        (TensorEntry("elsewhere", "float32", ()), "elsewhere"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            state.check(msgspec.structs.replace(manifest, tensors=(*manifest.tensors, entry)))


def _without(name: str, tensors: tuple[TensorEntry, ...]) -> tuple[TensorEntry, ...]:
    return tuple(entry for entry in tensors if entry.name != name)


STRATEGY_LIES: dict[str, tuple[TensorEntry, ...]] = {
    "missing": (),
    "of another shape": (TensorEntry("strategy/anchor", "float32", (3, 4)),),
    "with one axis": (TensorEntry("strategy/anchor", "float32", (12,)),),
    "far too large": (TensorEntry("strategy/anchor", "float32", (1 << 20, 1 << 17)),),
    "of another type": (TensorEntry("strategy/anchor", "float64", (4, 3)),),
    "one more": (TensorEntry("strategy/anchor", "float32", (4, 3)), TensorEntry("strategy/more", "uint8", (1 << 40,))),
    "far too many": (
        TensorEntry("strategy/anchor", "float32", (4, 3)),
        *(TensorEntry(f"strategy/{number}", "uint8", ()) for number in range(10_000)),
    ),
    "with other names": (TensorEntry("strategy/Anchor", "float32", (4, 3)),),
    "with a path": (TensorEntry("strategy/../anchor", "float32", (4, 3)),),
    "without a name": (TensorEntry("strategy/", "float32", (4, 3)),),
}


@pytest.mark.parametrize("lie", STRATEGY_LIES)
@pytest.mark.parametrize("shares_optimizer", [False, True])
def test_tensors_of_a_strategy_that_are_not_its_own_are_refused_before_memory_is_taken(
    lie: str, shares_optimizer: bool
) -> None:
    model = Tied(0)
    state, own = TrainingState(torch.optim.SGD(model.parameters()), model=model), torch.ones(4, 3)
    mine = {name: tensor for name, tensor in state.tensors().items() if name.startswith("model/")}
    state.define_shared(lambda: {**mine, "strategy/anchor": own}, optimizer=shares_optimizer)
    before, manifest = state.digest(0), state.manifest(0)
    state.check(manifest)
    tensors = (*_without("strategy/anchor", manifest.tensors), *STRATEGY_LIES[lie])
    with pytest.raises(ConfigurationError, match="does not fit the strategy"):
        state.check(msgspec.structs.replace(manifest, tensors=tensors))
    if lie not in ("far too large", "one more"):
        buffer = torch.zeros(layout_bytes(tensors), dtype=torch.uint8)
        with pytest.raises(ConfigurationError, match="does not fit the strategy"):
            state.restore(StateSnapshot(0, tensors, manifest.scalars, buffer))
    assert state.digest(0) == before


def test_state_that_cannot_be_described_is_named() -> None:
    model = Tied(0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    state = TrainingState(optimizer, model=model)
    optimizer.state[model.unused]["history"] = [torch.zeros(1)]
    with pytest.raises(ConfigurationError, match="history of unused"):
        state.capture(0)
    optimizer.state[model.unused] = {"a/b": torch.zeros(1)}
    with pytest.raises(ConfigurationError, match="a/b"):
        state.capture(0)
    optimizer.state[model.unused] = {"wide": torch.zeros(1, dtype=torch.complex128)}
    with pytest.raises(ConfigurationError, match="unused/wide"):
        state.capture(0)
    optimizer.state[model.unused] = {"number": math.nan}
    with pytest.raises(NonFiniteError):
        state.capture(0)


def test_python_numbers_of_an_optimizer_are_kept_with_their_types() -> None:
    model, other = Tied(0), Tied(1)
    optimizer, there = torch.optim.SGD(model.parameters()), torch.optim.SGD(other.parameters())
    kept = {"step": 7, "ratio": 0.5, "flag": True, "name": "x", "none": None, "limit": math.inf}
    optimizer.state[model.unused] = dict(kept)
    TrainingState(there, model=other).restore(TrainingState(optimizer, model=model).capture(0))
    assert there.state[other.unused] == kept
    assert type(there.state[other.unused]["step"]) is int


# ---- manifests


@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3)), min_size=0, max_size=6
    )
)
def test_any_dtypes_and_shapes_survive(kinds: list[tuple[str, list[int]]]) -> None:
    entries = tuple(TensorEntry(f"t{i}", dtype, tuple(shape)) for i, (dtype, shape) in enumerate(kinds))
    size = layout_bytes(entries)
    snapshot = StateSnapshot(0, entries, {}, torch.randint(0, 2, (size,), dtype=torch.uint8))
    for entry, tensor in snapshot.named_tensors():
        assert (tensor.dtype, tuple(tensor.shape)) == (DTYPES[entry.dtype], entry.shape)
    manifest = build_manifest(snapshot)
    assert Manifest.decode(manifest.encoded) == manifest
    assert manifest.diff(manifest) == []


def test_chunks_are_hashed_as_documented_and_diff_names_the_changed_ones() -> None:
    weight = torch.arange(900_000, dtype=torch.float32)
    first = snapshot_of({"a": weight, "b": torch.ones(5)})
    changed = weight.clone()
    changed[300_000] += 1
    second = build_manifest(snapshot_of({"a": changed, "b": torch.ones(5)}))
    manifest = build_manifest(first)
    view = first.bytes_view
    assert manifest.chunk_count == 4
    for index in range(4):
        chunk = view[index * CHUNK_BYTES : (index + 1) * CHUNK_BYTES]
        assert manifest.chunk_hash(index) == blake3(chunk).digest()
        assert manifest.verify_chunk(index, chunk)
        assert not manifest.verify_chunk(index, chunk[:-1])
    assert manifest.diff(second) == [1]
    assert manifest.diff(None) == [0, 1, 2, 3]
    assert manifest.digest == blake3(manifest.encoded).hexdigest() != second.digest


@given(st.lists(st.integers(0, 2 * CHUNK_BYTES + 3), max_size=5))
def test_hashing_does_not_depend_on_the_pieces(sizes: list[int]) -> None:
    data = memoryview(bytes(sum(sizes)))
    pieces, start = [], 0
    for size in sizes:
        pieces.append(data[start : start + size])
        start += size
    assert hash_chunks(pieces) == hash_chunks([data])


def _encoded(**changes: Any) -> bytes:
    manifest = build_manifest(snapshot_of({"a": torch.ones(5)}))
    return msgspec.msgpack.encode(msgspec.structs.replace(manifest, **changes))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"format": 2}, "format 2"),
        ({"step": -1}, "step"),
        ({"step": 1 << 60}, "step"),
        ({"total_bytes": 1 << 20}, "do not fit"),
        ({"chunk_hashes": b"x" * HASH_BYTES * 2}, "hashes"),
        ({"chunk_hashes": b""}, "hashes"),
        ({"scalars_json": b'{"lr":NaN}'}, "JSON"),
        ({"scalars_json": b'{"lr": 1}'}, "canonical"),
        ({"scalars_json": b'{"lr":1e999}'}, "JSON"),
        ({"scalars_json": b"[]"}, "object"),
        ({"scalars_json": b"[" * 100_000}, "nested|JSON|Expecting"),
        ({"scalars_json": b"\xff"}, "decode"),
        ({"tensors": (TensorEntry("a", "float32", (5,)),) * 2}, "same name"),
        ({"tensors": (TensorEntry("", "float32", (5,)),)}, "name"),
        ({"tensors": (TensorEntry("a\n", "float32", (5,)),)}, "name"),
        ({"tensors": (TensorEntry("a" * 501, "float32", (5,)),)}, "name"),
        ({"tensors": (TensorEntry("a", "quint8", (5,)),)}, "dtype"),
        ({"tensors": (TensorEntry("a", "float32", (-5,)),)}, "shape"),
        ({"tensors": (TensorEntry("a", "float32", (1,) * 17),)}, "shape"),
        ({"tensors": (TensorEntry("a", "float32", (1 << 40, 1 << 40)),), "total_bytes": 1 << 82}, "range|exceed"),
        ({"tensors": (TensorEntry("a", "float32", (0,)),) * (MAX_TENSORS + 1)}, "tensors exceed"),
    ],
)
def test_bad_manifests_are_refused(changes: dict[str, Any], words: str) -> None:
    try:
        encoded = _encoded(**changes)
    except OverflowError:
        return  # such a number cannot even be written
    with pytest.raises(ValueError, match=words):
        Manifest.decode(encoded)


def test_truncated_padded_and_reordered_manifests_are_refused() -> None:
    encoded = _encoded()
    for data in (encoded[:-1], encoded + b"\0", b"", b"\xff" * 50, b"\xdf\xff\xff\xff\xff", b"\x91" * 100_000):
        with pytest.raises(ValueError, match=r"malformed|canonical"):
            Manifest.decode(data)
    fields = msgspec.msgpack.decode(encoded)
    reordered = msgspec.msgpack.encode(dict(reversed(fields.items())))
    with pytest.raises(ValueError, match="canonical"):
        Manifest.decode(reordered)
    with pytest.raises(ValueError, match="exceeds"):
        Manifest.decode(bytes(MAX_MANIFEST_BYTES + 1))


@given(st.binary(max_size=300))
def test_garbage_is_refused_as_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        Manifest.decode(data)


# ---- scalars

numbers = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False)
trees = st.recursive(
    numbers | st.booleans() | st.none() | st.text(max_size=3),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children, max_size=3),
    max_leaves=10,
)


@given(trees)
def test_numbers_survive_and_switches_stay_local(tree: Any) -> None:
    found = {"x": numbers_of(tree)}
    assert parse_canonical_json(canonical_json(found)) == found
    assert merge_numbers(tree, found["x"]) == tree


@given(trees, trees)
def test_merging_never_changes_the_structure(local: Any, remote: Any) -> None:
    merged = merge_numbers(local, remote)
    if isinstance(local, bool | str) or local is None:
        assert merged is local
    elif isinstance(local, int | float):
        assert isinstance(merged, int | float)
        assert not isinstance(merged, bool)
    elif isinstance(local, dict):
        assert merged.keys() == local.keys()
    else:
        assert len(merged) == len(local)


def test_nan_is_never_a_scalar() -> None:
    with pytest.raises(NonFiniteError):
        numbers_of({"lr": math.nan})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json({"lr": math.nan})
