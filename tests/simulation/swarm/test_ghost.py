"""Ghost models: the times and bytes of a real one of the same size, without its numbers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import torch

from minga.averaging.codecs.dense import InvalidEncodingError, codec
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.codecs.registry import CODECS
from minga.averaging.codecs.tensor_bytes import as_bytes
from minga.core.errors import ConfigurationError, ProtocolError
from minga.core.spec.run_spec import RunSpec
from minga.network.meta_bytes import byte_view, fill, is_meta, meta_buffer
from minga.network.virtual.internet import HostSettings, VirtualInternet
from minga.optim import SGD
from minga.simulation.models import replica_maker
from minga.simulation.scenario.scenario import Scenario
from minga.simulation.swarm import size_only_model
from minga.simulation.swarm.simulated_peer import TrainerSettings
from minga.simulation.swarm.size_only_model import SizeOnlyModel, SizeOnlyReplica, no_gradient
from minga.simulation.swarm.swarm import Swarm, pull_to_target
from minga.training.replica.replica import Replica
from minga.training.state.manifest import build_manifest
from minga.training.state.snapshot import StateSnapshot
from tests.worlds.seeds import soaked
from tests.worlds.swarm_tools import make_spec, pull, same_step, vector_replica, virtually

SMALL = 100_000
UP, DOWN = 1.25e6, 5e6


def ghost(parameters: int, moments: int = 0) -> Callable[[RunSpec], SizeOnlyReplica]:
    return lambda spec: SizeOnlyReplica(spec, SizeOnlyModel.of_size(parameters, moments=moments))


def ghost_swarm(spec: RunSpec, parameters: int, moments: int = 0, **settings: Any) -> Swarm:
    return Swarm(spec, make_replica=ghost(parameters, moments), gradient=no_gradient, **settings)


def populate(swarm: Swarm, count: int, up: float = UP, down: float = DOWN) -> None:
    for index in range(count):
        host = HostSettings(latency_s=0.01 + index / 1000, up_bytes_per_s=up, down_bytes_per_s=down)
        swarm.add(host, TrainerSettings(4, 0.1))


async def steps_of(make: Callable[[], Swarm]) -> tuple[list[Any], list[float]]:
    """A run of four peers: its events without ids of rounds, and all seconds and total bytes in them."""
    swarm = make()
    populate(swarm, 4)
    await swarm.run_until_step(3, limit_s=200)
    events: list[Any] = []
    numbers: list[float] = []
    for peer, event in swarm.log.events:
        fields = {k: v for k, v in event.fields.items() if k not in ("round", "digest")}
        measured = {k: v for k, v in fields.items() if isinstance(v, float)}
        events.append((peer, event.kind, {k: v for k, v in fields.items() if k not in measured}))
        numbers += [event.time, *measured.values()]
    numbers += [count for peer in swarm.peers.values() for count in peer.session.node.traffic()]
    await swarm.close()
    return events, numbers


class NamedAsGhost(torch.nn.Module):
    """One parameter, whose entry in a manifest takes as many bytes as that of a ghost."""

    def __init__(self, numel: int) -> None:
        super().__init__()
        self.ghost_0 = torch.nn.Parameter(torch.zeros(numel))


@pytest.mark.parametrize(("name", "numel"), [soaked("float32", 100_000), ("int8", 100_000), ("float32", 2000)])
def test_it_takes_the_time_and_the_bytes_of_a_real_model(
    name: str, numel: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the last bit, where the states that newcomers fetch have manifests of the same length."""

    def real(spec: RunSpec) -> Replica:
        model = NamedAsGhost(numel)
        return Replica(spec, SGD(model.parameters(), lr=0.1), model=model)

    lengths = [
        len(json.dumps(each(make_spec(64)).capture().scalars, separators=(",", ":"))) for each in (real, ghost(1))
    ]
    plain, longer = size_only_model._hash, "0" * (lengths[0] - lengths[1])
    monkeypatch.setattr(size_only_model, "_hash", lambda text: plain(text) + longer)
    spec = make_spec(64, codec=name)
    run = virtually(steps_of)
    events, numbers = run(lambda: Swarm(spec, seed=3, make_replica=real, gradient=pull))
    meta_events, meta_numbers = run(lambda: ghost_swarm(spec, numel, seed=3))
    assert meta_events == events
    assert meta_numbers == numbers


@virtually
async def test_a_killed_aggregator_is_replaced_and_a_former_self_goes_on() -> None:
    swarm = ghost_swarm(make_spec(64, codec="int8"), 300_000, checkpoint_every=1)
    populate(swarm, 5)
    faults = swarm.script("kill aggregator when round.begun step=2")
    await swarm.run_until_step(4, limit_s=300)
    (record,) = faults.records
    assert swarm.log.of("round.member_lost")
    swarm.restart(record.peers[0])
    await swarm.run_until_step(7, limit_s=300)
    await same_step(swarm)
    assert len(swarm.digests()) == 5
    assert len(set(swarm.digests().values())) == 1
    await swarm.close()


# ---- the replica by itself


def replica(model: SizeOnlyModel, **sections: Any) -> SizeOnlyReplica:
    return SizeOnlyReplica(make_spec(8, **sections), model)


def take(ghost: SizeOnlyReplica, *rounds: str) -> str:
    for round_id in rounds:
        ghost.fingerprint(ghost.vector.new(), round_id)
        ghost.apply(ghost.vector.new(), ghost.step + 1)
    return ghost.digest()


def test_its_state_is_the_history_of_its_rounds() -> None:
    model = SizeOnlyModel.of_size(5000)
    assert take(replica(model), "a", "b") == take(replica(model), "a", "b")
    digests = {take(replica(model), *rounds) for rounds in ("", "a", "b", "ab", "ba", "aa")}
    assert len(digests) == 6
    other = replica(model)
    one = replica(model)
    take(one, "a", "b")
    other.restore(one.capture())
    assert take(other, "c") == take(one, "c")
    assert one.digest() == build_manifest(one.capture()).digest


def test_chunks_of_different_states_are_different() -> None:
    one, other = replica(SizeOnlyModel.of_size(1_000_000)), replica(SizeOnlyModel.of_size(1_000_000))
    take(one, "a")
    manifest, own = build_manifest(one.capture()), build_manifest(other.capture())
    assert manifest.diff(own) == list(range(manifest.chunk_count))
    assert manifest.diff(manifest) == []
    assert manifest.verify_chunk(1, meta_buffer(manifest.chunk_size(1)))
    assert not own.verify_chunk(1, meta_buffer(own.chunk_size(1) - 1))
    assert not manifest.verify_chunk(1, memoryview(bytes(manifest.chunk_size(1))))


def test_sizes_follow_a_model() -> None:
    with torch.device("meta"):
        module = torch.nn.Linear(300, 300)
    model = SizeOnlyModel.of(list(module.parameters()), moments=1)
    assert model.numels == (90_000, 300)
    assert model.parameters == 90_300
    assert model.state_bytes == 2 * 4 * 90_300
    ghostly = replica(model, codec="adaptive").vector.layout
    real = VectorLayout(model.numels, "adaptive")
    assert ghostly.encoded_bytes(0, 90_300) == real.encoded_bytes(0, 90_300)
    assert ghostly.fingerprint != real.fingerprint


@pytest.mark.parametrize(
    ("training", "optimizer", "bytes_each"),
    [
        ({}, {}, 12.0),
        ({}, {"name": "adamw", "state_bits": 8}, 6.001953125),
        ({}, {"name": "sgd", "momentum": 0.0}, 4.0),
        ({"strategy": "local"}, {}, 8.0),
        ({"strategy": "elastic"}, {}, 4.0),
    ],
)
def test_the_ghost_of_a_scenario_has_the_state_that_its_strategy_shares(
    training: dict[str, Any], optimizer: dict[str, Any], bytes_each: float
) -> None:
    model, peers = {"kind": "ghost", "parameters": 1 << 20}, [{"name": "home", "samples_per_second": 1}]
    tables = {"model": model, "training": training, "optimizer": optimizer, "peers": peers}
    scenario = Scenario.from_mapping(tables)
    state = replica_maker(scenario)(scenario.run_spec()).capture()
    assert state.buffer.numel() == bytes_each * (1 << 20)


@pytest.mark.parametrize(("numels", "moments"), [((), 2), ((0,), 2), ((5,), -1), ((5,), 9), ((1 << 50,), 0)])
def test_impossible_sizes(numels: tuple[int, ...], moments: int) -> None:
    with pytest.raises(ConfigurationError):
        SizeOnlyModel(numels, moments)


def test_what_needs_numbers_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"average_parameters_every.*ghost"):
        replica(SizeOnlyModel.of_size(10), averaging={"codec": "float32", "average_parameters_every": 5})
    ghostly = replica(SizeOnlyModel.of_size(10))
    with pytest.raises(ConfigurationError, match="another model"):
        ghostly.restore(replica(SizeOnlyModel.of_size(11)).capture())
    real = vector_replica(10)(make_spec(8))
    with pytest.raises(ConfigurationError, match="another model"):
        ghostly.check(build_manifest(real.capture()))
    with pytest.raises(ConfigurationError, match=r"one side names its tensors|this program.s has float32"):
        real.check(build_manifest(ghostly.capture()))


@virtually
async def test_a_swarm_of_ghosts_needs_its_own_gradient() -> None:
    swarm = Swarm(make_spec(8), make_replica=ghost(10), gradient=pull_to_target)
    swarm.add()
    with pytest.raises(ConfigurationError, match="no parameters"):
        await swarm.run_until_step(1)
    await swarm.close()


# ---- codecs and bytes


@pytest.mark.parametrize("name", CODECS.names())
def test_codecs_check_sizes_and_leave_out_the_numbers(name: str) -> None:
    chosen, vector = codec(name), torch.empty(1000, device="meta")
    size = chosen.max_encoded_bytes(1000)
    chosen.encode(vector, meta_buffer(size))
    chosen.decode(meta_buffer(size), vector)
    chosen.decode_add(meta_buffer(size), vector, 2.0)
    with pytest.raises(ValueError, match="bytes"):
        chosen.encode(vector, meta_buffer(size - 1))
    with pytest.raises(InvalidEncodingError, match="without"):
        chosen.decode(bytes(size), vector)
    with pytest.raises(InvalidEncodingError, match="without"):
        chosen.decode_add(meta_buffer(size), torch.zeros(1000), 1.0)


def test_meta_bytes_have_a_length_and_nothing_else() -> None:
    piece = meta_buffer(1 << 40)[10:-10]
    assert is_meta(piece)
    assert is_meta(byte_view(piece))
    assert piece.nbytes == (1 << 40) - 20
    assert not any(map(is_meta, (b"", bytearray(3), memoryview(b"ab"))))
    assert as_bytes(torch.empty(7, device="meta")).nbytes == 28
    with pytest.raises(ValueError, match="meta"):
        meta_buffer(-1)
    fill(meta_buffer(3), memoryview(b"abc"))
    with pytest.raises(ValueError, match="content"):
        fill(memoryview(bytearray(3)), meta_buffer(3))


@virtually
async def test_they_cross_the_virtual_network_into_meta_buffers_only() -> None:
    internet = VirtualInternet()
    one, other = internet.host(HostSettings(up_bytes_per_s=1e6)), internet.host()
    connection = await one.connect(other.address)
    stream = await connection.open_stream()
    clock = asyncio.get_running_loop().time
    begun_s = clock()
    writing = asyncio.ensure_future(stream.write(meta_buffer(10_000_000)))
    far = await (await other.accept()).accept_stream()
    await far.read_into(meta_buffer(9_000_000))
    assert clock() - begun_s == pytest.approx(9.0, rel=0.02)
    assert await far.read(5) == bytes(5)
    with pytest.raises(ProtocolError, match="without their content"):
        await far.read_into(memoryview(bytearray(10)))
    writing.cancel()


def test_a_snapshot_without_content_takes_no_memory() -> None:
    snapshot: StateSnapshot = replica(SizeOnlyModel.of_size(10**11)).capture()
    assert snapshot.bytes_view.nbytes == 12 * 10**11
