"""Accelerate and Lightning as peers: against plain loops, and all frameworks together in one run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.worlds.framework_peers import network, reference, results_of, rows

EXAMPLES = Path(__file__).parents[2] / "examples"

ACCELERATE = """
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DataLoaderConfiguration
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare


def train(peer, data, size, lockstep=False, **settings):
    AcceleratorState._reset_state(reset_partial_state=True)  # as a program of its own
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, **settings)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader = DataLoader(data, batch_size=size, shuffle=True)
    prepared, optimizer, loader, scheduler = prepare(accelerator, peer, model, optimizer, loader, schedule)
    joined, calls, dtype = optimizer.optimizer, 0, None
    sampler = loader.loader.batch_sampler.sampler
    later = accelerator.skip_first_batches(dataloader=loader, num_batches=2)
    assert type(later) is type(loader)  # it counts
    batches = [len(loader), sum(1 for _ in loader.skip_first_batches(1)),
               sum(1 for _ in later), len(loader.dataset)]
    while not loader.finished:
        for batch in loader:
            with accelerator.accumulate(prepared):
                out = prepared(batch)
                dtype = str(out.dtype)
                accelerator.backward(out.square().mean())
                accelerator.clip_grad_norm_(prepared.parameters(), 0.001)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            calls += accelerator.sync_gradients
            while lockstep and not joined.finished and joined.global_step < calls:
                joined.joined.follow(0.02)
    told = {"values": values(model), "step": joined.global_step, "rates": scheduler.get_last_lr(),
            "by_peer": (getattr(sampler, "initial_seed", None) or sampler.generator.initial_seed()) == peer.seed,
            "dtype": dtype, "batches": batches,
            "total": sum(each.total_samples for each in peer.peers() if each.is_self),
            "loss": peer.metrics._loss_sum / max(1, peer.metrics._mini_steps)}
    peer.close()
    return told


refused_later = []
together = train(enter(spec_of(12, 4)), rows(6, int(role)), 3, lockstep=True)
role = "0"
short = train(enter(spec_of(5, 3), 1), rows(6, 0)[:5], 2)
config = DataLoaderConfiguration(use_seedable_sampler=True)
half = train(enter(spec_of(6, 1), 2), rows(6, 0), 3, mixed_precision="bf16", dataloader_config=config)
half["seed_of_config"] = config.data_seed
config.data_seed = 3
accelerator = Accelerator(cpu=True, dataloader_config=config)
with enter(spec_of(6, 1), 3) as peer:
    model = network()
    joined = prepare(accelerator, peer, model, torch.optim.SGD(model.parameters(), lr=1.0), [])
    for again in (lambda: accelerator.load_state(folder), lambda: prepare(accelerator, peer, *joined[:3])):
        try:
            again()
        except minga.ConfigurationError as error:
            refused_later.append(str(error))
accelerator = Accelerator(cpu=True)
try:
    prepare(accelerator, "minga1nonsense", network(), torch.optim.SGD(network().parameters(), lr=1.0), [])
except minga.LinkError as error:
    refused = str(error)
say(together=together, short=short, half=half, refused=refused, refused_later=refused_later)
"""

LIGHTNING = """
import pytorch_lightning as pl
from torch.utils.data import DataLoader
from minga.integrations.lightning import MingaStrategy


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.network = network()

    def training_step(self, batch, _):
        return self.network(batch).square().mean()

    def validation_step(self, batch, _):
        self.log("held_out", self.network(batch).square().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.5, momentum=0.9)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Late(Module):
    # Has no loss in its first ten optimizer calls.
    def training_step(self, batch, index):
        return super().training_step(batch, index) if self.current_epoch >= 5 else None


class Clips(Module):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val, gradient_clip_algorithm):
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.001)


class Lockstep(pl.Callback):
    # The other peer leaves as soon as the last step is taken, so the last figures may be of one peer alone.
    most_peers = 0

    def on_train_batch_end(self, trainer, module, *_):
        self.most_peers = max(self.most_peers, float(trainer.callback_metrics.get("run_peers", 0)))
        joined = trainer.strategy.optimizers[0]
        while not joined.finished and (joined.global_step < trainer.global_step or self.needs_loss(joined)):
            joined.joined.follow(0.02)

    def needs_loss(self, joined):
        # The loss of the run is known from two reports of a trainer, which come once a second.
        return joined.global_step == 3 and "run_loss" not in joined.figures()


def train(links, data, size, module=None, resume=None, every=2, callbacks=(), **settings):
    module = module or Module()
    trainer = pl.Trainer(strategy=MingaStrategy(links), accelerator="cpu", accumulate_grad_batches=every,
                         callbacks=list(callbacks), enable_progress_bar=False, enable_model_summary=False,
                         log_every_n_steps=1, default_root_dir=folder / "lightning",
                         **{**dict(max_epochs=1000, logger=False, enable_checkpointing=False), **settings})
    loader = DataLoader(data, batch_size=size, shuffle=True)
    trainer.fit(module, loader, DataLoader(data, batch_size=6), ckpt_path=resume)
    figures = {name: float(value) for name, value in trainer.callback_metrics.items()}
    as_before = not {"clip_gradients", "_clip_gradients"} & set(vars(trainer.precision_plugin))
    as_before &= trainer.gradient_clip_val == settings.get("gradient_clip_val")
    return {"values": values(module), "figures": figures, "local": trainer.global_step, "as_before": as_before,
            "seed": loader.sampler.generator.initial_seed()}


with enter(spec_of(12, 4)) as peer:
    lockstep = Lockstep()
    together = train({"network": peer}, rows(6, int(role)), 3, callbacks=[lockstep], gradient_clip_val=0.001)
role = "0"
with enter(spec_of(5, 3), 11) as peer:
    short = train(peer, rows(6, 0)[:5], 2, module=Late())
    short["by_peer"] = short["seed"] == peer.seed

unclipped = spec_of(6, 5, optimizer={"max_grad_norm": "off"})
begun = train(enter(unclipped, 12), rows(6, 0), 3, max_steps=2, enable_checkpointing=True)
(checkpoint,) = (folder / "lightning").rglob("*.ckpt")
resumed = train(enter(spec_of(6, 2), 13), rows(6, 0), 3, resume=checkpoint)


late = MingaStrategy("minga1nonsense")  # a constructor uses no network, and no link
try:
    pl.Trainer(strategy=late, accelerator="cpu", logger=False, enable_checkpointing=False).fit(Module(), [])
except minga.LinkError as error:
    bad_link = str(error)


class Pair(pl.LightningModule):
    # Two networks, each with an optimizer and a run of its own.
    def __init__(self):
        super().__init__()
        self.automatic_optimization, self.clips = False, False
        self.first, self.second = network(), network()

    def training_step(self, batch, _):
        for optimizer, part in zip(self.optimizers(), (self.second, self.first)):
            optimizer.zero_grad()
            self.manual_backward(part(batch).square().mean())
            if self.clips:
                self.clip_gradients(optimizer, gradient_clip_val=0.002, gradient_clip_algorithm="norm")
            optimizer.step()

    def configure_optimizers(self):
        pair = [torch.optim.SGD(part.parameters(), lr=0.5) for part in (self.second, self.first)]
        return pair, [torch.optim.lr_scheduler.StepLR(pair[0], step_size=9)]  # as torch alone has it: by epochs


def refusal_of(links, module):
    try:
        train(links, rows(6, 0), 6, module=module, every=1)
    except minga.ConfigurationError as error:
        return str(error)


pair = Pair()
with enter(spec_of(6, 2), 14) as one, enter(spec_of(12, 1), 15) as other:
    refused = refusal_of(one, pair)
    train({"first": one, "second": other}, rows(6, 0), 6, module=pair, every=1)
with enter(spec_of(6, 1), 16) as one, enter(spec_of(6, 1), 17) as other:
    clipping = [refusal_of(one, Clips())]
    pair.clips = True
    clipping.append(refusal_of({"first": one, "second": other}, pair))
say(together=together, clipping=clipping, most_peers=lockstep.most_peers, short=short, begun=begun, resumed=resumed,
    refused=refused, bad_link=bad_link, first=values(pair.first), second=values(pair.second))
"""

RATES = [0.5, 0.25, 0.5 / 3, 0.125]


def test_accelerate_and_lightning_equal_a_plain_loop_of_the_same_global_batch(tmp_path: Path) -> None:
    accelerate, lightning = results_of(tmp_path, [ACCELERATE, LIGHTNING])
    both = reference([torch.cat([rows(6, 0), rows(6, 1)])] * 4, rates=RATES)
    assert accelerate["together"]["values"] == pytest.approx(both, abs=1e-5)
    assert lightning["together"]["values"] == accelerate["together"]["values"]
    assert lightning["together"]["as_before"]
    assert accelerate["together"]["rates"] == [0.1]  # after four global steps
    assert lightning["most_peers"] == 2
    assert "run_loss" in lightning["together"]["figures"]
    assert "stopped: the run has reached its last step, 4." in (tmp_path / "errors1").read_text("utf-8")

    five, six = rows(6, 0)[:5], rows(6, 0)
    alone = reference([five] * 3, rates=RATES[:3])  # calls of 4 samples and of 1, the last with fewer micro-batches
    assert accelerate["short"]["values"] == pytest.approx(alone, abs=1e-5)
    assert lightning["short"]["values"] == pytest.approx(alone, abs=1e-5)
    assert accelerate["half"]["by_peer"]
    assert accelerate["half"]["seed_of_config"] is None  # the script may make another accelerator with it
    assert (tmp_path / "errors0").read_text("utf-8").count("data_seed=3: peers whose scripts have the same one") == 1
    assert accelerate["short"]["by_peer"]  # the script sets one seed on all peers, and none reads what another reads
    assert lightning["short"]["by_peer"]
    assert accelerate["short"]["total"] == 15
    assert accelerate["short"]["batches"] == [3, 2, 1, 5]
    assert accelerate["half"]["dtype"] == "torch.float32"  # Accelerate's outputs are converted
    loss = float(network()(six).detach().square().mean())
    assert accelerate["half"]["loss"] == pytest.approx(loss, abs=1e-2)
    half = reference([six], rates=RATES[:1])
    assert accelerate["half"]["values"] == pytest.approx(half, abs=1e-2)
    assert accelerate["half"]["values"] != pytest.approx(half, abs=1e-6)
    assert "link" in accelerate["refused"]
    assert "are those of the run" in accelerate["refused_later"][0]
    assert "takes part in a run already" in accelerate["refused_later"][1]

    assert lightning["begun"]["values"] == pytest.approx(reference([six] * 2, rates=RATES[:2]), abs=1e-5)
    resumed = reference([six] * 4, rates=[*RATES[:2], *RATES[:2]])  # the checkpoint's state; the new run's own schedule
    assert lightning["resumed"]["values"] == pytest.approx(resumed, abs=1e-5)
    for said in ("errors0", "errors1"):
        assert "this script clips to 0.001, which is left out" in (tmp_path / said).read_text("utf-8")
    told = (tmp_path / "errors1").read_text("utf-8")
    assert told.count("gives its framework no norm") == 6  # once for each run that clips
    own_hook, own_call = lightning["clipping"]
    assert own_hook.startswith("configure_gradient_clipping: the run clips gradients after averaging")
    assert own_call.startswith("clip_gradients: the run clips gradients after averaging")
    assert told.count("the last 10 optimizer calls stood for no sample") == 1
    assert told.count("fit ended at global step 2, and the run goes on to 5 without this peer") == 1
    assert told.count("without this peer") == 1  # where the run was over nothing is to be told
    assert told.count("return it with interval='step'") == 2  # of both fits of the pair
    assert "link" in lightning["bad_link"]
    assert "2 optimizers and MingaStrategy 1 links" in lightning["refused"]
    plain = reference([six] * 2, rates=[0.5] * 2, momentum=0.0)
    assert lightning["first"] == pytest.approx(plain, abs=1e-5)
    assert lightning["second"] == pytest.approx(reference([six], rates=[0.5], momentum=0.0), abs=1e-5)


EXAMPLE = """
sys.path.insert(0, EXAMPLES)
import spirals

spirals.SPEC = spec_of(1024, 3)
spirals.enter = lambda program: enter(spirals.SPEC)
own_step, own_show, stepped = minga.Optimizer.step, spirals.show, []


def step(self, *arguments, **named):
    result = own_step(self, *arguments, **named)
    if not stepped:  # no run ends before all have computed something, however slowly one of them began
        stepped.append(role)
        (folder / f"{role}.stepped").touch()
        while len(list(folder.glob("*.stepped"))) < 3:
            self.follow(0.05)
    return result


def show(network, peer):
    told = dict(values=values(network), samples=peer.metrics._samples)
    own_show(network, peer)
    say(**told)


minga.Optimizer.step, spirals.show = step, show
__import__(PROGRAM).main()
"""


def test_the_examples_with_frameworks_train_one_model_together(tmp_path: Path) -> None:
    programs = ["huggingface_trainer", "accelerate_loop", "lightning_module"]
    head = f"EXAMPLES = {os.fspath(EXAMPLES)!r}\n"
    told = results_of(tmp_path, [f"{head}PROGRAM = {program!r}\n{EXAMPLE}" for program in programs])
    assert all(each["samples"] > 0 for each in told), [each["samples"] for each in told]
    assert all(each["values"] == told[0]["values"] for each in told)
