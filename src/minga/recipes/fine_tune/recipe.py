"""Fine-tuning with adapters: a model learns what an assistant says in conversations, on a base that stays."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, get_args

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.spec.sections import FileEntry
from minga.core.units import counted
from minga.recipes.causal_lm.evaluation import drawn_tokens
from minga.recipes.causal_lm.model import FAMILY, token_losses
from minga.recipes.counting import shapes_of_model
from minga.recipes.data.files import body_of, file_of
from minga.recipes.data.order import shuffled
from minga.recipes.evaluation_mode import evaluating
from minga.recipes.exported import Exported, Provenance
from minga.recipes.fine_tune.adapters import (
    begin_magnitudes,
    merge,
    peft_here,
    save_adapters,
    with_adapters,
    without_adapters,
)
from minga.recipes.fine_tune.base import (
    KEY,
    downloaded_weights,
    folder_of,
    pinned,
    quantisation,
    quantised,
    tiny_recipe,
    train_tiny,
    weights_in,
)
from minga.recipes.fine_tune.chats import FORMAT_FILE, TEMPLATE_FILE, ChatFormat, ChatWriter, conversations
from minga.recipes.fine_tune.samples import (
    CHATS_FILE,
    HELDOUT_FILE,
    PACKED,
    Chat,
    Samples,
    is_learnable,
    named_tensors,
    pack_chats,
    stored_chats,
)
from minga.recipes.fine_tune.settings import BASE_BYTES, HUB, TINY, BaseBits, FineTuneSettings
from minga.recipes.init_from import given_tensors, load_initial
from minga.recipes.initial import EqualDraws, Undrawn, new_model
from minga.recipes.interface import (
    Batch,
    DemoGoal,
    Exhibit,
    Files,
    Loss,
    Metric,
    ParameterSizes,
    RecipeContext,
    Sample,
    SampleOptions,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.language.config_guard import read_config
from minga.recipes.language.export import CAUSAL, export_model
from minga.recipes.language.recipe import TransformersRecipe
from minga.recipes.language.shape import CONFIG_FILE, build, published_shape, shape_from, sizes_of, without_chance
from minga.recipes.text.sources import matching_files
from minga.recipes.text.tokenizer import MAX_TOKENIZER_BYTES, TOKENIZER_FILE, given_content, read_tokenizer
from minga.security.randomness.public_batch import PublicBatch

EVALUATION_BATCH_SIZE: Final = 8
MAX_EVALUATION_CHATS: Final = 256
SHOWN_CHATS, SHOWN_TOKENS = 3, 24
_BASE_PLACE: Final = "THE BASE"
"""What an export says where the base is a folder of the organiser's."""

logger = logging.getLogger("minga.recipes")


class FineTuneRecipe(TransformersRecipe[FineTuneSettings]):
    """Adapters on a base; see `Recipe` for what each method promises."""

    Settings = FineTuneSettings
    headline = Metric("heldout_loss", better="lower")
    demo_goal = DemoGoal(1.5, steps=40)

    def __init__(self, settings: FineTuneSettings, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._resolved: FineTuneSettings | None = None
        self._samples: tuple[Path, Samples] | None = None
        self._base_loss: tuple[Path, float] | None = None

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """Questions about what animals eat, which the small base tells in sentences and cannot answer."""
        return {
            "recipe": {
                "fine-tune": {
                    "base": TINY,
                    "max_length": 96,
                    "lora": {"rank": 4, "alpha": 8.0},
                    "data": {"source": "sentences"},
                }
            },
            "optimizer": {"name": "adamw", "learning_rate": 0.005, "warmup_steps": 5, "schedule": "constant"},
            "training": {"target_batch_size": 32},
        }

    # ---- organiser

    @property
    def resolved(self) -> FineTuneSettings:
        """The settings with the shape of the base, and which one it is. Raises `ConfigurationError`."""
        if self._resolved is None:
            found = self._looked_up(self.settings)
            if self.context.is_public:
                found = found.model_copy(update={"config": without_chance(found.config, FAMILY)})
            self._resolved = found
        return self._resolved

    def _looked_up(self, settings: FineTuneSettings) -> FineTuneSettings:
        if settings.config:
            return settings
        if not settings.base:
            raise ConfigurationError(f'{KEY}: name the model to tune, such as base = "{HUB}OWNER/NAME@main"')
        if settings.base == TINY:
            base, shape = TINY, tiny_recipe().published_settings().config
        else:
            folder = folder_of(settings.base)
            values = shape_from(str(folder), KEY, FAMILY)
            base, shape = pinned(settings.base, folder), published_shape(values, {}, FAMILY)
        values = read_config(shape)
        _, positions = sizes_of(values)
        if positions is not None and settings.max_length > positions:
            raise ConfigurationError(
                f"recipe.fine-tune.max_length = {settings.max_length}: the base has {positions} positions"
            )
        if settings.packing and values["model_type"] not in PACKED:
            raise ConfigurationError(
                f"recipe.fine-tune.packing: a base of the architecture {values['model_type']} would let conversations "
                "of a sample attend to each other; set packing = false, by which each is padded"
            )
        return settings.model_copy(update={"base": base, "config": shape})

    def published_settings(self) -> FineTuneSettings:
        """With the shape of the base as one JSON object, and the commit of the hub or no name."""
        return self.resolved

    def check_public(self) -> None:
        """Dropout draws at random, which devices do otherwise, and they round otherwise in fewer bits."""
        if self.settings.lora.dropout or self.settings.base_bits != 32:
            raise ConfigurationError(
                'security.verification = "byzantine" needs recipe.fine-tune.lora.dropout = 0 and base_bits = 32'
            )

    def check_received(self) -> None:
        """The shape of the base has to be there, else it would be looked up; and `peft`, before anything comes."""
        peft_here()
        if not self.settings.config:
            raise ConfigurationError(
                "this run does not spell out the shape of its base (recipe.fine-tune.config); ask the organiser to "
                "host it anew"
            )

    def prepare(self) -> dict[str, bytes]:
        """Tokenizer and form of the base, and the conversations as tokens; of the small base its weights."""
        if self.context.init_from is not None:
            raise ConfigurationError(f"model.init_from: adapters begin new; the model to tune is {KEY}")
        peft_here()
        files = dict[str, bytes]()
        if self.settings.base == TINY:
            files |= train_tiny()
            tokenizer = read_tokenizer(files[TOKENIZER_FILE], self._vocabulary_size)
            form = ChatFormat.usual(tokenizer)
        else:
            folder = folder_of(self.settings.base)
            files[TOKENIZER_FILE] = given_content(str(folder), TOKENIZER_FILE, KEY, MAX_TOKENIZER_BYTES)
            tokenizer = read_tokenizer(files[TOKENIZER_FILE], self._vocabulary_size)
            form = ChatFormat.of_base(folder, tokenizer)
        files[FORMAT_FILE] = form.written()
        training, heldout = conversations(self.settings.data, self.context.seed)
        writer = ChatWriter(tokenizer, form)
        chats = list(writer.chats(training))
        length = self.settings.max_length
        samples = Samples(chats, length, 0, packing=self.settings.packing)  # raises if there is nothing
        if samples.left_out:
            logger.warning(
                "of %d of %d conversations nothing is learned: what the assistant says begins beyond max_length = %d "
                "tokens; raise it",
                samples.left_out,
                len(chats),
                length,
            )
        files[CHATS_FILE] = pack_chats(chats)
        judged_by = (each for each in writer.chats(heldout) if is_learnable(each, length))
        if kept := list(islice(judged_by, MAX_EVALUATION_CHATS)):
            files[HELDOUT_FILE] = pack_chats(kept)
        elif heldout:
            logger.warning(
                "no held-out figures: in none of %s the assistant says anything within max_length = %d tokens",
                counted(len(heldout), "held-out conversation"),
                length,
            )
        return files

    def given_files(self) -> dict[str, Path]:
        """The weights of the base."""
        return {} if self.settings.base in ("", TINY) else weights_in(folder_of(self.settings.base))

    def inputs(self) -> Sequence[Path]:
        """The organiser's files of conversations, and what is read of the base."""
        data = self.settings.data
        patterns = [pattern for place in (data, *data.sources) for pattern in place.files]
        paths = matching_files(patterns)
        if self.settings.base not in ("", TINY):
            folder = folder_of(self.settings.base)
            names = (CONFIG_FILE, TOKENIZER_FILE, FORMAT_FILE, TEMPLATE_FILE)
            paths += [folder / name for name in names if (folder / name).is_file()]
        return paths

    def elsewhere(self, files: Mapping[str, FileEntry]) -> Path | None:
        """The hub's cache, where the base is of the hub."""
        return downloaded_weights(self.settings.base, files)

    # ---- training

    def build_model(self) -> nn.Module:
        """The architecture of the base, in 16 bits at least, with adapters, which alone are trained.

        A base that is not in float32 is a large one, and is not drawn: files replace it, and billions of draws take
        minutes.
        """
        is_small = self.settings.base_bits == 32
        with EqualDraws(self.context.seed) if is_small else Undrawn():  # type: ignore[no-untyped-call]
            base = build(self.resolved.config, FAMILY, frozen=torch.float32 if is_small else torch.bfloat16)
        return with_adapters(base, self.settings.lora)

    def load_model(self, files: Files, device: torch.device | None) -> nn.Module:
        """With a base that is quantised on the `device`, if it is to have so few bits; DoRA begins at the base."""
        if device is None or self.settings.base_bits >= 16:
            model = new_model(self)
            given = load_initial(model, files)
            if device is not None:
                model = model.to(device)
        else:
            shape = shapes_of_model(self.build_model)
            given = given_tensors(shape, files)
            base = quantised(shape, given, device, quantisation(self.settings.base_bits, device))
            with EqualDraws(self.context.seed):
                model = with_adapters(base, self.settings.lora)
        if self.settings.lora.dora:
            begin_magnitudes(model, given)
        return model

    def check_device(self, device: torch.device) -> None:
        """A library has to be here that holds the base in so few bits."""
        if self.settings.base_bits < 16:
            quantisation(self.settings.base_bits, device)

    def own_base(self, bits: int) -> FineTuneRecipe:
        """In as many bits as this peer likes: what it sends are float32 gradients of adapters."""
        if bits not in get_args(BaseBits):
            raise ConfigurationError(f"--base-bits {bits}: it must be 32, 16, 8 or 4")
        if self.context.is_public and bits != self.settings.base_bits:
            raise ConfigurationError(
                f"--base-bits {bits}: in this run all hold the base in {self.settings.base_bits}, so that each can "
                "check the others; leave --base-bits out"
            )
        return type(self)(self.settings.model_copy(update={"base_bits": bits}), self.context)

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches as `Samples` describes them."""
        samples = self._samples_of(files)
        for numbers, _ in shuffled(len(samples), self.context.seed, position, micro_batch_size):
            yield samples.batch(numbers.tolist())

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """Samples by number."""
        samples = self._samples_of(files)
        return samples.batch(batch.indices(len(samples)).tolist())

    def synthetic_batch(self, size: int) -> Batch:
        """Random tokens, all of which carry loss, in samples as long as the run's longest."""
        length = self.settings.max_length
        ids = np.random.default_rng(0).integers(0, self._vocabulary_size, (size, length + 1))
        weights = np.full((size, length), 1.0 / length, dtype=np.float32)
        positions = np.tile(np.arange(length), (size, 1)) if self.settings.packing else None
        return named_tensors(ids[:, :-1].copy(), ids[:, 1:].copy(), weights, positions)

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """Cross-entropy in nats, a float32 scalar: the sum over tokens that carry loss, by how many of them samples of
        the run have on the average.
        """
        losses = token_losses(model, batch["input_ids"], batch["labels"], positions=batch.get("position_ids"))
        mean = (losses * batch["label_weights"]).sum(dim=1).mean()
        return Loss(mean, {"loss": mean})

    @property
    def sample_tokens(self) -> int:
        """As many as a sample takes, the padding with them."""
        return self.settings.max_length

    def parameter_sizes(self) -> ParameterSizes:
        """With a base of as few bits as it is held in, which is built with 16."""
        sizes, bits = super().parameter_sizes(), self.settings.base_bits
        if bits >= 16:
            return sizes
        saved = round((2.0 - BASE_BYTES[bits]) * self._linear_parameters())
        return sizes._replace(frozen_bytes=sizes.frozen_bytes - saved)

    def _linear_parameters(self) -> int:
        """Those of the layers of the base that are quantised: all linear ones but the last."""
        model: Any = shapes_of_model(self.build_model)
        layers = {id(each): each for path, each in model.named_modules() if "lora_" not in path}
        layers.pop(id(model.get_output_embeddings()), None)
        return sum(each.weight.numel() for each in layers.values() if isinstance(each, nn.Linear))

    # ---- figures

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """`heldout_loss`, nats a token of what the assistant says in held-out conversations; `heldout_loss_of_base`."""
        if HELDOUT_FILE not in files:
            return {}
        chats = stored_chats(files[HELDOUT_FILE], self._vocabulary_size)[:MAX_EVALUATION_CHATS]
        samples = Samples(chats, self.settings.max_length, self._end(files), packing=False)
        if self._base_loss is None or self._base_loss[0] != files[HELDOUT_FILE]:  # the base stays as it is
            with without_adapters(model):
                self._base_loss = (files[HELDOUT_FILE], _mean_loss(model, samples))
        return {"heldout_loss": _mean_loss(model, samples), "heldout_loss_of_base": self._base_loss[1]}

    def sample(self, model: nn.Module, files: Files, prompts: Sequence[str], options: SampleOptions) -> list[Sample]:
        """What the assistant answers to each prompt, and what the base alone does."""
        tokenizer, form = self._tokenizer(files), self._form(files)
        asked = [form.prompt(prompt, tokenizer) for prompt in prompts]
        answers = self._answers(model, files, asked, options)
        with without_adapters(model):
            of_base = self._answers(model, files, asked, options)
        return [
            Sample(prompt, text, of_base=other)
            for prompt, texts, others in zip(prompts, answers, of_base, strict=True)
            for text, other in zip(texts, others, strict=True)
        ]

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """What the models answer in held-out conversations, up to where the assistant first speaks."""
        tokenizer = self._tokenizer(files)
        chats = stored_chats(file_of(files, HELDOUT_FILE), self._vocabulary_size)
        asked, right = list[list[int]](), list[str]()
        for ids, carries in chats:
            start = int(carries.argmax())
            if start and len(asked) < SHOWN_CHATS:
                asked.append(ids[:start].tolist())
                length = int((np.append(carries[start:], 0) == 0).argmax())
                right.append(tokenizer.decode(ids[start : start + length].tolist()).strip())
        options = SampleOptions(temperature=0.0, length=SHOWN_TOKENS)
        made = [self._answers(model, files, asked, options) for model in models]
        rows = [
            Shown(
                Exhibit(" ".join(tokenizer.decode(asked[number]).split())),
                tuple(Exhibit(" ".join(each[number][0].split())) for each in made),
                Exhibit(answer),
            )
            for number, answer in enumerate(right)
        ]
        return Showing(self.settings.data.in_words(), rows)

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """The adapters in the form of `peft`, which loads them onto the base, with tokenizer and a README."""
        base, _, revision = self.settings.base.removeprefix(HUB).partition("@")
        base = base if self.settings.base.startswith(HUB) else _BASE_PLACE
        with Exported.to(directory, provenance) as exported:
            save_adapters(model, self.settings.lora, exported, base, revision)
            ChatWriter(self._tokenizer(files), self._form(files)).save(exported.folder)
            exported.card(
                self.context.run_name,
                f"Adapters that peers trained with minga (recipe {provenance.recipe}).",
                self.evaluate(model, files),
                _LOADING.format(base=base, revision=f', revision="{revision}"' if revision else ""),
                library="peft",
                notes=self._notes,
            )

    def export_merged(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """A directory for `AutoModelForCausalLM` and `PreTrainedTokenizerFast`, with a README."""
        form, figures = self._form(files), self.evaluate(model, files)
        merge(model)
        export_model(
            model,
            self._tokenizer(files),
            directory,
            provenance,
            title=self.context.run_name,
            figures=figures,
            text=self.settings.data.in_words(),
            auto=CAUSAL,
            special={"eos_token": form.eos_token, "bos_token": form.bos_token},
            chat_template=form.chat_template,
        )

    # ---- inner workings

    @property
    def _notes(self) -> str:
        return (
            f"The conversations: {self.settings.data.in_words()}. No licence is stated here: it is for the organiser "
            "of the run to say, and depends on that of the base."
        )

    @property
    def _vocabulary_size(self) -> int:
        size, _ = sizes_of(read_config(self.resolved.config))
        return size

    def _tokenizer(self, files: Files) -> Tokenizer:
        return read_tokenizer(body_of(files, TOKENIZER_FILE), self._vocabulary_size)

    def _form(self, files: Files) -> ChatFormat:
        return ChatFormat.read(body_of(files, FORMAT_FILE))

    def _end(self, files: Files) -> int:
        return self._form(files).end_of(self._tokenizer(files))

    def _samples_of(self, files: Files) -> Samples:
        path = file_of(files, CHATS_FILE)
        if self._samples is None or self._samples[0] != path:
            chats: list[Chat] = stored_chats(path, self._vocabulary_size)
            own = Samples(chats, self.settings.max_length, self._end(files), packing=self.settings.packing)
            self._samples = (path, own)
        return self._samples[1]

    def _answers(
        self, model: nn.Module, files: Files, asked: Sequence[Sequence[int]], options: SampleOptions
    ) -> list[list[str]]:
        """The texts with which a model goes on from each of these prompts."""
        tokenizer = self._tokenizer(files)
        drawn = drawn_tokens(model, asked, self._end(files), options, self.settings.max_length)
        return [[tokenizer.decode(row).strip() for row in rows] for rows in drawn]


def _mean_loss(model: nn.Module, samples: Samples) -> float:
    """Nats a token that carries loss, all alike."""
    nats = total = 0.0
    with evaluating(model) as device:
        for start in range(0, len(samples), EVALUATION_BATCH_SIZE):
            batch = samples.batch(range(start, min(start + EVALUATION_BATCH_SIZE, len(samples))))
            losses = token_losses(model, batch["input_ids"].to(device), batch["labels"].to(device)).cpu().double()
            carries = batch["label_weights"] > 0
            nats, total = nats + float(losses[carries].sum()), total + float(carries.sum())
    return nats / total


_LOADING: Final = """from peft import PeftModel
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

base = AutoModelForCausalLM.from_pretrained("{base}"{revision})
model = PeftModel.from_pretrained(base, "PATH OF THIS DIRECTORY")
tokenizer = PreTrainedTokenizerFast.from_pretrained("PATH OF THIS DIRECTORY")"""
