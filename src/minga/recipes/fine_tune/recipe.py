"""Fine-tuning with adapters: a model learns what an assistant says in conversations, on a base that stays."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from minga.core.errors import ConfigurationError, StorageError
from minga.core.files import write
from minga.core.spec.run_spec import RunSpec
from minga.recipes.causal_lm.evaluation import generation, token_losses
from minga.recipes.causal_lm.recipe import CausalLmRecipe
from minga.recipes.causal_lm.settings import FAMILY
from minga.recipes.data.files import file_of
from minga.recipes.data.order import shuffled
from minga.recipes.exported import Exported, Provenance
from minga.recipes.fine_tune.adapters import save_adapters, with_adapters, without_adapters
from minga.recipes.fine_tune.chats import (
    MAX_TEMPLATE_BYTES,
    TEMPLATE_FILE,
    USUAL_TEMPLATE,
    ChatWriter,
    conversations,
    made_up_conversations,
)
from minga.recipes.fine_tune.settings import FineTuneSettings
from minga.recipes.initial import new_model
from minga.recipes.interface import (
    Batch,
    Exhibit,
    Files,
    Metric,
    Sample,
    SampleOptions,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.registry import load_recipe
from minga.recipes.text.corpus import HELDOUT_FILE, pack_documents, split_documents, unpack_documents
from minga.recipes.text.packing import TOKENS_FILE, StoredTokens, Tokens, pack_tokens
from minga.recipes.text.sources import matching_files
from minga.recipes.text.tokenizer import TOKENIZER_FILE, given_content, read_tokenizer
from minga.security.randomness.public_batch import PublicBatch

DEMO_STEPS, DEMO_BATCH_SIZE = 60, 8
EVALUATION_BATCH_SIZE = 8
MAX_EVALUATION_CHATS = 256
SHOWN_CHATS = 3
Marked = tuple[Tokens, Tokens]


class FineTuneRecipe(CausalLmRecipe):
    """Adapters on a base; see `Recipe` for what each method promises. A sample is a conversation."""

    Settings = FineTuneSettings
    headline = Metric("heldout_loss", better="lower")
    demo_goal = None
    family = dataclasses.replace(FAMILY, recipe="fine-tune")
    sizes = ()
    model_files = (TOKENIZER_FILE, TEMPLATE_FILE)
    tasks = ()

    @property
    def chosen(self) -> FineTuneSettings:
        """The settings, by their own class."""
        return cast(FineTuneSettings, self.resolved)

    # ---- the demo

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """Questions about what animals eat, which the base tells in sentences and cannot answer."""
        return {
            "recipe": {
                "fine-tune": {"max_length": 96, "lora": {"rank": 4, "alpha": 8.0}, "chats": {"source": "sentences"}}
            },
            "optimizer": {"name": "adamw", "learning_rate": 0.005, "warmup_steps": 5, "schedule": "constant"},
            "training": {"target_batch_size": 32},
        }

    @classmethod
    def prepare_demo(cls, folder: Path) -> Mapping[str, Any]:
        """A small causal language model that learns plain sentences for a while, as the base."""
        spec = RunSpec.from_mapping(
            {
                "name": "base of the demo",
                "model": {"recipe": "causal-lm"},
                "recipe": {"causal-lm": {"size": "tiny", "data": {"source": "sentences"}, "vocabulary_size": 512}},
            }
        )
        recipe, files = load_recipe(spec), dict[str, Path]()
        for name, content in recipe.prepare().items():
            files[name] = folder / name
            write(files[name], content)
        model = new_model(recipe)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.003, betas=(0.9, 0.95))
        for batch in islice(recipe.batches(files, StreamPosition("00" * 32), DEMO_BATCH_SIZE), DEMO_STEPS):
            torch.autograd.backward(recipe.total_loss(model, batch))
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        recipe.export(model, files, folder / "base", recipe.provenance(DEMO_STEPS))
        return {"model": {"init_from": str(folder / "base")}}

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """What the models answer to held-out questions."""
        said = [
            json.loads(each) for each in islice(unpack_documents(file_of(files, HELDOUT_FILE)), MAX_EVALUATION_CHATS)
        ]
        turns = [each["messages"][:2] for each in said if len(each.get("messages", ())) >= 2][:SHOWN_CHATS]
        prompts = [question["content"] for question, _ in turns]
        options = SampleOptions(temperature=0.0, length=24)
        drawn = zip(*(self.sample(model, files, prompts, options) for model in models), strict=True)
        rows = [
            Shown(
                Exhibit(question["content"]),
                tuple(Exhibit(each.text.strip()) for each in samples),
                Exhibit(answer["content"]),
            )
            for (question, answer), samples in zip(turns, drawn, strict=True)
        ]
        made_up = self.chosen.chats.source == "sentences"
        return Showing("questions and answers that minga makes by rules" if made_up else "files of the organiser", rows)

    # ---- organiser

    def prepare(self) -> dict[str, bytes]:
        """Tokenizer and template of the base, the conversations as tokens, and those held out as text."""
        if self.context.init_from is None:
            raise ConfigurationError("the recipe fine-tune needs model.init_from: the folder or hub name of the base")
        chats = self.chosen.chats
        found = made_up_conversations() if chats.source == "sentences" else conversations(chats.files)
        training, heldout = split_documents(list(found), chats.heldout_fraction)
        files = {TOKENIZER_FILE: self._tokenizer_file(training), TEMPLATE_FILE: _template_of(self.context.init_from)}
        writer = ChatWriter(
            read_tokenizer(files[TOKENIZER_FILE], self.resolved.vocabulary_size), files[TEMPLATE_FILE].decode()
        )
        marked = [array for pair in writer.marked(training) for array in pair]
        if not marked:
            raise ConfigurationError("chats.files: no conversation has anything to learn")
        files[TOKENS_FILE] = pack_tokens(marked)
        if heldout:
            files[HELDOUT_FILE] = pack_documents(heldout)
        return files

    def inputs(self) -> Sequence[Path]:
        """The organiser's files of conversations."""
        return [path for pattern in self.chosen.chats.files for path in matching_files(pattern)]

    def check_public(self) -> None:
        """All conversations come with the run."""

    # ---- training

    def build_model(self) -> nn.Module:
        """The base's architecture with adapters, which alone are trained."""
        return with_adapters(super().build_model(), self.chosen.lora)

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `make_marked_batch` describes them."""
        chats, padding = self._chats(files), self._end(files)
        for chosen, _ in shuffled(len(chats), self.context.seed, position, micro_batch_size):
            yield make_marked_batch([chats[number] for number in chosen], self.resolved.max_length, padding)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """Conversations by number."""
        chats = self._chats(files)
        chosen = [chats[number] for number in batch.indices(len(chats)).tolist()]
        return make_marked_batch(chosen, self.resolved.max_length, self._end(files))

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_loss`, nats a token of what the assistant says in held-out conversations; `heldout_loss_of_base`."""
        if HELDOUT_FILE not in files:
            return {}
        documents = list(unpack_documents(files[HELDOUT_FILE]))[:MAX_EVALUATION_CHATS]
        chats = list(self._writer(files).marked(documents))
        length, end = self.resolved.max_length, self._end(files)
        tuned = _mean_loss(model, chats, length, end)
        with without_adapters(model):
            base = _mean_loss(model, chats, length, end)
        return {"heldout_loss": tuned, "heldout_loss_of_base": base}

    def sample(self, model: nn.Module, files: Files, prompts: Sequence[str], options: SampleOptions) -> list[Sample]:
        """What the assistant answers to each prompt."""
        writer, tokenizer, end = self._writer(files), self.tokenizer(files), self._end(files)
        device, was_training = next(model.parameters()).device, model.training
        model.eval()
        found = []
        try:
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(options.seed)
                for prompt in prompts:
                    ids = writer.prompt([{"role": "user", "content": prompt}])
                    room = self.resolved.max_length - len(ids)
                    if room < 1:
                        raise ConfigurationError(f"the prompt {prompt[:40]!r} … has {len(ids)} tokens, too many")
                    drawn = model.generate(  # type: ignore[operator]
                        torch.tensor([ids], device=device),
                        generation_config=generation(options, end, room),
                        attention_mask=torch.ones(1, len(ids), dtype=torch.long, device=device),
                    )
                    found += [Sample(prompt, tokenizer.decode(row[len(ids) :].tolist())) for row in drawn]
        finally:
            model.train(was_training)
        return found

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """The adapters, as `PeftModel.from_pretrained(base, DIRECTORY)` loads them, and a README."""
        with Exported.to(directory, provenance) as exported:
            save_adapters(model, self.chosen.lora, exported, base="THE BASE")
            exported.card(
                self.context.run_name,
                f"Adapters that peers trained with minga (recipe {provenance.recipe}).",
                self.evaluate(model, files),
                _LOADING,
                library="peft",
            )

    # ---- inner workings

    def _chats(self, files: Files) -> list[Marked]:
        stored = list(StoredTokens(file_of(files, TOKENS_FILE), self.resolved.vocabulary_size).documents())
        pairs = list(zip(stored[::2], stored[1::2], strict=len(stored) % 2 == 0))
        if len(stored) % 2 or any(len(ids) != len(carries) or carries.max() > 1 for ids, carries in pairs):
            raise ConfigurationError(f"{TOKENS_FILE}: not a file of conversations")
        return pairs

    def _writer(self, files: Files) -> ChatWriter:
        path = file_of(files, TEMPLATE_FILE)
        try:
            template = path.read_bytes()[: MAX_TEMPLATE_BYTES + 1].decode("utf-8")
        except OSError as error:
            raise StorageError(f"{path}: cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise ConfigurationError(f"{path}: not a text") from error
        return ChatWriter(self.tokenizer(files), template)


def make_marked_batch(chats: Sequence[Marked], length: int, padding: int) -> Batch:
    """A batch of n conversations, of each at most the first `length` + 1 tokens, as `causal_lm.batching` has it; of the
    tokens that carry no loss the weights are 0, and all are 0 of a conversation in which none does.
    """
    longest = min(length, max(len(ids) for ids, _ in chats) - 1)
    ids = np.full((len(chats), longest + 1), padding, dtype=np.int64)
    weights = np.zeros((len(chats), longest), dtype=np.float32)
    for place, (tokens, carries) in enumerate(chats):
        ids[place, : len(tokens)] = tokens[: longest + 1]
        marks = carries[1 : longest + 1]
        if total := int(marks.sum()):
            weights[place, : len(marks)] = marks.astype(np.float32) / np.float32(total)
    arrays = {"input_ids": ids[:, :-1].copy(), "labels": ids[:, 1:].copy(), "label_weights": weights}
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


@torch.no_grad()
def _mean_loss(model: nn.Module, chats: Sequence[Marked], length: int, padding: int) -> float:
    """Nats a token that carries loss, all alike."""
    device, was_training = next(model.parameters()).device, model.training
    model.eval()
    nats = count = 0.0
    try:
        for start in range(0, len(chats), EVALUATION_BATCH_SIZE):
            batch = make_marked_batch(chats[start : start + EVALUATION_BATCH_SIZE], length, padding)
            losses = token_losses(model, batch["input_ids"].to(device), batch["labels"].to(device)).double().cpu()
            carries = batch["label_weights"] > 0
            nats, count = nats + float(losses[carries].sum()), count + float(carries.sum())
    finally:
        model.train(was_training)
    return nats / max(1.0, count)


def _template_of(base: str) -> bytes:
    """The chat template of the base; a usual one where it has none."""
    try:
        return given_content(base, TEMPLATE_FILE, "model.init_from", MAX_TEMPLATE_BYTES)
    except ConfigurationError:
        return USUAL_TEMPLATE.encode()


_LOADING = """from peft import PeftModel
from transformers import AutoModelForCausalLM

model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained("THE BASE"), "PATH OF THIS DIRECTORY")"""
