"""`minga.split.serve` and `minga.split.Client`: real peers on this machine, a few lines a side."""

from __future__ import annotations

import contextlib
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import minga
import minga.split
from minga.core.refusal_code import RefusalCode
from tests.worlds.split_world import batch, layers, train_whole, values

sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


def spec(variant: str = "vanilla", **split: Any) -> dict[str, Any]:
    recipe, network = {"recipe": "custom"}, {"relay": "none"}
    return {"name": "clinic", "model": recipe, "network": network, "split": {"variant": variant, **split}}


@pytest.fixture
def options(tmp_path: Path) -> Any:
    return lambda name: minga.PeerOptions(identity=tmp_path / f"{name}.json", directory=tmp_path, host="127.0.0.1")


def test_five_lines_a_side(options: Any) -> None:
    modules, whole = layers(), layers()
    bottom, top = nn.Sequential(*modules[:2]), nn.Sequential(*modules[2:])
    with (
        minga.split.serve(spec(), top, optimizer=sgd, options=options("a")) as server,
        minga.split.Client(server.link, bottom, optimizer=sgd, options=options("b")) as client,
    ):
        losses = [client.train(*batch(number)) for number in range(5)]
        assert losses == pytest.approx(train_whole(whole, range(5)), abs=1e-6)
        inputs, labels = batch(9)
        expected = nn.Sequential(*whole)(inputs).detach()
        assert torch.allclose(client.predict(inputs), expected, atol=1e-6)
        assert client.evaluate(inputs, labels) == pytest.approx(
            float(nn.functional.cross_entropy(expected, labels)), abs=1e-6
        )
        server.wait(5)
        status = server.status
        assert (status.steps, status.samples, status.clients, status.waiting) == (5, 40, 1, 0)
        assert status.loss == pytest.approx(losses[-1])
        assert server.between_batches(lambda: values(*modules[2:]).shape) == values(*whole[2:]).shape
        with pytest.raises(minga.RejectedError, match="cannot take this batch") as caught:
            client.train(inputs, labels + 7)
        assert caught.value.code == RefusalCode.REFUSED
        loss = nn.functional.cross_entropy(nn.Sequential(*whole)(batch(5)[0]), batch(5)[1])
        assert client.train(*batch(5)) == pytest.approx(float(loss.detach()), abs=1e-6), "as if it had not been"
        assert client.steps == 6


def test_a_server_that_ends_and_comes_again_on_its_peer_is_waited_for(options: Any) -> None:
    modules = layers()
    bottom, head = modules[0], modules[5]
    with minga.host(spec("u-shaped"), options("a")) as peer, minga.join(peer.link, options("b")) as other:
        server = minga.split.serve(peer, nn.Sequential(*modules[1:5]), optimizer=sgd)
        client = minga.split.Client(other, bottom, head, optimizer=sgd)
        assert client.train(*batch(0)) is not None
        server.close()
        server.close()
        losses: list[float | None] = []
        training = threading.Thread(target=lambda: losses.extend(client.train(*batch(1)) for _ in range(3)))
        training.start()
        again = minga.split.serve(peer, nn.Sequential(*modules[1:5]), optimizer=sgd)
        training.join(60.0)
        assert len(losses) == 3
        assert losses.count(None) <= 1, "what became of the first one is not known"
        assert losses[-1] is not None
        client.close()
        again.close()
        assert other.peers(), "a peer that was there before stays"


def test_a_server_and_a_client_that_come_again_go_on_as_if_they_had_never_ended(options: Any, tmp_path: Path) -> None:
    whole, losses = train_whole(layers(), range(6)), list[float | None]()
    with minga.host(spec(), options("a")) as peer, minga.join(peer.link, options("b")) as other:
        for life in range(2):
            modules = layers(3 + life)
            bottom, top = nn.Sequential(*modules[:2]), nn.Sequential(*modules[2:])
            with (
                minga.split.serve(peer, top, optimizer=sgd, resume=tmp_path / "top") as server,
                minga.split.Client(other, bottom, optimizer=sgd, resume=tmp_path / "bottom") as client,
            ):
                losses += [client.train(*batch(3 * life + number)) for number in range(3)]
                assert client.steps == server.status.steps == 3 + 3 * life
                client.save(tmp_path / "bottom")
                server.save(tmp_path / "top")
    assert losses == pytest.approx(whole, abs=1e-6)


def test_a_server_whose_step_fails_half_way_serves_no_more_and_says_why(
    options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(torch.optim.SGD):
        steps = 0

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            if self.steps == 2:
                saver.start()
                while not server._service._turn._waiters:
                    time.sleep(0.005)
                raise torch.OutOfMemoryError("CUDA out of memory")
            return super().step(closure)

    def save() -> None:
        with contextlib.suppress(minga.LocalError):
            server.between_batches(lambda: saved.append("half a step"))

    saved: list[str] = []
    saver = threading.Thread(target=save)
    modules, failing = layers(), partial(Failing, lr=0.1)
    with (
        minga.split.serve(spec(), modules[5], optimizer=failing, options=options("a")) as server,
        minga.split.Client(server.link, nn.Sequential(*modules[:5]), optimizer=sgd, options=options("b")) as client,
    ):
        client.train(*batch(0))
        monkeypatch.setattr(client._exchange, "_patience_s", 0.0)
        with pytest.raises(minga.RejectedError, match="the server was closed"):
            client.train(*batch(1))
        for ended in (server.wait, lambda: server.status, lambda: server.between_batches(list)):
            with pytest.raises(minga.LocalError, match="failed half-way: CUDA out of memory"):
                ended()
        saver.join()
    assert saved == [], "what was saved before stays"


def test_nothing_is_sent_to_a_peer_that_the_run_does_not_name(options: Any) -> None:
    with minga.host(spec(), options("a")) as peer, minga.join(peer.link, options("b")) as other:
        with pytest.raises(minga.ConfigurationError, match="clients of this run send nothing to"):
            minga.split.serve(other, layers()[5], optimizer=sgd)
        client = minga.split.Client(other, layers()[0], optimizer=sgd, patience_s=0.0)
        with client, pytest.raises(minga.UnreachableError, match="no peer of this run serves"):
            client.train(*batch(0))


def test_what_makes_no_sense_is_said(options: Any) -> None:
    serve = partial(minga.split.serve, optimizer=sgd, options=options("a"))
    with pytest.raises(minga.ConfigurationError, match=r'split.variant = "none"'):
        serve(spec("none"), layers()[5])
    with pytest.raises(minga.ConfigurationError, match="none of float32"):
        serve(spec(upload_codec="morse"), layers()[5])
    with pytest.raises(minga.ConfigurationError, match="it is for means"):
        serve(spec(download_codec="gtopk"), layers()[5])
    with pytest.raises(minga.ConfigurationError, match=r"a part of a model is a torch.nn.Module, not a list"):
        serve(spec(), layers())
    with pytest.raises(minga.ConfigurationError, match="max_grad_norm"):
        serve(spec(), layers()[5], max_grad_norm=-1.0)
    with pytest.raises(minga.ConfigurationError, match=r"is no torch.optim.Optimizer"):
        serve(spec(), layers()[5], optimizer=lambda _: 5)
    with pytest.raises(minga.ConfigurationError, match=r"nobody else has the data"):
        serve({**spec(), "security": {"verification": "byzantine"}}, layers()[5])
    with pytest.raises(minga.ConfigurationError, match=r"optimizer\.schedule"):  # rounds of bottoms, batches of the top
        serve(spec("splitfed-2"), layers()[5], optimizer=None)


def test_the_optimizer_of_the_run_spec_with_its_schedule(options: Any) -> None:
    optimizer = {"name": "sgd", "learning_rate": 0.5, "warmup_steps": 2, "total_steps": 4, "momentum": 0.0}
    modules = layers()
    with (
        minga.split.serve({**spec(), "optimizer": optimizer}, modules[5], options=options("a")) as server,
        minga.split.Client(server.link, nn.Sequential(*modules[:5]), options=options("b")) as client,
    ):
        part, rates = client._half.part, list[float]()
        assert part.optimizer is not None
        for number in range(3):
            client.train(*batch(number))
            rates.append(part.optimizer.param_groups[0]["lr"])
        assert rates == pytest.approx([0.5, 0.5, 0.25]), "half-way down after the warm-up, which began at 0.25"
