"""Hugging Face Trainer as a peer: as real processes, against plain loops of the same global batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tests.worlds.framework_peers import reference, results_of, rows
from tests.worlds.rank_store import rank_store

TRAINER = """
from transformers import Trainer, TrainerCallback, TrainingArguments
from minga.integrations.transformers import join


class Mean(torch.nn.Module):
    # Says its mean loss over samples.
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x, return_loss=True):
        return {"loss": self.layers(x).square().mean()}


class PerToken(Mean):
    # Says its loss over target tokens, which the Trainer counts for it.
    def forward(self, x, labels, num_items_in_batch=None, **_):
        scores, labels = self.layers(x).flatten(0, 1), labels.flatten()
        loss = torch.nn.functional.cross_entropy(scores, labels, ignore_index=-100, reduction="sum")
        return {"loss": loss / num_items_in_batch}


class Lockstep(TrainerCallback):
    # Each optimizer call waits for the global step that it belongs to.
    def on_step_end(self, args, state, control, optimizer, **_):
        joined = optimizer.optimizer.joined
        while not joined.finished and (joined.global_step < state.global_step or self.needs_loss(optimizer.optimizer)):
            joined.follow(0.02)

    def needs_loss(self, optimizer):
        # The loss of the run is known from two reports of a trainer, which come once a second.
        return optimizer.global_step == 3 and "run_loss" not in optimizer.figures()


def arguments(**settings):
    values = dict(output_dir=str(folder / ("out" + role)), max_steps=1000, learning_rate=0.5, optim="sgd",
                  optim_args="momentum=0.9", lr_scheduler_type="linear", warmup_steps=2, weight_decay=0.0,
                  per_device_train_batch_size=3, gradient_accumulation_steps=2, save_strategy="no", report_to="none",
                  logging_steps=1, disable_tqdm=True, use_cpu=True)
    return TrainingArguments(**{**values, **settings})
"""

PAIR = """
def train(number, model, data, batch, **settings):
    trainer = Trainer(model, arguments(**settings), train_dataset=data, callbacks=[Lockstep()])
    peer = enter(spec_of(batch, 4), number)
    join(trainer, peer)
    trainer.train()
    told = {"seed": trainer.args.data_seed, "values": values(model), "step": trainer.optimizer.optimizer.global_step,
            "logged": trainer.state.log_history[-1], "clip": trainer.args.max_grad_norm,
            "rates": [entry["learning_rate"] for entry in trainer.state.log_history if "learning_rate" in entry]}
    peer.close()
    return told


mine = rows(6, int(role))
samples = train(0, Mean(), [{"x": row} for row in mine], 12)
tokens = 7 if role == "0" else 5
labels = [[i % 3 for i in range(4)], [(i + 1) % 3 if i < tokens - 4 else -100 for i in range(4)]]
mine = rows(8, 10 + int(role)).view(2, 4, 6)
data = [{"x": x, "labels": torch.tensor(y)} for x, y in zip(mine, labels)]
say(samples=samples, tokens=train(1, PerToken(), data, 12, per_device_train_batch_size=1))
"""

RANKS = """
def train(number, model, data, batch=12, **settings):
    trainer = Trainer(model, arguments(**settings), train_dataset=data)
    peer = enter(spec_of(batch, 4), number) if role == "0" else None
    join(trainer, peer)
    trainer.train()
    samples = peer and peer.metrics._samples
    if peer is not None:
        peer.close()
    return {"values": values(model), "processes": trainer.args.world_size, "samples": samples}


# Targets of two rows: of 7 tokens in one process and of 5 in the other, and the other way round.
labels = [[0, 1, 2, 0, 1, 2, 0, -100], [0, 1, 2, 0, 1, -100, -100, -100]]
tokens = [{"x": x, "labels": torch.tensor(y)} for x, y in zip(rows(16, 10).view(2, 8, 6), labels)]
samples = train(0, Mean(), [{"x": row} for row in rows(12, 0)])
again = train(1, PerToken(), tokens, per_device_train_batch_size=1, gradient_accumulation_steps=1)
lonely = [{**tokens[0], "labels": torch.tensor([1, *[-100] * 7])}, {**tokens[0], "labels": torch.full((8,), -100)}]
one = train(2, PerToken(), lonely, 1, per_device_train_batch_size=1, gradient_accumulation_steps=1)
say(samples=samples, tokens=again, one=one)
torch.distributed.destroy_process_group()
"""

SOLO = """
def trained(peer, data, resume=None, callbacks=(), **settings):
    model = Mean()
    trainer = Trainer(model, arguments(lr_scheduler_type="constant", **settings), train_dataset=data,
                      eval_dataset=data, callbacks=list(callbacks))
    join(trainer, peer)
    trainer.train(resume_from_checkpoint=resume)
    return {"values": values(model), "step": trainer.optimizer.optimizer.global_step,
            "local": trainer.state.global_step, "total": sum(each.total_samples for each in peer.peers()),
            "evaluated": [each["run_step"] for each in trainer.state.log_history if "eval_loss" in each]}


def host(number, steps, batch=6, **more):
    options = minga.PeerOptions(directory=folder / "runs", identity=folder / "key", host="127.0.0.1")
    spec = spec_of(batch, steps, checkpoints={"every_steps": 1}, name=str(number))
    return minga.host(None if "resume" in more else {**spec, "name": str(number)}, options, **more)


data = [{"x": row} for row in rows(6, 0)]
results = {}
with host(0, 3, 5) as peer:  # calls of 4 samples and of 1
    results["short"] = trained(peer, data[:5], per_device_train_batch_size=2)
with host(1, 5) as peer:
    before = trained(peer, data, max_steps=3, save_strategy="steps", save_steps=2)
    place = peer.directory
checkpoint = str(folder / "out0" / "checkpoint-2")
with host(1, 5, resume=place) as peer:
    results["resumed"] = trained(peer, data, resume=checkpoint)
with host(2, 3) as peer:
    results["begun"] = trained(peer, data, resume=checkpoint)
results["before"] = before
with host(5, 2, 30) as peer:  # a global step of five calls
    from transformers import EarlyStoppingCallback
    results["waiting"] = trained(peer, data, callbacks=[EarlyStoppingCallback(2)], load_best_model_at_end=True,
                                 eval_strategy="steps", save_strategy="steps", eval_steps=1, save_steps=1)
with host(6, 2) as peer:
    lengths = [{"input_ids": [0] * (number + 1)} for number in range(9)]
    own = arguments(train_sampling_strategy="group_by_length")
    trainers = [Trainer(Mean(), each, train_dataset=lengths) for each in (own, arguments(data_seed=3))]
    for trainer in trainers:
        join(trainer, peer)
    results["own"] = [own.data_seed, own.max_grad_norm]
    grouped = trainers[0].get_train_dataloader().batch_sampler.sampler
    results["grouped"] = [type(grouped).__name__, grouped.generator.initial_seed() == peer.seed]
with host(4, 2) as peer:
    trainer = Trainer(Mean(), arguments(output_dir=str(folder / "ended"), eval_strategy="steps", eval_steps=100,
                      save_strategy="steps", save_steps=100), train_dataset=data, eval_dataset=data)
    join(trainer, peer)
    trainer.train()
    results["ended"] = {"saved": [each.name for each in (folder / "ended").iterdir()],
                        "calls": trainer.state.global_step,
                        "evaluated": [each["run_step"] for each in trainer.state.log_history if "eval_loss" in each]}
with host(3, 2) as peer:
    trainer = Trainer(Mean(), arguments(load_best_model_at_end=True, eval_strategy="steps", save_strategy="steps",
                      eval_steps=1, save_steps=1, max_steps=2), train_dataset=data, eval_dataset=data)
    import logging
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    join(trainer, peer)
    trainer.train()
    results["best"] = trainer.state.best_model_checkpoint
    refused = [trainer.train, lambda: join(trainer, peer),
               lambda: join(Trainer(args=arguments(), model_init=Mean), peer),
               lambda: join(Trainer(Mean(), arguments(auto_find_batch_size=True)), peer), lambda: join("it", peer)]
    results["refused"] = []
    for each in refused:
        try:
            each()
        except minga.ConfigurationError as error:
            results["refused"].append(str(error))
    trainer_of_guest = Trainer(Mean(), arguments(), train_dataset=[{"y": 1}] * 6)  # data that the model does not take
    guest = join(trainer_of_guest, peer.link,
                 minga.PeerOptions(ephemeral=True, directory=folder / "guest", host="127.0.0.1"))
    try:
        trainer_of_guest.train()
    except Exception as error:
        results["broken"] = type(error).__name__
    try:
        guest.status()
    except minga.ClosedError:
        results["left"] = True
say(**results)
"""


def test_two_trainers_equal_a_plain_loop_of_the_same_global_batch(tmp_path: Path) -> None:
    first, second = results_of(tmp_path, [TRAINER + PAIR] * 2)
    rates = [0.0, 0.25, 0.5, 0.25]  # a warm-up of two global steps, then down to zero at the run's last one
    expected = {
        "samples": reference([torch.cat([rows(6, 0), rows(6, 1)])] * 4, rates=rates),
        "tokens": reference(
            [torch.cat([rows(8, 10)[:7], rows(8, 11)[:5]])] * 4,
            rates=rates,
            labels=torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1]),
        ),
    }
    for kind, values in expected.items():
        for told in (first[kind], second[kind]):
            assert (told["step"], told["clip"]) == (4, 0.0)
            assert told["values"] == pytest.approx(values, abs=1e-5)
            assert told["logged"]["run_step"] == 4
            assert "run_loss" in told["logged"]
        assert first[kind]["values"] == second[kind]["values"]
        assert first[kind]["seed"] != second[kind]["seed"]  # each shuffles in its own order


@pytest.mark.skipif(not dist.is_gloo_available(), reason="this build of torch has no gloo")
def test_the_processes_of_one_machine_are_one_peer(tmp_path: Path) -> None:
    with rank_store(2) as environment:
        ranks = f"""
import os
os.environ.update({environment!r}, RANK=role, LOCAL_RANK=role)
if sys.platform == "linux":
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine's name resolves to
"""
        first, second = results_of(tmp_path, [ranks + TRAINER + RANKS] * 2)
    rates = [0.0, 0.25, 0.5, 0.25]
    samples = reference([rows(12, 0)] * 4, rates=rates)
    targets = rows(16, 10)
    tokens = torch.cat([targets[:7], targets[8:13]])
    per_token = reference([tokens] * 4, rates=rates, labels=torch.tensor([0, 1, 2, 0, 1, 2, 0, 0, 1, 2, 0, 1]))
    alone = reference([targets[:1]] * 4, rates=rates, labels=torch.tensor([1]))
    for told in (first, second):
        assert told["samples"]["processes"] == 2
        assert told["samples"]["values"] == pytest.approx(samples, abs=1e-5)
        assert told["tokens"]["values"] == pytest.approx(per_token, abs=1e-5)
        assert told["one"]["values"] == pytest.approx(alone, abs=1e-5)  # one process had no target at all
    assert (first["samples"]["samples"], first["tokens"]["samples"]) == (48, 48)


def test_a_trainer_alone_counts_short_batches_and_resumes(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [TRAINER + SOLO])
    five, six = rows(6, 0)[:5], rows(6, 0)
    assert told["short"]["values"] == pytest.approx(reference([five] * 3, rates=[0.5] * 3), abs=1e-5)
    assert (told["short"]["total"], told["short"]["local"]) == (15, 6)

    straight = reference([six] * 5, rates=[0.5] * 5)
    assert told["before"]["values"] == pytest.approx(reference([six] * 3, rates=[0.5] * 3), abs=1e-5)
    assert told["resumed"]["values"] == pytest.approx(straight, abs=1e-5)
    assert told["begun"]["values"] == pytest.approx(straight, abs=1e-5)  # the checkpoint's two steps, and three more
    assert (told["resumed"]["step"], told["begun"]["step"]) == (5, 3)

    waiting = told["waiting"]  # early stopping took each call of one step for an evaluation without improvement
    assert (waiting["step"], waiting["evaluated"]) == (2, [0, 1, 2])
    assert told["grouped"] == ["LengthGroupedSampler", True]
    assert told["own"] == [None, 1.0]  # the script may make another Trainer with its arguments
    said = (tmp_path / "errors0").read_text("utf-8")
    assert "data_seed=3: peers whose scripts have the same one" in said
    assert said.count("the Trainer ended at global step 3, and the run goes on to 5 without this peer") == 1

    ended = told["ended"]  # within the first interval: what would be lost is evaluated and saved, once
    assert (ended["evaluated"], ended["saved"]) == ([2], [f"checkpoint-{ended['calls']}"])
    assert told["best"].endswith(("checkpoint-1", "checkpoint-2"))
    expected = [
        "has begun in this run before",
        "has joined a run already",
        "with model_init",
        "with auto_find_batch_size",
        "not a str",
    ]
    assert len(told["refused"]) == len(expected)
    assert all(why in error for why, error in zip(expected, told["refused"], strict=True))
    assert (told["broken"], told["left"]) == ("ValueError", True)
    assert "load_best_model_at_end" in (tmp_path / "errors0").read_text("utf-8")
