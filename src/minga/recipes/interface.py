"""The recipe seam: the model, the data and the loss of a run, as training sees them.

A recipe is made from its settings, the table `[recipe.NAME]` of the run spec, and from what else of the spec it may
know (`RecipeContext`); it holds no training state. The organiser calls `prepare` once; the files it returns travel with
the run, so that other methods see the same files on every peer. Batches are plain dictionaries of tensors, which
training may move to a device without knowing what they mean.

Training, planner, plots and demo know recipes by this interface alone. To import this module imports neither torch nor
the libraries of any recipe.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from minga.core.errors import ConfigurationError
from minga.core.files import Content
from minga.core.spec.fields import Section
from minga.recipes.data_source import DataSource, pinned
from minga.recipes.exported import Provenance
from minga.recipes.model_files import files_of_model
from minga.recipes.task_report import Say, TaskOptions, TaskReport
from minga.training.lineage import UNFOUNDED, Lineage

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor, nn

    from minga.core.spec.sections import FileEntry
    from minga.security.randomness.public_batch import PublicBatch

Batch: TypeAlias = "dict[str, Tensor]"
"""One micro-batch: named tensors, the meaning of which only the recipe knows."""

Files: TypeAlias = Mapping[str, Path]
"""The files that came with the run, by name; each already downloaded and checked against its digest."""

Settings = Section
"""What the settings of a recipe derive from; fields are declared by `whole`, `real`, `choice` and `described`."""

S = TypeVar("S", bound=Section)


@dataclass(frozen=True)
class StreamPosition:
    """Which order of the data one stream follows.

    `peer_id` (hex) is the peer's key, `worker` the rank of the process within a peer of several processes, and
    `start_step` the global step at which the peer joined: a peer that comes back goes on with a fresh order instead of
    the samples it has already had. Equal positions give equal streams, on any machine.
    """

    peer_id: str
    worker: int = 0
    start_step: int = 0


@dataclass(frozen=True)
class Metric:
    """A figure of `evaluate`."""

    name: str
    better: Literal["lower", "higher"]


@dataclass(frozen=True)
class DemoGoal:
    """A value of the headline that a demo reaches once it has taken so many steps, however long they take."""

    headline: float
    steps: int


@dataclass(frozen=True)
class Loss:
    """A loss in parts. `total`, a float32 scalar, is what training minimises; `parts` are scalars by name.

    Each part `x` has a twin among the held-out figures, `heldout_x`, which is computed in the same way. Peers report
    the part whose twin is the recipe's headline, so that plots compare like with like.
    """

    total: Tensor
    parts: Mapping[str, Tensor]


LEAST_TEMPERATURE: Final = 0.001
"""Scores are divided by it, and have to stay numbers."""


@dataclass(frozen=True)
class SampleOptions:
    """How samples are drawn from a trained model.

    `count` samples a prompt; `length` is the largest number of new tokens of a text. Scores are divided by
    `temperature` (0 takes the likeliest each time); the `top_k` likeliest are kept (0 keeps all), then the likeliest
    that come to a probability of `top_p`. `guidance` above 1 draws away from samples without a prompt, for recipes that
    train for it. Equal seeds give equal samples on one machine.
    """

    count: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    guidance: float = 1.0
    length: int = 64
    seed: int = 0

    def __post_init__(self) -> None:
        """Raise `ConfigurationError` unless each option is within its bounds."""
        for name, value, low, high in (
            ("n", self.count, 1, 4096),
            ("temperature", self.temperature, 0.0, 100.0),
            ("top-k", self.top_k, 0, 2**31),
            ("top-p", self.top_p, 0.0, 1.0),
            ("guidance", self.guidance, 0.0, 1000.0),
            ("length", self.length, 1, 2**20),
            ("seed", self.seed, 0, 2**63 - 1),
        ):
            if not low <= value <= high:
                raise ConfigurationError(f"--{name} {value}: must be from {low:g} to {high:g}")
        if 0.0 < self.temperature < LEAST_TEMPERATURE:
            raise ConfigurationError(f"--temperature {self.temperature}: must be 0, or at least {LEAST_TEMPERATURE:g}")
        if self.temperature == 0.0 and self.count > 1:
            raise ConfigurationError(f"--n {self.count}: with --temperature 0 all samples of a prompt are the same")


@dataclass(frozen=True)
class Sample:
    """What a model made of a prompt: a text, or an image, uint8 [height, width, 3].

    `of_base` is the text that the base of a model makes of it, where a recipe tunes one.
    """

    prompt: str
    text: str = ""
    image: np.ndarray | None = None
    of_base: str | None = None


@dataclass(frozen=True)
class Exhibit:
    """What people are shown: a text, a picture uint8 [height, width, 3], or both."""

    text: str = ""
    picture: np.ndarray | None = None


@dataclass(frozen=True)
class Shown:
    """What each of some models `made` of what it was `given`, in the order of the models, and what would be `right`,
    where there is such a thing.
    """

    given: Exhibit
    made: tuple[Exhibit, ...]
    right: Exhibit = Exhibit()


@dataclass(frozen=True)
class Beside:
    """A value with which a figure is to be compared; `is_chance` if it takes no learning to reach it."""

    words: str
    value: float
    is_chance: bool = False


@dataclass(frozen=True)
class Showing:
    """What a demo shows of some models.

    `data` says which data the run has, from where, and under which licence. `rows` are made of held-out data.
    `beside` is what figures of `evaluate` are to be compared with, by their names.
    """

    data: str
    rows: Sequence[Shown] = ()
    beside: Mapping[str, Beside] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeContext:
    """What a recipe may know of its run besides its own settings.

    `seed` is the run's; `is_public` says that members compute each other's batches again, all with
    `micro_batch_size`, which is None in other runs. `init_from` is where the organiser takes the first parameters from,
    and None for all others.
    """

    recipe: str
    run_name: str
    run_id: str
    seed: int
    is_public: bool = False
    micro_batch_size: int | None = None
    init_from: str | None = None


@dataclass(frozen=True)
class RecipeFacts:
    """What plans have to know of a model.

    `tensors` are the numbers of elements of what is trained and averaged; `operations` those of one sample, forward
    and backward; `tokens` of one sample, 1 where samples have none; `activation_bytes` what one sample takes in
    float32 until the backward pass, None if unknown. `origin` says where all this is from. `frozen_bytes` are those of
    parameters that are not trained.
    """

    name: str
    tensors: tuple[int, ...]
    operations: float
    tokens: int
    activation_bytes: float | None
    origin: str
    frozen_bytes: int = 0


class ParameterSizes(NamedTuple):
    """The numbers of elements of what is trained and averaged, and the bytes of parameters that are not trained."""

    tensors: tuple[int, ...]
    frozen_bytes: int

    @property
    def parameters(self) -> int:
        """Numbers that are trained and averaged."""
        return sum(self.tensors)


class Recipe(ABC, Generic[S]):
    """What a run trains, on what, and how well it does."""

    Settings: ClassVar[type[Section]]
    """What `[recipe.NAME]` may say, with bounds and meanings."""

    headline: ClassVar[Metric]
    """The figure of `evaluate` that demo, plots and status show."""

    demo_goal: ClassVar[DemoGoal | None] = None
    """What the headline has to reach in a demo; None if it only has to get better."""

    coupling: ClassVar[Literal["none", "micro-batch"]] = "none"
    """Whether the loss of a sample depends on others of its micro-batch.

    With "micro-batch" peers optimise the same function only if their micro-batches are equally large: the size is the
    setting `micro_batch_size` of the recipe, and no peer chooses its own.
    """

    model_files: ClassVar[tuple[str, ...]] = ()
    """Files of `prepare` that the parameters depend on, such as a tokenizer: a run that begins with those of another
    model takes that model's; see `files_of_model`.
    """

    export_names: ClassVar[Mapping[str, str]] = {}
    """What `export` calls those of `model_files` that it gives another name."""

    sizes: ClassVar[tuple[str, ...]] = ()
    """Sizes that `minga plan --model NAME-SIZE` knows; see `size_settings`."""

    tasks: ClassVar[tuple[str, ...]] = ()
    """Tasks by which `minga evaluate` judges an exported model, the usual one first; see `judge`."""

    estimates_statistics: ClassVar[bool] = False
    """Whether all that it makes of a trained model first estimates anew what norms keep of the data they have seen."""

    counted_samples: ClassVar[int] = 1
    """Samples of the batch on which `facts` counts: several for a model that takes their variance."""

    def __init__(self, settings: S, context: RecipeContext) -> None:
        self.settings, self.context = settings, context

    # ---- settings

    @property
    def sample_tokens(self) -> int:
        """Tokens of a sample, 1 where samples have none."""
        return 1

    @classmethod
    def size_settings(cls, size: str, tokens: int | None) -> dict[str, Any]:
        """The settings that belong to one of `sizes`; `tokens` of a sample, None for as many as is usual."""
        raise NotImplementedError(f"{cls.__name__} names sizes but not their settings")

    def check_public(self) -> None:
        """Raise `ConfigurationError` if these settings cannot serve a run whose members check each other."""

    def check_received(self) -> None:
        """Raise `ConfigurationError` if settings of a stranger name what has to be looked up, which only the organiser
        does. Looks nothing up itself.
        """

    @property
    def is_streamed(self) -> bool:
        """Whether peers that train read samples from elsewhere, such as a hub, which no limit of theirs counts."""
        return False

    @property
    def fixed_micro_batch_size(self) -> int | None:
        """The micro-batch size of every peer where samples are coupled, None where each chooses its own.

        Raises `TypeError` for a coupled recipe without such a setting.
        """
        if self.coupling == "none":
            return None
        size = getattr(self.settings, "micro_batch_size", None)
        if not isinstance(size, int):
            raise TypeError(f"{type(self).__name__} couples micro-batches and has no setting micro_batch_size")
        return size

    # ---- organiser

    def pinned_settings(self) -> S:
        """The settings with the commit of each data set of a hub that their `data` name, if that is a `DataSource`. The
        organiser asks for it before all else: so the rows that are prepared, kept and streamed are the same ones.

        Raises `ConfigurationError` if the hub does not answer.
        """
        data = getattr(self.settings, "data", None)
        return (
            self.settings.model_copy(update={"data": pinned(data)}) if isinstance(data, DataSource) else self.settings
        )

    def published_settings(self) -> S:
        """The settings with which the run is published: those given, unless they name what only the organiser has.

        Called by the organiser, before `prepare`, and by all others, for whom they must be what they are already.
        Raises `ConfigurationError` where what they name cannot be used.
        """
        return self.settings

    @abstractmethod
    def prepare(self) -> Mapping[str, Content]:
        """Make the files that ship with the run; called once, by the organiser, who may take minutes for it.

        A file is given as its bytes or, if it is large, as the path of a file that has its content, which is copied.

        Raises `ConfigurationError` where the data that the settings name cannot be found or is too little or too much.
        """

    def given_files(self) -> Mapping[str, Path]:
        """Further files that ship with the run, as they lie on the organiser's machine; called by the organiser."""
        return {}

    def files_of_model(self) -> Mapping[str, Path]:
        """Those of `model_files` that belong to the parameters with which the run begins, where there are some. They
        travel with the run in place of what `prepare` makes, which has to make everything else by them.

        Called by the organiser. Raises `ConfigurationError` if they cannot be looked up.
        """
        if self.context.init_from is None or not self.model_files:
            return {}
        return files_of_model(
            self.context.init_from, {name: self.export_names.get(name, name) for name in self.model_files}
        )

    def inputs(self) -> Sequence[Path]:
        """The files of this machine that `prepare` reads, besides those of `files_of_model`. No published setting may
        name one of them.
        """
        return ()

    def elsewhere(self, files: Mapping[str, FileEntry]) -> Path | None:  # noqa: ARG002
        """A folder with some of these `files` of a published run, which this machine lacks, if it can get them from
        elsewhere than from its peers, such as from a hub. Called by who joins; each file is checked by its digest.
        """
        return None

    # ---- training

    @abstractmethod
    def build_model(self) -> nn.Module:
        """A new float32 model, in training mode; its parameters depend on settings and seed alone.

        Called by `new_model`, under which PyTorch's own initialisers draw equal numbers on every machine. Reads no
        file and no network, and works on the device `meta`.
        """

    def load_model(self, files: Files, device: torch.device | None) -> nn.Module | None:
        """The model with which a run begins, with the parameters that came with it: on the `device` where it is to be
        trained, or on the CPU. None, unless a recipe says otherwise: it is built, and the parameters are put in.

        Raises `ConfigurationError` if that cannot be.
        """
        del files, device
        return None

    def check_device(self, device: torch.device) -> None:
        """Raise `ConfigurationError`, with what to install or to choose, if the model cannot be trained on a device of
        this machine.
        """

    @abstractmethod
    def batches(self, files: Files, position: StreamPosition, micro_batch_size: int) -> Iterator[Batch]:
        """Training batches of exactly `micro_batch_size` samples, without end.

        Within one pass over the data no sample comes twice; held-out data never come at all.
        """

    @abstractmethod
    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """The micro-batch that `batch` names, the same on every machine: for runs whose members check each other."""

    @abstractmethod
    def synthetic_batch(self, size: int) -> Batch:
        """A batch of `size` made-up samples, with the names, types and ranks of real ones and the largest shapes."""

    @abstractmethod
    def loss(self, model: nn.Module, batch: Batch) -> Tensor | Loss:
        """The loss of a batch: a scalar that is the mean over its samples, alone or with its parts.

        Being a mean over samples, it makes the average of gradients weighted by samples equal to the gradient of the
        whole batch, however that was cut into micro-batches.
        """

    def total_loss(self, model: nn.Module, batch: Batch) -> Tensor:
        """What training minimises: `loss`, or the total of one that comes in parts."""
        found = self.loss(model, batch)
        return found.total if isinstance(found, Loss) else found

    def reported_loss(self, loss: Tensor | Loss) -> Tensor:
        """What peers tell of a loss: the part whose held-out twin is the headline, the total where there is none."""
        if not isinstance(loss, Loss):
            return loss
        return loss.parts.get(self.headline.name.removeprefix("heldout_"), loss.total)

    def checkpoint_activations(self, model: nn.Module) -> None:  # noqa: ARG002
        """Let the model compute its activations again in the backward pass instead of keeping them: less memory, more
        time, the same gradients. Raises `ConfigurationError` if it cannot.
        """
        raise ConfigurationError(f"--checkpoint-activations: the recipe {self.context.recipe} does not do that")

    def compile_model(self, model: nn.Module) -> None:
        """Let PyTorch compile the model where it is: faster after some minutes, if this machine has a compiler."""
        model.compile()

    def samples(self, batch: Batch) -> int:
        """How many samples a batch holds: the first dimension of its first tensor, unless the recipe says otherwise."""
        return int(next(iter(batch.values())).shape[0])

    def check_own_data(self, patterns: Sequence[str], names: Collection[str]) -> None:  # noqa: ARG002
        """Raise `ConfigurationError` if the recipe has no `own_data`, or if it is plain before the files of the run are
        here, which have these `names`, that it can do nothing with `patterns`. A recipe with `own_data` has this, too.
        """
        raise ConfigurationError(f"--data: the recipe {self.context.recipe} does not train on files of one's own")

    def own_data(
        self,
        files: Files,
        patterns: Sequence[str],
        folder: Path,  # noqa: ARG002
    ) -> tuple[Recipe[S], Files]:
        """The recipe and the run's files for a peer that trains on files of its own, `patterns`, instead of the run's.

        What is held out for all stays held out. `folder` keeps what is made of them. Raises `ConfigurationError` if
        the recipe cannot do that or the files hold nothing to train on, `StorageError` if the disk refuses.
        """
        self.check_own_data(patterns, files)
        raise NotImplementedError(f"{type(self).__name__} takes files of one's own but does not read them")

    def own_base(self, bits: int) -> Recipe[S]:
        """The recipe for a peer that holds the base of the run in so many bits a parameter, however others do. Raises
        `ConfigurationError` if the recipe tunes no base, or members check each other.
        """
        raise ConfigurationError(f"--base-bits {bits}: the recipe {self.context.recipe} tunes no base; leave it out")

    # ---- updates

    def frozen(self, step: int) -> frozenset[str]:  # noqa: ARG002
        """The names of the parameters that the update from global step `step` to the next leaves as they are: they have
        no gradient, no decay and no momentum then. The same on every peer.
        """
        return frozenset()

    def constrain(self, model: nn.Module, step: int) -> None:
        """Bring the parameters that an update has led to, those of global step `step`, to what they have to be.

        Called on every peer after each update, before peers compare states. Depends on step and parameters alone,
        rounds alike everywhere (see `minga.optim.arithmetic`), and changes nothing when called twice.
        """

    def decayed(self, name: str, parameter: Tensor) -> bool:  # noqa: ARG002
        """Whether the optimizer's weight decay applies to a parameter: by default to matrices and higher, which leaves
        out biases and the parameters of norms.
        """
        return parameter.ndim >= 2

    # ---- figures

    @abstractmethod
    def evaluate(self, model: nn.Module, files: Files) -> dict[str, float]:
        """Figures on held-out data: the same numbers for the same weights, on any peer and at any time.

        Leaves the model as it was, in training mode and where it is, which may be a GPU (see `evaluating`), and all
        random generators. Empty where the settings hold nothing out.
        """

    def provenance(self, step: int, lineage: Lineage = UNFOUNDED) -> Provenance:
        """Where a model of this recipe is from that has the parameters after `step`, for `export`."""
        return Provenance.of(self.context.recipe, self.settings, self.context.run_id, step, lineage)

    @abstractmethod
    def export(self, model: nn.Module, files: Files, directory: Path, provenance: Provenance) -> None:
        """Write the model in the format of its own library, with a `README.md`, whole or not at all. `provenance` says
        where it is from.

        Raises `StorageError` where that fails, and `ConfigurationError` if the directory already has content.
        """

    def export_merged(
        self,
        model: nn.Module,  # noqa: ARG002
        files: Files,  # noqa: ARG002
        directory: Path,  # noqa: ARG002
        provenance: Provenance,  # noqa: ARG002
    ) -> None:
        """Like `export`, with the adapters in the layers that they were trained for, also of `model` itself.

        Raises `ConfigurationError` if the recipe trains no adapters.
        """
        raise ConfigurationError(f"--merge: the recipe {self.context.recipe} trains no adapters; leave it out")

    def sample(
        self,
        model: nn.Module,  # noqa: ARG002
        files: Files,  # noqa: ARG002
        prompts: Sequence[str],  # noqa: ARG002
        options: SampleOptions,  # noqa: ARG002
    ) -> list[Sample]:
        """What the model makes of the prompts, `options.count` samples of each, in their order.

        Leaves the model and all random generators as they were. Raises `ConfigurationError` if the recipe draws none.
        """
        raise ConfigurationError(f"the recipe {self.context.recipe} draws no samples")

    @classmethod
    def judge(cls, model: str, options: TaskOptions, say: Say) -> TaskReport:
        """What `model`, a folder that `export` wrote, is good for in the task `options.task`, one of `tasks`, beside a
        model from scratch. `say` tells the user how far it is.

        Raises `ConfigurationError` if model or examples cannot be read or are too few.
        """
        raise NotImplementedError(f"{cls.__name__} names tasks but not how to do them")

    @classmethod
    def demo_spec(cls) -> Mapping[str, Any]:
        """Tables of a run spec, such as `[training]` and `[recipe.NAME]`, with which the recipe visibly learns within
        three minutes on two CPU cores; `minga demo --recipe NAME` runs it.
        """
        return {}

    def show(self, models: Sequence[nn.Module], files: Files) -> Showing:  # noqa: ARG002
        """What the demo shows of models, such as one before training and one after it: what each makes of the same
        things. Leaves the models and all random generators as they were.
        """
        return Showing("")

    def parameter_sizes(self) -> ParameterSizes:
        """What a peer has to hold and to fetch, counted on a model without memory, and sooner than `facts`."""
        from minga.recipes.counting import shapes_of_model

        parameters = list(shapes_of_model(self.build_model).parameters())
        frozen_bytes = sum(each.nbytes for each in parameters if not each.requires_grad)
        return ParameterSizes(tuple(each.numel() for each in parameters if each.requires_grad), frozen_bytes)

    def facts(self) -> RecipeFacts:
        """What plans have to know, counted on a model without memory."""
        from minga.recipes.counting import count

        name, samples, tokens = self.context.recipe, self.counted_samples, self.sample_tokens
        counted = count(self.build_model, self.synthetic_batch(samples), self.total_loss)
        sizes = self.parameter_sizes()
        return RecipeFacts(
            name,
            sizes.tensors,
            counted.operations / samples,
            tokens,
            counted.kept_bytes / samples,
            f"the recipe {name}, counted" + (f"; {tokens} tokens" if tokens > 1 else ""),
            sizes.frozen_bytes,
        )
