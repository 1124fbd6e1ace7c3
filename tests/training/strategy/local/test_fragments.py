"""Fragments of a model that rounds carry in turn."""

from __future__ import annotations

import pytest
import torch

from minga.access.standing_orders import amended_spec, check_changes
from minga.averaging.codecs.layout import VectorLayout
from minga.averaging.strategy_choice import round_batch_range
from minga.core.errors import ConfigurationError
from minga.core.spec.run_spec import RunSpec
from minga.training.plugins_of_run import check_plugins
from minga.training.strategy.local import SMALL, Fragments, layer_of
from tests.worlds.local_peers import LocalPeer, loss_of, small_model, take_round

LARGE = 2 * SMALL


def gpt(layers: int) -> tuple[list[str], list[int]]:
    """Names and sizes as those of a small language model: embedding, layers of a matrix and a bias, head."""
    names, numels = ["embed.weight"], [5 * LARGE]
    for layer in range(layers):
        names += [f"h.{layer}.mlp.weight", f"h.{layer}.mlp.bias"]
        numels += [LARGE, 16]
    return [*names, "norm.weight"], [*numels, 16]


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_each_parameter_is_in_one_fragment_and_buffers_are_in_all(count: int) -> None:
    names, numels = gpt(6)
    whole = VectorLayout((*numels, 7), "float16")
    parts = Fragments(whole, sum(numels), names, count)
    seen = torch.zeros(whole.total)
    for fragment in range(count):
        assert (
            parts.layout_of(fragment + 3 * count).total == sum(s.stop - s.start for s, _ in parts.slices(fragment)) + 7
        )
        taken = parts.take(torch.arange(float(whole.total)), fragment)
        assert torch.equal(parts.buffers(taken), torch.arange(sum(numels), whole.total).float())
        for run, part in parts.slices(fragment):
            seen[run] += 1
            assert torch.equal(taken[part], torch.arange(run.start, run.stop).float())
    assert seen[: sum(numels)].eq(1).all()
    assert len({parts.layout_of(step).fingerprint for step in range(2 * count)}) == count


def test_layers_are_strided_and_the_embedding_goes_where_there_is_least() -> None:
    names, numels = gpt(5)
    parts = Fragments(VectorLayout(tuple(numels), "float16"), sum(numels), names, 2)
    sizes = [parts.layout_of(step).total for step in range(2)]
    layers = {0: 3 * LARGE, 1: 2 * LARGE}  # layers 0, 2, 4 and 1, 3
    small = sum(numels) - 10 * LARGE
    assert sizes[0] == layers[0] + small, "the small ones are in the lighter fragment"
    assert sizes[1] == layers[1] + 5 * LARGE
    assert [layer_of(name) for name in ("h.11.mlp.3.weight", "embed.weight", "layers.0.bias")] == [11, None, 0]


def test_a_fragment_is_a_layout_of_its_own_even_among_equal_ones() -> None:
    parts = Fragments(VectorLayout((LARGE, LARGE), "float16"), 2 * LARGE, ["0.weight", "1.weight"], 2)
    assert parts.layouts[0].fingerprint != parts.layouts[1].fingerprint
    whole = VectorLayout((LARGE, LARGE), "float16")
    assert Fragments(whole, 2 * LARGE, [], 1).layouts == [whole], "one fragment is the vector of any other strategy"


def test_no_fragment_is_empty() -> None:
    parts = Fragments(VectorLayout((LARGE, LARGE, 3), "float16"), 2 * LARGE + 3, ["0.a", "3.a", "6.a"], 3)
    assert sorted(layout.total for layout in parts.layouts) == [3, LARGE, LARGE]


def test_more_fragments_than_tensors_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="fragments = 9: the model has 8 tensors"):
        LocalPeer(fragments=9)


def test_a_batch_that_fragments_do_not_divide_is_rounded_down_at_the_begin_and_by_amendment() -> None:
    run = {"name": "x", "training": {"strategy": "local", "target_batch_size": 4097}}
    begun = RunSpec.from_mapping({**run, "strategy": {"local": {"fragments": 2}}})
    check_plugins(begun)
    batch = {"training.target_batch_size": 4099}
    check_changes(begun, batch, 10)
    assert round_batch_range(begun) == (2048, 2048)
    assert round_batch_range(amended_spec(begun, batch)) == (2049, 2049)


def test_a_round_of_a_measured_batch_takes_at_least_one_sample_of_each_fragment() -> None:
    """Rounds of none would follow on each other with nothing in between."""
    batch = {"target_batch_size": "auto", "target_batch_size_min": 1, "target_batch_size_max": 7}
    run = {"name": "test", "training": {"strategy": "local", **batch}, "strategy": {"local": {"fragments": 5}}}
    assert round_batch_range(RunSpec.from_mapping(run)) == (1, 1)


def test_streaming_is_diloco_for_each_fragment_at_its_own_rounds() -> None:
    """By hand: each fragment's window reaches back to its own last round, and it has its own momentum."""
    peers = [LocalPeer(fragments=2, outer_learning_rate=0.6, outer_momentum=0.8) for _ in range(2)]
    shared = torch.cat([each.detach().reshape(-1) for each in small_model().parameters()])
    fragment_of = torch.zeros(shared.numel(), dtype=torch.long)
    parts = peers[0].strategy._fragments  # type: ignore[attr-defined]
    for run, _ in parts.slices(1):
        fragment_of[run] = 1
    momentum, workers = torch.zeros_like(shared), [small_model() for _ in peers]
    windows = torch.zeros(2, len(peers))
    for round in range(6):
        for place, worker in enumerate(workers):
            for step in range(place + 1):
                seed, samples = 100 * round + 10 * place + step, 2 + place + round
                peers[place].micro_batch(samples, seed)
                worker.zero_grad()
                loss_of(worker, samples, seed).backward()
                torch.optim.SGD(worker.parameters(), lr=0.1).step()
                windows[:, place] += samples
        fragment = round % 2
        own = [torch.cat([p.detach().reshape(-1) for p in worker.parameters()]) for worker in workers]
        weights = windows[fragment] / windows[fragment].sum()
        moved = sum((shared - each) * weight for each, weight in zip(own, weights, strict=True))
        assert isinstance(moved, torch.Tensor)
        windows[fragment] = 0
        inside = fragment_of == fragment
        momentum = torch.where(inside, 0.8 * momentum + moved, momentum)
        shared = torch.where(inside, shared - 0.6 * (moved + 0.8 * momentum), shared)
        for worker, each in zip(workers, own, strict=True):
            torch.nn.utils.vector_to_parameters(torch.where(inside, shared, each), worker.parameters())
        take_round(peers)
        for place, peer in enumerate(peers):
            here = torch.cat([p.detach().reshape(-1) for p in peer.model.parameters()])
            there = torch.cat([p.detach().reshape(-1) for p in workers[place].parameters()])
            torch.testing.assert_close(here, there, rtol=0, atol=1e-6)
    assert len({peer.replica.digest() for peer in peers}) == 1
