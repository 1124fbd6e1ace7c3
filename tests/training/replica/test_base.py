"""What is frozen: no state has it, each has its hashes, and another base is refused by the name of a tensor."""

from __future__ import annotations

import copy
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from minga.core.errors import ConfigurationError, UnfitError
from minga.recipes.init_from import initial_file
from minga.training.replica.replica import Replica
from minga.training.state.base import hash_of
from minga.training.state.checkpoints import CheckpointStore
from minga.training.state.snapshot import StateSnapshot
from minga.training.state.tensor_access import TensorAccess
from tests.worlds.swarm_tools import make_spec

WIDE = 256


class Body(nn.Module):
    """A large body that is frozen, and a head with a norm that is trained; two layers of the body share a weight."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Sequential(*(nn.Linear(WIDE, WIDE) for _ in range(3))).requires_grad_(False)
        self.body[1].weight = self.body[0].weight
        torch.manual_seed(1)
        self.norm, self.head = nn.BatchNorm1d(WIDE), nn.Linear(WIDE, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.head(self.norm(self.body(x))))


class Packed(nn.Module):
    """A layer of packed weights, whose scales are a buffer."""

    def __init__(self, scale: float = 0.5) -> None:
        super().__init__()
        codes = torch.arange(WIDE, dtype=torch.uint8).view(-1, 1)
        self.register_buffer("codes", codes)
        self.register_buffer("scales", torch.full((WIDE,), scale))


class Exporting(nn.Module):
    """A part whose files are to have the weights alone, by a method that takes no arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
        self.register_buffer("table", torch.arange(4.0), persistent=False)

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return {name: each for name, each in super().state_dict().items() if "running" not in name}


def replica(model: nn.Module, *, shares: bool = False, **settings: Any) -> Replica:
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.1)
    return Replica(make_spec(4, state={"share_base": shares}), optimizer, model=model, **settings)


def stepped(one: Replica) -> Replica:
    one.apply(torch.ones(one.vector.numel), 1)
    return one


def names(state: StateSnapshot) -> list[str]:
    return [entry.name for entry in state.tensors if entry.name.startswith("model/")]


def test_a_state_has_what_is_trained_and_the_buffers_and_names_the_base(tmp_path: Path) -> None:
    run = stepped(replica(Body()))
    state = run.capture()
    buffers = ("norm.num_batches_tracked", "norm.running_mean", "norm.running_var")
    trained = ("head.bias", "head.weight", "norm.bias", "norm.weight")
    assert sorted(names(state)) == sorted(f"model/{name}" for name in (*trained, *buffers))
    assert "body.0.weight" in str(state.scalars)
    assert "body.1.weight" not in str(state.scalars)  # tied to the first
    trained_bytes = 4 * sum(each.numel() for each in run.vector.parameters())
    assert state.buffer.numel() < 4 * trained_bytes  # two moments, and the buffers
    folder = CheckpointStore(tmp_path).save(state)
    assert sum(each.stat().st_size for each in folder.iterdir()) < 4 * trained_bytes + 16_384

    same, other = replica(Body()), replica(Body(seed=2))
    same.restore(state)
    assert same.digest() == run.digest()
    checkpoint = CheckpointStore(tmp_path).load()
    assert checkpoint is not None
    before = other.digest()
    with pytest.raises(
        UnfitError, match=r"`body.0.weight` is frozen and has other values in the run .* \(and 4 others\)"
    ):
        other.restore(checkpoint.snapshot)
    assert other.digest() == before


@pytest.mark.parametrize("wraps", [False, True])
def test_buffers_are_shared_whatever_the_model_writes_to_its_own_files(*, wraps: bool) -> None:
    model, prefix = (nn.Sequential(Exporting()), "0.") if wraps else (Exporting(), "")
    found = names(Replica(make_spec(4), torch.optim.SGD(model.parameters(), lr=0.1), model=model).capture())
    kept = [f"model/{prefix}inner.1.{name}" for name in ("num_batches_tracked", "running_mean", "running_var")]
    assert [name for name in found if name.rpartition(".")[2] not in ("weight", "bias")] == kept


def test_a_model_that_only_reads_a_state_needs_its_base(tmp_path: Path) -> None:
    """As `minga export` and `minga sample` do, whatever of the model requires a gradient there."""
    model = Body()
    CheckpointStore(tmp_path / "checkpoints").save(stepped(replica(model)).capture())
    checkpoint = CheckpointStore(tmp_path / "checkpoints").load()
    assert checkpoint is not None
    for seed in (0, 2):
        reader = Body(seed).requires_grad_(True)
        one = Replica(make_spec(4), torch.optim.SGD(reader.parameters(), lr=1.0), model=reader, reads=True)
        if seed:
            with pytest.raises(UnfitError, match=r"`body.0.weight` is frozen and has other values"):
                one.restore(checkpoint.snapshot)
            continue
        one.restore(checkpoint.snapshot)
        for name, value in model.state_dict().items():
            assert torch.equal(reader.state_dict()[name], value), name
    with pytest.raises(ConfigurationError, match=r"do not hold the 5 other tensors, such as body.0.bias"):
        initial_file(str(tmp_path))


def test_packed_weights_are_no_part_of_the_state_nor_of_what_is_averaged() -> None:
    """Their scales were averaged as buffers that move, and the codes were kept twice."""
    plain, model = replica(nn.Linear(2, 2)), nn.ModuleDict({"base": Packed(), "head": nn.Linear(2, 2)})
    one = replica(model)
    assert one.vector.layout.numels == plain.vector.layout.numels
    assert names(one.capture()) == ["model/head.bias", "model/head.weight"]
    assert not one._buffers._bases
    other = replica(nn.ModuleDict({"base": Packed(0.25), "head": nn.Linear(2, 2)}))
    with pytest.raises(UnfitError, match=r"`base\.scales` is frozen and has other values"):
        other.check(one.capture())


def test_a_tensor_that_holds_others_is_hashed_by_these() -> None:
    """As the libraries have it that quantise whole models: such a tensor has no bytes of its own."""

    def holding(second: float) -> Replica:
        model = Body()
        kept = TwoTensor(torch.ones(4, 4), torch.full((4, 4), second))
        model.body[2].weight = nn.Parameter(kept, requires_grad=False)
        return replica(model)

    run, same, other = holding(1.0), holding(1.0), holding(2.0)
    same.restore(stepped(run).capture())
    assert same.digest() == run.digest()
    with pytest.raises(UnfitError, match=r"`body\.2\.weight` is frozen and has other values"):
        other.check(run.capture())


def test_how_a_tensor_holds_others_is_hashed_as_well() -> None:
    """Equal codes in blocks of another size are other weights."""

    class Blocks(TwoTensor):  # type: ignore[misc]
        size = 32

        def __tensor_flatten__(self) -> tuple[list[str], dict[str, Any]]:
            return ["a", "b"], {"block": (self.size, 1), "kind": torch.int8, "other": object()}

    def found(size: int) -> str:
        blocks = Blocks(torch.ones(4), torch.ones(4))
        blocks.size = size
        return hash_of(blocks, TensorAccess())

    assert found(32) == found(32) != found(64)


def quantised(kind: str, seed: int) -> nn.Module:
    """A layer that a library quantises, below one that is trained."""
    torch.manual_seed(seed)
    base = nn.Linear(WIDE, WIDE)
    if kind == "torchao":
        quantization = pytest.importorskip("torchao.quantization", reason="torchao quantises the base")
        quantization.quantize_(base, quantization.Int8WeightOnlyConfig())
    else:
        layers = pytest.importorskip("bitsandbytes", reason="bitsandbytes quantises the base").nn
        whole, is_8_bits = base, kind.endswith("8 bits")
        base = layers.Linear8bitLt(WIDE, WIDE, has_fp16_weights=False) if is_8_bits else layers.Linear4bit(WIDE, WIDE)
        base.load_state_dict(whole.state_dict())
        base = base.to("cpu")  # where it is quantised
    torch.manual_seed(1)
    return nn.Sequential(base.requires_grad_(False), nn.Linear(WIDE, 2))


@pytest.mark.filterwarnings("ignore")  # of these libraries
@pytest.mark.parametrize("kind", ["bitsandbytes, 4 bits", "bitsandbytes, 8 bits", "torchao"])
def test_a_base_that_a_library_quantised(kind: str) -> None:
    run, same, other = (replica(quantised(kind, seed)) for seed in (0, 0, 2))
    state = stepped(run).capture()
    assert names(state) == ["model/1.bias", "model/1.weight"]
    same.restore(state)
    assert same.digest() == run.digest()
    with pytest.raises(UnfitError, match=r"`0\.weight` is frozen and has other values"):
        other.check(state)


def test_a_base_that_changes_before_a_state_comes_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """As where an adapter is merged into it. The values that were there when a state came counted as those of all."""
    model = Body()
    one, state = replica(model), stepped(replica(Body())).capture()
    with torch.no_grad():
        model.body[2].weight[-1] += 1.0
    with caplog.at_level(logging.WARNING, "minga"):
        one.restore(state)
        one.digest()
    (heard,) = caplog.messages
    assert "body.2.weight is frozen in the run, and this program changed its values" in heard


def test_a_given_base_is_compared_with_what_is_here_in_its_form(caplog: pytest.LogCaptureFixture) -> None:
    """A program that forgets to load the base would send gradients of another model; another form is trusted."""
    given = replica(Body())._state.base
    run = stepped(replica(Body(), base=given))
    with pytest.raises(UnfitError, match=r"`body\.0\.weight` is frozen and has other values"):
        replica(Body(seed=2), base=given)
    model = Body()
    model.body.bfloat16()
    one = replica(model, base=given)
    one.restore(run.capture())
    assert one.digest() == run.digest()
    assert not caplog.messages
    with torch.no_grad():
        model.body[2].weight += 1.0
        run._watch._begun["body.2.bias"][0].add_(1.0)
    for each in (one, run):
        each.apply(torch.ones(each.vector.numel), each.step + 1)
    heard = [message.partition(" is frozen")[0] for message in caplog.messages]
    assert heard == ["body.2.weight", "body.2.bias"]


def test_what_may_follow_the_trained_parameters_stays_in_the_state() -> None:
    def following() -> tuple[Body, Replica]:
        model = Body()

        def follow() -> None:
            with torch.no_grad():
                model.body[0].bias.fill_(float(model.head.bias[0]))

        return model, replica(model, after_update=follow)

    model, one = following()
    twin, other = following()
    with torch.no_grad():
        twin.body[2].bias += 1.0
    state = stepped(one).capture()
    assert "model/body.0.bias" in names(state)
    other.restore(state)
    assert torch.equal(twin.body[0].bias, model.body[0].bias)
    assert torch.equal(twin.body[2].bias, model.body[2].bias)
    with pytest.raises(UnfitError, match=r"after_update=, which may change `body\.0\.bias`"):
        replica(copy.deepcopy(model)).check(state)


def test_a_shared_base_is_a_part_of_the_state_but_for_what_has_no_bytes_of_its_own() -> None:
    def holding(seed: int, code: float = 1.0) -> tuple[Body, Replica]:
        model = Body(seed)
        kept = TwoTensor(torch.ones(4, 4), torch.full((4, 4), code))
        model.body[2].weight = nn.Parameter(kept, requires_grad=False)
        return model, replica(model, shares=True)

    (model, one), (other, newcomer), (_, odd) = holding(0), holding(2), holding(0, 2.0)
    state = stepped(one).capture()
    newcomer.restore(state)
    assert newcomer.digest() == one.digest()
    assert torch.equal(other.body[0].weight, model.body[0].weight)
    reader = Body(3)
    reader.body[2].weight = model.body[2].weight
    optimizer = torch.optim.SGD([*reader.norm.parameters(), *reader.head.parameters()], lr=1.0)
    Replica(make_spec(4), optimizer, model=reader, reads=True).restore(state)
    assert torch.equal(reader.body[0].weight, model.body[0].weight)
    with pytest.raises(UnfitError, match=r"`body\.2\.weight` is frozen and has other values"):
        odd.check(state)
