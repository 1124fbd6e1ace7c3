"""The door of a run whose peers have frameworks: one unit of samples, and streams of data that peers read apart."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, IterableDataset, RandomSampler, TensorDataset

from minga.integrations.data_order import loaders_of, order_by, order_loaders, shuffled_by
from tests.integrations.test_trainer import TRAINER
from tests.worlds.framework_peers import results_of

TOKENS = """
class Waiting(TrainerCallback):
    # Until the other one was refused.
    def on_step_end(self, *_, optimizer, **__):
        while not heard:
            optimizer.optimizer.joined.follow(0.05)
        (folder / "heard").touch()


class Stream(torch.utils.data.IterableDataset):
    epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        while True:
            yield {"x": rows(4, 3), "labels": torch.tensor([0, 1, 2, -100])}


heard = []
data, peer = Stream(), enter(spec_of(6, 3))
peer.subscribe(lambda event: event.kind == "member.unfit" and heard.append(event.fields["why"]))
settings = arguments(per_device_train_batch_size=2, gradient_accumulation_steps=1)
trainer = Trainer(PerToken(), settings, train_dataset=data, callbacks=[Waiting()])
join(trainer, peer)
trainer.train()
step = trainer.optimizer.optimizer.global_step
seed = int(peer.peer_id[:8], 16) % (1 << 28)
peer.close()
say(heard=heard, step=step, epochs=[epoch - seed for epoch in data.epochs])
"""

SAMPLES = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
import pytorch_lightning as pl
from minga.integrations.accelerate import prepare
from minga.integrations.lightning import MingaStrategy


class Stream(torch.utils.data.IterableDataset):
    def __init__(self):
        self.epochs = []

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def __iter__(self):
        return iter(rows(6, 0))


refused = []


def is_refused(call):
    try:
        call()
    except minga.ConfigurationError as error:
        refused.append(str(error))


def join_and_train():
    model = torch.nn.Module()
    model.layers = network()
    groups = [{"params": [p for p in model.parameters() if (p.ndim > 1) == is_first]} for is_first in (True, False)]
    inner = torch.optim.SGD(groups, lr=0.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0)
    with enter(spec_of(6, 3)) as peer:
        try:
            minga.Optimizer(inner, peer, model=model, scheduler=scheduler, max_grad_norm=1.0)
        finally:
            while not (folder / "heard").exists():  # who leaves at once waits half a second for its last words
                __import__("time").sleep(0.02)


is_refused(join_and_train)
role = "0"  # from here on runs of its own
model, epochs = network(), {}
parts = model, torch.optim.SGD(model.parameters(), lr=0.1)
with enter(spec_of(6, 1), 1) as peer:
    stream, seed = Stream(), int(peer.peer_id[:8], 16) % (1 << 28)
    accelerator = Accelerator(cpu=True)
    is_refused(lambda: prepare(accelerator, peer, *parts, DataLoader(stream, batch_size=3), weigh=len))
    model, optimizer, loader = prepare(
        accelerator, peer, *parts, DataLoader(stream, batch_size=3), weigh=len, unit="tokens"
    )
    for batch in loader:
        accelerator.backward(model(batch).square().mean())
        optimizer.step()
        optimizer.zero_grad()
    epochs["accelerate"] = [epoch - seed for epoch in stream.epochs]
    unit = optimizer.optimizer.joined._replica._record.unit


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, _):
        return self.network(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


with enter(spec_of(6, 1), 2) as peer:
    stream, seed = Stream(), int(peer.peer_id[:8], 16) % (1 << 28)
    trainer = pl.Trainer(strategy=MingaStrategy(peer), accelerator="cpu", logger=False, enable_checkpointing=False,
                         enable_progress_bar=False, enable_model_summary=False, max_epochs=3,
                         gradient_clip_val=1.0, gradient_clip_algorithm="value")
    trainer.fit(Module(), DataLoader(stream, batch_size=6))
    epochs["lightning"] = [epoch - seed for epoch in stream.epochs]
say(refused=refused, epochs=epochs, unit=unit)
"""

ANEW = """
from torch.utils.data import DataLoader
import pytorch_lightning as pl
from minga.integrations.lightning import MingaStrategy


class Loader(DataLoader):
    # Knows by which seed it is shuffled when somebody begins to read it.
    def __iter__(self):
        generator = self.sampler.generator
        read.append(generator and generator.initial_seed() - peer.seed)
        return super().__iter__()


class Module(pl.LightningModule):
    def __init__(self, asks_early):
        super().__init__()
        self.network, self.asks_early = network(), asks_early

    def train_dataloader(self):
        made.append(Loader(rows(6, 0), batch_size=6, shuffle=True))
        return made[-1]

    def val_dataloader(self):
        evaluated.append(DataLoader(rows(6, 0), batch_size=6, shuffle=True))
        return evaluated[-1]

    def training_step(self, batch, _):
        return self.network(batch).square().mean()

    def validation_step(self, batch, _):
        pass

    def configure_optimizers(self):
        if self.asks_early:
            self.trainer.estimated_stepping_batches
        return torch.optim.SGD(self.parameters(), lr=0.5)


evaluated, told = [], []
for asks_early in (False, True):
    read, made = [], []
    with enter(spec_of(6, 2), int(asks_early)) as peer:
        trainer = pl.Trainer(strategy=MingaStrategy(peer), accelerator="cpu", logger=False, enable_checkpointing=False,
                             enable_progress_bar=False, enable_model_summary=False, max_epochs=9,
                             reload_dataloaders_every_n_epochs=1)
        trainer.fit(Module(asks_early))
        told.append([read[0], [loader.sampler.generator.initial_seed() - peer.seed for loader in made]])
say(told=told, evaluated=[loader.sampler.generator is None for loader in evaluated])
"""


def test_loaders_that_lightning_asks_for_anew_come_in_the_order_of_the_peer(tmp_path: Path) -> None:
    """Only the first ones did, and only after workers had begun to read ahead."""
    (loop,) = results_of(tmp_path, [ANEW])
    at_once, early = loop["told"]  # the latter by a module that asks how many batches there are
    assert at_once == early == [0, [0, 1]]  # to the peer's seed the epoch is added
    assert loop["evaluated"]
    assert all(loop["evaluated"])  # these come as the script has them


def test_a_trainer_that_counts_tokens_and_a_loop_that_counts_samples_do_not_train_together(tmp_path: Path) -> None:
    """The batch was smaller by the length of a sample, without a word."""
    trainer, loop = results_of(tmp_path, [TRAINER + TOKENS, SAMPLES])
    refused, without_unit = loop["refused"]
    assert "the run counts tokens, this program counts samples" in refused
    assert "unit=..." in refused
    assert (trainer["heard"], trainer["step"]) == ([refused[:400]], 3)
    for epochs in (trainer["epochs"], *loop["epochs"].values()):
        assert epochs
        assert set(epochs) == {0}  # those of the framework, after the peer's own number
    assert 'unit="tokens"' in without_unit
    assert loop["unit"] == "tokens"
    said = (tmp_path / "errors1").read_text("utf-8")  # of a loop with Accelerate that never clips, and of Lightning
    assert said.count("the run clips gradients to 1.0, as its spec says (optimizer.max_grad_norm)") == 2
    assert said.count("this script gives its framework no norm") == 1
    assert said.count("this script clips each value to 1.0, which is left out") == 1


class Numbers(IterableDataset[int]):
    """A stream without any way to order it."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(50))


class ByEpoch(Numbers):
    """One whose order is that of an epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(50, generator=generator).tolist())


class ByGenerator(Numbers):
    """One with a generator, as Accelerate knows it."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(0)

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(50, generator=self.generator).tolist())


def of_hub(shards: int) -> Any:
    from datasets import IterableDataset as HubStream

    def generate(parts: list[int]) -> Iterator[dict[str, int]]:
        yield from ({"n": 10 * part + number} for part in parts for number in range(10))

    return HubStream.from_generator(generate, gen_kwargs={"parts": list(range(shards))})


def read(dataset: Any) -> list[int]:
    return [each["n"] if isinstance(each, dict) else int(each) for each in dataset]


@pytest.mark.parametrize("make", [ByEpoch, ByGenerator, lambda: of_hub(1), lambda: of_hub(5)])
def test_each_peer_reads_a_stream_in_an_order_of_its_own(make: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "minga"):
        orders = [read(shuffled_by(seed, make())) for seed in (1, 2, 2**32 - 1)]
        again = read(shuffled_by(1, make()))
    assert again == orders[0]
    assert len({tuple(order) for order in orders}) == 3
    assert len({tuple(sorted(order)) for order in orders}) == 1
    assert not caplog.messages


def test_epochs_of_the_loop_come_after_the_number_of_the_peer() -> None:
    stream = ByEpoch()
    for _ in range(2):  # to say it twice changes nothing
        order_by(7, stream)
    assert stream.epoch == 7
    copied = pickle.loads(pickle.dumps(stream))  # workers of a loader get it so
    for each in (stream, copied):
        each.set_epoch(3)
        assert each.epoch == 10


@pytest.mark.parametrize(
    ("make", "line"), [(Numbers, "set_epoch"), (lambda: of_hub(1), "dataset.shuffle(seed=peer.seed)")]
)
def test_a_stream_that_cannot_be_ordered_is_told_with_the_line_to_add(
    make: Any, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make()
    with caplog.at_level(logging.WARNING, "minga"):
        order_loaders(1, {"train": [DataLoader(stream, batch_size=None)]})
    (heard,) = caplog.messages
    assert "same samples in the same order" in heard
    assert line in heard
    assert "peer.seed" in heard


def test_data_with_an_index_is_left_to_its_sampler() -> None:
    data = TensorDataset(torch.arange(4))
    assert shuffled_by(1, data) is data
    loader = DataLoader(data)
    assert list(loaders_of({"train": [loader]})) == [loader]


def shuffled(**settings: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(50)), batch_size=10, shuffle=True, **settings)


def by_batches() -> DataLoader[Any]:
    data = TensorDataset(torch.arange(50))
    return DataLoader(data, sampler=BatchSampler(RandomSampler(data), 10, drop_last=False), batch_size=None)


@pytest.mark.parametrize("make", [shuffled, lambda: shuffled(generator=torch.Generator().manual_seed(0)), by_batches])
def test_each_peer_shuffles_in_an_order_of_its_own_whatever_seed_the_script_sets(make: Any) -> None:
    """Scripts with one line `seed_everything(1)` read the same samples in the same order."""
    orders = []
    for seed in (1, 2, 1):
        torch.manual_seed(7)
        loader = make()
        order_loaders(seed, loader)
        orders.append([int(number) for _ in range(2) for (batch,) in loader for number in batch])
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]
    assert orders[0][:50] != orders[0][50:]  # another one in each epoch
    assert sorted(orders[0][:50]) == sorted(orders[1][:50]) == list(range(50))


def test_a_sampler_that_adds_its_epoch_to_a_seed_draws_by_the_peer() -> None:
    orders = []
    for seed in (1, 2, 1):
        sampler = DistributedSampler(range(50), num_replicas=1, rank=0, seed=0)
        order_loaders(seed, DataLoader(TensorDataset(torch.arange(50)), sampler=sampler))
        orders.append(list(sampler))
    assert orders[0] == orders[2]
    assert orders[0] != orders[1]


def test_data_in_order_stay_in_order() -> None:
    data = TensorDataset(torch.arange(4))
    for loader in (DataLoader(data), DataLoader(data, sampler=range(4))):
        order_loaders(1, loader)
        assert [int(batch) for (batch,) in loader] == [0, 1, 2, 3]
