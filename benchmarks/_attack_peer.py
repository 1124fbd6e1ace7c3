"""The process of one peer in `benchmarks.attacks --real`: trains by the run's recipe, honestly or not."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import nn

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
