"""Runs that begin with given parameters: what is read, what is refused, and that all peers begin alike."""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
from blake3 import blake3
from safetensors.torch import load, save_file
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

from minga.core.errors import ConfigurationError, UnfitError
from minga.core.files import Content
from minga.core.spec.run_spec import RunSpec
from minga.recipes.init_from import INITIAL_FILE, given_base, initial_file, load_initial, prepared_files
from minga.recipes.registry import load_recipe, published
from minga.recipes.running import trained_model
from minga.training.replica.buffers import OWN_BUFFERS_FILE, OwnBuffers
from minga.training.replica.build_optimizer import build_optimizer
from minga.training.replica.replica import Replica
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.model_names import ModelNames
from minga.training.state.snapshot import StateSnapshot, TensorEntry
from minga.training.state.state_dict import MODEL, OPTIMIZER
from tests.worlds.cli_run import GENESIS, SPEC


class Tied(nn.Module):
    """An embedding whose weight is also that of the head, which has a bias of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5)
        self.head.weight = self.embedding.weight


def filled(model: nn.Module, value: float) -> dict[str, torch.Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in model.state_dict().items()}


def test_a_file_a_folder_and_shards_give_the_same_bytes(tmp_path: Path) -> None:
    tensors = filled(nn.Linear(3, 2), 0.5)
    save_file(tensors, tmp_path / "one.safetensors")
    (tmp_path / "folder").mkdir()
    save_file(tensors, tmp_path / "folder" / "model.safetensors")
    shards = tmp_path / "shards"
    shards.mkdir()
    for name, tensor in tensors.items():
        save_file({name: tensor}, shards / f"model-{name}.safetensors")
    index = {"weight_map": {name: f"model-{name}.safetensors" for name in tensors}}
    (shards / "model.safetensors.index.json").write_text(json.dumps(index))
    contents = {initial_file(str(tmp_path / name)) for name in ("one.safetensors", "folder", "shards")}
    (content,) = contents
    assert {name: tensor.tolist() for name, tensor in load(content).items()} == {
        name: tensor.tolist() for name, tensor in tensors.items()
    }


def test_of_a_run_the_newest_checkpoint_is_read_without_its_optimizer(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints")
    entries = (
        TensorEntry(MODEL + "weight", "float32", (2,)),
        TensorEntry(OPTIMIZER + "weight/moment", "float32", (2,)),
    )
    for step in (1, 2):
        buffer = torch.zeros(32, dtype=torch.uint8)
        buffer[:8] = torch.tensor([step, step], dtype=torch.float32).view(torch.uint8)
        store.save(StateSnapshot(step, entries, {}, buffer))
    assert {name: tensor.tolist() for name, tensor in load(initial_file(str(tmp_path))).items()} == {"weight": [2, 2]}


@pytest.mark.parametrize(
    ("prepare", "message"),
    [
        (lambda folder: folder / "absent", "no such file or folder"),
        (lambda folder: (folder / "pytorch_model.bin").write_bytes(b"pickle") and folder, "may hold a program"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"garbage") and folder, "cannot be read"),
        (lambda folder: (folder / "model.safetensors.index.json").write_text("[]") and folder, "cannot be read"),
        (
            lambda folder: (
                (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../b"}}') and folder
            ),
            "outside of the folder",
        ),
        (lambda folder: (folder / "checkpoints").mkdir() or folder, "no checkpoint yet"),
    ],
)
def test_what_holds_no_parameters_is_refused_in_words(prepare: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        initial_file(str(prepare(tmp_path)))


def test_a_model_of_the_hub_is_asked_for_by_name_and_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_file(filled(nn.Linear(1, 1), 2.0), tmp_path / "model.safetensors")
    asked: list[tuple[str, str | None]] = []

    def download(name: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert all("safetensors" in pattern for pattern in allow_patterns)
        asked.append((name, revision))
        if revision is None:
            raise OSError("Repository Not Found\nfor url")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert set(load(initial_file("owner/model@v1"))) == {"weight", "bias"}
    with pytest.raises(ConfigurationError, match="the hub does not give it: Repository Not Found"):
        initial_file("owner/model")
    assert asked == [("owner/model", "v1"), ("owner/model", None)]


def test_tied_tensors_are_filled_and_new_ones_keep_their_draws(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / INITIAL_FILE
    save_file({"embedding.weight": torch.full((5, 3), 7.0)}, path)
    model = Tied()
    bias = model.head.bias.detach().clone()
    with caplog.at_level(logging.WARNING, "minga.recipes"):
        load_initial(model, {INITIAL_FILE: path})
    assert model.head.weight.eq(7.0).all()
    assert torch.equal(model.head.bias, bias)
    assert "1 of 3 tensors begin with new values: head.bias" in caplog.text
    load_initial(model, {})  # a run that begins with random parameters


def test_two_values_for_a_tied_tensor_are_refused_by_both_names(tmp_path: Path) -> None:
    """The one that came last replaced the other without a word."""
    path, model = tmp_path / "model.safetensors", Tied()
    given = filled(model, 7.0)
    for value in (7.0, 8.0):
        save_file({**given, "head.weight": torch.full((5, 3), value, dtype=torch.bfloat16)}, path)
        for read, name in ((load_initial, INITIAL_FILE), (given_base, "base/model.safetensors")):
            if value == 7.0:
                read(model, {name: path})
                continue
            with pytest.raises(ConfigurationError, match=r"embedding\.weight and head\.weight differ, and are one"):
                read(model, {name: path})


def test_given_tensors_that_the_model_lacks_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / INITIAL_FILE
    given = filled(nn.Sequential(OrderedDict(first=nn.Linear(3, 3), second=nn.Linear(3, 3))), 0.5)
    save_file(given, file)
    load_initial(nn.Sequential(OrderedDict(first=nn.Linear(3, 3))), {INITIAL_FILE: file})
    assert "have tensors that the model lacks: second.bias (and 1 other)" in caplog.text
    assert "new values" not in caplog.text


def test_a_tensor_by_another_name_is_refused_instead_of_drawn_anew(tmp_path: Path) -> None:
    """As old files call the weights of norms `gamma`."""
    file = tmp_path / INITIAL_FILE
    given = filled(nn.Sequential(OrderedDict(first=nn.Linear(3, 3), norm=nn.LayerNorm(3))), 0.5)
    save_file({name.replace("norm.weight", "norm.gamma"): each for name, each in given.items()}, file)
    model = nn.Sequential(OrderedDict(first=nn.Linear(3, 3), norm=nn.LayerNorm(3)))
    with pytest.raises(ConfigurationError, match=r"they have norm\.gamma, and the model norm\.weight in its place"):
        load_initial(model, {INITIAL_FILE: file})


def test_files_of_a_model_without_its_head_fill_what_is_below_one(tmp_path: Path) -> None:
    """As the hub has GPT-2: transformers loaded it, and a run refused it."""
    shape = GPT2Config(vocab_size=64, n_embd=8, n_layer=1, n_head=1, n_positions=8)
    own, short, full = GPT2LMHeadModel(shape), tmp_path / "short.safetensors", tmp_path / "full.safetensors"
    given = GPT2LMHeadModel(shape).transformer.state_dict()
    save_file(given, short)
    save_file({f"transformer.{name}": each for name, each in given.items()}, full)
    load_initial(own, {INITIAL_FILE: short})
    assert all(torch.equal(each, given[name]) for name, each in own.transformer.state_dict().items())
    compiled = nn.Sequential(OrderedDict(_orig_mod=own.requires_grad_(False)))
    short_base, full_base = (given_base(compiled, {"base/model.safetensors": path}) for path in (short, full))
    assert short_base == full_base
    save_file({"h.0.other": torch.zeros(1)}, short)
    with pytest.raises(ConfigurationError, match=r"none of these 1 tensors, such as h\.0\.other"):
        load_initial(own, {INITIAL_FILE: short})


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"other": torch.zeros(1)}, "none of these 1 tensors, such as other"),
        ({"weight": torch.zeros(9)}, r"shape \(9,\)"),
        ({"weight": torch.zeros(2, 3, dtype=torch.int8)}, r"weight is quantised \(int8\)"),
        ({"weight": torch.zeros(2, 3).to(torch.float8_e4m3fn)}, r"weight is quantised \(float8_e4m3fn\)"),
    ],
)
def test_parameters_of_another_model_are_refused(
    tensors: dict[str, torch.Tensor], message: str, tmp_path: Path
) -> None:
    save_file(tensors, tmp_path / INITIAL_FILE)
    with pytest.raises(ConfigurationError, match=message):
        load_initial(nn.Linear(3, 2), {INITIAL_FILE: tmp_path / INITIAL_FILE})


def test_a_given_base_has_the_names_that_states_have_and_all_that_is_frozen(tmp_path: Path) -> None:
    """A tied tensor went by another name than in the state, which then had it a second time."""
    path, head = tmp_path / "model.safetensors", nn.Linear(3, 5)
    model = nn.ModuleDict({"model": nn.Embedding(5, 3), "head": head}).requires_grad_(False)
    head.weight = model["model"].weight  # the name that comes first in order is not the first that is listed
    head.bias.requires_grad_(True)
    compiled = nn.Sequential(OrderedDict(_orig_mod=model))
    save_file({"model.weight": torch.full((5, 3), 7.0)}, path)
    for each in (model, compiled):
        base = given_base(each, {"base/model.safetensors": path})
        assert base is not None
        assert base.keys() == {"head.weight"} < ModelNames(each).parameters().keys()
    head.bias.requires_grad_(False)
    with pytest.raises(ConfigurationError, match=r"lack head\.bias, which is frozen here"):
        given_base(model, {"base/model.safetensors": path})


def content(given: Content) -> bytes:
    return given.read_bytes() if isinstance(given, Path) else given


class Masked(nn.Module):
    """With constants as of attention, one of them as long as texts may be, and a codebook that follows the data."""

    def __init__(self, length: int, mean: float) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        nn.init.constant_(self.norm.get_buffer("running_mean"), mean)
        self.register_buffer("codebook", torch.full((3,), mean))
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("positions", torch.arange(float(length)))


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (nn.Linear(2, 1), {"weight": torch.tensor([[1.0, float("nan")]])}),
        (nn.Linear(2, 1).half(), {"weight": torch.tensor([[1.0, 1e9]])}),
        (Masked(1, 0.0), {"mask": torch.tensor([0.0, float("nan")])}),
        (Masked(1, 0.0), {"mask": torch.tensor([0.0, torch.inf])}),
    ],
)
def test_numbers_that_are_not_finite_are_nothing_to_begin_with(
    model: nn.Module, given: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    save_file(given, tmp_path / INITIAL_FILE)
    before = model.state_dict()[min(given)].clone()
    with pytest.raises(ConfigurationError, match=f"{min(given)} holds numbers that are not finite"):
        load_initial(model, {INITIAL_FILE: tmp_path / INITIAL_FILE})
    assert torch.equal(model.state_dict()[min(given)], before), "what is refused changes nothing"


def kept(model: nn.Module, folder: Path, policy: str = "local") -> Path:
    """A checkpoint of a run that trains `model`."""
    spec = RunSpec.from_mapping({"name": "kept", "training": {"buffers": policy}})
    optimizer, scheduler = build_optimizer(spec.optimizer, model, lambda *_: False)
    replica = Replica(spec, optimizer, model=model, scheduler=scheduler)
    own = replica.own_buffers()
    return CheckpointStore(folder / "checkpoints").save(replica.capture(), files={OWN_BUFFERS_FILE: own} if own else {})


@pytest.mark.parametrize("policy", ["average", "local"])
def test_a_run_begins_with_all_buffers_of_another_but_those_of_another_shape(
    policy: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Tables of positions ended it, and a codebook began at random beside its encoder; a mask is no damage either."""
    kept(Masked(4, 7.0), tmp_path, policy)
    (tmp_path / INITIAL_FILE).write_bytes(initial_file(str(tmp_path)))
    after = Masked(5, 0.0)
    load_initial(after, {INITIAL_FILE: tmp_path / INITIAL_FILE})
    assert (after.norm.running_mean == 7.0).all()
    assert (after.codebook == 7.0).all()
    assert torch.equal(after.get_buffer("positions"), torch.arange(5.0))
    assert "the buffer positions has another shape in the given file" in caplog.text


def test_a_checkpoint_by_name_is_read_by_its_manifest(tmp_path: Path) -> None:
    """Damage was taken for parameters, files that no manifest lists for its own, and a head for all of a model."""
    model = nn.BatchNorm1d(3)
    path = kept(model, tmp_path)
    file, weights = path / OWN_BUFFERS_FILE, path / "model.safetensors"
    before = file.read_bytes()
    file.rename(file.with_name(f"~new-{blake3(before).hexdigest()}-{file.name}"))  # its writer was killed
    nn.init.constant_(model.get_buffer("running_mean"), 7.0)
    file.write_bytes(OwnBuffers(model).written())
    assert not load(initial_file(str(path)))["running_mean"].any()
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ConfigurationError, match="1 of 1 chunks of the tensors do not match their hashes"):
        initial_file(str(path))
    with pytest.raises(ConfigurationError, match="trains a part of its model"):
        initial_file(str(kept(Headed(), tmp_path / "head")))


def test_parameters_travel_with_the_run_and_the_organisers_path_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old"
    (old / "files").mkdir(parents=True)
    own = GENESIS.with_name("genesis_tokenizer.json").read_bytes()
    (old / "files" / "tokenizer.json").write_bytes(own)
    save_file({"weight": torch.ones(1)}, old / "model.safetensors")
    large = tmp_path / "large.zst"
    large.write_bytes(b"text")
    plain = RunSpec.from_toml(SPEC)
    spec = RunSpec.from_toml(SPEC + f"[model]\ninit_from = '{old}'\n")
    monkeypatch.setattr(
        type(load_recipe(spec)), "prepare", lambda _: {"tokenizer.json": b"a new one", "training.jsonl.zst": large}
    )
    files = prepared_files(spec)
    assert content(files["tokenizer.json"]) == own, "the parameters were trained with it"
    assert content(files["training.jsonl.zst"]) == b"text"
    assert set(load(content(files[INITIAL_FILE]))) == {"weight"}
    assert str(old).encode() not in published(spec).canonical_bytes()
    assert plain.canonical_bytes() != spec.canonical_bytes()
    with pytest.raises(ConfigurationError, match="loads its parameters itself"):
        prepared_files(RunSpec(name="own", model={"recipe": "custom", "init_from": str(old)}))


class NormRecipe:
    """What a model is read by, of a recipe of a single norm."""

    context, estimates_statistics = SimpleNamespace(seed=1), False

    @staticmethod
    def build_model() -> nn.Module:
        return nn.BatchNorm1d(3)

    @staticmethod
    def decayed(name: str, parameter: torch.Tensor) -> bool:
        del name, parameter
        return False


@pytest.mark.parametrize("estimates", [False, True])
def test_who_exports_a_state_of_the_swarm_is_told_of_statistics_that_have_seen_nothing(
    estimates: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless its recipe estimates them anew."""
    monkeypatch.setattr(NormRecipe, "estimates_statistics", estimates)
    monkeypatch.setattr(trained_model, "load_recipe", lambda _: NormRecipe)
    spec = RunSpec.from_mapping({"name": "norms", "training": {"buffers": "local"}})

    def state(replica: Replica) -> StateSnapshot:
        replica.step = 7
        return replica.capture()

    assert trained_model.with_state(spec, {}, state).step == 7
    assert ("the buffer running_mean is 0" in caplog.text) != estimates


def test_a_model_that_is_exported_has_the_buffers_of_the_peer_that_left_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec, trained = RunSpec.from_mapping({"name": "norms", "training": {"buffers": "local"}}), nn.BatchNorm1d(3)
    monkeypatch.setattr(trained_model, "load_recipe", lambda _: NormRecipe)
    optimizer, scheduler = build_optimizer(spec.optimizer, trained, NormRecipe.decayed)
    replica = Replica(spec, optimizer, model=trained, scheduler=scheduler)
    trained(torch.arange(12.0).view(4, 3)).sum().backward()
    replica.collect(4)
    files = {trained_model.SPEC_FILE: spec.to_toml().encode(), OWN_BUFFERS_FILE: replica.own_buffers()}
    CheckpointStore(tmp_path / "checkpoints").save(replica.capture(), files=files)
    found = trained_model.from_run_folder(tmp_path).model
    assert found.state_dict()["running_mean"].all()
    assert all(torch.equal(each, found.state_dict()[name]) for name, each in trained.state_dict().items())
    for source in (tmp_path, *tmp_path.glob("checkpoints/step-*")):
        assert load(initial_file(str(source))).keys() == trained.state_dict().keys()


class Headed(nn.Module):
    """A body that is frozen below a head."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(3, 3).requires_grad_(False), nn.Linear(3, 2)


class HeadRecipe:
    """What a model is read by, of a recipe that trains the head."""

    context, estimates_statistics = SimpleNamespace(seed=1), False

    @staticmethod
    def build_model() -> nn.Module:
        return Headed()

    @staticmethod
    def decayed(name: str, parameter: torch.Tensor) -> bool:
        return parameter.ndim > 1


def test_a_model_that_is_exported_has_the_base_that_came_with_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint holds it."""
    monkeypatch.setattr(trained_model, "load_recipe", lambda _: HeadRecipe)
    spec, trained = RunSpec.from_mapping({"name": "heads", "optimizer": {"name": "sgd"}}), Headed()
    files = {INITIAL_FILE: tmp_path / INITIAL_FILE}
    with torch.no_grad():
        for parameter in trained.body.parameters():
            parameter.fill_(0.5)
    optimizer, scheduler = build_optimizer(spec.optimizer, trained, HeadRecipe.decayed)
    state = Replica(spec, optimizer, model=trained, scheduler=scheduler).capture()
    prefixed = {f"body.{name}": each for name, each in filled(trained.body, 0.5).items()}
    save_file(prefixed, tmp_path / INITIAL_FILE)
    found = trained_model.with_state(spec, files, lambda _: state).model
    for name, value in trained.state_dict().items():
        assert torch.equal(found.state_dict()[name], value), name
    with pytest.raises(UnfitError, match=r"`body\.weight` is frozen and has other values"):
        trained_model.with_state(spec, {}, lambda _: state)
