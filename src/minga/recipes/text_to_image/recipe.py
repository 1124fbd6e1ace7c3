"""The text-to-image recipe: captions and pictures as one sequence of tokens, each predicted from those before.

The organiser's tokenizers turn captions into word ids and pictures into codes, once; ids and codes travel with the run,
so nothing on a peer decodes pictures or depends on how its device rounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer
from torch import nn

from minga.core.errors import ConfigurationError
from minga.core.files import store
from minga.recipes.data.files import body_of, file_of
from minga.recipes.data.order import block_chances, epoch_seed, shuffled, shuffled_blocks, streamed
from minga.recipes.exported import Provenance
from minga.recipes.images.grid import grid_png
from minga.recipes.images.source import check_own_folders, files_below
from minga.recipes.interface import (
    Batch,
    Beside,
    Exhibit,
    Files,
    Loss,
    Metric,
    Recipe,
    RecipeContext,
    Sample,
    SampleOptions,
    Showing,
    Shown,
    StreamPosition,
)
from minga.recipes.text.tokenizer import TOKENIZER_FILE, given_file, read_tokenizer
from minga.recipes.text_to_image.data import coded_rows, is_held_out, own_rows
from minga.recipes.text_to_image.decoder import TextToImageDecoder
from minga.recipes.text_to_image.evaluation import heldout_losses, part_losses, sample_figures, unpack_captions
from minga.recipes.text_to_image.export import IMAGE_TOKENIZER, export_model
from minga.recipes.text_to_image.pairs import CodedRow, Ids, Pairs, pack_pairs, read_pairs
from minga.recipes.text_to_image.prepare import HELDOUT_FILE, SAMPLES_FILE, TRAINING_FILE, prepare_files
from minga.recipes.text_to_image.sampling import draw_pictures
from minga.recipes.text_to_image.settings import SIZES, TextToImageSettings
from minga.recipes.text_to_image.shapes import judge, words_of
from minga.recipes.text_to_image.tokens import DESCRIPTION_FILE, PARAMETERS_FILE, read_image_tokenizer
from minga.security.randomness.public_batch import PublicBatch

GRID_SAMPLES: Final = 16
"""Pictures on the sheet of an export."""

SHOWN: Final = 8


class TextToImageRecipe(Recipe[TextToImageSettings]):
    """Pictures from words; see `Recipe` for what each method promises."""

    Settings = TextToImageSettings
    headline = Metric("heldout_image_loss", better="lower")
    sizes = tuple(SIZES)
    model_files = (TOKENIZER_FILE, DESCRIPTION_FILE, PARAMETERS_FILE)
    export_names = IMAGE_TOKENIZER

    def __init__(self, settings: TextToImageSettings, context: RecipeContext) -> None:
        super().__init__(settings, context)
        self._shape = settings.shape()
        self._read: dict[Path, Pairs] = {}

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """A size by its name; `tokens` of a caption, None for those of the size."""
        return {"size": size, **({"overrides": {"text_length": tokens}} if tokens else {})}

    @property
    def is_streamed(self) -> bool:
        """Whether peers read pairs themselves."""
        return self.settings.data.is_streamed

    def check_public(self) -> None:
        """A streamed data set is not the same for all, and devices draw otherwise."""
        if self.settings.data.is_streamed:
            raise ConfigurationError(
                'security.verification = "byzantine" needs pairs that come with the run, so recipe.text-to-image.data '
                "must not be streamed"
            )
        if self.settings.dropout:
            raise ConfigurationError('security.verification = "byzantine" needs recipe.text-to-image.dropout = 0')

    def prepare(self) -> dict[str, bytes]:
        """Tokenizers, held-out pairs, and training pairs unless peers stream them; see `prepare_files`."""
        return prepare_files(self.settings, self.context.seed, self.files_of_model())

    def files_of_model(self) -> Mapping[str, Path]:
        """The tokenizer of captions is not among them where the settings say from where it comes."""
        found = super().files_of_model()
        is_said = self.settings.tokenizer.startswith("from:")
        return {name: path for name, path in found.items() if not (is_said and name == TOKENIZER_FILE)}

    def inputs(self) -> Sequence[Path]:
        """The pictures and captions in the organiser's folder, and a tokenizer of this machine."""
        how, _, what = self.settings.tokenizer.partition(":")
        given = [given_file(what, TOKENIZER_FILE, "tokenizer")] if how == "from" else []
        return [*files_below(self.settings.data.folder), *given]

    def build_model(self) -> TextToImageDecoder:
        """The decoder of the settings."""
        return TextToImageDecoder(self._shape, is_reversible=self.settings.reversible).train()

    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Batches with `captions` int64 [n, T] and `codes` int64 [n, S²]."""
        if self.settings.data.is_streamed and TRAINING_FILE not in files:
            return self._streamed_batches(files, position, micro_batch_size)
        pairs = self._pairs(files, TRAINING_FILE)
        order = shuffled(len(pairs), self.context.seed, position, micro_batch_size)
        return (self._batch(pairs, rows, chance) for rows, chance in order)

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """Pairs by their numbers in the training file."""
        pairs = self._pairs(files, TRAINING_FILE)
        return self._batch(pairs, batch.indices(len(pairs)), np.random.default_rng(batch.number))

    def synthetic_batch(self, size: int) -> Batch:
        """Random ids, every caption as long as can be."""
        random = np.random.default_rng(0)
        shape = self._shape
        captions = random.integers(1, max(2, shape.vocabulary), size=(size, shape.text_length))
        codes = random.integers(0, shape.codes, size=(size, shape.image_length))
        return Pairs(np.minimum(captions, shape.vocabulary - 1), codes).batch(np.arange(size))

    def loss(self, model: nn.Module, batch: Batch) -> Loss:
        """(caption + w · picture) / (1 + w), nats a token, w the setting `image_weight`; both parts besides."""
        losses = part_losses(_decoder(model), batch, on_padding=self.settings.loss_on_padding)
        weight, text, image = self.settings.image_weight, losses.text.mean(), losses.image.mean()
        return Loss((text + weight * image) / (1 + weight), {"text_loss": text, "image_loss": image})

    def check_own_data(self, patterns: Sequence[str], names: Collection[str]) -> None:
        """Each has to be a folder, and the image tokenizer among the files of the run."""
        if PARAMETERS_FILE not in names:
            raise ConfigurationError("--data: this run has codes only, and no image tokenizer to make them of pictures")
        check_own_folders(patterns)

    def own_data(self, files: Files, patterns: Sequence[str], folder: Path) -> tuple[TextToImageRecipe, Files]:
        """The pictures of folders with captions, as codes of the run's image tokenizer."""
        self.check_own_data(patterns, files)
        data, shape = self.settings.data, self._shape
        heldout = self._pairs(files, HELDOUT_FILE) if HELDOUT_FILE in files else None
        rows = own_rows(patterns, data.filters, self.settings.side, read_image_tokenizer(files), heldout)
        pairs = Pairs.of(rows, self._tokenizer(files), shape)
        path = store(folder / TRAINING_FILE, pack_pairs(pairs, shape))
        return TextToImageRecipe(self.settings, self.context), {**files, TRAINING_FILE: path}

    def checkpoint_activations(self, model: nn.Module) -> None:
        """Compute activations again in the backward pass, as `reversible` runs do anyway."""
        _decoder(model).is_reversible = True

    def samples(self, batch: Batch) -> int:
        """The number of pairs."""
        return batch["codes"].shape[0]

    @property
    def sample_tokens(self) -> int:
        """Of the caption and of the picture."""
        return self._shape.positions

    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """Losses on held-out pairs, and where captions say what to look for, how often drawn pictures show it."""
        if HELDOUT_FILE not in files:
            return {}
        decoder, heldout = _decoder(model), self._pairs(files, HELDOUT_FILE)
        figures = heldout_losses(decoder, heldout)
        if PARAMETERS_FILE in files and SAMPLES_FILE in files:
            captions = unpack_captions(file_of(files, SAMPLES_FILE))
            image_tokenizer = read_image_tokenizer(files)
            figures |= sample_figures(decoder, self._tokenizer(files), image_tokenizer, captions)
        return figures

    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """Weights, configuration, both tokenizers, a README and a grid of samples; see `export_model`."""
        names = [TOKENIZER_FILE, *(name for name in (DESCRIPTION_FILE, PARAMETERS_FILE) if name in files)]
        export_model(
            _decoder(model),
            {name: body_of(files, name) for name in names},
            directory,
            provenance,
            title=self.context.run_name,
            grid=self._grid(model, files),
        )

    def sample(self, model: nn.Module, files: Files, prompts: Sequence[str], options: SampleOptions) -> list[Sample]:
        """Pictures; `length` and a prompt's words beyond the longest caption do not count."""
        words, image_tokenizer = self._tokenizer(files), read_image_tokenizer(files)
        pictures = draw_pictures(_decoder(model), words, image_tokenizer, prompts, options)
        return [Sample(prompts[number // options.count], image=picture) for number, picture in enumerate(pictures)]

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """A model of four layers on plain shapes, with the image tokenizer that comes with minga. Of fewer colours it
        would learn the pictures by heart, instead of what shapes and colours are.
        """
        data = {
            "source": "shapes",
            "compositions": 4000,
            "colours": 8,
            "places": 1,
            "sizes": 1,
            "heldout_fraction": 0.1,
        }
        settings = {
            "size": "tiny",
            "overrides": {"layers": 4, "text_length": 16, "vocabulary": 128},
            "image_tokenizer": "shapes",
            "reversible": False,
            "data": data,
        }
        return {
            "recipe": {"text-to-image": settings},
            "optimizer": {
                "name": "adamw",
                "learning_rate": 0.003,
                "betas": [0.9, 0.96],
                "max_grad_norm": 1.0,
                "warmup_steps": 10,
                "schedule": "constant",
            },
            "training": {"target_batch_size": 32},
        }

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:
        """Pictures for held-out captions, beside the real ones."""
        data = self.settings.data.in_words()
        if SAMPLES_FILE not in files or PARAMETERS_FILE not in files:
            return Showing(data)
        captions, heldout = unpack_captions(files[SAMPLES_FILE]), self._pairs(files, HELDOUT_FILE)
        image_tokenizer = read_image_tokenizer(files)
        real = image_tokenizer.decode(heldout.codes[: len(captions)].astype(np.int64))
        places = list({caption: place for place, caption in reversed(list(enumerate(captions)))}.values())[::-1][:SHOWN]
        shown, options = [captions[place] for place in places], SampleOptions(temperature=0.0)
        drawn = zip(*(self.sample(model, files, shown, options) for model in models), strict=True)
        rows = [
            Shown(
                Exhibit(captions[place]),
                tuple(Exhibit(_seen_in(sample), sample.image) for sample in samples),
                Exhibit("", real[place]),
            )
            for place, samples in zip(places, drawn, strict=True)
        ]
        beside = {
            f"sample_{name}_accuracy": Beside("the real pictures", share)
            for name, share in judge(real, captions).items()
        }
        return Showing(data, rows, beside)

    def _grid(self, model: nn.Module, files: Files) -> bytes | None:
        """Samples of held-out captions on one sheet, if the run has such captions and can make pictures."""
        if SAMPLES_FILE not in files or PARAMETERS_FILE not in files:
            return None
        captions = unpack_captions(files[SAMPLES_FILE])[:GRID_SAMPLES]
        samples = self.sample(model, files, captions, SampleOptions())
        pictures = [sample.image for sample in samples if sample.image is not None]
        return grid_png(pictures, captions, notes={"seed": "0"})

    def _batch(self, pairs: Pairs, rows: Ids, chance: np.random.Generator) -> Batch:
        share = self.settings.caption_dropout
        return pairs.batch(rows, chance.random(len(rows)) < share if share else None)

    def _streamed_batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        words, shape, data, seed = self._tokenizer(files), self._shape, self.settings.data, self.context.seed
        every = np.arange(micro_batch_size)

        def open_pass(epoch: int) -> Iterator[CodedRow]:
            order = epoch_seed(seed, position, epoch)
            rows = coded_rows(data, shape.image_length, shape.codes, order=order)
            kept = (row for row in rows if not is_held_out(row[1], data.heldout_fraction))
            return shuffled_blocks(kept, data.shuffle_buffer, block_chances(seed, position, epoch))

        empty = "data: no pair of this source passes the filters"
        for rows, chance in streamed(open_pass, seed, position, micro_batch_size, empty):
            yield self._batch(Pairs.of(rows, words, shape), every, chance)

    def _pairs(self, files: Files, name: str) -> Pairs:
        path = file_of(files, name)
        if path not in self._read:
            self._read[path] = read_pairs(path, self._shape)
        return self._read[path]

    def _tokenizer(self, files: Files) -> Tokenizer:
        return read_tokenizer(body_of(files, TOKENIZER_FILE), self._shape.vocabulary)


def _decoder(model: nn.Module) -> TextToImageDecoder:
    if not isinstance(model, TextToImageDecoder):
        raise TypeError(f"not a model of this recipe: {type(model).__name__}")
    return model


def _seen_in(sample: Sample) -> str:
    """What a picture shows, for captions of plain shapes."""
    return "" if sample.image is None else words_of(sample.image) or "nothing that one knows"
