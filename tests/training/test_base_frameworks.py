"""One run on a base whose peers are a loop of their own, the Trainer, Accelerate and Lightning, as real processes."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.worlds.framework_peers import results_of
from tests.worlds.seeds import soaked

COMMON = """
import threading

kind, WIDE = {kind!r}, 200
heard, reached = [], threading.Event()


def based(seed=0):
    torch.manual_seed(seed)
    body = torch.nn.Sequential(torch.nn.Linear(6, WIDE), torch.nn.Tanh(), torch.nn.Linear(WIDE, WIDE))
    torch.manual_seed(7)
    net = torch.nn.Sequential(body.requires_grad_(False), torch.nn.Linear(WIDE, 3))
    if kind == "peft":
        from peft import LoraConfig, get_peft_model
        net = get_peft_model(net, LoraConfig(r=2, target_modules=["0.2"], modules_to_save=["1"]))
    return net


class Net(torch.nn.Module):
    def __init__(self, seed=0):
        super().__init__()
        self.layers = based(seed)

    def forward(self, x, return_loss=True):
        return {{"loss": self.layers(x).square().mean()}}


def parts(model):
    inner = minga.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=0.01)
    return inner, torch.optim.lr_scheduler.LambdaLR(inner, lambda step: 1.0)


def listen(peer):
    peer.subscribe(lambda event: heard.append((event.kind, dict(event.fields))))
    return peer


def hold(joined):
    # The host goes on when the others are in the run and the odd one was refused; these go on with the host.
    if role == "0":
        while not (all((folder / f"in{{n}}").exists() for n in (1, 2, 3)) and fields("member.unfit")):
            joined.follow(0.05)
        (folder / "heard").touch()
    else:
        (folder / f"in{{role}}").touch()


def fields(kind):
    return [fields for heard_kind, fields in heard if heard_kind == kind]


def tell(peer, model, optimizer):
    trained = 4 * sum(each.numel() for each in model.parameters() if each.requires_grad)
    base = 4 * sum(each.numel() for each in model.parameters() if not each.requires_grad)
    optimizer.save_checkpoint()
    (peer_folder,) = {{path.parent for path in (peer.directory / "checkpoints").glob("step-*/manifest.json")}}
    came = sum(each["received_bytes"] for each in fields("state.downloaded"))
    say(trained=trained, base=base, digest=optimizer.digest(), step=optimizer.global_step, came=came,
        checkpoint=sum(each.stat().st_size for each in peer_folder.iterdir()),
        unfit=[each["why"] for each in fields("member.unfit")], fetched=len(fields("state.downloaded")))
    peer.close()


def enter_run():
    return listen(enter({{**spec_of(24, 8), "checkpoints": {{"every_steps": 0, "keep": 1}}}}))
"""

TRAINER = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from minga.integrations.transformers import join


class Holding(TrainerCallback):
    def on_step_end(self, args, state, control, optimizer, **_):
        hold(optimizer.optimizer.joined)


peer, model = enter_run(), Net()
arguments = TrainingArguments(output_dir=str(folder / ("out" + role)), max_steps=100_000, use_cpu=True,
                              per_device_train_batch_size=3, save_strategy="no", report_to="none", disable_tqdm=True)
trainer = Trainer(model, arguments, train_dataset=[{"x": row} for row in rows(48, int(role))],
                  optimizers=parts(model), callbacks=[Holding()])
join(trainer, peer)
trainer.train()
tell(peer, model, trainer.optimizer.optimizer.joined)
"""

ACCELERATE = """
from accelerate import Accelerator
from torch.utils.data import DataLoader
from minga.integrations.accelerate import prepare

peer, model, accelerator = enter_run(), Net(), Accelerator(cpu=True)
inner, schedule = parts(model)
loader = DataLoader(rows(48, int(role)), batch_size=3)
prepared, optimizer, loader, schedule = prepare(accelerator, peer, model, inner, loader, schedule)
while not loader.finished:
    for batch in loader:
        accelerator.backward(prepared(batch)["loss"])
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        hold(optimizer.optimizer.joined)
tell(peer, model, optimizer.optimizer.joined)
"""

LIGHTNING = """
import pytorch_lightning as pl
from torch.utils.data import DataLoader
from minga.integrations.lightning import MingaStrategy


class Module(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Net()

    def training_step(self, batch, _):
        return self.net(batch)["loss"]

    def configure_optimizers(self):
        inner, schedule = parts(self)
        return {"optimizer": inner, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Holding(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        joined.append(trainer.strategy.optimizers[0].joined)
        hold(joined[-1])


joined, peer, module = [], enter_run(), Module()
trainer = pl.Trainer(strategy=MingaStrategy({"net": peer}), accelerator="cpu", logger=False, max_epochs=100_000,
                     enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
                     callbacks=[Holding()])
trainer.fit(module, DataLoader(rows(48, int(role)), batch_size=3))
tell(peer, module.net, joined[-1])
"""

LOOP = """
peer, model = enter_run(), Net()
inner, schedule = parts(model)
optimizer, generator = minga.Optimizer(inner, peer, model=model, scheduler=schedule, max_grad_norm=1.0), 0
while not optimizer.finished:
    model(rows(3, generator))["loss"].backward()
    optimizer.step(samples=3)
    hold(optimizer)
    generator += 1
tell(peer, model, optimizer)
"""

ODD = """
peer, model = enter_run(), Net(seed=1)
inner, schedule = parts(model)
try:
    minga.Optimizer(inner, peer, model=model, scheduler=schedule, max_grad_norm=1.0)
except minga.UnfitError as error:
    say(refused=str(error))
while not (folder / "heard").exists():  # the host waits for its words
    __import__("time").sleep(0.05)
peer.close()
"""


@pytest.mark.parametrize("kind", [soaked("frozen layers"), "peft"])
def test_peers_with_frameworks_share_what_is_trained_and_refuse_another_base(kind: str, tmp_path: Path) -> None:
    if kind == "peft" and find_spec("peft") is None:
        pytest.skip("peft makes the adapters")
    common = COMMON.format(kind=kind)
    *peers, odd = results_of(tmp_path, [common + each for each in (LOOP, TRAINER, ACCELERATE, LIGHTNING, ODD)])
    assert "is frozen and has other values in the run than in this program" in odd["refused"]
    assert odd["refused"][:400] in peers[0]["unfit"]
    assert {each["step"] for each in peers} == {8}
    assert len({each["digest"] for each in peers}) == 1
    for each in peers:
        assert each["base"] > 8 * each["trained"]
        assert each["checkpoint"] < 4 * each["trained"] + 32_768
        assert each["came"] <= 4 * each["trained"] * max(1, each["fetched"])
    assert all(each["fetched"] for each in peers[1:])
