"""The Trainer of Hugging Face in shapes that scripts have: a resume in the middle, and labels that are all masked."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.framework_peers import results_of

SCRIPT = """
import logging
from transformers import Trainer, TrainerCallback, TrainingArguments
from minga.integrations.transformers import join

logging.basicConfig(level=logging.WARNING)


class Tagger(torch.nn.Module):
    # Says its loss over target tokens, as a language model does.
    def __init__(self):
        super().__init__()
        self.layers = network()

    def forward(self, x, labels, num_items_in_batch=None, **_):
        loss = torch.nn.functional.cross_entropy(
            self.layers(x).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum")
        return {"loss": loss / num_items_in_batch}


class Meeting(TrainerCallback):
    # None takes a step before all have the state.
    def on_step_begin(self, args, state, control, optimizer, **_):
        joined = optimizer.optimizer.joined
        if joined is None:
            return
        (folder / ("here" + role)).touch()
        while not all((folder / ("here" + each)).exists() for each in PEERS):
            joined.follow(0.02)


def arguments(**settings):
    values = dict(output_dir=str(folder / ("out" + role)), max_steps=1000, per_device_train_batch_size=2,
                  learning_rate=0.1, save_strategy="no", report_to="none", disable_tqdm=True, use_cpu=True)
    return TrainingArguments(**{**values, **settings})


def data(masked=False):
    labels = torch.full((4,), -100) if masked else torch.arange(4) % 3
    return [{"x": x, "labels": labels} for x in rows(48, int(role)).view(12, 4, 6)]
"""

RESUMED = """
PEERS = "01"
peer = enter(spec_of(32, 6))
model = Tagger()
if role == "1":  # it trained by itself before, and goes on from there: in a run the state is the run's
    alone = Trainer(Tagger(), arguments(max_steps=2, save_strategy="steps", save_steps=2), train_dataset=data())
    alone.train()
checkpoint = str(folder / "out1" / "checkpoint-2") if role == "1" else None
trainer = Trainer(model, arguments(), train_dataset=data(), callbacks=[Meeting()])
join(trainer, peer)
trainer.train(resume_from_checkpoint=checkpoint)
joined = trainer.optimizer.optimizer.joined
say(digest=joined.digest(), step=joined.global_step, values=values(model))
peer.close()
"""

MASKED = """
heard = []
logging.getLogger("minga").addFilter(lambda record: heard.append(record.getMessage()) or True)
logging.getLogger("minga.integrations").addFilter(lambda record: heard.append(record.getMessage()) or True)
with enter(spec_of(8, 4)) as peer:
    trainer = Trainer(Tagger(), arguments(max_steps=40), train_dataset=data(masked=True))
    join(trainer, peer)
    trainer.train()
    say(heard=heard, step=trainer.optimizer.optimizer.global_step)
"""


def test_two_trainers_of_which_one_resumes_come_to_one_end(tmp_path: Path) -> None:
    found = results_of(tmp_path, [SCRIPT + RESUMED] * 2)
    assert {told["step"] for told in found} == {6}
    assert {told["digest"] for told in found} == {found[0]["digest"]}
    assert all(told["values"] == found[0]["values"] for told in found)


def test_labels_that_are_all_masked_are_told_once_with_a_count(tmp_path: Path) -> None:
    (told,) = results_of(tmp_path, [SCRIPT + MASKED])
    assert told["step"] == 0
    masked = [words for words in told["heard"] if "no sample with a target" in words]
    assert len(masked) == 2
    assert "the last 10 optimizer calls" in masked[0]
    assert "alone it takes no step" in masked[0]
    assert masked[1].startswith("the Trainer ended at global step 0")
    assert masked[1].endswith("; 40 optimizer calls stood for no sample with a target")
