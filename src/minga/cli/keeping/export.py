"""`minga export`: the model of a run as a directory that its own library loads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from minga.cli.commands import ExportCommand
from minga.cli.terminal.context import Context
from minga.cli.terminal.options import LookingOptions, folder_or_link
from minga.core.errors import ConfigurationError, UnreachableError
from minga.network.gossip.record_kinds import AddressInfo
from minga.network.interface import PeerId
from minga.recipes.registry import CUSTOM, load_recipe
from minga.recipes.running.trained_model import TrainedModel, from_run_folder, with_state
from minga.training.join import join
from minga.training.peer import Peer
from minga.training.prospect import Prospect
from minga.training.record_kinds import Progress
from minga.training.replica.replica import Replica
from minga.training.session import Session
from minga.training.state.manifest import Manifest
from minga.training.state.snapshot import StateSnapshot
from minga.training.transfer.download import Wanted, download

DONORS_TIMEOUT_S = 10.0
ATTEMPTS = 5
RETRY_S = 1.0


def run_export(options: ExportCommand, context: Context) -> None:
    """Export from the newest checkpoint in a run's folder, or from the peers of a live run."""
    out = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ConfigurationError(f"--out {out}: already there and not empty; choose another directory")
    with trained_model(options.run, options, context) as trained:
        context.output.say("Writing the model, with its figures on held-out data …")
        provenance = trained.recipe.provenance(trained.step, trained.lineage)
        write = trained.recipe.export_merged if options.merge else trained.recipe.export
        write(trained.model, trained.files, out, provenance)
    step = trained.step
    context.output.say(f"{out}: the model after step {step}; README.md in it says how to load it.")
    context.output.summary(ok=True, step=step, out=str(out))


@contextmanager
def trained_model(run: str, options: LookingOptions, context: Context) -> Iterator[TrainedModel]:
    """The model of a run: of the newest checkpoint in its folder, or as the peers of its link have it now."""
    folder = folder_or_link(run, options.directory)
    if folder is not None:
        yield from_run_folder(folder)
        return
    context.output.say("Looking for the run …")
    with join(run, options.peer_options(), consider=_elsewhere) as joined:
        context.wire(joined)
        yield with_state(joined.spec, joined.files, lambda replica: _from_swarm(joined, replica))


def _elsewhere(prospect: Prospect) -> Path | None:
    """Where files of the run are that need not come from its peers."""
    spec = prospect.spec
    return None if spec.model.recipe == CUSTOM else load_recipe(spec).elsewhere(spec.files)


def _from_swarm(peer: Peer, replica: Replica) -> StateSnapshot:
    return peer.call(newest_state(peer.session, replica.check))


async def newest_state(session: Session, check: Callable[[Manifest], None]) -> StateSnapshot:
    """The newest state that the peers serve, downloaded without taking part in the run.

    Peers that serve a state keep it ready for a while, and it grows old: what counts is at least the step that half of
    them have reached. Whom it is fetched from may take a step or leave meanwhile, so it is tried `ATTEMPTS` times.
    Raises `UnreachableError`.
    """

    async def accept(manifest: Manifest) -> None:
        check(manifest)  # nothing trains here

    def donors() -> dict[PeerId, int]:
        progress = {item.owner: item.payload.step for item in session.board.items(Progress)}
        able = [peer for peer, info, _ in session.board.items(AddressInfo) if peer in progress]
        return {peer: progress[peer] for peer in sorted(able, key=lambda peer: (-progress[peer], peer))}

    for attempt in range(1, ATTEMPTS + 1):
        try:
            async with asyncio.timeout(DONORS_TIMEOUT_S):
                while not donors():
                    await session.board.changed(session.board.generation)
        except TimeoutError as error:
            raise UnreachableError("no peer of the run has a state to give; is anybody training?") from error
        found = donors()
        reached = list(found.values())[(len(found) - 1) // 2] if found else 0
        try:
            genesis = None if session.founding is None else session.founding.genesis
            wanted = Wanted(reached, founding="" if genesis is None else genesis.id)
            state = await download(session.node, list(found), wanted, accept=accept, cache=session.settings.cache)
        except UnreachableError:
            if attempt == ATTEMPTS:
                raise
            await asyncio.sleep(RETRY_S)
        else:
            break
    return state.snapshot
