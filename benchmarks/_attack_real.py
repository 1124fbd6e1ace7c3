"""Secure runs of real processes over iroh, by a recipe in its tiny size; some peers are hostile."""

from __future__ import annotations

import copy
import queue
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from benchmarks._processes import Message, Worker, WorkerError, Workers
from benchmarks._worker import Channel
from minga import Event, MingaError, Peer, PeerOptions, RunSpec, host, join
from minga.averaging.codecs.layout import VectorLayout
from minga.network.interface import PeerId
from minga.recipes import Batch, load_recipe, published
from minga.recipes.fine_tune.recipe import FineTuneRecipe
from minga.recipes.interface import Files
from minga.recipes.running.run import RecipeRun, Work
from minga.security.protocol.behaviour import Behaviour, TrainingBackend
from minga.security.randomness.public_batch import PublicBatch
from minga.simulation.attacks.gradient_attacks import LabelFlip
from minga.simulation.attacks.interface import attack
from minga.training.life.verified_member import VerifiedMember

ENTER_S, STEP_S = 300.0, 60.0
FUNCTION = "benchmarks._attack_real:peer"


@dataclass(frozen=True)
class RealRecipe:
    """What a recipe trains in such a run: `tables` of a run spec, in TOML. `attack` is the one that is usual for it.
    `flips_labels`: a hostile peer knows how to flip its labels.
    """

    micro_batch_size: int
    tables: str
    attack: str = "sign-flip"
    flips_labels: bool = False


RECIPES = {
    "albert": RealRecipe(
        16,
        """
            recipe.albert = { size = "tiny", max_length = 64 }
            optimizer = { name = "adamw", learning_rate = 0.002, warmup_steps = 5, schedule = "constant" }
        """,
    ),
    "swav": RealRecipe(
        64,
        """
            model = { recipe = "swav" }
            recipe.swav = { size = "tiny", crops = [[2, 16, 0.4, 1.0]], prototypes = 64, epsilon = 0.03, flip = 0.0, \
                jitter = 0.3, blur = 0.0, data = { source = "digits" } }
            training.buffers = "local"

            [optimizer]
            name = "adamw"
            learning_rate = 0.004
            weight_decay = 1e-6
            warmup_steps = 5
            schedule = "constant"
            max_grad_norm = "off"
        """,
    ),
    "text-to-image": RealRecipe(
        8,
        """
            model = { recipe = "text-to-image" }
            recipe.text-to-image = { size = "tiny", image_tokenizer = "shapes", data = { compositions = 1000 } }
            optimizer = { name = "adamw", learning_rate = 0.003, warmup_steps = 5, schedule = "constant" }
        """,
    ),
    "fine-tune": RealRecipe(
        8,
        """
            model = { recipe = "fine-tune" }
            recipe.fine-tune = { base = "tiny", max_length = 96, lora = { rank = 4, alpha = 8.0 }, \
                data = { source = "sentences" } }
            optimizer = { name = "adamw", learning_rate = 0.005, warmup_steps = 5, schedule = "constant" }
        """,
        attack="label-flip",
        flips_labels=True,
    ),
}
"""The recipes that can be attacked here, by name."""


@dataclass(frozen=True)
class RealExtent:
    """How many processes take how many steps; of those, `hostile` attack from step `attack_from` on.

    `least_kept` is the share that an attack has to leave of what the run learns without one. Without it, the headline
    has to be a loss that an attack raises by 2 % at most.
    """

    peers: int = 8
    hostile: int = 3
    validators: int = 2
    steps: int = 60
    attack_from: int = 15
    recipe: str = "albert"
    evaluate_every: int = 5
    least_kept: float | None = None

    @property
    def spec(self) -> str:
        """The run spec."""
        recipe = RECIPES[self.recipe]
        return f"""
            name = "strangers"
            averaging = {{ codec = "float32" }}
            checkpoints = {{ every_steps = 0 }}
            training.target_batch_size = {recipe.micro_batch_size * self.peers}
            training.stop_after_steps = {self.steps}
            {recipe.tables}
            [security]
            verification = "byzantine"
            founders = {self.peers}
            micro_batch_size = {recipe.micro_batch_size}
            peers_per_validator = {self.peers // self.validators}
        """


@dataclass
class RealTold:
    """What became of one run: by honest peer the bans that it knows at the end, (step, reason) by name; its last step,
    digest and list of members; at which steps it was `away`, so that the others removed it or it had to fetch their
    state, and why; and the headline of the recipe on held-out data, by step.
    """

    bans: dict[str, dict[str, tuple[int, str]]] = field(default_factory=dict)
    ends: dict[str, tuple[int, str, tuple[str, ...]]] = field(default_factory=dict)
    away: dict[str, dict[int, str]] = field(default_factory=dict)
    excluded: dict[str, str] = field(default_factory=dict)
    figures: dict[int, float] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def equal_states(self) -> bool:
        """Whether the honest peers ended at the same step in the same state."""
        return len({(step, digest) for step, digest, _ in self.ends.values()}) == 1

    @property
    def equal_lists(self) -> bool:
        """Whether they ended with the same members, and bans of the same steps for the same reasons."""
        return len({(end[2], frozenset(self.bans[name].items())) for name, end in self.ends.items()}) == 1


def run_real(extent: RealExtent, attack: str | None) -> RealTold:
    """Start the processes, let them train to the end, and return what they told. Raises `WorkerError`."""
    heard: queue.Queue[tuple[Worker, Message]] = queue.Queue()
    names = [f"p{index}" for index in range(extent.peers)]
    hostile = names[-extent.hostile :] if attack else []
    with Workers() as workers:

        def start(name: str, **more: Any) -> None:
            directory = workers.directory / name
            directory.mkdir()
            settings = {
                "directory": str(directory),
                "attack_from": extent.attack_from,
                "evaluate_every": extent.evaluate_every if name == names[0] else None,
            }
            workers.start(name, FUNCTION, settings | more, lambda worker, message: heard.put((worker, message)))

        start(names[0], spec=extent.spec)
        first = _await(heard, 1)
        for name in names[1:]:
            start(name, link=first[names[0]]["link"])
        entered = first | _await(heard, extent.peers - 1)
        ids = {message["peer_id"]: name for name, message in entered.items()}
        allies = [entered[name]["peer_id"] for name in hostile]
        for worker in workers.all:
            worker.send("begin", attack=attack if worker.name in hostile else None, allies=allies)
        return _listen(heard, ids, [name for name in names if name not in hostile])


def _await(heard: queue.Queue[tuple[Worker, Message]], count: int) -> dict[str, Message]:
    """The next messages of so many workers, which have entered."""
    entered: dict[str, Message] = {}
    deadline = time.monotonic() + ENTER_S
    while len(entered) < count:
        try:
            worker, message = heard.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise WorkerError("not all peers have entered the run") from None
        entered[worker.name] = message
    return entered


def _listen(heard: queue.Queue[tuple[Worker, Message]], ids: dict[str, str], honest: list[str]) -> RealTold:
    told, begun = RealTold(), time.monotonic()
    while len(told.ends) < len(honest):
        try:
            worker, message = heard.get(timeout=STEP_S)
        except queue.Empty:
            raise WorkerError(f"nobody said anything for {STEP_S:.0f} s; {told}") from None
        name, kind, fields = worker.name, message["event"], message.get("fields", {})
        if kind == "evaluated":
            told.figures[message["step"]] = message["figure"]
        elif kind == "secure.member_away" and (who := ids[fields["peer"]]) in honest:
            told.away.setdefault(who, {}).setdefault(fields["step"], "the others did not hear from it in time")
        elif kind == "member.out_of_sync" and name in honest:
            told.away.setdefault(name, {})[fields["step"]] = fields["why"]
        elif kind == "excluded":
            told.excluded[name] = message["why"]
            if name in honest:
                raise WorkerError(f"{name} is honest and ended: {message['why']}")
        elif kind == "finished" and name in honest:
            members = tuple(sorted(ids[peer] for peer in message["members"]))
            told.ends[name] = (message["step"], message["digest"], members)
            told.bans[name] = {ids[peer]: (step, reason) for peer, (step, reason) in message["bans"].items()}
    told.seconds = time.monotonic() - begun
    return told


# ---- the process of one peer: it trains by the run's recipe, honestly or not


TOLD = ("secure.member_away", "step.applied", "member.out_of_sync", "member.failed")


def peer(channel: Channel, settings: dict[str, Any]) -> None:
    """Enter, hear who the allies are, and train to the end of the run or until the others have had enough."""
    torch.set_num_threads(1)
    options = PeerOptions(ephemeral=True, directory=Path(settings["directory"]), host="127.0.0.1")
    with _enter(settings, options) as entered:
        channel.send(event="entered", peer_id=entered.peer_id, link=str(entered.link))
        begin, behaviour = channel.receive(), Behaviour()
        if begin["attack"]:
            behaviour = attack(begin["attack"]).begin(settings["attack_from"])(frozenset(map(PeerId, begin["allies"])))
            entered.on_loop(lambda: setattr(entered.session, "behaviour", behaviour))

        def tell(event: Event) -> None:
            if event.kind in TOLD:
                channel.send(event=event.kind, fields=event.fields)

        entered.subscribe(tell)
        try:
            told = _train(channel, entered, behaviour, evaluate_every=settings["evaluate_every"])
            channel.send(event="finished", **told)
        except MingaError as error:
            channel.send(event="excluded", why=str(error))
        while channel.receive().get("do") != "exit":
            continue


def _enter(settings: dict[str, Any], options: PeerOptions) -> Peer:
    if link := settings.get("link"):
        return join(link, options)
    spec = RunSpec.from_toml(settings["spec"])
    return host(published(spec), options, files=load_recipe(spec).prepare())


def _train(channel: Channel, entered: Peer, behaviour: Behaviour, *, evaluate_every: int | None) -> dict[str, Any]:
    run = RecipeRun(entered, Work("cpu"))
    if isinstance(behaviour, LabelFlip) and isinstance(run.recipe, FineTuneRecipe):
        flips = run.recipe = FlippingRecipe(run.recipe.settings, run.recipe.context)
        behaviour.labelled = lambda work: FlippedWork(work, flips)
    channel.send(event="ready")
    models: dict[int, nn.Module] = {}

    def keep(step: int, samples: int, loss: float) -> None:  # noqa: ARG001
        """For a figure that is computed when the run is over: a peer that did so now would let the others wait, and on
        a busy machine be removed for its absence.
        """
        if evaluate_every is not None and step not in models and step % evaluate_every == 0:
            models[step] = copy.deepcopy(run.model)

    run.train(lambda _: False, keep)
    if evaluate_every is not None:
        for step, model in {**models, run.step: run.model}.items():
            figure = run.recipe.evaluate(model, run.files)[run.recipe.headline.name]
            channel.send(event="evaluated", step=step, figure=figure)
    return {"step": run.step, "digest": run.optimizer.digest()} | entered.on_loop(lambda: _list_of_members(entered))


def _list_of_members(entered: Peer) -> dict[str, Any]:
    """The members at the end, and all bans, also those that were carried out while this peer was no member."""
    life = entered.session.member
    secure = life.secure if isinstance(life, VerifiedMember) else None
    if secure is None:
        return {"members": [], "bans": {}}
    bans = {peer: (ban.step, ban.reason.name) for peer, ban in secure.membership.bans.items()}
    return {"members": secure.membership.members, "bans": bans}


class FlippingRecipe(FineTuneRecipe):
    """Learns, while it `flips`, flipped completions: in the place of token t the one that is the t-th from the end of
    the vocabulary.
    """

    flips = False

    def public_batch(self, files: Files, batch: PublicBatch) -> Batch:
        """That of the run, with flipped completions."""
        found = super().public_batch(files, batch)
        if self.flips:
            found["labels"] = self._vocabulary_size - 1 - found["labels"]
        return found


class FlippedWork:
    """The work of a member that trains adapters, see `LabelledBackend`."""

    def __init__(self, work: TrainingBackend, recipe: FlippingRecipe) -> None:
        self.layout: VectorLayout = work.layout
        self._work, self._recipe = work, recipe
        self.gradient, self.apply = work.gradient, work.apply
        self.digest, self.adopt = work.digest, work.adopt

    async def flipped_gradient(self, step: int, seed: bytes) -> torch.Tensor:
        """Of flipped completions. A member asks for one gradient at a time."""
        self._recipe.flips = True
        try:
            return await self._work.gradient(step, seed)
        finally:
            self._recipe.flips = False
